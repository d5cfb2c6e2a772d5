// The K loop of a tile for one warpgroup: kWaves times 64 rows of A against kCols rows of B.
//
//   ring of tiles   --WGMMA, four of 32 of K-->  partial  --promote-->  acc     a stage: a block of 128 of K
//   ring of scales  --sfa, sfb-------------------------------^                  kScaleChunk blocks a stage
//
//   block kb      | products | products of the last wave | promote | promote the last wave |
//   block kb + 1                    wait for its scales ..  read them, look for its tiles  | products ...
//
// A stage goes back to its producers before its products are promoted. What the next block needs is prepared
// among the promotions, where the tensor core has another warpgroup's products: done after them, it would
// keep the tensor core waiting. Instructions are few, since they are issued for every 64 x kCols products. A
// kernel may have a chunk of blocks spelled out: a few instructions less a block, a third more compile time.
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
//   kUnrolled          a chunk of blocks is spelled out, where kStages and K allow it
struct TileOperands {
    u64 a, b;  // descriptors of the warpgroup's rows at stage 0
    u32 full, scales, scales_full, scales_empty;
    u32 row, first_range;  // of the thread's first row in the tile; the warpgroup's first sfb of a block
};

template <class S, u32 kSet>
using Partial = ptx::Sums<S::kCols / 2, kSet>;

// What a thread needs of the scales of one block: of its two rows in each wave, and of the ranges of columns.
template <class S>
struct BlockScales {
    float low[S::kWaves], high[S::kWaves], b[S::kRanges];
    // sfa: address of the scale of the thread's first row, eight_rows: to that of the row 8 below; sfb:
    // address of the first range's.
    DGJ_DEVICE void read(u32 sfa, u32 eight_rows, u32 sfb) {
        DGJ_UNROLL
        for (u32 w = 0; w < S::kWaves; w++) {
            low[w] = ptx::load_shared(sfa + w * 8 * eight_rows);
            high[w] = ptx::load_shared(sfa + (w * 8 + 1) * eight_rows);
        }
        DGJ_UNROLL
        for (u32 r = 0; r < S::kRanges; r++) b[r] = ptx::load_shared(sfb + 4 * r);
    }
    // With one range, the products are what is kept.
    DGJ_DEVICE void combine() {
        if constexpr (S::kRanges == 1) {
            DGJ_UNROLL
            for (u32 w = 0; w < S::kWaves; w++) {
                low[w] = ptx::mul(low[w], b[0]);
                high[w] = ptx::mul(high[w], b[0]);
            }
        }
    }
    template <u32 kWave, u32 kSet, u32 kRange = 0>
    DGJ_DEVICE void promote(float (&acc)[S::kCols / 2], const Partial<S, kSet>& partial) const {
        constexpr u32 kBegin = kRange * S::kRange / 2, kEnd = kBegin + S::kRange / 2;
        if constexpr (S::kRanges == 1) promote_rows<kBegin, kEnd>(acc, partial, low[kWave], high[kWave]);
        else
            promote_rows<kBegin, kEnd>(acc, partial, ptx::mul(low[kWave], b[kRange]),
                                       ptx::mul(high[kWave], b[kRange]));
        if constexpr (kRange + 1 < S::kRanges) promote<kWave, kSet, kRange + 1>(acc, partial);
    }
};

template <u32 kCount, u32 kSet>
DGJ_DEVICE void issue_products(ptx::Sums<kCount, kSet>& partial, u64 a, u64 b) {
    DGJ_UNROLL
    for (u32 k = 0; k < 4; k++) ptx::wgmma_e4m3(partial, a + 2 * k, b + 2 * k, k != 0);
    ptx::wgmma_commit();
}

// One block, whose tiles are there; a, b: their descriptors. meanwhile() runs while the last of its products
// are made, made() once they are there, before they are promoted.
template <class S, class Meanwhile, class Made>
DGJ_DEVICE void multiply_block(u64 a, u64 b, const BlockScales<S>& scales,
                               float (&acc)[S::kWaves][S::kCols / 2], Meanwhile meanwhile, Made made) {
    static_assert(S::kPartials == 1 || S::kPartials == S::kWaves, "as said above");
    static_assert(S::kWaves <= 2, "what is waited for below");
    constexpr u32 kWaveRows = 64 * 128 / 16, kLast = S::kWaves - 1;  // in a descriptor
    Partial<S, 0> first;
    Partial<S, 1> second;
    ptx::wgmma_fence();
    issue_products(first, a, b);
    if constexpr (kLast == 0) {
        meanwhile();
        ptx::wgmma_wait<0>();
        made();
        scales.template promote<0>(acc[0], first);
    } else if constexpr (S::kPartials == 1) {
        ptx::wgmma_wait<0>();
        scales.template promote<0>(acc[0], first);
        ptx::wgmma_fence();
        issue_products(first, a + kWaveRows, b);
        meanwhile();
        ptx::wgmma_wait<0>();
        made();
        scales.template promote<1>(acc[1], first);
    } else {
        issue_products(second, a + kWaveRows, b);
        meanwhile();
        ptx::wgmma_wait<1>();
        scales.template promote<0>(acc[0], first);
        ptx::wgmma_wait<0>();
        made();
        scales.template promote<1>(acc[1], second);
    }
}

