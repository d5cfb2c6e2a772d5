// Rows of a grouped GEMM: where their scales and those of D are, and zeros for those of no group.
//
// Constants: kN, kOutput; those of parts/groups.cuh.
#pragma once

#include "parts/group_walk.cuh"
#include "parts/grouped_args.cuh"
#include "parts/groups.cuh"
#include "parts/output.cuh"
#include "parts/scales.cuh"
#include "ptx/base.cuh"
#include "ptx/memory.cuh"
#include "ptx/warp.cuh"

namespace dgj {

using Out = OutputType<kOutput>;

DGJ_DEVICE u32 plane(const GroupedArgs& args, u32 group) { return args.form == kFormCounts ? group : 0; }
DGJ_DEVICE ScaleStrides scales_of(const GroupedArgs& args, u32 group) {
    return {args.sfa + (i64)plane(args, group) * args.sfa_group, args.sfa_stride_m, args.sfa_stride_k};
}
// Bulk copies must not shift the scales of a tile: one place for each keeps registers out of the main loop,
// and where tokens are the columns of WGMMA scales are read in pairs.
DGJ_DEVICE bool bulk_copies(const ScaleStrides& sfa, u32 row) { return sfa.aligned() && row % 4 == 0; }
DGJ_DEVICE u64 d_row(const GroupedArgs& args, u32 group, u32 row) {  // address
    const i64 at = (i64)plane(args, group) * args.d_group + (i64)row * args.ldd;
    return (u64)args.d + (u64)(at * Out::kBytes);
}

// Where in the maps of A and D the box of `count` rows from `row` on is. Dimensions 1 and 2 of these maps
// both have the pitch of a row, so that a box stands at the row that is their sum; dimension 1 ends after
// `height` rows, as many as a box has (or the tensor, if it has fewer):
//
//   dimension 1     0 .. first   first .. height        height ..
//   rows            not asked    row .. row + count     outside: zero when read, not written
//
// Before row height - count there is no such place, and the rows after are whosoever's.
struct RowsOfBox {
    u32 first, second;
    DGJ_DEVICE RowsOfBox(const GroupedArgs& args, u32 box, u32 row, u32 count) {
        box = ptx::hidden(box);  // or what follows takes a register in all loops
        const u32 height = box < args.rows ? box : args.rows, before = height - count;
        first = before < row ? before : row;
        second = row - first;
    }
};

// Rows of no group become zero (ids, ends): a warp takes every so many-th row. Called once, by the builders.
// Rolled: the code is there whether it is asked for or not.
DGJ_DEVICE void zero_dead_rows(const GroupedArgs& args) {
    const u32 lane = ptx::lane_index();
    DGJ_NO_UNROLL
    for (u32 row = ptx::block_index() * kBuilderWarps + ptx::warp_index(); row < args.rows;
         row += ptx::grid_size() * kBuilderWarps) {
        bool live;
        if (args.form == kFormIds) {
            const i32 own = ptx::load_global_i32(args.index + row);
            live = own >= 0 && (u32)own < args.groups &&
                   own == ptx::load_global_i32(args.index + row / args.alignment * args.alignment);
        } else {  // ends: 32 groups at a time; each starts at the largest rounded-up end of those before it
            live = false;
            u32 start = 0;
            DGJ_NO_UNROLL
            for (u32 first = 0; first < args.groups && !live; first += 32) {
                const bool in = first + lane < args.groups;
                u32 end = in ? clamp_rows(ptx::load_global_i32(args.index + first + lane), args.rows) : 0;
                u32 next = round_up(end, args.alignment);
                DGJ_UNROLL
                for (u32 distance = 1; distance < 32; distance *= 2) {
                    const u32 below = ptx::shuffle_up(next, distance);
                    if (lane >= distance && below > next) next = below;
                }
                if (next < start) next = start;
                const u32 below = ptx::shuffle_up(next, 1), own = lane == 0 ? start : below;
                live = ptx::ballot(in && row >= own && row < end) != 0;
                start = ptx::shuffle(next, 31);
            }
        }
        if (live) continue;
        DGJ_NO_UNROLL
        for (u32 n = lane * 8; n < kN; n += 256) {
            const u64 to = d_row(args, 0, row) + (u64)n * Out::kBytes;
            ptx::store_global_word4((void*)to, {0, 0, 0, 0});
            if constexpr (Out::kBytes == 4) ptx::store_global_word4((void*)(to + 16), {0, 0, 0, 0});
        }
    }
}

}  // namespace dgj
