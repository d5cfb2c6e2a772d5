// Each block of the cluster fetches its part of a box and sends it to the blocks of its mask (at[2 + rank]);
// parts that nobody sends keep what `in` had there. at[1]: bytes of a part. Everything goes out.
#pragma once

#include "kernels/common.cuh"
#include "ptx/cluster.cuh"

DGJ_KERNEL(dgj::kThreads)
dgj_kernel(const DGJ_GRID_CONSTANT dgj::TensorMap x, const DGJ_GRID_CONSTANT dgj::TensorMap y,
           const DGJ_GRID_CONSTANT dgj::ProbeArgs args) {
    using namespace dgj;
    const u32 barrier = one_barrier(1), to = barrier + kData, rank = ptx::cluster_rank();
    const u32 part = (u32)args.at[1];
    fill(to, args.in, kCluster * part);
    ptx::fence_async_shared();
    ptx::sync_cluster();
    if (ptx::thread_index() == 0) {
        u32 parts = 0;
        for (u32 r = 0; r < kCluster; r++) parts += (u32)args.at[2 + r] >> rank & 1;
        ptx::barrier_arrive_expect(barrier, parts * part);
        if (args.at[2 + rank] != 0)
            ptx::load_tile_multicast(to + rank * part, &x, args.at[0], (i32)(rank * part / 128), barrier,
                                     (u16)args.at[2 + rank]);
    }
    ptx::barrier_wait(barrier, 0);
    dump((u8*)args.out + ptx::block_index() * kCluster * part, to, kCluster * part);
    ptx::sync_cluster();
}
