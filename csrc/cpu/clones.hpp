// DGJ_CPU_CLONES: one source function, compiled once per instruction set; the loader picks at start. All
// clones give the same bits, because the loops fix the order of every sum and no multiplication is fused with
// an addition.
#pragma once

#if !defined(DGJ_CPU_CLONES)
#if defined(__x86_64__) && defined(__linux__) && __has_attribute(target_clones)
#define DGJ_CPU_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define DGJ_CPU_CLONES
#endif
#endif

#define DGJ_INLINE inline __attribute__((always_inline))
