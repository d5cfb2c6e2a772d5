// Which tiles a block of an M-grouped kernel takes, and what their rows are, from the table of groups:
//
//   table (parts/groups.cuh)          --GroupWalk-->  this block's tiles, for the two producing warps
//   tile, ids of its rows (one warp)  --TileSlot-->   tile and live rows, for consumers and senders
//
// Constants: kN, kTileRows, kTileCols, kWideCols, kRaster.
#pragma once

#include "parts/grouped_args.cuh"
#include "parts/groups.cuh"
#include "parts/ring.cuh"
#include "ptx/base.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/memory.cuh"
#include "ptx/sync.cuh"
#include "ptx/warp.cuh"

namespace dgj {

constexpr u32 kSolidShift = 28;  // in a slot's word of rows and columns
constexpr u32 kWideRows = 128;   // of a tile of kWideCols columns

struct GroupTile {
    u32 group, row, rows, col;  // rows row .. row + rows of A (in plane `group` where there are planes)
    u32 cols;       // of a wide tile, up to kWideCols that D has; of half a tile of few rows; or 0
    u32 solid = 0;  // bit p, as told: all rows of piece p, up to the tile's last, are live; none where there
                    // are few rows
    DGJ_DEVICE bool few() const { return rows <= kFewRows; }
    DGJ_DEVICE bool wide() const { return cols != 0 && !few(); }
    DGJ_DEVICE u32 pieces_of_b() const { return cols == 0 ? 2 : (cols + 63) / 64; }
    // To and from 16 bytes of shared memory. Who reads is a whole warp, to which it is uniform: see locate().
    DGJ_DEVICE void write_to(u32 place) const {
        ptx::store_shared_word4(place, {group, row, rows | cols << 16 | solid << kSolidShift, col});
    }
    DGJ_DEVICE static GroupTile read_from(u32 place) {
        const Word4 w = ptx::load_shared_word4(place);
        const u32 extent = ptx::shuffle(w.z, 0);
        return {ptx::shuffle(w.x, 0), ptx::shuffle(w.y, 0), extent & 0xffff,
                ptx::shuffle(w.w, 0), extent >> 16 & 0xfff, extent >> kSolidShift};
    }
};

// Which of a tile's rows are the group's: with ids, rows of nobody lie between its rows. A bit a row, the
// 32 rows from 32 * i on in lane i.
struct TileIds {  // of the rows, nobody's where there is no row; not waited for yet. Only with ids: the start
                  // of a call waits for all that is done before the first scales are asked for
    static constexpr u32 kWords = kTileRows / 32;
    i32 id[kWords];
    DGJ_DEVICE TileIds(const GroupedArgs& args, const GroupTile& t) {
        if (args.form != kFormIds) return;
        DGJ_UNROLL
        for (u32 i = 0; i < kWords; i++) {
            const u32 r = i * 32 + ptx::lane_index();
            id[i] = r < t.rows ? ptx::load_global_i32(args.index + t.row + r) : -1;
        }
    }
};
struct LiveRows {
    u32 bits = 0;
    LiveRows() = default;
    DGJ_DEVICE LiveRows(const TileIds& ids, const GroupedArgs& args, const GroupTile& t) {
        const u32 lane = ptx::lane_index(), left = t.rows > lane * 32 ? t.rows - lane * 32 : 0;
        bits = left < 32 ? (1u << left) - 1 : ~0u;
        if (args.form != kFormIds) return;
        DGJ_UNROLL
        for (u32 i = 0; i < TileIds::kWords; i++) {
            const u32 live = ptx::ballot(ids.id[i] == (i32)t.group);
            if (lane == i) bits = live;
        }
    }
    // GroupTile::solid. For a whole warp. Before row 64 no box ends with its rows (RowsOfBox), so that a
    // piece there is solid only if it is full.
    DGJ_DEVICE u32 solid(const GroupTile& t) const {
        const u32 first = ptx::lane_index() * 32, rows = t.row + t.rows < 64 ? kTileRows : t.rows;
        const u32 left = rows > first ? rows - first : 0;
        const u32 full = ptx::ballot(bits == (left < 32 ? (1u << left) - 1 : ~0u));
        u32 pieces = 0;
        DGJ_UNROLL
        for (u32 p = 0; p < kTileRows / 64; p++) pieces |= (u32)((full >> 2 * p & 3) == 3) << p;
        return t.few() ? 0 : pieces;
    }
};
struct LiveMask {  // of 64 rows
    u32 low, high;
    DGJ_DEVICE bool has(u32 r) const { return ((r < 32 ? low >> r : high >> (r - 32)) & 1) != 0; }
};

// One warp tells the others which tile is next, kTileSlots in turn; no rows: that was the last one of the
// page.
struct TileSlot {
    Ring<kTileSlots> place;
    DGJ_DEVICE u32 at(const GroupTable& table) const { return table.slots + kSlotBytes * place.stage; }
    DGJ_DEVICE void advance() { place.advance(); }
    // told: a barrier for each place. For whole warps, as read() is. Goes on to the next place. Returns the
    // tile's solid pieces.
    DGJ_DEVICE u32 tell(const GroupTable& table, u32 told, GroupTile t, const LiveRows& live) {
        const u32 lane = ptx::lane_index();
        t.solid = live.solid(t);
        if (lane < kTileRows / 32) ptx::store_shared_u32(at(table) + 16 + 4 * lane, live.bits);
        if (lane == 0) t.write_to(at(table));
        ptx::sync_warp();  // one lane says that it is there
        ptx::barrier_arrive_if(lane == 0, told + 8 * place.stage);
        advance();
        return t.solid;
    }
    DGJ_DEVICE void await(u32 told) const { ptx::barrier_wait(told + 8 * place.stage, place.phase); }
    DGJ_DEVICE GroupTile read(const GroupTable& table) const { return GroupTile::read_from(at(table)); }
    DGJ_DEVICE LiveMask live(const GroupTable& table, u32 piece) const {
        const u32 mask = at(table) + 16 + 8 * piece;
        return {ptx::load_shared_u32(mask), ptx::load_shared_u32(mask + 4)};
    }
};

// A block's tiles of one page: every grid-th one. Within a segment, kRaster row tiles are walked together,
// column by column, so that what is in flight shares A and B in L2, and no weight is read twice from memory
// for few rows. If the last round has work for half of the blocks at most, its tiles are cut in two, and in
// three where that still leaves a block for each part: a warpgroup alone with 64 rows or columns is done in
// half the time of three. Tiles of few rows are cut in two halves of their columns.
struct GroupWalk {
    const GroupTable& table;
    const GroupedArgs& args;
    Found found;
    u32 item;  // the first `whole` are tiles, after them `parts` make one
    // first: what the block starts with, where that is known.
    DGJ_DEVICE GroupWalk(const GroupTable& t, const GroupedArgs& a, const Found& first)
        : table(t), args(a), found(first), item(ptx::block_index()) {}
    // Read again each time: registers are scarcer than this is slow.
    DGJ_DEVICE u32 items() const { return ptx::load_shared_u32(table.items); }
    DGJ_DEVICE bool last() const { return item + ptx::grid_size() >= items(); }
    DGJ_DEVICE void next() {
        item += ptx::grid_size();
        found = {};
    }

