// d = (at[0] != 0 ? `in` : 0) + A * B^T over kSteps instructions of 32 of K: the fragments of each thread.
// A: 64 rows of map x for each block, B: the kN rows of map y.
#pragma once

#include "kernels/common.cuh"
#include "ptx/wgmma.cuh"

DGJ_KERNEL(dgj::kThreads)
dgj_kernel(const DGJ_GRID_CONSTANT dgj::TensorMap x, const DGJ_GRID_CONSTANT dgj::TensorMap y,
           const DGJ_GRID_CONSTANT dgj::ProbeArgs args) {
    using namespace dgj;
    const u32 barrier = one_barrier(1), a = barrier + kData, b = a + 64 * 128;
    const u32 block = ptx::block_index();
    if (ptx::thread_index() == 0) {
        ptx::barrier_arrive_expect(barrier, (64 + kN) * 128);
        ptx::load_tile(a, &x, 0, (i32)block * 64, barrier);
        ptx::load_tile(b, &y, 0, 0, barrier);
    }
    const u64 first = ((u64)block * kThreads + ptx::thread_index()) * (kN / 2);
    float d[kN / 2];
    for (u32 i = 0; i < kN / 2; i++)
        d[i] = args.at[0] != 0 ? ptx::load_global((const float*)args.in + first + i) : 0.0f;
    ptx::barrier_wait(barrier, 0);
    ptx::pin_registers(d);
    ptx::wgmma_fence();
    DGJ_UNROLL
    for (u32 k = 0; k < kSteps; k++)
        ptx::wgmma_e4m3(d, ptx::matrix_descriptor(a) + 2 * k, ptx::matrix_descriptor(b) + 2 * k,
                        k != 0 || args.at[0] != 0);
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::pin_registers(d);
    for (u32 i = 0; i < kN / 2; i += 2) ptx::store_global2((float*)args.out + first + i, d[i], d[i + 1]);
}
