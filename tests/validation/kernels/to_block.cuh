// Every block sends at[0] bytes to each other block of its cluster, which puts them at the place of the
// sender's rank; thread 32 also gives a sign to each by a remote arrive. What was received goes out.
#pragma once

#include "kernels/common.cuh"
#include "ptx/cluster.cuh"

DGJ_KERNEL(dgj::kThreads)
dgj_kernel(const DGJ_GRID_CONSTANT dgj::TensorMap x, const DGJ_GRID_CONSTANT dgj::TensorMap y,
           const DGJ_GRID_CONSTANT dgj::ProbeArgs args) {
    using namespace dgj;
    const u32 barrier = one_barrier(kCluster), rank = ptx::cluster_rank(), bytes = (u32)args.at[0];
    const u32 own = barrier + kData, received = own + bytes, thread = ptx::thread_index();
    fill(own, (const u8*)args.in + rank * bytes, bytes);
    fill(received + rank * bytes, (const u8*)args.in + rank * bytes, bytes);
    ptx::fence_async_shared();
    ptx::sync_cluster();
    if (thread == 0) {
        ptx::barrier_arrive_expect(barrier, (kCluster - 1) * bytes);
        for (u32 i = 1; i < kCluster; i++)
            ptx::copy_to_block(received + rank * bytes, own, bytes, barrier, (rank + i) % kCluster);
    } else if (thread == 32) {
        for (u32 i = 1; i < kCluster; i++) ptx::barrier_arrive_remote(barrier, (rank + i) % kCluster);
    }
    ptx::barrier_wait(barrier, 0);
    dump((u8*)args.out + rank * kCluster * bytes, received, kCluster * bytes);
    ptx::sync_cluster();
}
