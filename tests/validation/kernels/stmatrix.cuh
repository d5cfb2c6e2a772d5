// Four words of `in` a thread by stmatrix; row r of matrix i goes to 16-byte chunk in[4 * kThreads + i * 8 +
// r].
#pragma once

#include "kernels/common.cuh"

DGJ_KERNEL(dgj::kThreads)
dgj_kernel(const DGJ_GRID_CONSTANT dgj::TensorMap x, const DGJ_GRID_CONSTANT dgj::TensorMap y,
           const DGJ_GRID_CONSTANT dgj::ProbeArgs args) {
    using namespace dgj;
    const u32 to = one_barrier(1) + kData + ptx::warp_index() * 512, thread = ptx::thread_index();
    const u32* in = (const u32*)args.in;
    const Word4 v = ptx::load_global_word4(in + thread * 4);
    const u32 chunk = ptx::load_global_u32(in + 4 * kThreads + ptx::lane_index());
    ptx::store_matrix4(to + chunk * 16, v.x, v.y, v.z, v.w);
    ptx::sync_block();
    dump(args.out, ptx::shared_base() + kData, kThreads * 16);
}