    // The last segment whose first tile is not past this one. Segments that are not there start past all.
    DGJ_DEVICE u32 find(u32 tile) const {
        constexpr u32 kStep = kSegments / 32;
        const u32 lane = ptx::lane_index();
        const auto starts = [&](u32 s) { return ptx::load_shared_u32(table.first_tile + 4 * s) <= tile; };
        if (fits_a_warp(table, args)) return ptx::count_ones(ptx::ballot(starts(lane))) - 1;
        const u32 group = ptx::count_ones(ptx::ballot(starts(lane * kStep))) - 1;
        return group * kStep + ptx::count_ones(ptx::ballot(lane < kStep && starts(group * kStep + lane))) - 1;
    }

    // What is read from the table is made uniform (known to be equal in all lanes): addresses and coordinates
    // that are not would cost a loop over the lanes at each tensor copy and each WGMMA.
    DGJ_DEVICE Found look_up() const {
        Found f{.cut = 1};
        if (item >= items()) return f;
        const u32 whole = ptx::shuffle(ptx::load_shared_u32(table.whole), 0);
        u32 tile = item;
        if (item >= whole) {
            const u32 over = item - whole, parts = ptx::shuffle(ptx::load_shared_u32(table.parts), 0);
            tile = tile_of(over, parts);
            f.cut = Found::cut_into(parts, over - tile * parts);
            tile += whole;
        }
        const u32 segment = ptx::shuffle(find(tile), 0);
        const Segment s = table.segment(segment);
        f.row = ptx::shuffle(s.row, 0);
        f.end = ptx::shuffle(s.end, 0);
        f.group = ptx::shuffle(s.group, 0);
        f.tile = tile - ptx::shuffle(ptx::load_shared_u32(table.first_tile + 4 * segment), 0);
        return f;
    }

