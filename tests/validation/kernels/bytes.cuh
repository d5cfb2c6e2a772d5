// Three bulk copies of at[0], at[1], at[2] bytes from `in` (at offsets at[3..5]), one after the other in
// shared memory. The first is issued before anybody expects its bytes. They go out through a bulk store.
#pragma once

#include "kernels/common.cuh"
#include "ptx/probe.cuh"

DGJ_KERNEL(dgj::kThreads)
dgj_kernel(const DGJ_GRID_CONSTANT dgj::TensorMap x, const DGJ_GRID_CONSTANT dgj::TensorMap y,
           const DGJ_GRID_CONSTANT dgj::ProbeArgs args) {
    using namespace dgj;
    const u32 barrier = one_barrier(3), to = barrier + kData, thread = ptx::thread_index();
    const u32 a = (u32)args.at[0], b = (u32)args.at[1], c = (u32)args.at[2];
    const u8* in = (const u8*)args.in;
    if (thread == 0) {
        ptx::load_bytes(to, in + args.at[3], a, barrier);
        ptx::barrier_expect(barrier, a);
        ptx::barrier_arrive(barrier);
    } else if (thread == 32) {
        ptx::barrier_expect(barrier, b);
        ptx::load_bytes(to + a, in + args.at[4], b, barrier);
        ptx::barrier_arrive(barrier);
    } else if (thread == 64) {
        ptx::barrier_arrive_expect(barrier, c);
        ptx::load_bytes(to + a + b, in + args.at[5], c, barrier);
    }
    ptx::barrier_wait(barrier, 0);
    if (thread != 0) return;
    if constexpr (kReduce != 0) probe::add_bytes(args.out, to, a + b + c);
    else probe::store_bytes(args.out, to, a + b + c);
    ptx::commit_stores();
    ptx::wait_stores_done();
}
