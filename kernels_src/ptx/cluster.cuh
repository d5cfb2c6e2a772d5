// Clusters: this block's rank, and a barrier over all threads of all blocks.
#pragma once

#include "ptx/base.cuh"

namespace dgj::ptx {

DGJ_DEVICE u32 cluster_rank() {
    u32 rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
DGJ_DEVICE void sync_cluster() {
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

}  // namespace dgj::ptx
