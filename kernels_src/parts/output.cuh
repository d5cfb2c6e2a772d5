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
    static constexpr u32 kValues = 16 / kBytes;  // that one lane finishes and stores at a time
    static constexpr u32 kNone = kBytes == 4 ? 0x80000000u : 0x80008000u;  // -0, see finish

    // Two neighbours of a 16-bit row, the first in the low half.
    DGJ_DEVICE static u32 pack(float low, float high) {
        return kType == Output::kF16 ? ptx::pack_f16(low, high) : ptx::pack_bf16(low, high);
    }
    DGJ_DEVICE static void unpack(Word4 row, float (&v)[kValues]) {
        const u32 words[4] = {row.x, row.y, row.z, row.w};
        DGJ_UNROLL
        for (u32 i = 0; i < 4; i++) {
            if constexpr (kType == Output::kF32) {
                v[i] = ptx::from_bits(words[i]);
            } else {
                const Float2 two = kType == Output::kF16 ? ptx::from_f16x2(words[i])
                                                         : ptx::from_bf16x2(words[i]);
                v[2 * i] = two.x, v[2 * i + 1] = two.y;
            }
        }
    }
    // Elements of the bias from `column` on.
    template <u32 kCount>
    DGJ_DEVICE static void load_bias(const GemmArgs& args, u32 column, float (&bias)[kCount]) {
        if (args.bias == nullptr) {
            DGJ_UNROLL
            for (u32 i = 0; i < kCount; i++) bias[i] = ptx::from_bits(0x80000000u);
        } else if (kType == Output::kF32 || args.bias_is_f32) {
            DGJ_UNROLL
            for (u32 i = 0; i < kCount; i++) bias[i] = ptx::load_global((const float*)args.bias + column + i);
        } else {
            DGJ_UNROLL
            for (u32 i = 0; i < kCount; i++) {
                const u16 bits = ptx::load_global_u16((const u16*)args.bias + column + i);
                bias[i] = kType == Output::kF16 ? ptx::from_f16(bits) : ptx::from_bf16(bits);
            }
        }
    }
    DGJ_DEVICE static const void* at_c(const GemmArgs& args, u32 row, u32 column) {
        return (const unsigned char*)args.c + ((i64)row * args.ldc + column) * kBytes;
    }
    // 16 bytes of c.
    DGJ_DEVICE static Word4 load_c(const GemmArgs& args, u32 row, u32 column) {
        if (args.c == nullptr) return {kNone, kNone, kNone, kNone};
        return ptx::load_global_word4(at_c(args, row, column));
    }
    // 16 bytes of D; the row is aligned and the column a multiple of kValues.
    DGJ_DEVICE static void store(void* d, i64 at, const float (&v)[kValues]) {
        if constexpr (kType == Output::kF32) {
            ptx::store_global_word4((float*)d + at, {ptx::to_bits(v[0]), ptx::to_bits(v[1]),
                                                     ptx::to_bits(v[2]), ptx::to_bits(v[3])});
        } else {
            ptx::store_global_word4((u16*)d + at,
                                    {pack(v[0], v[1]), pack(v[2], v[3]), pack(v[4], v[5]), pack(v[6], v[7])});
        }
    }
};

// The values that one lane stores, with its bias and c. Each is added whether the call has it or not: an
// absent one is -0, which changes nothing (0 would turn -0 into +0).
template <Output kType>
DGJ_DEVICE void finish(float alpha, const float (&bias)[OutputType<kType>::kValues], Word4 c,
                       float (&v)[OutputType<kType>::kValues]) {
    using Out = OutputType<kType>;
    float last[Out::kValues];
    Out::unpack(c, last);
    DGJ_UNROLL
    for (u32 i = 0; i < Out::kValues; i++) v[i] = ptx::add(ptx::add(ptx::mul(v[i], alpha), bias[i]), last[i]);
}

}  // namespace dgj
