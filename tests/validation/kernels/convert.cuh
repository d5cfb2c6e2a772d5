// Arithmetic and conversions on at[0] triples of words; kResults words each go out.
#pragma once

#include "kernels/common.cuh"
#include "ptx/cast.cuh"

DGJ_KERNEL(dgj::kThreads)
dgj_kernel(const DGJ_GRID_CONSTANT dgj::TensorMap x, const DGJ_GRID_CONSTANT dgj::TensorMap y,
           const DGJ_GRID_CONSTANT dgj::ProbeArgs args) {
    using namespace dgj;
    ptx::wait_for_prior_kernels();
    const u32 i = ptx::block_index() * kThreads + ptx::thread_index();
    if (i >= (u32)args.at[0]) return;
    const u32* in = (const u32*)args.in + i * 3;
    const u32 ua = ptx::load_global_u32(in), ub = ptx::load_global_u32(in + 1),
              uc = ptx::load_global_u32(in + 2);
    const float a = ptx::from_bits(ua), b = ptx::from_bits(ub), c = ptx::from_bits(uc);
    u32* out = (u32*)args.out + i * 16;
    ptx::store_global_word4(out, {ptx::to_bits(ptx::fma(a, b, c)), ptx::to_bits(ptx::mul(a, b)),
                                  ptx::to_bits(ptx::add(a, b)), ptx::to_bits(ptx::div(a, b))});
    ptx::store_global_word4(out + 4, {ptx::to_bits(ptx::reciprocal(a)), ptx::pack_bf16(a, b),
                                      ptx::pack_f16(a, b), ptx::pack_e4m3(a, b)});
    ptx::store_global_word4(out + 8,
                            {ptx::to_bits(ptx::from_bf16((u16)uc)), ptx::to_bits(ptx::from_f16((u16)uc)),
                             ptx::max_u16x2(ua, ub), ptx::max_u32(ua, ub)});
    ptx::store_global_word4(out + 12,
                            {ptx::mul_shift(ua >> 1, ub, 31 + ub % 20), ptx::to_bits(ptx::max(a, c)),
                             ptx::pack_bf16(b, c), ptx::pack_f16(b, c)});
}
