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

    // Two neighbours of a 16-bit row, the first in the low half.
    DGJ_DEVICE static u32 pack(float low, float high) {
        return kType == Output::kF16 ? ptx::pack_f16(low, high) : ptx::pack_bf16(low, high);
    }
    DGJ_DEVICE static float unpack(u16 bits) {
        return kType == Output::kF16 ? ptx::from_f16(bits) : ptx::from_bf16(bits);
    }
    // Element `i` of a bias in D's dtype.
    DGJ_DEVICE static float load(const void* p, u32 i) {
        if constexpr (kType == Output::kF32) return ptx::load_global((const float*)p + i);
        else return unpack(ptx::load_global_u16((const u16*)p + i));
    }
    DGJ_DEVICE static void unpack(Word4 row, float (&v)[kValues]) {
        const u32 words[4] = {row.x, row.y, row.z, row.w};
        DGJ_UNROLL
        for (u32 i = 0; i < kValues; i++)
            v[i] = kType == Output::kF32 ? ptx::from_bits(words[i * kBytes / 4])
                                         : unpack((u16)(words[i * kBytes / 4] >> (16 * (i % 2))));
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
    DGJ_DEVICE static Word4 load_row(const void* c, i64 at) {
        return ptx::load_global_word4((const unsigned char*)c + at * kBytes);
    }
};

// kRows rows of the same columns; `c` is not looked at where the call has none. bias and c count only where
// the call has them: adding an absent one as zero would turn -0 into +0.
template <Output kType, u32 kRows, u32 kValues>
DGJ_DEVICE void finish(const GemmArgs& args, u32 column, const Word4 (&c)[kRows],
                       float (&v)[kRows][kValues]) {
    using Out = OutputType<kType>;
    DGJ_UNROLL
    for (u32 r = 0; r < kRows; r++) {
        DGJ_UNROLL
        for (u32 i = 0; i < kValues; i++) v[r][i] = ptx::mul(v[r][i], args.alpha);
    }
    float add[kValues];
    if (args.bias != nullptr) {
        if (args.bias_is_f32) {
            DGJ_UNROLL
            for (u32 i = 0; i < kValues; i++) add[i] = ptx::load_global((const float*)args.bias + column + i);
        } else {
            DGJ_UNROLL
            for (u32 i = 0; i < kValues; i++) add[i] = Out::load(args.bias, column + i);
        }
        DGJ_UNROLL
        for (u32 r = 0; r < kRows; r++) {
            DGJ_UNROLL
            for (u32 i = 0; i < kValues; i++) v[r][i] = ptx::add(v[r][i], add[i]);
        }
    }
    if (args.c == nullptr) return;
    DGJ_UNROLL
    for (u32 r = 0; r < kRows; r++) {
        Out::unpack(c[r], add);
        DGJ_UNROLL
        for (u32 i = 0; i < kValues; i++) v[r][i] = ptx::add(v[r][i], add[i]);
    }
}

}  // namespace dgj
