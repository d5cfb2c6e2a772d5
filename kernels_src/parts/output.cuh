// The last step of every kernel: value -> alpha * value + bias + c in FP32, rounded once to D's dtype. One
// order of the operations everywhere, so that every kernel family gives the same bits. `Output` (kF32, kF16,
// kBF16) comes with the plan.
#pragma once

#include "parts/gemm_args.cuh"
#include "ptx/base.cuh"
#include "ptx/convert.cuh"
#include "ptx/memory.cuh"

namespace dgj {

template <Output kType>
struct OutputType {
    static constexpr u32 kBytes = kType == Output::kF32 ? 4 : 2;

    // Two neighbours of a 16-bit row, the first in the low half.
    DGJ_DEVICE static u32 pack(float low, float high) {
        return kType == Output::kF16 ? ptx::pack_f16(low, high) : ptx::pack_bf16(low, high);
    }
    DGJ_DEVICE static float unpack(u16 bits) {
        return kType == Output::kF16 ? ptx::from_f16(bits) : ptx::from_bf16(bits);
    }
    // Element `i` of c, or of a bias in D's dtype.
    DGJ_DEVICE static float load(const void* p, i64 i) {
        if constexpr (kType == Output::kF32) return ptx::load_global((const float*)p + i);
        else return unpack(ptx::load_global_u16((const u16*)p + i));
    }
    // Elements i and i + 1; i is even and the row aligned.
    DGJ_DEVICE static Float2 load2(const void* p, i64 i) {
        if constexpr (kType == Output::kF32) return ptx::load_global2((const float*)p + i);
        const u32 pair = ptx::load_global_u32((const u16*)p + i);
        return {unpack((u16)pair), unpack((u16)(pair >> 16))};
    }
};

template <Output kType>
DGJ_DEVICE float load_bias(const GemmArgs& args, u32 column) {
    if (args.bias_is_f32) return ptx::load_global((const float*)args.bias + column);
    return OutputType<kType>::load(args.bias, column);
}

// `bias` and `c` count only where the call has them: adding an absent one as zero would turn -0 into +0.
template <Output kType>
DGJ_DEVICE float finish(const GemmArgs& args, float value, u32 row, u32 column) {
    value = ptx::mul(value, args.alpha);
    if (args.bias != nullptr) value = ptx::add(value, load_bias<kType>(args, column));
    if (args.c != nullptr)
        value = ptx::add(value, OutputType<kType>::load(args.c, (i64)row * args.ldc + column));
    return value;
}

}  // namespace dgj
