// One form of wgmma: types, layouts of the operands in shared memory (at[0..9]), or A in registers (`in`).
//   A: at[0] boxes of at[4] bytes from map x at (i * at[1], 0), one after the other
//   B: at[2] boxes of at[5] bytes from map y at (i * at[3], 0)
//   at[6], at[7]: leading and stride byte offsets of A; at[8], at[9]: of B; at[10]: bytes from step to step
#pragma once

#include "kernels/common.cuh"
#include "ptx/probe.cuh"
#include "ptx/wgmma.cuh"

namespace dgj {

template <bool kFromRegisters, class T, u32 kCount>
DGJ_DEVICE void multiply(T (&d)[kCount], u64 a, const u32 (&fragment)[4], u64 b, u64 advance) {
    if constexpr (kFromRegisters) {
        probe::wgmma<kTypeA, kTypeB, kMnMajorA, kMnMajorB>(d, fragment, b, 0);
    } else {
        DGJ_UNROLL
        for (u32 k = 0; k < kSteps; k++)
            probe::wgmma<kTypeA, kTypeB, kMnMajorA, kMnMajorB>(d, a + k * advance, b + k * advance, k != 0);
    }
}

}  // namespace dgj

DGJ_KERNEL(dgj::kThreads)
dgj_kernel(const DGJ_GRID_CONSTANT dgj::TensorMap x, const DGJ_GRID_CONSTANT dgj::TensorMap y,
           const DGJ_GRID_CONSTANT dgj::ProbeArgs args) {
    using namespace dgj;
    using Accumulator = probe::AccumulatorOf<kIntegers != 0>::Type;
    const u32 barrier = one_barrier(1), a = barrier + kData, b = a + 8192, thread = ptx::thread_index();
    const u32 boxes_a = (u32)args.at[0], boxes_b = (u32)args.at[2];
    if (thread == 0) {
        ptx::barrier_arrive_expect(barrier, boxes_a * (u32)args.at[4] + boxes_b * (u32)args.at[5]);
        for (u32 i = 0; i < boxes_a; i++)
            ptx::load_tile(a + i * (u32)args.at[4], &x, (i32)i * args.at[1], 0, barrier);
        for (u32 i = 0; i < boxes_b; i++)
            ptx::load_tile(b + i * (u32)args.at[5], &y, (i32)i * args.at[3], 0, barrier);
    }
    const u64 da = probe::descriptor(a, (u32)args.at[6], (u32)args.at[7], kSwizzleA);
    const u64 db = probe::descriptor(b, (u32)args.at[8], (u32)args.at[9], kSwizzleB);
    Accumulator d[kN / 2];
    for (u32 i = 0; i < kN / 2; i++) d[i] = 0;
    u32 fragment[4] = {0, 0, 0, 0};
    if constexpr (kRegistersA != 0) {
        const Word4 v = ptx::load_global_word4((const u32*)args.in + thread * 4);
        fragment[0] = v.x, fragment[1] = v.y, fragment[2] = v.z, fragment[3] = v.w;
    }
    ptx::barrier_wait(barrier, 0);
    ptx::wgmma_fence();
    multiply<kRegistersA != 0>(d, da, fragment, db, (u64)args.at[10] >> 4);
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    Accumulator* out = (Accumulator*)args.out + thread * (kN / 2);
    for (u32 i = 0; i < kN / 2; i += 2)
        ptx::store_global2(out + i, probe::bits_as_float(d[i]), probe::bits_as_float(d[i + 1]));
}
