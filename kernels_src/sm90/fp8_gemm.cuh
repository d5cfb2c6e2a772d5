// D[m, n] = alpha * sum_k A[m, k] * B[n, k] + bias[n] + c[m, n] for many rows: A e4m3 with an fp32 scale per
// 1x128, B e4m3 with one per 128x128. Partial sums of 128 of K come from the tensor core and are promoted:
// acc += (sfa * sfb) * partial.
//
//   warp 0 of the last group   A, B tiles  --TMA-->     ring of kStages: | A | B |       (128 of K)
//   warp 1                     sfa, sfb    --copies-->  ring of 2:       | sfa | sfb |   (kScaleChunk x 128)
//                                                                   |
//   kWarpgroups consumers, each 64 * kWaves rows x kTileCols:   WGMMA -> partial -> promote -> acc
//   and each by itself, as soon as it is done:                  acc -> shared (swizzled)
//   warps 2, 3 of the last group                                       shared --TMA--> D
//       with alpha, bias or c, or in FP32 (kExtras):            acc -> shared (FP32) -> finish -> rows of D
//
// Why so: promotion takes the FP32 pipe a quarter of the time that WGMMA takes the tensor core. Warpgroups
// that do not wait for one another drift apart by up to a ring of stages, so that one promotes or writes its
// rows out while others multiply. Scales have a ring of their own, since copies with any strides take longer
// than a stage of tiles is ahead.
//
// Constants from the plan (namespace dgj, before this file): kN, kK, kTileRows, kTileCols, kWarpgroups,
// kWaves, kStages, kClusterRows, kClusterCols, kRaster, kScaleChunk, kOutput, kConsumerRegisters,
// kProducerRegisters, kExtras, kSmem*. Limits: kN % 8 == 0, kK % 16 == 0 (a partial last block is zero-filled
// by TMA), kTileRows / kClusterCols and kTileCols / kClusterRows multiples of 8 and at most 256, kTileCols a
// multiple of 32.
#pragma once

#include "parts/gemm_args.cuh"
#include "parts/multiply.cuh"
#include "parts/output.cuh"
#include "parts/scales.cuh"
#include "parts/staging.cuh"
#include "parts/tile_walk.cuh"
#include "ptx/base.cuh"
#include "ptx/cluster.cuh"
#include "ptx/convert.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/memory.cuh"
#include "ptx/sync.cuh"
#include "ptx/tma.cuh"
#include "ptx/warp.cuh"
#include "ptx/wgmma.cuh"

