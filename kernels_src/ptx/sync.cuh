// Named barriers, warp synchronisation, register budgets, and dependent launch.
#pragma once

#include "ptx/base.cuh"

namespace dgj::ptx {

DGJ_DEVICE void sync_block() { __syncthreads(); }
DGJ_DEVICE void sync_warp() { __syncwarp(); }

// Barrier `id` (1..15; 0 is sync_block's) over `threads` threads.
DGJ_DEVICE void sync_threads(u32 id, u32 threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Registers per thread of this warpgroup; the sum over the block's warpgroups must stay within what it was
// launched with.
template <u32 kRegisters>
DGJ_DEVICE void raise_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <u32 kRegisters>
DGJ_DEVICE void lower_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// Programmatic dependent launch. wait: every result of the kernels before this one is visible afterwards (at
// once when the launch had no such attribute). launch: the next kernel may start once every block has said
// so.
DGJ_DEVICE void wait_for_prior_kernels() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
DGJ_DEVICE void launch_next_kernel() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

}  // namespace dgj::ptx
