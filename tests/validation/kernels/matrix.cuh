// kCount 8x8 matrices: four words of `in` a thread to shared memory by stmatrix, and back by ldmatrix at
// other rows; shared memory and the words go out. at[0], at[1]: row r of the warp is chunk (r * at[0] +
// at[1]) % 32.
#pragma once

#include "kernels/common.cuh"
#include "ptx/probe.cuh"

DGJ_KERNEL(dgj::kThreads)
dgj_kernel(const DGJ_GRID_CONSTANT dgj::TensorMap x, const DGJ_GRID_CONSTANT dgj::TensorMap y,
           const DGJ_GRID_CONSTANT dgj::ProbeArgs args) {
    using namespace dgj;
    const u32 to = one_barrier(1) + kData + ptx::warp_index() * 512, thread = ptx::thread_index();
    const u32 lane = ptx::lane_index();
    fill(to - ptx::warp_index() * 512, args.in, kThreads * 16);
    ptx::sync_block();
    const Word4 v = ptx::load_global_word4((const u32*)args.in + thread * 4);
    const u32 words[4] = {v.x, v.y, v.z, v.w};
    probe::store_matrix<kCount, kTransposed != 0>(to + (lane * (u32)args.at[0] + (u32)args.at[1]) % 32 * 16,
                                                  words);
    ptx::sync_block();
    u32 read[4] = {0, 0, 0, 0};
    probe::load_matrix<kCount, kTransposed != 0>(read, to + (lane * 5 + 3) % 32 * 16);
    ptx::store_global_word4((u32*)args.out + thread * 4, {read[0], read[1], read[2], read[3]});
    dump((u8*)args.out + kThreads * 16, to - ptx::warp_index() * 512, kThreads * 16);
}
