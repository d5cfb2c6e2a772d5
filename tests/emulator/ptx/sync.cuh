// Named barriers, warp synchronisation, register budgets, and dependent launch.
#pragma once

#include "ptx/base.cuh"

namespace dgj::ptx {

DGJ_DEVICE void sync_block(Where w = {}) { emu::sync_block(w); }
DGJ_DEVICE void sync_warp(Where w = {}) { emu::sync_warp(w); }
DGJ_DEVICE void sync_threads(u32 id, u32 threads, Where w = {}) { emu::sync_threads(id, threads, w); }

template <u32 kRegisters>
DGJ_DEVICE void raise_registers(Where w = {}) {
    emu::set_registers(kRegisters, true, w);
}
template <u32 kRegisters>
DGJ_DEVICE void lower_registers(Where w = {}) {
    emu::set_registers(kRegisters, false, w);
}

DGJ_DEVICE void wait_for_prior_kernels(Where w = {}) { emu::wait_for_prior_kernels(w); }
DGJ_DEVICE void launch_next_kernel(Where w = {}) { emu::launch_next_kernel(w); }

}  // namespace dgj::ptx
