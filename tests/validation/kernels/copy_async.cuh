// kBytes a thread and round, of which those whose bit of `in`'s first word is clear are zero-filled; of 8 and
// 16, some come in part.
#pragma once

#include "kernels/common.cuh"
#include "ptx/probe.cuh"

DGJ_KERNEL(dgj::kThreads)
dgj_kernel(const DGJ_GRID_CONSTANT dgj::TensorMap x, const DGJ_GRID_CONSTANT dgj::TensorMap y,
           const DGJ_GRID_CONSTANT dgj::ProbeArgs args) {
    using namespace dgj;
    const u32 barrier = one_barrier(kThreads), to = barrier + kData, thread = ptx::thread_index();
    const u32 rounds = (u32)args.at[0], valid = ptx::load_global_u32(args.in);
    for (u32 r = 0; r < rounds; r++) {
        const u32 i = r * kThreads + thread;
        const bool whole = (valid >> (i * 7 + r) % 32 & 1) != 0;
        const u8* from = (const u8*)args.in + 16 + i * kBytes;
        if constexpr (kBytes == 4) ptx::copy_async4(to + i * 4, from, whole);
        else probe::copy_async<kBytes>(to + i * kBytes, from, whole ? kBytes : i % kBytes / 4 * 4);
    }
    ptx::barrier_arrive_after_copies(barrier);
    ptx::barrier_wait(barrier, 0);
    dump(args.out, to, rounds * kThreads * kBytes);
}
