// D[r, n] = sum_k A[r, k] * B[g(r), n, k] for rows r in groups of any size: A e4m3 with an fp32 scale per
// 1x128, B e4m3 [G, N, K] with one per 128x128, promoted every 128 of K as in fp8_gemm.cuh, with the same
// bits. One launch whose tiles follow the groups (parts/group_walk.cuh) and are multiplied in one of three
// ways:
//
//   more than 32 rows, 128 columns: A is the 64-row operand, a piece of 64 rows a warpgroup
//       stage, 128 of K  | A: up to 3 x [64 rows x 128] (24 KB) | B: 2 x [64 x 128] |
//   65 to 128 rows, 192 columns: a piece by 128 columns for two warpgroups, both by 64 for the third
//       stage, 128 of K  | A: 2 x [64 x 128] (16 KB)            | B: 3 x [64 x 128] |
//   up to 32 rows, 128 columns: B is the 64-row operand for two warpgroups, tokens are N
//       stage, 256 of K  | B: 2 x 2 x [64 x 128] (32 KB)        | A: 2 x [32 x 128] |
//
//   warp 0 of the last group   A, B       --TMA-->     ring of kStages stages of 40 KB
//   warp 1                     sfa, sfb   --copies-->  ring of 2 (kScaleChunk x 128 of K each)
//                              which tile is next, its live rows  -->  kTileSlots places
//   3 consumer warpgroups      table of groups; WGMMA -> partial -> promote -> acc -> boxes -> rows of D
//   warps 2, 3                 table of up to 32 groups or runs of ids;   boxes --TMA--> D
//
// A few tokens cost a read of the weights, many cost products, 64 at a time; a warpgroup without work only
// keeps up with the rings. Nothing is loaded for rows of no group, and a piece is filled up with zeros,
// except with ids, between a group's own rows, and in the first rows of A or of a plane of it (RowsOfBox). No
// row of no group is ever written. Three warpgroups that do not wait for one another hide the promotion.
//
// Constants from the plan (namespace dgj, before this file): kN, kK, kTileRows = 192, kTileCols = 128,
// kWideCols = 192, kStages, kScaleChunk, kRaster, kOutput, kConsumerRegisters, kProducerRegisters, kSmem*.
// Limits: kN % 8 == 0, kK % 16 == 0.
#pragma once

#include "parts/group_walk.cuh"
#include "parts/grouped_boxes.cuh"
#include "parts/grouped_rows.cuh"
#include "parts/groups.cuh"
#include "parts/multiply.cuh"
#include "parts/output.cuh"
#include "parts/scales.cuh"
#include "parts/staging.cuh"
#include "ptx/base.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/memory.cuh"
#include "ptx/sync.cuh"
#include "ptx/tma.cuh"
#include "ptx/warp.cuh"
#include "ptx/wgmma.cuh"

