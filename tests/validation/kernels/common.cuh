// What the micro-kernels share. Each is one entry dgj_kernel(map x, map y, ProbeArgs) of kThreads threads.
// Shared memory: barriers in the first kData bytes, data from there.
#pragma once

#include "ptx/base.cuh"
#include "ptx/convert.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/memory.cuh"
#include "ptx/sync.cuh"
#include "ptx/tma.cuh"

namespace dgj {

struct ProbeArgs {
    const void* in;
    void* out;
    i32 at[12];  // what differs between cases of one kernel
};

constexpr u32 kData = 1024;

// One barrier for one arrival at the base of shared memory, ready for copies.
DGJ_DEVICE u32 one_barrier(u32 arrivals) {
    const u32 base = ptx::shared_base();
    if (ptx::thread_index() == 0) {
        ptx::barrier_init(base, arrivals);
        ptx::fence_barrier_init();
    }
    ptx::wait_for_prior_kernels();
    ptx::sync_block();
    return base;
}

// Shared memory as it lies there; from and bytes are multiples of 16.
DGJ_DEVICE void dump(void* out, u32 from, u32 bytes) {
    for (u32 i = ptx::thread_index() * 16; i < bytes; i += kThreads * 16) {
        const Float4 v = ptx::load_shared4(from + i);
        ptx::store_global_word4((u8*)out + i,
                                {ptx::to_bits(v.x), ptx::to_bits(v.y), ptx::to_bits(v.z), ptx::to_bits(v.w)});
    }
}

// Global to shared memory by plain accesses, without a barrier after it.
DGJ_DEVICE void fill(u32 to, const void* in, u32 bytes) {
    for (u32 i = ptx::thread_index() * 4; i < bytes; i += kThreads * 4)
        ptx::store_shared_u32(to + i, ptx::load_global_u32((const u8*)in + i));
}

}  // namespace dgj
