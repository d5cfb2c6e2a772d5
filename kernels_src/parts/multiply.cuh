// The K loop of a tile for one warpgroup: kWaves times 64 rows of A against kCols rows of B.
//
//   ring of tiles   --WGMMA, four of 32 of K-->  partial  --promote-->  acc     a stage: a block of 128 of K
//   ring of scales  --sfa, sfb-------------------------------^                  kScaleChunk blocks a stage
//
// A stage goes back to its producers before its products are promoted. What differs between blocks is kept to
// a few instructions, since they are issued for every 64 x kCols products: descriptors are those of stage 0
// and an offset; where every tile starts at stage 0 the loop's counter is the stage, or the loop is unrolled
// and stages are constants; where scales are is stepped from block to block.
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
//   kStartsAtZero      every tile starts at stage 0 of the ring; registers suffice for what kUnroll does
struct TileOperands {
    u64 a, b;  // descriptors of the warpgroup's rows at stage 0
    u32 full, scales, scales_full, scales_empty;
    u32 row, first_range;  // of the thread's first row in the tile; the warpgroup's first sfb of a block
};

template <class S, u32 kSet>
using Partial = ptx::Sums<S::kCols / 2, kSet>;

template <class S, u32 kSet, u32 kRange = 0>
DGJ_DEVICE void promote_ranges(float (&acc)[S::kCols / 2], const Partial<S, kSet>& partial, float low,
                               float high, const float (&sfb)[S::kRanges]) {
    constexpr u32 kBegin = kRange * S::kRange / 2;
    promote_rows<kBegin, kBegin + S::kRange / 2>(acc, partial, ptx::mul(low, sfb[kRange]),
                                                 ptx::mul(high, sfb[kRange]));
    if constexpr (kRange + 1 < S::kRanges) promote_ranges<S, kSet, kRange + 1>(acc, partial, low, high, sfb);
}

template <u32 kCount, u32 kSet>
DGJ_DEVICE void issue_products(ptx::Sums<kCount, kSet>& partial, u64 a, u64 b) {
    DGJ_UNROLL
    for (u32 k = 0; k < 4; k++) ptx::wgmma_e4m3(partial, a + 2 * k, b + 2 * k, k != 0);
    ptx::wgmma_commit();
}

// One block. sfa: address of the scale of the thread's first row, eight_rows: to that of the row 8 below;
// sfb: address of the first range's.
template <class S, class Release>
DGJ_DEVICE void multiply_block(const TileOperands& o, u64 a, u64 b, u32 stage, u32 phase, u32 sfa,
                               u32 eight_rows, u32 sfb, float (&acc)[S::kWaves][S::kCols / 2],
                               Partial<S, 0>& first, Partial<S, 1>& second, Release release) {
    static_assert(S::kPartials == 1 || S::kPartials == S::kWaves, "as said above");
    static_assert(S::kWaves <= 2, "what is waited for below");
    constexpr u32 kWaveRows = 64 * 128 / 16;  // in a descriptor
    // Before the wait, so that nothing of this stands between the products.
    float low[S::kWaves], high[S::kWaves], scale[S::kRanges];
    DGJ_UNROLL
    for (u32 w = 0; w < S::kWaves; w++) {
        low[w] = ptx::load_shared(sfa + w * 8 * eight_rows);
        high[w] = ptx::load_shared(sfa + (w * 8 + 1) * eight_rows);
    }
    DGJ_UNROLL
    for (u32 r = 0; r < S::kRanges; r++) scale[r] = ptx::load_shared(sfb + 4 * r);
    ptx::barrier_wait(o.full + 8 * stage, phase);
    if constexpr (S::kPartials == 1) {
        DGJ_UNROLL
        for (u32 w = 0; w < S::kWaves; w++) {
            ptx::wgmma_fence();
            issue_products(first, a + w * kWaveRows, b);
            ptx::wgmma_wait<0>();
            if (w == S::kWaves - 1) release(stage);
            promote_ranges<S, 0>(acc[w], first, low[w], high[w], scale);
        }
    } else {
        ptx::wgmma_fence();
        issue_products(first, a, b);
        issue_products(second, a + kWaveRows, b);
        ptx::wgmma_wait<1>();
        promote_ranges<S, 0>(acc[0], first, low[0], high[0], scale);
        ptx::wgmma_wait<0>();
        release(stage);
        promote_ranges<S, 1>(acc[1], second, low[1], high[1], scale);
    }
}

// release(stage) gives a stage of the ring back; every warp calls it. kUnroll: a round of the ring is spelled
// out where tiles start at its stage 0, for a few instructions less a block and a third more compile time.
template <class S, bool kUnroll = true, class Release>
DGJ_DEVICE void multiply_tile(const TileOperands& o, Rings& rings, const ScaleReader& reader,
                              float (&acc)[S::kWaves][S::kCols / 2], Release release) {
    constexpr bool kRound = S::kStartsAtZero && kStages == kScaleChunk && kKBlocks % kStages == 0;
    // For a few blocks, fetching more instructions costs more than issuing fewer saves.
    constexpr bool kUnrolled = kUnroll && kRound && kKBlocks > 8;
    static_assert(kScaleChunk % 4 == 0, "a skew repeats after four blocks");
    const u32 in_block = o.row * (reader.eight_rows / 8);
    Partial<S, 0> first_sums;
    Partial<S, 1> second_sums;
    DGJ_NO_UNROLL
    for (u32 first = 0; first < kKBlocks; first += kScaleChunk, rings.scales.advance()) {
        const u32 scales = o.scales + rings.scales.stage * S::kScaleBytes;
        const u32 sfb = scales + S::kScaleB + o.first_range * 4;
        ptx::barrier_wait(o.scales_full + 8 * rings.scales.stage, rings.scales.phase);
        if constexpr (kUnrolled) {
            DGJ_UNROLL
            for (u32 i = 0; i < kScaleChunk; i++)
                multiply_block<S>(o, ptx::recompute_from(o.a) + i * (S::kStageA / 16),
                                  ptx::recompute_from(o.b) + i * (S::kStageB / 16), i, rings.tiles.phase,
                                  scales + reader.block(i) + in_block, reader.eight_rows,
                                  sfb + i * S::kScaleBPitch, acc, first_sums, second_sums, release);
            rings.tiles.phase ^= 1;
        } else {
            u32 sfa = scales + in_block, skew = reader.skew, sfb_at = sfb;
            DGJ_NO_UNROLL
            for (u32 i = 0; i < kScaleChunk && (kRound || first + i < kKBlocks); i++) {
                const u32 stage = kRound ? i : rings.tiles.stage;
                multiply_block<S>(o, ptx::offset_descriptor(o.a, stage * (S::kStageA / 16)),
                                  ptx::offset_descriptor(o.b, stage * (S::kStageB / 16)), stage,
                                  rings.tiles.phase, sfa + skew, reader.eight_rows, sfb_at, acc, first_sums,
                                  second_sums, release);
                reader.next_block(sfa, skew);
                sfb_at = ptx::hidden(sfb_at + S::kScaleBPitch);
                if constexpr (!kRound) rings.tiles.advance();
            }
            if constexpr (kRound) rings.tiles.phase ^= 1;
        }
        ptx::sync_warp();  // every lane has read its scales
        ptx::barrier_arrive_if(ptx::lane_index() == 0, o.scales_empty + 8 * rings.scales.stage);
    }
}

}  // namespace dgj
