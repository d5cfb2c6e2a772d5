// Atomics of all threads on the same words of shared and of global memory. What depends on their order does
// not go out: of additions of one, the set of old values; of exchanges, their sum.
#pragma once

#include "kernels/common.cuh"
#include "ptx/probe.cuh"

DGJ_KERNEL(dgj::kThreads)
dgj_kernel(const DGJ_GRID_CONSTANT dgj::TensorMap x, const DGJ_GRID_CONSTANT dgj::TensorMap y,
           const DGJ_GRID_CONSTANT dgj::ProbeArgs args) {
    using namespace dgj;
    const u32 words = one_barrier(1) + kData, thread = ptx::thread_index();
    if (thread < 16)
        ptx::store_shared_u32(words + 4 * thread, thread == 3 ? 0x80000000u : thread == 4 ? ~0u : 100);
    ptx::sync_block();
    const u32 v = ptx::load_global_u32((const u32*)args.in + thread);
    u32* out = (u32*)args.out;
    const u32 old = probe::shared_add(words, 1);
    if (ptx::block_index() == 0)
        ptx::store_global2(out + 64 + 2 * (old - 100), ptx::from_bits(old), ptx::from_bits(1));
    probe::shared_red_add(words + 4, v);
    probe::shared_min(words + 8, v);
    probe::shared_max(words + 12, v);
    probe::shared_and(words + 16, v | 0xff0);
    probe::shared_or(words + 20, v & 0xff00ff);
    probe::shared_xor(words + 24, v);
    probe::shared_red_add(words + 32, probe::shared_exch(words + 28, v));
    for (u32 seen = 100, now; (now = probe::shared_cas(words + 36, seen, seen + 3)) != seen; seen = now) {
    }
    // A message from thread 0, behind a release, to a thread of another warp, that acquires.
    if (thread == 0) {
        ptx::store_shared_u32(words + 48, v);
        probe::shared_add_release(words + 40, 1);
    } else if (thread == 64) {
        while (probe::shared_read_acquire(words + 40) != 101) {
        }
        ptx::store_shared_u32(words + 44, ptx::to_bits(ptx::load_shared(words + 48)) + 1);
    }
    probe::global_add(out, v);
    probe::global_add64((u64*)(out + 2), (u64)v << 20);
    probe::global_max(out + 4, v);
    probe::global_red_add((float*)out + 5, (float)(v % 1024));
    ptx::sync_block();
    if (thread == 0) {
        probe::shared_add(words + 28,
                          probe::shared_exch(words + 32, 0));  // the last value and all the others
    }
    ptx::sync_block();
    if (ptx::block_index() == 0) dump(out + 8, words, 64);
}
