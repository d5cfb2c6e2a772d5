// 16-bit results of tiles of many rows on their way from a warpgroup to D: two boxes of 64 rows x 64 columns
// in shared memory (parts/staging.cuh), and who sends them.
//
//   consumers, four warps   acc -> two boxes -> staged ->   sender: solid pieces, by tensor copies   --> D
//                                  with a mail: the tile    sent <- when the copies have read them
//   pieces with rows of nobody between others: the consumers themselves, 16 bytes a thread           --> D
//
// A tensor copy to global memory takes the thread that issues it hundreds of cycles, which a consumer would
// not multiply in (docs/notes/gemm.md).
//
// Constants: kN, kOutput, kWarpgroups; those of parts/groups.cuh.
#pragma once

#include "parts/group_walk.cuh"
#include "parts/grouped_args.cuh"
#include "parts/grouped_rows.cuh"
#include "parts/groups.cuh"
#include "parts/staging.cuh"
#include "ptx/base.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/memory.cuh"
#include "ptx/sync.cuh"
#include "ptx/tma.cuh"

namespace dgj {

struct BoxShared {  // addresses: kWarpgroups of each, a warpgroup's after the other's
    u32 boxes, mail, staged, sent;
    DGJ_DEVICE BoxShared(u32 boxes, u32 barriers)
        : boxes(boxes), mail(barriers), staged(mail + 16 * kWarpgroups), sent(staged + 8 * kWarpgroups) {}
    DGJ_DEVICE u32 of(u32 warpgroup) const { return boxes + warpgroup * 2 * kBoxBytes; }
};

// A warpgroup's side. Where a tile has any solid piece, every warpgroup hands over once.
struct Boxes {
    u32 phase = 0;
    bool read = false;  // by other warps than who writes them
    bool used = false;  // by a sender
    // Until no copy reads them, no thread either.
    DGJ_DEVICE void await(const BoxShared& smem, u32 warpgroup) {
        ptx::barrier_wait(smem.sent + 8 * warpgroup, phase ^ 1);
        if (read) ptx::sync_threads(1 + warpgroup, 128);
        read = false;
    }
    // What the warpgroup has of a tile; or that it has none.
    DGJ_DEVICE void hand_over(const BoxShared& smem, u32 warpgroup, GroupTile t, bool some) {
        if (some) ptx::fence_async_shared();
        else t.solid = 0;
        if (ptx::thread_index() % 128 == 0) t.write_to(smem.mail + 16 * warpgroup);
        ptx::sync_warp();
        ptx::barrier_arrive_if(ptx::lane_index() == 0, smem.staged + 8 * warpgroup);
        phase ^= 1;
        used = true;
    }
    DGJ_DEVICE void hand_over_none(const BoxShared& smem, u32 warpgroup, const GroupTile& t) {
        ptx::barrier_wait(smem.sent + 8 * warpgroup, phase ^ 1);
        hand_over(smem, warpgroup, t, false);
    }
};

// What a warpgroup has of a tile of more than 32 rows: a piece by 128 columns, or both pieces of a wide one
// by 64. Products of 128 columns read shared memory less often, so that only the third warpgroup of a wide
// tile has 64, if all columns are there; the 128 are those of one scale of B.
struct Share {
    bool two;
    u32 piece, col;  // in the tile
    DGJ_DEVICE Share(const GroupTile& t, u32 warpgroup) {
        const bool odd = t.col % 128 != 0;
        two = t.wide() && (warpgroup == 2 || t.cols != kWideCols);
        piece = two ? 0 : warpgroup;
        col = !t.wide() ? 0 : t.cols != kWideCols ? warpgroup * 64 : !two ? odd * 64 : odd ? 0 : 128;
    }
    DGJ_DEVICE bool none(const GroupTile& t) const { return t.wide() ? col >= t.cols : piece * 64 >= t.rows; }
    // Bit b: box b is of a solid piece.
    DGJ_DEVICE u32 solid(const GroupTile& t) const { return two ? t.solid & 3 : (t.solid >> piece & 1) * 3; }
};

// kBoxes staged boxes of 64 rows x 64 columns (parts/staging.cuh), side by side, to D: live rows from `row`
// on, columns from `col`.
template <u32 kBoxes>
DGJ_DEVICE void write_boxes(const GroupedArgs& args, u32 boxes, u32 group, u32 row, const LiveMask& live,
                            u32 col) {
    const u32 thread = ptx::thread_index() % 128, chunk = thread % 8, first = thread / 8;
    u64 to = d_row(args, group, row + first) + (col + chunk * 8) * 2;
    const u64 step = (u64)args.ldd * 32;
    u32 from = boxes + first * 128 + (chunk ^ (first % 8)) * 16;
    DGJ_UNROLL
    for (u32 i = 0; i < 4; i++, to += step, from += 16 * 128) {
        if (!live.has(i * 16 + first)) continue;
        DGJ_UNROLL
        for (u32 b = 0; b < kBoxes; b++)
            if (col + b * 64 + chunk * 8 < kN)
                ptx::store_global_word4((void*)(to + b * 128), ptx::load_shared_word4(from + b * kBoxBytes));
    }
}

// A sender: a warp for every second warpgroup from `first` on, until it is handed a tile without rows.
DGJ_DEVICE void send_boxes(const BoxShared& smem, const TensorMap& map_d, const GroupedArgs& args,
                           u32 first) {
    const bool leader = ptx::lane_index() == 0;
    u32 phase = 0;
    for (bool more = true; more; phase ^= 1) {
        DGJ_NO_UNROLL
        for (u32 warpgroup = first; warpgroup < kWarpgroups; warpgroup += 2) {
            ptx::barrier_wait(smem.staged + 8 * warpgroup, phase);
            const GroupTile t = GroupTile::read_from(smem.mail + 16 * warpgroup);
            ptx::sync_warp();  // every lane has waited and read
            more = t.rows != 0;
            if (!leader || !more) continue;
            const Share share(t, warpgroup);
            const u32 box = smem.of(warpgroup), solid = share.solid(t);
            DGJ_UNROLL
            for (u32 b = 0; b < 2; b++) {
                const u32 from = (share.two ? b : share.piece) * 64, left = t.rows - from;
                const u32 col = t.col + share.col + (share.two ? 0 : b * 64);
                const RowsOfBox rows(args, 64, t.row + from, left < 64 ? left : 64);
                if ((solid >> b & 1) != 0 && col < kN)
                    ptx::store_tile4(&map_d, box + b * kBoxBytes, col, rows.first, rows.second,
                                     plane(args, t.group));
            }
            ptx::commit_stores();
            ptx::wait_stores_read<0>();
            ptx::barrier_arrive(smem.sent + 8 * warpgroup);
        }
    }
}

// One warp, in place of the consumers, who have nothing for senders: they need not be waited for at the end.
DGJ_DEVICE void dismiss_senders(const BoxShared& smem) {
    const u32 lane = ptx::lane_index();
    if (lane < kWarpgroups) ptx::store_shared_word4(smem.mail + 16 * lane, {0, 0, 0, 0});
    ptx::sync_warp();
    if (lane >= 4) return;
    DGJ_UNROLL
    for (u32 w = 0; w < kWarpgroups; w++) ptx::barrier_arrive(smem.staged + 8 * w);
}

}  // namespace dgj
