// Memory barriers in shared memory: phases, arrivals, and bytes still to come.
#pragma once

#include "ptx/base.cuh"

namespace dgj::ptx {

DGJ_DEVICE void barrier_init(u32 barrier, u32 arrivals, Where w = {}) {
    emu::barrier_init(barrier, arrivals, w);
}
DGJ_DEVICE void fence_barrier_init(Where w = {}) { emu::fence_barrier_init(w); }
DGJ_DEVICE void barrier_wait(u32 barrier, u32 parity, Where w = {}) { emu::barrier_wait(barrier, parity, w); }
DGJ_DEVICE bool barrier_test(u32 barrier, u32 parity, Where w = {}) {
    return emu::barrier_test(barrier, parity, w);
}
DGJ_DEVICE void barrier_arrive(u32 barrier, Where w = {}) {
    emu::barrier_arrive(barrier, emu::place().rank, w);
}
DGJ_DEVICE void barrier_arrive_if(bool condition, u32 barrier, Where w = {}) {
    if (condition) emu::barrier_arrive(barrier, emu::place().rank, w);
}
DGJ_DEVICE void barrier_arrive_remote(u32 barrier, u32 rank, Where w = {}) {
    emu::barrier_arrive(barrier, rank, w);
}
DGJ_DEVICE void barrier_arrive_expect(u32 barrier, u32 bytes, Where w = {}) {
    emu::barrier_arrive_expect(barrier, bytes, w);
}
DGJ_DEVICE void barrier_expect(u32 barrier, u32 bytes, Where w = {}) {
    emu::barrier_expect(barrier, bytes, w);
}
DGJ_DEVICE void barrier_arrive_after_copies(u32 barrier, Where w = {}) {
    emu::barrier_arrive_after_copies(barrier, w);
}

}  // namespace dgj::ptx
