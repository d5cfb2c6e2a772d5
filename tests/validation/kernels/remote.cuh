// Each block of the cluster writes a word a thread to its neighbour's shared memory and hands them over by an
// arrive of cluster scope; then each reads its other neighbour's copy. at[0]: rank of the neighbour, added.
#pragma once

#include "kernels/common.cuh"
#include "ptx/cluster.cuh"
#include "ptx/probe.cuh"

DGJ_KERNEL(dgj::kThreads)
dgj_kernel(const DGJ_GRID_CONSTANT dgj::TensorMap x, const DGJ_GRID_CONSTANT dgj::TensorMap y,
           const DGJ_GRID_CONSTANT dgj::ProbeArgs args) {
    using namespace dgj;
    const u32 barrier = one_barrier(kThreads), to = barrier + kData, thread = ptx::thread_index();
    const u32 rank = ptx::cluster_rank(), neighbour = (rank + (u32)args.at[0]) % kCluster;
    const u32 v = ptx::load_global_u32((const u32*)args.in + rank * kThreads + thread);
    ptx::sync_cluster();
    probe::remote_store(to + 4 * thread, neighbour, v);
    probe::remote_arrive_release(barrier, neighbour);
    probe::wait_acquire_cluster(barrier, 0);
    const u32 own = ptx::to_bits(ptx::load_shared(to + 4 * ((thread * 5 + 1) % kThreads)));
    ptx::sync_cluster();
    const u32 far = probe::remote_load(to + 4 * ((thread + 77) % kThreads), neighbour);
    ptx::store_global2((u32*)args.out + (rank * kThreads + thread) * 2, ptx::from_bits(own),
                       ptx::from_bits(far));
    ptx::sync_cluster();
}
