// D[m, n] = alpha * sum_k A[m, k] * B[n, k] + bias[n] + c[m, n] for few rows: the same arithmetic and the
// same bits as fp8_gemm.cuh, but the weights B are the 64-row operand of WGMMA and the tokens A its N (in
// steps of 8), so that one token costs one token. The time is that of reading B once; few, large stages
// (stage_blocks x 128 of K) keep DRAM busy.
//
//   warp 0 of the last warpgroup   B, A boxes    --TMA-->       +------------ ring of kStages -------------+
//   warp 1                         sfa, sfb      --copies-->    | B | A | sfa | sfb  (kStageBlocks x 128 K) |
//                                                               +--------------------+---------------------+
//   kWarpgroups consumers, 64 * kWaves weight rows x kTileCols tokens each: WGMMA -> partials -> promote, acc
//   acc (transposed) -> shared [token][64 * kWaves] fp32 -> finish -> D rows, 16 bytes a thread
//
// Split-K (kSplitK > 1): the blocks of a cluster take consecutive parts of K. Each keeps its sums in shared
// memory, sends the slice of tokens that block j finishes to block j (bulk copy, completing on j's barrier),
// and adds what it received in the order of the ranks:
//
//   rank 0: [slice 0 | slice 1] --slice 1--> rank 1      partial + received[0..kSplitK-1] -> finish -> D
//   rank 1: [slice 0 | slice 1] --slice 0--> rank 0
//
// kReuseRing: the sums take the memory of the ring, where they would not fit beside it (tiles of 256 x 128).
// The ring starts again only when the tile is written, so this is for grids in which a block has about one
// tile. With split-K no block sends before the receiver said that its ring is empty (`ready`).
//
// Constants from the plan (namespace dgj, before this file): kN, kK, kTileRows (weights) = 64 * kWaves *
// kWarpgroups, kTileCols (tokens), kWarpgroups, kWaves, kStages, kStageBlocks, kSplitK, kReuseRing, kOutput,
// kConsumerRegisters, kProducerRegisters, kSmem*. Limits: kN % 8 == 0, kK % 16 == 0; kTileCols % 8 == 0 and
// at most 256; kTileCols >= kSplitK.
#pragma once

#include "parts/gemm_args.cuh"
#include "parts/output.cuh"
#include "parts/promote.cuh"
#include "parts/ring.cuh"
#include "parts/scales.cuh"
#include "ptx/base.cuh"
#include "ptx/cluster.cuh"
#include "ptx/convert.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/memory.cuh"
#include "ptx/sync.cuh"
#include "ptx/tma.cuh"
#include "ptx/wgmma.cuh"

