// One box of map x at at[0..kRank) to shared memory at offset at[6]; its at[5] bytes go out as they lie.
#pragma once

#include "kernels/common.cuh"
#include "ptx/probe.cuh"

DGJ_KERNEL(dgj::kThreads)
dgj_kernel(const DGJ_GRID_CONSTANT dgj::TensorMap x, const DGJ_GRID_CONSTANT dgj::TensorMap y,
           const DGJ_GRID_CONSTANT dgj::ProbeArgs args) {
    using namespace dgj;
    const u32 barrier = one_barrier(1), to = barrier + kData + (u32)args.at[6];
    if (ptx::thread_index() == 0) {
        ptx::barrier_arrive_expect(barrier, (u32)args.at[5]);
        if constexpr (kRank == 2) ptx::load_tile(to, &x, args.at[0], args.at[1], barrier);
        else
            probe::load_tile<kRank>(to, &x, {args.at[0], args.at[1], args.at[2], args.at[3], args.at[4]},
                                    barrier);
    }
    ptx::barrier_wait(barrier, 0);
    dump(args.out, to, (u32)args.at[5]);
}