namespace dgj {

constexpr u32 kCluster = kClusterRows * kClusterCols;
constexpr u32 kABytes = kTileRows * 128, kBBytes = kTileCols * 128;
constexpr u32 kGroupRows = 64 * kWaves;  // rows of one warpgroup
constexpr u32 kScaleWidth = kTileCols % 128 == 0  ? 128
                            : kTileCols % 64 == 0 ? 64  // columns that surely share one sfb
                            : kTileCols % 32 == 0 ? 32
                            : kTileCols % 16 == 0 ? 16
                                                  : 8;
constexpr u32 kScaleCols = kTileCols / kScaleWidth;
constexpr u32 kScaleBlocks = (kN + 127) / 128;
constexpr u32 kScalePitch = (kTileRows + 4) * 4;         // sfa of one K block, with room for a skew
constexpr u32 kScaleBPitch = (kScaleCols + 3) / 4 * 16;  // sfb of one K block
constexpr u32 kScaleBytes = kScaleChunk * (kScalePitch + kScaleBPitch);  // of a stage: sfa, then sfb
constexpr u32 kStartBarrier = 1 + kWarpgroups;                           // any but 0, sync_block's
constexpr u32 kBoxCols = (kTileCols + 63) / 64,
              kBoxes = kWaves * kBoxCols;  // of a warpgroup's part of a tile
using Tiles = TileWalk<kTileRows, kTileCols, kClusterRows, kClusterCols, kRaster>;
using Out = OutputType<kOutput>;

struct Shared {  // addresses
    u32 a, b, d, scales, full, empty, scales_full, scales_empty, staged, sent;
    DGJ_DEVICE explicit Shared(u32 base)
        : a(base + kSmemA), b(base + kSmemB), d(base + kSmemD), scales(base + kSmemScales),
          full(base + kSmemBarriers), empty(full + 8 * kStages), scales_full(empty + 8 * kStages),
          scales_empty(scales_full + 8 * kScaleStages), staged(scales_empty + 8 * kScaleStages),
          sent(staged + 8 * kWarpgroups) {}
};

// One thread: A and B of each stage. With a cluster each block fetches its share of a common operand for all
// that need it.
DGJ_DEVICE void produce_tiles(const Shared& smem, const TensorMap& map_a, const TensorMap& map_b, u32 m) {
    Ring<kStages> ring;
    for (Tiles tiles(m, kN); tiles.valid(); tiles.next()) {
        u32 row, col;
        tiles.locate(row, col);
        DGJ_NO_UNROLL
        for (u32 kb = 0; kb < kKBlocks; kb++, ring.advance()) {
            const u32 full = smem.full + 8 * ring.stage;
            const u32 a = smem.a + ring.stage * kABytes, b = smem.b + ring.stage * kBBytes;
            ptx::barrier_wait(smem.empty + 8 * ring.stage, ring.phase ^ 1);
            ptx::barrier_arrive_expect(full, kABytes + kBBytes);
            if constexpr (kClusterCols > 1) {
                constexpr u32 kShare = kTileRows / kClusterCols;
                const u32 part = tiles.col_in_cluster * kShare;
                const u16 mask = (u16)(((1u << kClusterCols) - 1) << (tiles.row_in_cluster * kClusterCols));
                ptx::load_tile_multicast(a + part * 128, &map_a, kb * 128, row + part, full, mask);
            } else {
                ptx::load_tile(a, &map_a, kb * 128, row, full);
            }
            if constexpr (kClusterRows > 1) {
                constexpr u32 kShare = kTileCols / kClusterRows;
                const u32 part = tiles.row_in_cluster * kShare;
                u32 mask = 0;
                DGJ_UNROLL
                for (u32 r = 0; r < kClusterRows; r++) mask |= 1u << (r * kClusterCols);
                ptx::load_tile_multicast(b + part * 128, &map_b, kb * 128, col + part, full,
                                         (u16)(mask << tiles.col_in_cluster));
            } else {
                ptx::load_tile(b, &map_b, kb * 128, col, full);
            }
        }
        if (tiles.last()) ptx::launch_next_kernel();
    }
}

// One warp: the scales.
DGJ_DEVICE void produce_scales(const Shared& smem, const GemmArgs& args) {
    const u32 lane = ptx::lane_index();
    const ScaleStrides sfa{args.sfa, args.sfa_stride_m, args.sfa_stride_k};
    Ring<kScaleStages> ring;
    bool starting = true;
    for (Tiles tiles(args.m, kN); tiles.valid(); tiles.next()) {
        u32 row, col;
        tiles.locate(row, col);
        const u32 rows_left = row < args.m ? args.m - row : 0;
        const u32 scale_block = (col + lane * kScaleWidth) / 128;
        const bool has_b = lane < kScaleCols && scale_block < kScaleBlocks;
        const float* sfb = args.sfb + (has_b ? (i64)scale_block * args.sfb_stride_n : 0);
        DGJ_NO_UNROLL
        for (u32 first = 0; first < kKBlocks; first += kScaleChunk, ring.advance()) {
            const u32 to = smem.scales + ring.stage * kScaleBytes;
            const u32 full = smem.scales_full + 8 * ring.stage;
            const u32 count = kKBlocks - first < kScaleChunk ? kKBlocks - first : kScaleChunk;
            ptx::barrier_wait(smem.scales_empty + 8 * ring.stage, ring.phase ^ 1);
            load_scales<true>(sfa, sfa.bulk(), to, kScalePitch, row, kTileRows, rows_left, first, count,
                              full);
            DGJ_NO_UNROLL
            for (u32 i = 0; i < count; i++, sfb += args.sfb_stride_k)
                if (lane < kScaleCols)
                    ptx::copy_async4(to + kScaleChunk * kScalePitch + i * kScaleBPitch + lane * 4, sfb,
                                     has_b);
            ptx::barrier_arrive_after_copies(full);
            meet_once(kStartBarrier, 64, starting);
        }
    }
}

struct MultiplyShape {  // parts/multiply.cuh
    static constexpr u32 kWaves = dgj::kWaves, kCols = kTileCols, kPartials = 1;
    static constexpr u32 kRanges = kScaleCols, kRange = kScaleWidth;
    static constexpr u32 kStageA = kABytes, kStageB = kBBytes;
    static constexpr u32 kScaleBytes = dgj::kScaleBytes, kScaleB = kScaleChunk * kScalePitch;
    static constexpr u32 kScaleBPitch = dgj::kScaleBPitch;
    static constexpr bool kUnrolled = false;
};

// The last step for a call with alpha, bias or c, or with an FP32 output: a warp's sums go through its own 2
// KB of shared memory, 16 rows x 32 columns of them at a time, to rows of D. Only storing the sums is spelled
// out for every register: an unrolled last step would take the compiler longer than the rest of the kernel.
DGJ_DEVICE void finish_tile(const GemmArgs& args, u32 staging, u32 first_row, u32 tile_col,
                            const float (&acc)[kWaves][kTileCols / 2]) {
    static_assert(kTileCols % 32 == 0, "chunks are whole");
    constexpr u32 kValues = Out::kValues, kLanes = 32 / kValues;  // of a row: 4 or 8
    constexpr u32 kRows = 32 / kLanes;                            // at a time
    constexpr u32 kColChunks = kTileCols / 32, kChunks = kWaves * kColChunks;
    const u32 lane = ptx::lane_index(), place = lane % kLanes * kValues;
    // A row's eight places of 16 bytes are permuted: neither writes nor reads have bank conflicts.
    const auto skew = [](u32 row) { return row % 4 * 2 + row % 2; };
    const u32 to = ptx::hidden(staging + lane / 4 * 128 + ((lane % 4 / 2) ^ skew(lane / 4)) * 16 +
                               lane % 2 * 8);
    const u32 from = ptx::hidden(staging + lane / kLanes * 128 + ((place / 4) ^ skew(lane / kLanes)) * 16);
    // All lines of c are on their way before the first is waited for.
    constexpr u32 kLineCols = 128 / Out::kBytes, kLines = (kTileCols + kLineCols - 1) / kLineCols;
    DGJ_NO_UNROLL
    for (u32 i = lane; args.c != nullptr && i < kWaves * 16 * kLines; i += 32) {
        const u32 row = first_row + i / (16 * kLines) * 64 + i / kLines % 16;
        const u32 column = tile_col + i % kLines * kLineCols;
        if (row < args.m && column < kN) ptx::prefetch_line(Out::at_c(args, row, column));
    }
    DGJ_NO_UNROLL
    for (u32 chunk = 0; chunk < kChunks; chunk++) {
        const u32 first_column = tile_col + chunk % kColChunks * 32, column = first_column + place;
        float of_lane[1] = {};  // bias of one column
        if (first_column + lane < kN) Out::load_bias(args, first_column + lane, of_lane);
        ptx::sync_warp();  // the chunk before has been read
        DGJ_UNROLL
        for (u32 i = 0; i < kChunks; i++) {
            if (i != chunk) continue;
            DGJ_UNROLL
            for (u32 j = 0; j < 4; j++) {
                const float* v = acc[i / kColChunks] + i % kColChunks * 16 + 4 * j;
                ptx::store_shared2(to ^ (j * 32), v[0], v[1]);
                ptx::store_shared2((to ^ (j * 32)) + 8 * 128, v[2], v[3]);
            }
        }
        ptx::sync_warp();
        float bias[kValues];
        DGJ_UNROLL
        for (u32 i = 0; i < kValues; i++)
            bias[i] = ptx::from_bits(ptx::shuffle(ptx::to_bits(of_lane[0]), place + i));
        if (column >= kN) continue;
        u32 row = first_row + chunk / kColChunks * 64 + lane / kLanes;
        DGJ_NO_UNROLL
        for (u32 r = 0; r < 16 && row < args.m; r += kRows, row += kRows) {
            const Word4 c = Out::load_c(args, row, column);
            float v[kValues];
            DGJ_UNROLL
            for (u32 i = 0; i < kValues; i += 4) {
                const Float4 four = ptx::load_shared4((from + r * 128) ^ (i * 4));
                v[i] = four.x, v[i + 1] = four.y, v[i + 2] = four.z, v[i + 3] = four.w;
            }
            finish<kOutput>(args.alpha, bias, c, v);
            Out::store(args.d, (i64)row * args.ldd + column, v);
        }
    }
}

// 16-bit output: boxes of 64 rows x 64 columns in shared memory, for a sender.
DGJ_DEVICE void stage_boxes(const Shared& smem, u32 group, u32& phase,
                            const float (&acc)[kWaves][kTileCols / 2]) {
    ptx::barrier_wait(smem.sent + 8 * group, phase ^ 1);
    DGJ_UNROLL
    for (u32 box = 0; box < kBoxes; box++)
        stage_rows<Out>(smem.d + (group * kBoxes + box) * kBoxBytes, acc[box / kBoxCols],
                        box % kBoxCols * 64);
    ptx::fence_async_shared();
    ptx::sync_warp();
    ptx::barrier_arrive_if(ptx::lane_index() == 0, smem.staged + 8 * group);
    phase ^= 1;
}

// One warp: sends what every second warpgroup from `first` on has staged. A tensor copy to global memory
// takes its thread hundreds of cycles, which a consumer would not multiply in. What they read is over before
// the warp ends, what they write when the grid does.
DGJ_DEVICE void send_boxes(const Shared& smem, const TensorMap& map_d, const GemmArgs& args, u32 first) {
    const bool leader = ptx::lane_index() == 0;
    u32 phase = 0;
    for (Tiles tiles(args.m, kN); tiles.valid(); tiles.next(), phase ^= 1) {
        u32 tile_row, tile_col;
        tiles.locate(tile_row, tile_col);
        DGJ_NO_UNROLL
        for (u32 group = first; group < kWarpgroups; group += 2) {
            ptx::barrier_wait(smem.staged + 8 * group, phase);
            ptx::sync_warp();  // every lane has seen it
            if (!leader) continue;
            DGJ_UNROLL
            for (u32 box = 0; box < kBoxes; box++) {
                const u32 row = tile_row + group * kGroupRows + box / kBoxCols * 64;
                const u32 col = tile_col + box % kBoxCols * 64;
                if (row < args.m && col < kN)
                    ptx::store_tile(&map_d, smem.d + (group * kBoxes + box) * kBoxBytes, col, row);
            }
            ptx::commit_stores();
            ptx::wait_stores_read<0>();
            ptx::barrier_arrive(smem.sent + 8 * group);
        }
    }
}

DGJ_DEVICE void consume(const Shared& smem, const GemmArgs& args, u32 group) {
    const u32 thread = ptx::thread_index() % 128;
    const u32 row_in_tile = group * kGroupRows + thread / 32 * 16 + thread % 32 / 4;
    const ScaleStrides sfa{args.sfa, args.sfa_stride_m, args.sfa_stride_k};
    // Hidden, or the compilers add what these addresses have in common again for each block.
    const TileOperands operands{.a = ptx::matrix_descriptor(smem.a + group * kGroupRows * 128),
                                .b = ptx::matrix_descriptor(smem.b),
                                .full = ptx::hidden(smem.full),
                                .scales = ptx::hidden(smem.scales),
                                .scales_full = ptx::hidden(smem.scales_full),
                                .scales_empty = ptx::hidden(smem.scales_empty),
                                .row = row_in_tile,
                                .first_range = 0};
    const u32 first_empty = ptx::hidden(smem.empty);
    // A stage is given back to all blocks that write into it.
    const auto release = [&](u32 stage) {
        const u32 lane = ptx::lane_index(), empty = first_empty + 8 * stage;
        if constexpr (kCluster > 1) {
            if (lane < kCluster) ptx::barrier_arrive_remote(empty, lane);
        } else {
            ptx::barrier_arrive_if(lane == 0, empty);
        }
    };
    Rings rings;
    u32 phase = 0;  // of the boxes
    for (Tiles tiles(args.m, kN); tiles.valid(); tiles.next()) {
        u32 row, col;
        tiles.locate(row, col);
        float acc[kWaves][kTileCols / 2] = {};
        multiply_tile<MultiplyShape>(operands, rings, ScaleReader(sfa, kScalePitch, row), acc, release);
        if constexpr (kExtras)
            finish_tile(args, smem.d + group * kBoxBytes + thread / 32 * 2048,
                        row + group * kGroupRows + thread / 32 * 16, col, acc);
        else stage_boxes(smem, group, phase, acc);
    }
}

DGJ_DEVICE void fp8_gemm(const TensorMap& map_a, const TensorMap& map_b, const TensorMap& map_d,
                         const GemmArgs& args) {
    const Shared smem(ptx::shared_base());
    const u32 warp = ptx::warp_index(), group = warp / 4;
    if (warp == 0 && ptx::lane_index() == 0) {
        if constexpr (kKBlocks > 0) {
            ptx::prefetch_map(&map_a);
            ptx::prefetch_map(&map_b);
        }
        if constexpr (!kExtras) ptx::prefetch_map(&map_d);
        for (u32 s = 0; s < kStages; s++) {
            ptx::barrier_init(smem.full + 8 * s, 1);
            ptx::barrier_init(smem.empty + 8 * s, 4 * kWarpgroups * kCluster);
        }
        for (u32 s = 0; s < kScaleStages; s++) {
            ptx::barrier_init(smem.scales_full + 8 * s, 32);  // each lane of the scale warp
            ptx::barrier_init(smem.scales_empty + 8 * s, 4 * kWarpgroups);
        }
        init_box_barriers<kWarpgroups>(smem.staged, smem.sent);
        ptx::fence_barrier_init();
    }
    if constexpr (kCluster > 1) ptx::sync_cluster();
    else ptx::sync_block();
    ptx::wait_for_prior_kernels();

    if (group == kWarpgroups) {
        if constexpr (kProducerRegisters != 0) ptx::lower_registers<kProducerRegisters>();
        if (warp == 4 * kWarpgroups) {
            bool starting = kKBlocks > 0;  // without K there are no scales to let go first
            meet_once(kStartBarrier, 64, starting);
            if (ptx::lane_index() == 0) produce_tiles(smem, map_a, map_b, args.m);
        } else if (warp == 4 * kWarpgroups + 1) {
            produce_scales(smem, args);
        } else if (!kExtras) {
            send_boxes(smem, map_d, args, warp % 2);
        }
    } else {
        if constexpr (kConsumerRegisters != 0) ptx::raise_registers<kConsumerRegisters>();
        consume(smem, args, group);
    }
    if constexpr (kCluster > 1) {  // no block leaves while another may still write to it or arrive on it
        ptx::sync_warp();
        ptx::sync_cluster();
    }
}

}  // namespace dgj