namespace dgj {

constexpr u32 kKBlocks = (kK + 127) / 128;
constexpr u32 kRounds = (kKBlocks + kStageBlocks - 1) / kStageBlocks;  // stages that the whole of K takes
constexpr u32 kScaleBlocks = (kN + 127) / 128;
constexpr u32 kScaleRows = kTileRows / 64;  // sfb values of a tile and K block
constexpr u32 kWeightBox = kTileRows * 128, kTokenBox = kTileCols * 128;
constexpr u32 kScaleBytes = (kTileCols + 4) * 4;             // of one K block: sfa, then up to 4 of sfb
constexpr u32 kGroupRows = 64 * kWaves;                      // weight rows of one warpgroup
constexpr u32 kPitch = kGroupRows + 4;                       // floats of a staged token, with padding
constexpr u32 kSlice = (kTileCols + kSplitK - 1) / kSplitK;  // tokens that a block of a split finishes
constexpr u32 kSliceBytes = kSlice * kPitch * 4;
constexpr u32 kStagingBytes = kSplitK * kSliceBytes;  // of one warpgroup
constexpr u32 kSteps = kStageBlocks * kWaves;         // 64 x kTileCols x 128 products of a stage
DGJ_DEVICE constexpr u32 in_flight() {                // partial sums that registers can hold
    u32 count = 1;
    while (count < 4 && kSteps % (2 * count) == 0 && (kWaves + 2 * count) * kTileCols <= 384) count *= 2;
    return count;
}
constexpr u32 kInFlight = in_flight();
static_assert(kScaleRows <= 4, "sfb of a tile fits its place");
using Out = OutputType<kOutput>;

struct Shared {  // addresses
    u32 weights, tokens, scales, staging, received, full, empty, arrived, freed, ready, written;
    DGJ_DEVICE explicit Shared(u32 base)
        : weights(base + kSmemWeights), tokens(base + kSmemTokens), scales(base + kSmemScales),
          staging(base + kSmemStaging), received(base + kSmemReceived), full(base + kSmemBarriers),
          empty(full + 8 * kStages), arrived(empty + 8 * kStages), freed(arrived + 8 * kWarpgroups),
          ready(freed + 8 * kWarpgroups), written(ready + 8 * kWarpgroups) {}
};

// Tiles in the order: all token tiles of a weight tile, then the next weight tile (its weights come from L2
// then).
struct Work {
    u32 token_tiles, tiles, tile, step, first_round, last_round;
    DGJ_DEVICE explicit Work(u32 m) {
        const u32 rank = kSplitK > 1 ? ptx::cluster_rank() : 0;
        token_tiles = m / kTileCols + (m % kTileCols != 0);
        tiles = token_tiles * ((kN + kTileRows - 1) / kTileRows);
        tile = ptx::block_index() / kSplitK;
        step = ptx::grid_size() / kSplitK;
        first_round = kRounds * rank / kSplitK;
        last_round = kRounds * (rank + 1) / kSplitK;
    }
    DGJ_DEVICE bool valid() const { return tile < tiles; }
    DGJ_DEVICE bool last() const { return tile + step >= tiles; }
    DGJ_DEVICE void next() { tile += step; }
    DGJ_DEVICE u32 weight_row() const { return tile / token_tiles * kTileRows; }
    DGJ_DEVICE u32 token() const { return tile % token_tiles * kTileCols; }
};

DGJ_DEVICE void produce_tiles(const Shared& smem, const TensorMap& map_a, const TensorMap& map_b, u32 m) {
    Ring<kStages> ring;
    u32 turn = 0;
    for (Work work(m); work.valid(); work.next(), turn++) {
        const u32 weight_row = work.weight_row(), token = work.token();
        if (kReuseRing && turn > 0) ptx::barrier_wait(smem.written, (turn - 1) & 1);
        DGJ_NO_UNROLL
        for (u32 round = work.first_round; round < work.last_round; round++, ring.advance()) {
            const u32 full = smem.full + 8 * ring.stage;
            const u32 weights = smem.weights + ring.stage * kStageBlocks * kWeightBox;
            const u32 tokens = smem.tokens + ring.stage * kStageBlocks * kTokenBox;
            ptx::barrier_wait(smem.empty + 8 * ring.stage, ring.phase ^ 1);
            ptx::barrier_arrive_expect(full, kStageBlocks * (kWeightBox + kTokenBox));
            DGJ_UNROLL
            for (u32 i = 0; i < kStageBlocks; i++) {  // boxes past K are filled with zeros, without any read
                const u32 k = (round * kStageBlocks + i) * 128;
                ptx::load_tile(weights + i * kWeightBox, &map_b, k, weight_row, full);
                ptx::load_tile(tokens + i * kTokenBox, &map_a, k, token, full);
            }
        }
        if (work.last()) ptx::launch_next_kernel();
    }
}

DGJ_DEVICE void produce_scales(const Shared& smem, const GemmArgs& args) {
    const u32 lane = ptx::lane_index();
    const ScaleStrides sfa{args.sfa, args.sfa_stride_m, args.sfa_stride_k};
    const bool bulk = sfa.aligned();  // consumers read pairs of tokens, so there may be no skew
    Ring<kStages> ring;
    for (Work work(args.m); work.valid(); work.next()) {
        const u32 token = work.token(), scale_block = (work.weight_row() + 64 * lane) / 128;
        const bool has_b = lane < kScaleRows && scale_block < kScaleBlocks;
        DGJ_NO_UNROLL
        for (u32 round = work.first_round; round < work.last_round; round++, ring.advance()) {
            const u32 first = round * kStageBlocks;
            const u32 count = kKBlocks - first < kStageBlocks ? kKBlocks - first : kStageBlocks;
            const u32 to = smem.scales + ring.stage * kStageBlocks * kScaleBytes,
                      full = smem.full + 8 * ring.stage;
            ptx::barrier_wait(smem.empty + 8 * ring.stage, ring.phase ^ 1);
            load_scales<false>(sfa, bulk, to, kScaleBytes, token, kTileCols, args.m - token, first, count,
                               full);
            if (lane < kScaleRows) {
                DGJ_UNROLL
                for (u32 i = 0; i < kStageBlocks; i++) {
                    const bool in = has_b && (kKBlocks % kStageBlocks == 0 || i < count);
                    const float* from = args.sfb;
                    if (in)
                        from += (i64)scale_block * args.sfb_stride_n + (i64)(first + i) * args.sfb_stride_k;
                    ptx::copy_async4(to + i * kScaleBytes + (kTileCols + lane) * 4, from, in);
                }
            }
            ptx::barrier_arrive_after_copies(full);
        }
    }
}

// Steps first.. of a stage of `blocks` K blocks: step s is K block s / kWaves, wave s % kWaves. `scales` are
// those of the stage. A block past K has no scales, and adding its zeros would turn -0 into +0.
template <u32 kPending>
DGJ_DEVICE void promote_batch(float (&acc)[kWaves][kTileCols / 2], float (&partial)[kInFlight][kTileCols / 2],
                              u32 first, u32 blocks, u32 scales, u32 group) {
    constexpr u32 kIndex = kInFlight - 1 - kPending;
    const u32 wave = (first + kIndex) % kWaves, block = (first + kIndex) / kWaves,
              block_scales = scales + block * kScaleBytes;
    const float sfb = ptx::load_shared(block_scales + (kTileCols + group * kWaves + wave) * 4);
    ptx::wgmma_wait<kPending>();
    ptx::pin_registers(partial[kIndex]);
    if (kKBlocks % kStageBlocks == 0 || block < blocks)
        promote_columns(acc[wave], partial[kIndex], block_scales, sfb);
    if constexpr (kPending > 0) promote_batch<kPending - 1>(acc, partial, first, blocks, scales, group);
}

DGJ_DEVICE void multiply(const Shared& smem, Ring<kStages>& ring, const Work& work, u32 group,
                         float (&acc)[kWaves][kTileCols / 2]) {
    float partial[kInFlight][kTileCols / 2];
    DGJ_NO_UNROLL
    for (u32 round = work.first_round; round < work.last_round; round++, ring.advance()) {
        const u32 weights = smem.weights + ring.stage * kStageBlocks * kWeightBox + group * kGroupRows * 128;
        const u32 tokens = smem.tokens + ring.stage * kStageBlocks * kTokenBox;
        const u32 scales = smem.scales + ring.stage * kStageBlocks * kScaleBytes;
        const u32 blocks = kKBlocks - round * kStageBlocks;  // as many, or more than a stage has
        ptx::barrier_wait(smem.full + 8 * ring.stage, ring.phase);
        DGJ_UNROLL
        for (u32 first = 0; first < kSteps; first += kInFlight) {
            DGJ_UNROLL
            for (u32 i = 0; i < kInFlight; i++) ptx::pin_registers(partial[i]);
            ptx::wgmma_fence();
            DGJ_UNROLL
            for (u32 i = 0; i < kInFlight; i++) {
                const u32 block = (first + i) / kWaves, wave = (first + i) % kWaves;
                const u64 a = ptx::matrix_descriptor(weights + block * kWeightBox + wave * 8192);
                const u64 b = ptx::matrix_descriptor(tokens + block * kTokenBox);
                DGJ_UNROLL
                for (u32 k = 0; k < 4; k++) ptx::wgmma_e4m3(partial[i], a + 2 * k, b + 2 * k, k != 0);
                ptx::wgmma_commit();
            }
            DGJ_UNROLL
            for (u32 i = 0; i < kInFlight; i++) ptx::pin_registers(partial[i]);
            promote_batch<kInFlight - 1>(acc, partial, first, blocks, scales, group);
        }
        ptx::sync_warp();  // every lane has read its scales
        if (ptx::lane_index() == 0) ptx::barrier_arrive(smem.empty + 8 * ring.stage);
    }
}

// The thread's accumulator, transposed, to its warpgroup's staging area [token][64 * kWaves weight rows].
DGJ_DEVICE void stage(u32 staging, const float (&acc)[kWaves][kTileCols / 2]) {
    const u32 thread = ptx::thread_index() % 128, lane = thread % 32;
    DGJ_UNROLL
    for (u32 w = 0; w < kWaves; w++) {
        const u32 row = w * 64 + thread / 32 * 16 + lane / 4;
        DGJ_UNROLL
        for (u32 i = 0; i < kTileCols / 2; i += 4) {
            const u32 to = staging + ((i * 2 + lane % 4 * 2) * kPitch + row) * 4;
            ptx::store_shared(to, acc[w][i]);
            ptx::store_shared(to + kPitch * 4, acc[w][i + 1]);
            ptx::store_shared(to + 32, acc[w][i + 2]);
            ptx::store_shared(to + kPitch * 4 + 32, acc[w][i + 3]);
        }
    }
}

// Staged sums to D. Token t of the tile stands at part(rank) + (t - first_token) * kPitch * 4 of every part.
// The first part is loaded, not added to zero: -0 stays -0.
template <class Part>
DGJ_DEVICE void write_rows(const GemmArgs& args, u32 group, u32 weight_row, u32 token, u32 first_token,
                           u32 tokens, Part part) {
    using Out = OutputType<kOutput>;
    constexpr u32 kValues = Out::kValues, kThreadsPerToken = kGroupRows / kValues;
    const u32 thread = ptx::thread_index() % 128, place = thread % kThreadsPerToken * kValues;
    const u32 column = weight_row + group * kGroupRows + place;
    if (column >= kN) return;
    float bias[kValues];
    Out::load_bias(args, column, bias);
    DGJ_NO_UNROLL
    for (u32 t = thread / kThreadsPerToken; t < tokens; t += 128 / kThreadsPerToken) {
        const u32 row = token + first_token + t, offset = (t * kPitch + place) * 4;
        if (first_token + t >= kTileCols || row >= args.m) break;
        const Word4 c = Out::load_c(args, row, column);
        float v[kValues];
        DGJ_UNROLL
        for (u32 rank = 0; rank < kSplitK; rank++) {
            DGJ_UNROLL
            for (u32 i = 0; i < kValues; i += 4) {
                const Float4 four = ptx::load_shared4(part(rank) + offset + i * 4);
                const float add[4] = {four.x, four.y, four.z, four.w};
                DGJ_UNROLL
                for (u32 j = 0; j < 4; j++) v[i + j] = rank == 0 ? add[j] : ptx::add(v[i + j], add[j]);
            }
        }
        finish<kOutput>(args.alpha, bias, c, v);
        Out::store(args.d, (i64)row * args.ldd + column, v);
    }
}

// All parts of a tile to D. `turn` counts the block's tiles; barriers of a warpgroup have one phase a turn.
DGJ_DEVICE void reduce_and_write(const Shared& smem, const GemmArgs& args, const Work& work, u32 group,
                                 u32 turn, const float (&acc)[kWaves][kTileCols / 2]) {
    const u32 thread = ptx::thread_index() % 128, rank = ptx::cluster_rank();
    const u32 staging = smem.staging + group * kStagingBytes;
    const u32 received = smem.received + group * kStagingBytes;
    const u32 arrived = smem.arrived + 8 * group, freed = smem.freed + 8 * group,
              ready = smem.ready + 8 * group;
    if constexpr (kReuseRing) {
        if (thread < kSplitK && thread != rank) ptx::barrier_arrive_remote(ready, thread);
        ptx::barrier_wait(ready, turn & 1);
    } else if (turn > 0) {
        // all others have added what this block sent them last time, so staging and their slots are free
        ptx::barrier_wait(freed, (turn - 1) & 1);
    }
    ptx::sync_threads(1 + group, 128);
    stage(staging, acc);
    ptx::fence_async_shared();
    ptx::sync_threads(1 + group, 128);
    if (thread == 0) {
        ptx::barrier_arrive_expect(arrived, (kSplitK - 1) * kSliceBytes);
        for (u32 to = 0; to < kSplitK; to++) {
            if (to == rank) continue;
            ptx::copy_to_block(received + rank * kSliceBytes, staging + to * kSliceBytes, kSliceBytes,
                               arrived, to);
        }
    }
    ptx::barrier_wait(arrived, turn & 1);
    const u32 first_token = rank * kSlice;
    write_rows(args, group, work.weight_row(), work.token(), first_token, kSlice, [=](u32 r) {
        return r == rank ? staging + first_token * kPitch * 4 : received + r * kSliceBytes;
    });
    ptx::sync_threads(1 + group, 128);  // all reads done before the slots are given back
    if (thread < kSplitK && thread != rank) ptx::barrier_arrive_remote(freed, thread);
    if (kReuseRing && !work.last()) ptx::barrier_wait(freed, turn & 1);  // what was sent has been read
}

DGJ_DEVICE void consume(const Shared& smem, const GemmArgs& args, u32 group) {
    Ring<kStages> ring;
    u32 turn = 0;
    for (Work work(args.m); work.valid(); work.next(), turn++) {
        float acc[kWaves][kTileCols / 2] = {};
        multiply(smem, ring, work, group, acc);
        if constexpr (kReuseRing)
            ptx::sync_threads(1 + kWarpgroups, 128 * kWarpgroups);  // nobody reads the ring any more
        if constexpr (kSplitK > 1) {
            reduce_and_write(smem, args, work, group, turn, acc);
        } else {
            const u32 staging = smem.staging + group * kStagingBytes;
            ptx::sync_threads(1 + group, 128);  // the previous tile has been read
            stage(staging, acc);
            ptx::sync_threads(1 + group, 128);
            write_rows(args, group, work.weight_row(), work.token(), 0, kTileCols,
                       [=](u32) { return staging; });
        }
        if (kReuseRing && !work.last()) {
            ptx::fence_async_shared();  // the copy engine writes next where this warp read and wrote
            ptx::sync_warp();
            if (ptx::lane_index() == 0) ptx::barrier_arrive(smem.written);
        }
    }
}

DGJ_DEVICE void fp8_gemm_swap_ab(const TensorMap& map_a, const TensorMap& map_b, const GemmArgs& args) {
    const Shared smem(ptx::shared_base());
    const u32 warp = ptx::warp_index(), group = warp / 4;
    if (warp == 0 && ptx::lane_index() == 0) {
        if constexpr (kKBlocks > 0) {
            ptx::prefetch_map(&map_a);
            ptx::prefetch_map(&map_b);
        }
        for (u32 s = 0; s < kStages; s++) {
            ptx::barrier_init(smem.full + 8 * s, 1 + 32);  // the TMA thread, and each lane of the scale warp
            ptx::barrier_init(smem.empty + 8 * s, 4 * kWarpgroups);
        }
        if constexpr (kSplitK > 1) {
            for (u32 g = 0; g < kWarpgroups; g++) {
                ptx::barrier_init(smem.arrived + 8 * g, 1);
                ptx::barrier_init(smem.freed + 8 * g, kSplitK - 1);
                ptx::barrier_init(smem.ready + 8 * g, kSplitK - 1);
            }
        }
        ptx::barrier_init(smem.written, 4 * kWarpgroups);
        ptx::fence_barrier_init();
    }
    if constexpr (kSplitK > 1) ptx::sync_cluster();
    else ptx::sync_block();
    ptx::wait_for_prior_kernels();

    if (group == kWarpgroups) {
        if constexpr (kProducerRegisters != 0) ptx::lower_registers<kProducerRegisters>();
        if (warp == 4 * kWarpgroups) {
            if (ptx::lane_index() == 0) produce_tiles(smem, map_a, map_b, args.m);
        } else if (warp == 4 * kWarpgroups + 1) {
            produce_scales(smem, args);
        }
    } else {
        if constexpr (kConsumerRegisters != 0) ptx::raise_registers<kConsumerRegisters>();
        consume(smem, args, group);
    }
    if constexpr (kSplitK > 1) {  // no block leaves while another may still write to it or arrive on it
        ptx::sync_warp();
        ptx::sync_cluster();
    }
}

}  // namespace dgj
