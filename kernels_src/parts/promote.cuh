// Promotion: acc += scale * partial in FP32, for what the tensor core summed over one K block of 128. A
// thread holds columns 8 * chunk + lane % 4 * 2 + {0, 1} of rows r (elements 0, 1) and r + 8 (2, 3) of a 64 x
// N tile.
#pragma once

#include "ptx/base.cuh"
#include "ptx/convert.cuh"
#include "ptx/memory.cuh"
#include "ptx/wgmma.cuh"

namespace dgj {

// Elements kBegin .. kEnd; the scale goes with the row: `low` for r, `high` for r + 8.
template <u32 kBegin, u32 kEnd, u32 kSize, u32 kSet>
DGJ_DEVICE void promote_rows(float (&acc)[kSize], const ptx::Sums<kSize, kSet>& partial, float low,
                             float high) {
    static_assert((kEnd - kBegin) % 8 == 0, "what a statement adds");
    if constexpr (kBegin < kEnd) {
        ptx::add_sums<kBegin>(acc + kBegin, partial, low, high);
        promote_rows<kBegin + 8, kEnd>(acc, partial, low, high);
    }
}

// The scale goes with the column. read: those of a thread's columns, floats at `scales` (a multiple of 8
// bytes), times `common`.
template <u32 kCount>
DGJ_DEVICE void read_columns(float (&products)[kCount], u32 scales, float common) {
    const u32 first = scales + ptx::lane_index() % 4 * 8;
    DGJ_UNROLL
    for (u32 i = 0; i < kCount; i += 2) {
        const Float2 scale = ptx::load_shared2(first + i * 16);
        products[i] = ptx::mul(scale.x, common), products[i + 1] = ptx::mul(scale.y, common);
    }
}
template <u32 kSize>
DGJ_DEVICE void add_columns(float (&acc)[kSize], const float (&partial)[kSize],
                            const float (&products)[kSize / 2]) {
    DGJ_UNROLL
    for (u32 i = 0; i < kSize; i++) acc[i] = ptx::fma(products[i / 4 * 2 + i % 2], partial[i], acc[i]);
}
template <u32 kSize>
DGJ_DEVICE void promote_columns(float (&acc)[kSize], const float (&partial)[kSize], u32 scales,
                                float common) {
    float products[kSize / 2];
    read_columns(products, scales, common);
    add_columns(acc, partial, products);
}

}  // namespace dgj