    // For whole warps. No rows: nothing is left for this block.
    DGJ_DEVICE GroupTile locate() const {
        Found f = found;
        if (f.known()) return {f.group, f.row, f.end - f.row, f.tile, f.cut - Found::kKnown};
        if (f.cut == 0) f = look_up();
        if (f.end == f.row) return {};
        const u32 in_segment = f.tile, rows = f.end - f.row;
        const RowTiles kinds(rows);
        // Whole bands of full tiles; then spans of columns that full and wide tiles share, for the rows left.
        const u32 lead = kinds.full == 0 ? 0 : (kinds.full - 1) / kRaster * kRaster, full = kinds.full - lead;
        u32 begin = 0, extent, col, cols = 0;
        if (kinds.full + kinds.wide == 1) {  // without divisions, for a quick start
            col = in_segment * kTileCols;
        } else if (in_segment < lead * kColTiles) {
            const u32 band = in_segment / (kRaster * kColTiles),
                      in_band = in_segment - band * (kRaster * kColTiles);
            begin = (band * kRaster + in_band % kRaster) * kTileRows;
            col = in_band / kRaster * kTileCols;
        } else {
            constexpr u32 kSpan = 3 * kTileCols, kSpans = kN / kSpan;
            static_assert(kSpan == 2 * kWideCols, "a span is whole tiles of both kinds");
            const u32 in_rest = in_segment - lead * kColTiles, in_span = full * 3 + kinds.wide * 2;
            const u32 span = in_rest / in_span, at = in_rest - span * in_span;
            const u32 full_tiles = full * (span < kSpans ? 3 : kColTiles - kSpans * 3);
            if (at < full_tiles) {
                const u32 in_row = at / full;
                begin = (lead + at - in_row * full) * kTileRows;
                col = span * kSpan + in_row * kTileCols;
            } else {
                const u32 in_row = (at - full_tiles) / kinds.wide;
                begin = kinds.full * kTileRows + (at - full_tiles - in_row * kinds.wide) * kWideRows;
                col = span * kSpan + in_row * kWideCols;
                cols = kN - col < kWideCols ? kN - col : kWideCols;
            }
        }
        extent = cols == 0 ? kTileRows : kWideRows;
        if (begin + extent > rows) extent = rows - begin;
        if (f.parts() != 1) {
            const u32 size = f.parts() == 3 ? 64 : 128, from = f.part() * size,
                      all = cols == 0 ? extent : cols;
            const u32 left = from < all ? all - from : 0, take = left < size ? left : size;
            if (cols == 0 && extent <= kFewRows) {
                const FewColumns half(col, f.part());
                col = half.col, cols = half.cols;
                if (cols == 0) extent = 0;
            } else if (cols == 0) {  // rows of a full tile
                begin += from;
                extent = take;
            } else {  // columns of a wide one
                col += from;
                cols = take;
                if (take == 0) extent = 0;
            }
        }
        return {f.group, f.row + begin, extent, col, cols};
    }
};

}  // namespace dgj
