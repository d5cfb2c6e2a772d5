// The K loop of a tile for one warpgroup: kWaves times 64 rows of A against kCols rows of B.
//
//   ring of tiles   --WGMMA, four of 32 of K-->  partial  --promote-->  acc     a stage: a block of 128 of K
//   ring of scales  --sfa, sfb-------------------------------^                  kScaleChunk blocks a stage
//
// A stage goes back to its producers before its products are promoted. What differs between blocks is kept to
// a few instructions, since they are issued for every 64 x kCols products: descriptors are those of stage 0
// and an offset, and where every tile starts at stage 0 the loop is unrolled, so that stages are constants.
//
// Constants from the plan: kK, kStages, kScaleChunk.
#pragma once

#include "parts/promote.cuh"
#include "parts/ring.cuh"
#include "parts/scales.cuh"
#include "ptx/base.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/memory.cuh"
#include "ptx/sync.cuh"
#include "ptx/wgmma.cuh"

namespace dgj {

constexpr u32 kKBlocks = (kK + 127) / 128;
constexpr u32 kScaleStages = 2;

struct Rings {
    Ring<kStages> tiles;
    Ring<kScaleStages> scales;
};

// What a kernel says of its loop; all addresses are in shared memory. S has these constants:
//   kWaves, kCols      rows / 64 and columns of the warpgroup
//   kPartials          kWaves: all waves' products are issued at once; 1: one wave after the other
//   kRanges, kRange    ranges of columns with a scale of B each, and their width
//   kStageA, kStageB   bytes from one stage to the next
//   kScaleBytes, kScaleB, kScaleBPitch   of a stage of scales; where its sfb starts; of a block's sfb
//   kStartsAtZero      every tile starts at stage 0 of the ring, and there are registers for an unrolled loop
struct TileOperands {
    u64 a, b;  // descriptors of the warpgroup's rows at stage 0
    u32 full, scales, scales_full, scales_empty;
    u32 row, first_range;  // of the thread's first row in the tile; the warpgroup's first sfb of a block
};

template <class S, u32 kRange = 0>
DGJ_DEVICE void promote_ranges(float (&acc)[S::kCols / 2], const float (&partial)[S::kCols / 2], float low,
                               float high, const float (&sfb)[S::kRanges]) {
    constexpr u32 kBegin = kRange * S::kRange / 2;
    promote_rows<kBegin, kBegin + S::kRange / 2>(acc, partial, ptx::mul(low, sfb[kRange]),
                                                 ptx::mul(high, sfb[kRange]));
    if constexpr (kRange + 1 < S::kRanges) promote_ranges<S, kRange + 1>(acc, partial, low, high, sfb);
}

template <u32 kCount>
DGJ_DEVICE void issue_products(float (&partial)[kCount], u64 a, u64 b) {
    DGJ_UNROLL
    for (u32 k = 0; k < 4; k++) ptx::wgmma_e4m3(partial, a + 2 * k, b + 2 * k, k != 0);
    ptx::wgmma_commit();
}

// One block. sfa: address of the scale of the thread's first row; sfb: of the first range.
template <class S, class Release>
DGJ_DEVICE void multiply_block(const TileOperands& o, u32 stage, u32 phase, u32 sfa, u32 row_bytes, u32 sfb,
                               float (&acc)[S::kWaves][S::kCols / 2],
                               float (&partial)[S::kPartials][S::kCols / 2], Release release) {
    static_assert(S::kPartials == 1 || S::kPartials == S::kWaves, "as said above");
    static_assert(S::kWaves <= 2, "what is waited for below");
    constexpr u32 kWaveRows = 64 * 128 / 16;  // in a descriptor
    const u64 a = ptx::recompute_from(o.a) + stage * (S::kStageA / 16);
    const u64 b = ptx::recompute_from(o.b) + stage * (S::kStageB / 16);
    // Before the wait, so that nothing of this stands between the products.
    float low[S::kWaves], high[S::kWaves], scale[S::kRanges];
    DGJ_UNROLL
    for (u32 w = 0; w < S::kWaves; w++) {
        low[w] = ptx::load_shared(sfa + w * 64 * row_bytes);
        high[w] = ptx::load_shared(sfa + (w * 64 + 8) * row_bytes);
    }
    DGJ_UNROLL
    for (u32 r = 0; r < S::kRanges; r++) scale[r] = ptx::load_shared(sfb + 4 * r);
    ptx::barrier_wait(o.full + 8 * stage, phase);
    if constexpr (S::kPartials == 1) {
        DGJ_UNROLL
        for (u32 w = 0; w < S::kWaves; w++) {
            ptx::pin_registers(partial[0]);
            ptx::wgmma_fence();
            issue_products(partial[0], a + w * kWaveRows, b);
            ptx::pin_registers(partial[0]);
            ptx::wgmma_wait<0>();
            if (w == S::kWaves - 1) release(stage);
            promote_ranges<S>(acc[w], partial[0], low[w], high[w], scale);
        }
    } else {
        DGJ_UNROLL
        for (u32 w = 0; w < S::kWaves; w++) ptx::pin_registers(partial[w]);
        ptx::wgmma_fence();
        DGJ_UNROLL
        for (u32 w = 0; w < S::kWaves; w++) issue_products(partial[w], a + w * kWaveRows, b);
        DGJ_UNROLL
        for (u32 w = 0; w < S::kWaves; w++) ptx::pin_registers(partial[w]);
        ptx::wgmma_wait<1>();
        ptx::pin_registers(partial[0]);
        promote_ranges<S>(acc[0], partial[0], low[0], high[0], scale);
        ptx::wgmma_wait<0>();
        ptx::pin_registers(partial[1]);
        release(stage);
        promote_ranges<S>(acc[1], partial[1], low[1], high[1], scale);
    }
}

// release(stage) gives a stage of the ring back; every warp calls it.
template <class S, class Release>
DGJ_DEVICE void multiply_tile(const TileOperands& o, Rings& rings, const ScaleReader& reader,
                              float (&acc)[S::kWaves][S::kCols / 2], Release release) {
    // For a few blocks, fetching more instructions costs more than issuing fewer saves.
    constexpr bool kUnrolled = S::kStartsAtZero && kStages == kScaleChunk && kKBlocks % kStages == 0 &&
                               kKBlocks > 8;
    const u32 in_block = o.row * reader.row_bytes;
    // Where a block's sfa is in a stage of scales: the same in every stage, since each starts with a multiple
    // of four blocks and a skew repeats after four.
    u32 at[kScaleChunk];
    DGJ_UNROLL
    for (u32 i = 0; i < kScaleChunk; i++) at[i] = reader.block(0, i, i);
    float partial[S::kPartials][S::kCols / 2];
    DGJ_NO_UNROLL
    for (u32 first = 0; first < kKBlocks; first += kScaleChunk, rings.scales.advance()) {
        const u32 scales = o.scales + rings.scales.stage * S::kScaleBytes;
        const u32 sfb = scales + S::kScaleB + o.first_range * 4;
        ptx::barrier_wait(o.scales_full + 8 * rings.scales.stage, rings.scales.phase);
        if constexpr (kUnrolled) {
            DGJ_UNROLL
            for (u32 i = 0; i < kScaleChunk; i++)
                multiply_block<S>(o, i, rings.tiles.phase, scales + at[i] + in_block, reader.row_bytes,
                                  sfb + i * S::kScaleBPitch, acc, partial, release);
            rings.tiles.phase ^= 1;
        } else {
            DGJ_NO_UNROLL
            for (u32 i = 0; i < kScaleChunk && first + i < kKBlocks; i++) {
                multiply_block<S>(o, rings.tiles.stage, rings.tiles.phase,
                                  reader.block(scales, first + i, i) + in_block, reader.row_bytes,
                                  sfb + i * S::kScaleBPitch, acc, partial, release);
                rings.tiles.advance();
            }
        }
        ptx::sync_warp();  // every lane has read its scales
        if (ptx::lane_index() == 0) ptx::barrier_arrive(o.scales_empty + 8 * rings.scales.stage);
    }
}

}  // namespace dgj
