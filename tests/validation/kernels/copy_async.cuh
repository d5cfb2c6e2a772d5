// Four bytes a thread and round, of which those whose bit of `in`'s first word is clear are zero-filled.
#pragma once

#include "kernels/common.cuh"

DGJ_KERNEL(dgj::kThreads)
dgj_kernel(const DGJ_GRID_CONSTANT dgj::TensorMap x, const DGJ_GRID_CONSTANT dgj::TensorMap y,
           const DGJ_GRID_CONSTANT dgj::ProbeArgs args) {
    using namespace dgj;
    const u32 barrier = one_barrier(kThreads), to = barrier + kData, thread = ptx::thread_index();
    const u32 rounds = (u32)args.at[0], valid = ptx::load_global_u32(args.in);
    for (u32 r = 0; r < rounds; r++) {
        const u32 i = r * kThreads + thread;
        ptx::copy_async4(to + i * 4, (const u8*)args.in + 4 + i * 4, (valid >> (i * 7 + r) % 32 & 1) != 0);
    }
    ptx::barrier_arrive_after_copies(barrier);
    ptx::barrier_wait(barrier, 0);
    dump(args.out, to, rounds * kThreads * 4);
}
