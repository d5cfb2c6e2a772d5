// at[5] bytes of `in` to shared memory by plain stores, and from there as a box of map x at at[0..kRank).
// kReduce: added to what is there.
#pragma once

#include "kernels/common.cuh"
#include "ptx/probe.cuh"

DGJ_KERNEL(dgj::kThreads)
dgj_kernel(const DGJ_GRID_CONSTANT dgj::TensorMap x, const DGJ_GRID_CONSTANT dgj::TensorMap y,
           const DGJ_GRID_CONSTANT dgj::ProbeArgs args) {
    using namespace dgj;
    const u32 from = one_barrier(1) + kData;
    fill(from, args.in, (u32)args.at[5]);
    ptx::fence_async_shared();
    ptx::sync_block();
    if (ptx::thread_index() != 0) return;
    const probe::Place at = {args.at[0], args.at[1], args.at[2], args.at[3], args.at[4]};
    if constexpr (kReduce != 0) probe::add_tile(&x, from, args.at[0], args.at[1]);
    else if constexpr (kRank == 2) ptx::store_tile(&x, from, args.at[0], args.at[1]);
    else probe::store_tile<kRank>(&x, from, at);
    ptx::commit_stores();
    ptx::wait_stores_done();
}