namespace dgj {

static_assert(kTileRows == 192 && kTileCols == 128 && kWideCols == 192 && kWarpgroups == 3 &&
                  kScaleChunk == 4,
              "what stages are made for");
constexpr u32 kFewBlocks = 2;          // K blocks of a stage then
constexpr u32 kPieceBytes = 64 * 128;  // of 64 rows of A or B, one K block
constexpr u32 kWeightBytes = 2 * kPieceBytes, kTokenBytes = kFewRows * 128;
constexpr u32 kManyWeights = 3 * kPieceBytes, kWideWeights = 2 * kPieceBytes,
              kFewTokens = kFewBlocks * kWeightBytes;
constexpr u32 kStageBytes = 5 * kPieceBytes;  // of which B starts at kManyWeights, kWideWeights, and A at
                                              // kFewTokens
static_assert(kFewTokens + kFewBlocks * kTokenBytes <= kStageBytes, "all kinds of stages fit");
static_assert((kIdsRoom * 4 + 12 + 15) / 16 * 16 <= kStages * kStageBytes, "ids fit, 12 bytes past 16 too");
constexpr u32 kScalePitch = (kTileRows + 4) * 4;  // sfa of one K block; the banks of two differ
constexpr u32 kScaleB = kScaleChunk * kScalePitch, kScaleBPitch = 2 * 4;  // where sfb starts; of one K block
constexpr u32 kScaleBytes = kScaleB + kScaleChunk * kScaleBPitch;         // of a stage
constexpr u32 kScaleBlocks = (kN + 127) / 128;
constexpr u32 kProducerBarrier = kBuilderBarrier + 1, kTableBarrier = kProducerBarrier + 1;
constexpr u32 kProducerThreads = 96;                   // with the warp that writes a small table
constexpr u32 kTableThreads = 128 * kWarpgroups + 64;  // who reads the table: not the senders

struct Shared {  // addresses
    u32 ring, scales, full, empty, scales_full, scales_empty, told, ids;
    BoxShared boxes;
    GroupTable table;
    DGJ_DEVICE explicit Shared(u32 base)
        : ring(base + kSmemRing), scales(base + kSmemScales), full(base + kSmemBarriers),
          empty(full + 8 * kStages), scales_full(empty + 8 * kStages),
          scales_empty(scales_full + 8 * kScaleStages), told(scales_empty + 8 * kScaleStages),
          ids(told + 8 * kTileSlots + 32 * kWarpgroups), boxes(base + kSmemD, told + 8 * kTileSlots),
          table(base + kSmemTable) {}
};

// ---- producers: a warp for tiles, a warp for scales ---------------------------------------

struct Producer {  // one of the two warps
    bool tiles;    // or scales
    Rings rings;
    TileSlot slot;
    bool starting = true;
    u32 plain = 0;  // stages of the ring of scales that plain copies wrote last; what other kernels left
                    // there needs no fence
    u32 solid = 0;  // pieces of any tile
    DGJ_DEVICE void meet() { meet_once(kProducerBarrier, kProducerThreads, starting); }
};

// A warp goes through the stages together, so that all of it is uniform; one lane copies, once all are there
// (nobody is a round late: see skip()).
DGJ_DEVICE void load_many(const Shared& smem, Producer& me, const TensorMap& map_a, const TensorMap& map_b,
                          const GroupedArgs& args, const GroupTile& t) {
    Ring<kStages>& ring = me.rings.tiles;
    const u32 p = plane(args, t.group);
    const u32 pieces = 1 + (t.rows > 64) + (t.rows > 128), at = t.wide() ? kWideWeights : kManyWeights;
    const u32 boxes = t.pieces_of_b();
    const RowsOfBox last(args, 64, t.row + (pieces - 1) * 64, t.rows - (pieces - 1) * 64);
    DGJ_NO_UNROLL
    for (u32 kb = 0; kb < kKBlocks; kb++, ring.advance()) {
        const u32 full = smem.full + 8 * ring.stage, to = smem.ring + ring.stage * kStageBytes;
        ptx::barrier_wait(smem.empty + 8 * ring.stage, ring.phase ^ 1);
        if (ptx::elect_one()) {
            ptx::barrier_arrive_expect(full, (pieces + boxes) * kPieceBytes);
            DGJ_UNROLL
            for (u32 i = 0; i < 3; i++)
                if (i < boxes)
                    ptx::load_tile3(to + at + i * kPieceBytes, &map_b, kb * 128, t.col + i * 64, t.group,
                                    full);
            DGJ_UNROLL
            for (u32 i = 0; i < 3; i++)
                if (i < pieces)
                    ptx::load_tile4(to + i * kPieceBytes, &map_a, kb * 128, i + 1 < pieces ? 0 : last.first,
                                    i + 1 < pieces ? t.row + i * 64 : last.second, p, full);
        }
        me.meet();
    }
}

DGJ_DEVICE void load_few(const Shared& smem, Producer& me, const TensorMap& map_few, const TensorMap& map_b,
                         const GroupedArgs& args, const GroupTile& t) {
    Ring<kStages>& ring = me.rings.tiles;
    const u32 p = plane(args, t.group);
    const u32 boxes = t.pieces_of_b();
    const u32 bytes = kFewBlocks * (boxes * kPieceBytes + kTokenBytes);
    const RowsOfBox tokens(args, kFewRows, t.row, t.rows);
    DGJ_NO_UNROLL
    for (u32 kb = 0; kb < kKBlocks; kb += kFewBlocks, ring.advance()) {
        const u32 full = smem.full + 8 * ring.stage, to = smem.ring + ring.stage * kStageBytes;
        ptx::barrier_wait(smem.empty + 8 * ring.stage, ring.phase ^ 1);
        if (ptx::elect_one()) {
            ptx::barrier_arrive_expect(full, bytes);
            DGJ_UNROLL
            for (u32 b = 0; b < kFewBlocks; b++) {  // boxes past K or N are filled with zeros
                const u32 k = (kb + b) * 128;
                DGJ_UNROLL
                for (u32 i = 0; i < 2; i++)
                    if (i < boxes)
                        ptx::load_tile3(to + b * kWeightBytes + i * kPieceBytes, &map_b, k, t.col + i * 64,
                                        t.group, full);
                ptx::load_tile4(to + kFewTokens + b * kTokenBytes, &map_few, k, tokens.first, tokens.second,
                                p, full);
            }
        }
        me.meet();
    }
}

// The next tile is told as soon as its first scales have been asked for: consumers get ready, and multiply,
// while they are on their way. Who has waited for stage s to be free knows that all have given back stage
// s - 2, so that nobody reads the third tile before any more.
DGJ_DEVICE void load_tile_scales(const Shared& smem, Producer& me, const GroupedArgs& args,
                                 const GroupTile& t) {
    Ring<kScaleStages>& ring = me.rings.scales;
    const u32 lane = ptx::lane_index();
    const TileIds ids(args, t);
    const ScaleStrides sfa = scales_of(args, t.group);
    const u32 scale_block = t.col / 128 +
                            lane % 2;  // lanes 2 i, 2 i + 1: of the i-th K block, both a tile may need
    const bool has_b = lane < 2 * kScaleChunk && scale_block < kScaleBlocks;
    const float* sfb = args.sfb + (i64)t.group * args.sfb_group + (i64)scale_block * args.sfb_stride_n;
    const bool bulk = bulk_copies(sfa, t.row);
    const u32 rows_left = t.rows;  // what others own may be garbage, but is never needed
    DGJ_NO_UNROLL
    for (u32 first = 0; first < kKBlocks + (kKBlocks == 0); first += kScaleChunk, ring.advance()) {
        const u32 to = smem.scales + ring.stage * kScaleBytes;
        const u32 full = smem.scales_full + 8 * ring.stage;
        const u32 count = kKBlocks - first < kScaleChunk ? kKBlocks - first : kScaleChunk;
        ptx::barrier_wait(smem.scales_empty + 8 * ring.stage, ring.phase ^ 1);
        // Bulk copies to where plain ones wrote last need a fence, which costs as much as a copy.
        const u32 mark = 1u << ring.stage;
        if (bulk && (me.plain & mark) != 0) ptx::fence_async_shared();
        me.plain = bulk ? me.plain & ~mark : me.plain | mark;
        load_scales<false>(sfa, bulk, to, kScalePitch, t.row, t.few() ? kFewRows : kTileRows, rows_left,
                           first, count, full);
        if (lane < 2 * kScaleChunk) {
            const bool in = has_b && lane / 2 < count;
            ptx::copy_async4(to + kScaleB + lane * 4,
                             in ? sfb + (i64)(first + lane / 2) * args.sfb_stride_k : args.sfb, in);
        }
        me.meet();
        if (first == 0) me.solid |= me.slot.tell(smem.table, smem.told, t, LiveRows(ids, args, t));
        ptx::barrier_arrive_after_copies(full);
    }
}

// A page's tiles. Both walk the same ones: one loop, so that what looks for them stands in the kernel once.
DGJ_DEVICE void produce(const Shared& smem, Producer& me, const TensorMap& map_a, const TensorMap& map_b,
                        const TensorMap& map_few, const GroupedArgs& args, const Found& first,
                        bool last_page) {
    if constexpr (kKBlocks == 0) me.meet();  // there are no loads to meet at
    for (GroupWalk walk(smem.table, args, first);; walk.next()) {
        const GroupTile t = walk.locate();
        if (t.rows == 0) break;
        if (!me.tiles) {
            load_tile_scales(smem, me, args, t);
            continue;
        }
        if (t.rows > kFewRows) load_many(smem, me, map_a, map_b, args, t);
        else load_few(smem, me, map_few, map_b, args, t);
        if (last_page && walk.last()) ptx::launch_next_kernel();
    }
    me.meet();  // where there was no tile
    if (me.tiles) return;
    Ring<kScaleStages>& ring = me.rings.scales;
    ptx::barrier_wait(smem.scales_empty + 8 * ring.stage, ring.phase ^ 1);
    me.slot.tell(smem.table, smem.told, {}, {});
    ptx::barrier_arrive_after_copies(smem.scales_full + 8 * ring.stage);
    ring.advance();
}

// By warps, not warpgroups: a stage must not wait for a barrier of 128 threads to be free.
DGJ_DEVICE void release(const Shared& smem, u32 stage) {
    if (ptx::lane_index() == 0) ptx::barrier_arrive(smem.empty + 8 * stage);
}

// ---- more than 32 rows --------------------------------------------------------------------------

// kWaves pieces of rows, kCols columns.
template <u32 kWaves_, u32 kCols_>
struct ManyShape {  // parts/multiply.cuh
    static constexpr u32 kWaves = kWaves_, kCols = kCols_, kPartials = kWaves_;
    static constexpr u32 kRanges = 1, kRange = kCols_;
    static constexpr u32 kStageA = kStageBytes, kStageB = kStageBytes;
    static constexpr u32 kScaleBytes = dgj::kScaleBytes, kScaleB = dgj::kScaleB,
                         kScaleBPitch = dgj::kScaleBPitch;
    // Whole rounds of the ring for all kinds of tiles; fetching the longer loop takes many blocks to pay, and
    // every KB of code above about 66 costs each call 0.1 us (docs/notes/grouped.md).
    static constexpr bool kRounds = kKBlocks % (kFewBlocks * kStages) == 0;
    static constexpr bool kUnrolled = kRounds && kWaves == 1 && kKBlocks > 8;
};

// The tile is read again after its products: what it says is not kept in registers in between.
template <u32 kWaves, u32 kCols>
DGJ_DEVICE void many_rows(const Shared& smem, Rings& rings, Boxes& boxes, const GroupedArgs& args,
                          const TileSlot& slot, u32 warpgroup, const GroupTile& tile, const Share& share) {
    const u32 first_piece = share.piece, first_range = (tile.col + share.col) / 128 - tile.col / 128;
    const u32 weights = (tile.wide() ? kWideWeights : kManyWeights) + share.col / 64 * kPieceBytes;
    const TileOperands operands{
        .a = ptx::matrix_descriptor(smem.ring + first_piece * kPieceBytes),
        .b = ptx::matrix_descriptor(smem.ring + weights),
        .full = smem.full,
        .scales = smem.scales,
        .scales_full = smem.scales_full,
        .scales_empty = smem.scales_empty,
        .row = first_piece * 64 + ptx::thread_index() % 128 / 32 * 16 + ptx::lane_index() / 4,
        .first_range = first_range};
    float acc[kWaves][kCols / 2] = {};
    DGJ_UNROLL
    for (u32 w = 0; w < kWaves; w++) ptx::pin_registers(acc[w]);  // zero while the first stage is on its way
    multiply_tile<ManyShape<kWaves, kCols>>(operands, rings, ScaleReader(kScalePitch), acc,
                                            [&](u32 stage) { release(smem, stage); });
    u32 sent = 0;  // boxes that a sender writes
    if constexpr (kOutput != Output::kF32) {
        constexpr u32 kBoxCols = kCols / 64;
        const u32 box = smem.boxes.of(warpgroup);
        const GroupTile t = slot.read(smem.table);
        boxes.await(smem.boxes, warpgroup);
        DGJ_UNROLL
        for (u32 i = 0; i < 2; i++)
            stage_rows<Out>(box + i * kBoxBytes, acc[i / kBoxCols], i % kBoxCols * 64);
        sent = Share(t, warpgroup).solid(t);
        if (t.solid != 0) boxes.hand_over(smem.boxes, warpgroup, t, sent != 0);
        if (sent == 3) return;
        ptx::sync_threads(1 + warpgroup, 128);
        boxes.read = true;
    }
    const GroupTile t = slot.read(smem.table);
    const u32 row = t.row + first_piece * 64, col = t.col + Share(t, warpgroup).col;
    DGJ_UNROLL
    for (u32 w = 0; w < kWaves; w++) {
        if ((sent >> w & 1) != 0) continue;
        const LiveMask live = slot.live(smem.table, first_piece + w);
        if constexpr (kOutput == Output::kF32) {
            DGJ_UNROLL
            for (u32 half = 0; half < 2; half++) {
                const u32 r = ptx::thread_index() % 128 / 32 * 16 + ptx::lane_index() / 4 + half * 8;
                if (!live.has(r)) continue;
                float* d = (float*)d_row(args, t.group, row + w * 64 + r);
                DGJ_UNROLL
                for (u32 i = 2 * half; i < kCols / 2; i += 4) {
                    const u32 n = col + i / 4 * 8 + ptx::lane_index() % 4 * 2;
                    if (n < kN) ptx::store_global2(d + n, acc[w][i], acc[w][i + 1]);
                }
            }
        } else {
            write_boxes<kCols / 64>(args, smem.boxes.of(warpgroup) + w * kBoxBytes, t.group, row + w * 64,
                                    live, col);
        }
    }
}

// ---- up to 32 rows ------------------------------------------------------------------------------

DGJ_DEVICE void few_rows(const Shared& smem, Rings& rings, const GroupedArgs& args, const TileSlot& slot,
                         const GroupTile& t, u32 warpgroup, Boxes& boxes) {
    const u32 lane = ptx::lane_index();
    float acc[kFewRows / 2] = {}, partial[kFewBlocks][kFewRows / 2];
    DGJ_NO_UNROLL
    for (u32 first = 0; first < kKBlocks; first += kScaleChunk, rings.scales.advance()) {
        u32 scales = smem.scales + rings.scales.stage * kScaleBytes, sfb = scales + kScaleB;
        DGJ_NO_UNROLL
        for (u32 kb = first; kb < first + kScaleChunk && kb < kKBlocks; kb += kFewBlocks) {
            const u32 stage = rings.tiles.stage, from = smem.ring + stage * kStageBytes;
            ptx::barrier_wait(smem.full + 8 * stage, rings.tiles.phase);
            DGJ_UNROLL
            for (u32 b = 0; b < kFewBlocks; b++) ptx::pin_registers(partial[b]);
            ptx::wgmma_fence();
            DGJ_UNROLL
            for (u32 b = 0; b < kFewBlocks; b++) {
                const u64 weights = ptx::matrix_descriptor(from + b * kWeightBytes + warpgroup * kPieceBytes);
                const u64 tokens = ptx::matrix_descriptor(from + kFewTokens + b * kTokenBytes);
                DGJ_UNROLL
                for (u32 k = 0; k < 4; k++)
                    ptx::wgmma_e4m3(partial[b], weights + 2 * k, tokens + 2 * k, k != 0);
                ptx::wgmma_commit();
            }
            DGJ_UNROLL
            for (u32 b = 0; b < kFewBlocks; b++) ptx::pin_registers(partial[b]);
            ptx::barrier_wait(smem.scales_full + 8 * rings.scales.stage, rings.scales.phase);
            float products[kFewBlocks][kFewRows / 4];  // read while the tensor core is busy
            DGJ_UNROLL
            for (u32 b = 0; b < kFewBlocks; b++)
                read_columns(products[b], scales + b * kScalePitch, ptx::load_shared(sfb + b * kScaleBPitch));
            ptx::wgmma_wait<1>();
            ptx::pin_registers(partial[0]);
            add_columns(acc, partial[0], products[0]);
            ptx::wgmma_wait<0>();
            ptx::pin_registers(partial[1]);
            release(smem, stage);
            // A block past K has no scales, and adding its zeros would turn -0 into +0.
            if (kKBlocks % kFewBlocks == 0 || kb + 1 < kKBlocks) add_columns(acc, partial[1], products[1]);
            scales += kFewBlocks * kScalePitch;
            sfb += kFewBlocks * kScaleBPitch;
            rings.tiles.advance();
        }
        ptx::sync_warp();  // every lane has read its scales
        if (lane == 0) ptx::barrier_arrive(smem.scales_empty + 8 * rings.scales.stage);
    }

    const LiveMask live = slot.live(smem.table, 0);
    const u32 col = t.col + warpgroup * 64;
    if constexpr (kOutput == Output::kF32) {
        const u32 n = col + ptx::thread_index() % 128 / 32 * 16 + lane / 4;
        DGJ_UNROLL
        for (u32 i = 0; i < kFewRows / 2; i++) {  // eight lanes write 32 contiguous bytes, a whole sector
            const u32 r = i / 4 * 8 + lane % 4 * 2 + i % 2, column = n + i % 4 / 2 * 8;
            if (column < kN && live.has(r))
                ptx::store_global((float*)d_row(args, t.group, t.row + r) + column, acc[i]);
        }
    } else {
        const u32 box = smem.boxes.of(warpgroup);
        boxes.await(smem.boxes, warpgroup);
        stage_columns<Out>(box, acc);
        ptx::sync_threads(1 + warpgroup, 128);
        boxes.read = true;
        write_boxes<1>(args, box, t.group, t.row, live, col);
    }
}

// ---- consumers ----------------------------------------------------------------------------------

// Stages of which this warpgroup needs nothing are given back as they come, when every lane has seen them:
// one that is two rounds late would wait for a parity that has come and gone.
DGJ_DEVICE void skip_scales(const Shared& smem, Rings& rings) {
    ptx::barrier_wait(smem.scales_full + 8 * rings.scales.stage, rings.scales.phase);
    ptx::sync_warp();  // without K nothing else says that every lane has read what was told before
    if (ptx::lane_index() == 0) ptx::barrier_arrive(smem.scales_empty + 8 * rings.scales.stage);
    rings.scales.advance();
}

// A whole tile, in stages of `blocks` K blocks.
DGJ_DEVICE void skip(const Shared& smem, Rings& rings, u32 blocks) {
    DGJ_NO_UNROLL
    for (u32 first = 0; first < kKBlocks; first += kScaleChunk) {
        skip_scales(smem, rings);
        DGJ_NO_UNROLL
        for (u32 kb = first; kb < first + kScaleChunk && kb < kKBlocks; kb += blocks, rings.tiles.advance()) {
            ptx::barrier_wait(smem.full + 8 * rings.tiles.stage, rings.tiles.phase);
            ptx::sync_warp();
            release(smem, rings.tiles.stage);
        }
    }
}

// Tiles come before their scales; the last one, and without K all, with scales that nobody reads.
DGJ_DEVICE void consume(const Shared& smem, Rings& rings, TileSlot& slot, Boxes& boxes,
                        const GroupedArgs& args) {
    for (bool more = true; more; slot.advance()) {
        slot.await(smem.told);
        const GroupTile t = slot.read(smem.table);
        more = t.rows != 0;
        if (!more || kKBlocks == 0) skip_scales(smem, rings);
        if (!more) continue;
        const u32 warpgroup = ptx::warp_index() / 4;  // again for each tile: a register less in the loops
        const Share share(t, warpgroup);
        if (t.few() ? warpgroup >= t.pieces_of_b() : share.none(t)) {
            if (kOutput != Output::kF32 && t.solid != 0) boxes.hand_over_none(smem.boxes, warpgroup, t);
            skip(smem, rings, t.few() ? kFewBlocks : 1);
        } else if (t.few()) {
            few_rows(smem, rings, args, slot, t, warpgroup, boxes);
        } else if (share.two) {
            many_rows<2, 64>(smem, rings, boxes, args, slot, warpgroup, t, share);
        } else {
            many_rows<1, 128>(smem, rings, boxes, args, slot, warpgroup, t, share);
        }
    }
}

DGJ_DEVICE void fp8_gemm_grouped(const TensorMap& map_a, const TensorMap& map_b, const TensorMap& map_few,
                                 const TensorMap& map_d, const GroupedArgs& args) {
    const Shared smem(ptx::shared_base());
    if (ptx::thread_index() == 0) {
        if constexpr (kKBlocks > 0) {
            ptx::prefetch_map(&map_a);
            ptx::prefetch_map(&map_b);
            ptx::prefetch_map(&map_few);
        }
        if constexpr (kOutput != Output::kF32) ptx::prefetch_map(&map_d);
        for (u32 s = 0; s < kStages; s++) {
            ptx::barrier_init(smem.full + 8 * s, 1);
            ptx::barrier_init(smem.empty + 8 * s, 4 * kWarpgroups);
        }
        for (u32 s = 0; s < kScaleStages; s++) {
            ptx::barrier_init(smem.scales_full + 8 * s, 32);  // the copies of each lane
            ptx::barrier_init(smem.scales_empty + 8 * s, 4 * kWarpgroups);
        }
        for (u32 s = 0; s < kTileSlots; s++) ptx::barrier_init(smem.told + 8 * s, 1);
        init_box_barriers<kWarpgroups>(smem.boxes.staged, smem.boxes.sent);
        ptx::barrier_init(smem.ids, 1);  // their copy
        ptx::fence_barrier_init();
    }
    ptx::wait_for_prior_kernels();
    SmallIndex index;
    if (ptx::warp_index() / 4 == kWarpgroups && few_groups(args)) index = SmallIndex(args);
    const u32 skew = (u32)((u64)args.index % 16);  // up to three ids before, in 16 bytes that hold one of
                                                   // ours
    UnitIds unit_ids;
    if (come_at_once(args)) {
        if (ptx::thread_index() < args.units) unit_ids = UnitIds(args, ptx::thread_index());
        if (ptx::thread_index() == 0) {
            const u32 bytes = (args.rows * 4 + skew + 15) / 16 * 16;
            ptx::barrier_arrive_expect(smem.ids, bytes);
            ptx::load_bytes(smem.ring, (const unsigned char*)args.index - skew, bytes, smem.ids);
        }
    }
    ptx::sync_block();  // barriers are there; before what the roles read of the arguments
    if (come_at_once(args)) {
        list_units(smem.table, args, unit_ids);
        ptx::barrier_wait(smem.ids, 0);
        end_runs(smem.table, args, smem.ring + skew);
        ptx::sync_block();  // runs are there, and the ring is free
    }

    const bool small = fits_a_warp(smem.table, args);
    if (ptx::warp_index() / 4 != kWarpgroups) {
        ptx::raise_registers<kConsumerRegisters>();
        Rings rings;
        TileSlot slot;
        Boxes boxes;
        for (u32 page = 0;;) {
            if (!small) {
                if (ptx::warp_index() < kBuilderWarps) build_table(smem.table, args, page);
                ptx::sync_threads(kTableBarrier, kTableThreads);
            }
            if (page == 0 && args.zero_padding && ptx::warp_index() < kBuilderWarps) zero_dead_rows(args);
            consume(smem, rings, slot, boxes, args);
            page = ptx::load_shared_u32(smem.table.page) + 1;  // again: registers
            if (page >= page_count(smem.table, args)) break;
            ptx::sync_threads(kTableBarrier, kTableThreads);
        }
        // A tile without rows ends the senders' work, where there was any.
        if (kOutput != Output::kF32 && boxes.used)
            boxes.hand_over_none(smem.boxes, ptx::warp_index() / 4, {});
    } else {
        ptx::lower_registers<kProducerRegisters>();
        const u32 warp = ptx::warp_index() % 4;
        Found first;
        if (small) first = build_small_table(smem.table, args, index, warp == 2);
        if (warp == 2) ptx::sync_threads(kProducerBarrier, kProducerThreads);  // the table is there
        if (warp > 1) {
            if (kOutput != Output::kF32) send_boxes(smem.boxes, map_d, args, warp % 2);
            return;
        }
        Producer me{.tiles = warp == 0};
        for (u32 page = 0;;) {
            if (!small) ptx::sync_threads(kTableBarrier, kTableThreads);  // the table is there
            const u32 pages = page_count(smem.table, args);
            produce(smem, me, map_a, map_b, map_few, args, first, page + 1 >= pages);
            if (++page >= pages) break;
            first = {};  // is empty here, but takes registers through the loop if that is not said
            ptx::sync_threads(kTableBarrier, kTableThreads);  // it has been read
        }
        if (kOutput != Output::kF32 && !me.tiles && me.solid == 0) dismiss_senders(smem.boxes);
    }
}

}  // namespace dgj
