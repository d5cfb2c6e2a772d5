// Clusters: this block's rank, and a barrier over all threads of all blocks.
#pragma once

#include "ptx/base.cuh"

namespace dgj::ptx {

DGJ_DEVICE u32 cluster_rank() { return emu::place().rank; }
DGJ_DEVICE void sync_cluster(Where w = {}) { emu::sync_cluster(w); }

}  // namespace dgj::ptx