// Adds the tile's products to acc. release(stage) gives a stage of the ring back; every warp calls it. With
// S::kUnrolled every tile starts at stage 0 of the ring, so that stages are constants.
template <class S, class Release>
DGJ_DEVICE void multiply_tile(const TileOperands& o, Rings& rings, const ScaleReader& reader,
                              float (&acc)[S::kWaves][S::kCols / 2], Release release) {
    static_assert(kScaleChunk % 4 == 0, "a skew repeats after four blocks");
    if constexpr (kKBlocks == 0) return;
    constexpr bool kUnrolled = S::kUnrolled && kStages == kScaleChunk && kKBlocks % kScaleChunk == 0;
    constexpr u32 kSteps = kUnrolled ? kScaleChunk : 1;
    const u32 in_block = ptx::hidden(o.row * (reader.eight_rows / 8));
    u32 sfa, skew, sfb;  // of the next block, in shared memory
    const auto await_scales = [&] {
        const u32 chunk = o.scales + rings.scales.stage * S::kScaleBytes;
        sfa = chunk + in_block, skew = reader.skew, sfb = chunk + S::kScaleB + o.first_range * 4;
        ptx::barrier_wait(o.scales_full + 8 * rings.scales.stage, rings.scales.phase);
    };
    const auto return_scales = [&] {
        ptx::sync_warp();  // every lane has read its scales
        ptx::barrier_arrive_if(ptx::lane_index() == 0, o.scales_empty + 8 * rings.scales.stage);
        rings.scales.advance();
    };
    u64 a, b;
    const auto locate_tiles = [&] {
        const u32 step_a = rings.tiles.stage * (S::kStageA / 16),
                  step_b = rings.tiles.stage * (S::kStageB / 16);
        a = kUnrolled ? ptx::recompute_from(o.a) + step_a : ptx::offset_descriptor(o.a, step_a);
        b = kUnrolled ? ptx::recompute_from(o.b) + step_b : ptx::offset_descriptor(o.b, step_b);
    };
    BlockScales<S> scales;
    if constexpr (kUnrolled) rings.tiles.stage = 0;
    await_scales();
    scales.read(sfa + skew, reader.eight_rows, sfb);
    scales.combine();
    ptx::barrier_wait(o.full + 8 * rings.tiles.stage, rings.tiles.phase);
    locate_tiles();
    DGJ_NO_UNROLL
    for (u32 first = 0;; first += kSteps) {
        DGJ_UNROLL
        for (u32 i = 0; i < kSteps; i++) {
            if constexpr (kUnrolled) rings.tiles.stage = i;
            const u32 kb = first + i, stage = rings.tiles.stage;
            const bool ends_chunk = ((kUnrolled ? i : kb) + 1) % kScaleChunk == 0;
            const bool last = i + 1 == kSteps && kb + 1 == kKBlocks;
            bool there = false;
            BlockScales<S> next;
            rings.tiles.advance();
            multiply_block<S>(
                a, b, scales, acc,
                [&] {
                    if (!ends_chunk) {
                        reader.next_block(sfa, skew);
                        sfb = ptx::hidden(sfb + S::kScaleBPitch);
                    } else if (!last) {
                        return_scales();
                        await_scales();
                    }
                },
                [&] {
                    release(stage);
                    next.read(sfa + skew, reader.eight_rows, sfb);  // after the last block for nothing
                    there = ptx::barrier_test(o.full + 8 * rings.tiles.stage, rings.tiles.phase);
                    locate_tiles();
                });
            if (last) {
                return_scales();
                return;
            }
            if (!there) ptx::barrier_wait(o.full + 8 * rings.tiles.stage, rings.tiles.phase);
            next.combine();
            scales = next;
        }
    }
}

}  // namespace dgj
