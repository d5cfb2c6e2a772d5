// Warpgroup matrix multiply: descriptors and ordering. The instruction of one exact N is generated into
// ptx/wgmma_n<N>.cuh and ptx/sums_n<N>.cuh, 64 x N += 64 x 32 * (N x 32)^T:
//   void wgmma_e4m3(float (&d)[N / 2], u64 a, u64 b, u32 accumulate)
//   void wgmma_e4m3(Sums<N / 2, 0 or 1>& d, u64 a, u64 b, u32 accumulate)
#pragma once

#include "ptx/base.cuh"

namespace dgj::ptx {

// Shared-memory matrix descriptor, K-major with the 128-byte swizzle (PTX ISA, "Matrix descriptor"): bits
// 0-13 address / 16, 16-29 leading offset (unused in this mode, 1), 32-45 stride between groups of 8 rows =
// 1024 bytes / 16, 62-63 swizzle = 1. One k step of 32 bytes adds 2 to the address field.
DGJ_DEVICE u64 matrix_descriptor(u32 shared) {
    return (u64)((shared & 0x3FFFF) >> 4) | (1ull << 16) | (64ull << 32) | (1ull << 62);
}

// The same value, but what is computed from it stays behind this point: without it every descriptor of an
// unrolled loop is made before the loop and takes two registers.
DGJ_DEVICE u64 recompute_from(u64 descriptor) {
    asm volatile("" : "+l"(descriptor));
    return descriptor;
}

// The descriptor of what stands `offset` / 16 bytes behind. Computed here and in 32 bits: the address does
// not carry into the other fields.
DGJ_DEVICE u64 offset_descriptor(u64 descriptor, u32 offset) {
    asm volatile(
        "{\n.reg .b32 low, high;\nmov.b64 {low, high}, %0;\nadd.u32 low, low, %1;\n"
        "mov.b64 %0, {low, high};\n}"
        : "+l"(descriptor)
        : "r"(offset));
    return descriptor;
}

DGJ_DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DGJ_DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <u32 kPending>
DGJ_DEVICE void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Accumulators that have a name in PTX and are no values for NVVM, whose time for a statement grows faster
// than its operands. Every statement that writes or reads them is volatile: they stay in order without pins.
// A kernel names both sets of kCount registers once, where it starts.
template <u32 kCount, u32 kSet>
struct Sums {};
template <u32 kCount>
DGJ_DEVICE void name_sums() {
    asm volatile(".reg .f32 dgj_sum%0_<%1>;" ::"n"(kCount), "n"(2 * kCount));
}
// to[k] += (k % 4 < 2 ? low : high) * sums[kFirst + k] for k of 0 to 7.
template <u32 kFirst, u32 kCount, u32 kSet>
DGJ_DEVICE void add_sums(float* to, const Sums<kCount, kSet>&, float low, float high) {
    constexpr u32 kAt = kSet * kCount + kFirst;
    asm volatile(
        "fma.rn.f32 %0, %8, dgj_sum%10_%11, %0;\n"
        "fma.rn.f32 %1, %8, dgj_sum%10_%12, %1;\n"
        "fma.rn.f32 %2, %9, dgj_sum%10_%13, %2;\n"
        "fma.rn.f32 %3, %9, dgj_sum%10_%14, %3;\n"
        "fma.rn.f32 %4, %8, dgj_sum%10_%15, %4;\n"
        "fma.rn.f32 %5, %8, dgj_sum%10_%16, %5;\n"
        "fma.rn.f32 %6, %9, dgj_sum%10_%17, %6;\n"
        "fma.rn.f32 %7, %9, dgj_sum%10_%18, %7;\n"
        : "+f"(to[0]), "+f"(to[1]), "+f"(to[2]), "+f"(to[3]), "+f"(to[4]), "+f"(to[5]), "+f"(to[6]),
          "+f"(to[7])
        : "f"(low), "f"(high), "n"(kCount), "n"(kAt + 0), "n"(kAt + 1), "n"(kAt + 2), "n"(kAt + 3),
          "n"(kAt + 4), "n"(kAt + 5), "n"(kAt + 6), "n"(kAt + 7));
}

// Ties accumulator registers to this point of the program: not read or moved across it by the compiler. Four
// in a statement, since every statement costs the compiler time.
template <u32 kCount>
DGJ_DEVICE void pin_registers(float (&r)[kCount]) {
    static_assert(kCount % 4 == 0, "N of WGMMA is a multiple of 8");
    DGJ_UNROLL
    for (u32 i = 0; i < kCount; i += 4)
        asm volatile("" : "+f"(r[i]), "+f"(r[i + 1]), "+f"(r[i + 2]), "+f"(r[i + 3])::"memory");
}

}  // namespace dgj::ptx
