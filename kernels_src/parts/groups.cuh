// Which rows of A belong to which group, and the tiles that follow: a table in shared memory, made by each
// block for itself, since the counts are on the device and may have been written by the kernel before. The
// consumer threads make it, or for up to 32 groups one warp, without any barrier of the block, so that the
// first copies start sooner.
//
//   ids      runs of units with one id     -> segments (first row, last live row + 1, group)
//            up to kSegments units that fit the ring of stages: one copy brings them, every warp walks them
//   ends     running maximum of rounded-up ends  -> one segment a group
//   offsets  running maximum                     -> one segment a group
//   counts   clamp                               -> one segment a group, each in its own plane of A
//
//   segments -> row tiles times column tiles -> prefix sums, in which parts/group_walk.cuh finds a tile's
//   segment
//
// The table holds kSegments; more are taken in pages of that many, one after the other. Values out of range
// are clamped as dgj::GroupForm says: nothing here can fault on data.
//
// Constants: kN, kTileRows, kTileCols, kWideCols, kStages, kWarpgroups.
#pragma once

#include "parts/grouped_args.cuh"
#include "ptx/base.cuh"
#include "ptx/memory.cuh"
#include "ptx/sync.cuh"
#include "ptx/warp.cuh"

namespace dgj {

constexpr u32 kSegments = 512;
constexpr u32 kTileSlots = 4;
constexpr u32 kSlotBytes = 16 + kTileRows / 8 + 8;  // a tile and a bit for each of its rows; a multiple of 16
constexpr u32 kBuilders = 256;                      // threads that make the table: two segments each
constexpr u32 kBuilderWarps = kBuilders / 32;
constexpr u32 kWarps = 4 * (kWarpgroups + 1);  // of a block
constexpr u32 kBuilderBarrier = 4;             // 1 to 3 are the warpgroups' own
constexpr u32 kFewRows = 32;                   // at most so many rows: tokens are the columns of WGMMA
// Ids for which the ring of stages has place.
constexpr u32 kIdsRoom = kStages * (kTileRows + kTileCols) * 32 - 4;
constexpr u32 kColTiles = (kN + kTileCols - 1) / kTileCols, kWideTiles = (kN + kWideCols - 1) / kWideCols;
enum : u32 { kFormIds, kFormEnds, kFormOffsets, kFormCounts };

struct Segment {
    u32 row, end, group;
};

struct GroupTable {
    u32 row, end, group, first_tile, slots, warp_sums, unit_starts, whole, parts, items, carry,
        page;  // addresses
    DGJ_DEVICE explicit GroupTable(u32 base)
        : row(base), end(row + 4 * kSegments), group(end + 4 * kSegments), first_tile(group + 4 * kSegments),
          slots(first_tile + 4 * kSegments), warp_sums(slots + kSlotBytes * kTileSlots),
          unit_starts(warp_sums + 4 * kBuilderWarps), whole(unit_starts + 4 * kBuilderWarps),
          parts(whole + 4), items(whole + 8), carry(whole + 12), page(whole + 16) {}

    DGJ_DEVICE Segment segment(u32 s) const {
        return {ptx::load_shared_u32(row + 4 * s), ptx::load_shared_u32(end + 4 * s),
                ptx::load_shared_u32(group + 4 * s)};
    }
};

DGJ_DEVICE void sync_builders() { ptx::sync_threads(kBuilderBarrier, kBuilders); }

struct Sum {
    DGJ_DEVICE u32 operator()(u32 a, u32 b) const { return a + b; }
};
struct Largest {
    DGJ_DEVICE u32 operator()(u32 a, u32 b) const { return a > b ? a : b; }
};

// The builders' values up to and including this thread's, combined. Between two calls all builders must meet.
template <class Combine>
DGJ_DEVICE u32 scan(const GroupTable& table, u32 value, Combine combine) {
    const u32 lane = ptx::lane_index(), warp = ptx::warp_index();
    DGJ_UNROLL
    for (u32 distance = 1; distance < 32; distance *= 2) {
        const u32 below = ptx::shuffle_up(value, distance);
        if (lane >= distance) value = combine(below, value);
    }
    if (lane == 31) ptx::store_shared_u32(table.warp_sums + 4 * warp, value);
    sync_builders();
    DGJ_NO_UNROLL  // three scans of half a KB each else
        for (u32 w = 0; w < warp; w++) value = combine(ptx::load_shared_u32(table.warp_sums + 4 * w), value);
    return value;
}

DGJ_DEVICE u32 clamp_rows(i32 v, u32 rows) { return v < 0 ? 0 : (u32)v < rows ? (u32)v : rows; }
DGJ_DEVICE u32 round_up(u32 v, u32 unit) { return (v + unit - 1) / unit * unit; }

// ends, offsets, counts: groups page * kSegments ..., two of them to each thread. Returns the segments of the
// page; carry: largest start so far.
DGJ_DEVICE u32 list_groups(const GroupTable& table, const GroupedArgs& args, u32 page) {
    const u32 thread = ptx::thread_index(), base = page * kSegments, first = base + 2 * thread;
    u32 value[3];  // of groups first, first + 1, first + 2
    DGJ_UNROLL
    for (u32 i = 0; i < 3; i++) {
        const u32 last = args.form == kFormOffsets ? args.groups : args.groups - 1;
        value[i] = clamp_rows(ptx::load_global_i32(args.index + (first + i < last ? first + i : last)),
                              args.rows);
    }
    u32 start[2] = {0, 0}, end[2] = {value[0], value[1]};
    if (args.form != kFormCounts) {
        const bool ends = args.form == kFormEnds;
        const u32 before = page == 0 ? 0 : ptx::load_shared_u32(table.carry);
        // Starts are a running maximum: of the offsets themselves, or of the rounded-up ends of groups
        // before.
        const u32 own0 = ends ? round_up(value[0], args.alignment) : value[0];
        const u32 own1 = ends ? round_up(value[1], args.alignment) : value[1];
        const Largest largest;
        u32 upto = largest(scan(table, largest(own0, own1), largest), before);  // including both of mine
        // The same without mine: from the thread before.
        sync_builders();  // warp_sums are free
        const u32 lane = ptx::lane_index(), warp = ptx::warp_index();
        u32 others = ptx::shuffle_up(upto, 1);
        if (lane == 31) ptx::store_shared_u32(table.warp_sums + 4 * warp, upto);
        sync_builders();
        if (lane == 0) others = thread == 0 ? before : ptx::load_shared_u32(table.warp_sums + 4 * (warp - 1));
        if (thread == kBuilders - 1) ptx::store_shared_u32(table.carry, upto);
        if (ends) {
            start[0] = others;
            start[1] = largest(others, own0);
        } else {
            start[0] = largest(others, own0);
            start[1] = largest(start[0], own1);
            end[0] = value[1];
            end[1] = value[2];
        }
    }
    DGJ_UNROLL
    for (u32 i = 0; i < 2; i++) {
        const u32 s = 2 * thread + i;
        const bool in = first + i < args.groups;
        ptx::store_shared_u32(table.row + 4 * s, start[i]);
        ptx::store_shared_u32(table.end + 4 * s, in && end[i] > start[i] ? end[i] : start[i]);
        ptx::store_shared_u32(table.group + 4 * s, first + i);
    }
    const u32 left = args.groups - base;
    return left < kSegments ? left : kSegments;
}

// ids: those of the first rows of a unit and of the units beside it; not waited for yet.
struct UnitIds {
    i32 before = -1, own = -1, after = -1;
    UnitIds() = default;
    DGJ_DEVICE UnitIds(const GroupedArgs& args, u32 unit) {
        const u32 last = args.units - 1, u = unit < last ? unit : last;
        before = ptx::load_global_i32(args.index + (u == 0 ? 0 : u - 1) * args.alignment);
        own = ptx::load_global_i32(args.index + u * args.alignment);
        after = ptx::load_global_i32(args.index + (u == last ? u : u + 1) * args.alignment);
    }
};

// Where runs of units of one group start and end, for a whole warp with a unit a lane.
struct RunEdges {
    i32 own;  // group; -1: nobody's
    bool starts, ends;
    u32 mask;  // lanes that start
    DGJ_DEVICE RunEdges(const GroupedArgs& args, const UnitIds& ids, u32 unit) {
        own = (u32)ids.own < args.groups ? ids.own : -1;
        starts = own >= 0 && (unit == 0 || ids.before != own);
        ends = own >= 0 && (unit + 1 == args.units || ids.after != own);
        mask = ptx::ballot(starts);
    }
    // Of the run that an own unit is in. started: runs that start in units before the warp's.
    DGJ_DEVICE u32 segment(u32 started) const {
        return started + ptx::count_ones(mask << (31 - ptx::lane_index())) - 1;
    }
};

// One past the last live row of each lane's unit, where `own` is not negative.
DGJ_DEVICE u32 live_end(const GroupedArgs& args, u32 unit, i32 own) {
    constexpr u32 kAtOnce = 4;
    const u32 row = unit * args.alignment, left = args.rows > row ? args.rows - row : 0;
    u32 rows = own < 0 ? 0 : left < args.alignment ? left : args.alignment, live = 0;
    DGJ_NO_UNROLL
    for (; rows > live; rows = rows > kAtOnce ? rows - kAtOnce : 0) {
        i32 id[kAtOnce];  // from the last one back, and the first one again
        DGJ_UNROLL
        for (u32 i = 0; i < kAtOnce; i++)
            id[i] = ptx::load_global_i32(args.index + row + (i < rows ? rows - 1 - i : 0));
        DGJ_UNROLL
        for (u32 i = kAtOnce; i-- > 0;)
            if (id[i] == own) live = rows > i ? rows - i : 1;
    }
    return row + live;
}

// ids: runs of units. Returns the segments of the page. carry: segments in all, unit_starts: those of each
// warp.
DGJ_DEVICE u32 list_runs(const GroupTable& table, const GroupedArgs& args, u32 page) {
    const u32 lane = ptx::lane_index(), warp = ptx::warp_index(), base = page * kSegments;
    const u32 share = args.units / kBuilderWarps + 1, begin = share * warp;
    const u32 end = begin + share < args.units ? begin + share : args.units;
    u32 started = 0, all = 0;  // segments that start before the batch
    DGJ_NO_UNROLL
    for (u32 round = page != 0; round < 2; round++) {  // count runs, then list them
        if (round != 0) {
            sync_builders();
            const u32 count = lane < kBuilderWarps ? ptx::load_shared_u32(table.unit_starts + 4 * lane) : 0;
            started = ptx::sum_of_lanes(lane < warp ? count : 0);
            all = ptx::sum_of_lanes(count);
        }
        DGJ_NO_UNROLL
        for (u32 first = begin; first < end; first += 32) {
            const u32 unit = first + lane;
            UnitIds ids(args, unit);
            if (unit >= end) ids.own = -1;
            const RunEdges run(args, ids, unit);
            if (round != 0) {
                const u32 segment = run.segment(started) - base;
                const bool here = run.own >= 0 && segment < kSegments;
                if (here && run.starts) {
                    ptx::store_shared_u32(table.row + 4 * segment, unit * args.alignment);
                    ptx::store_shared_u32(table.group + 4 * segment, (u32)run.own);
                }
                // The first row of a unit is live, so only the last unit of a run says where it ends.
                const bool ends = here && run.ends;
                const u32 row_end = live_end(args, unit, ends ? run.own : -1);
                if (ends) ptx::store_shared_u32(table.end + 4 * segment, row_end);
            }
            started += ptx::count_ones(run.mask);
        }
        if (round == 0 && lane == 0) ptx::store_shared_u32(table.unit_starts + 4 * warp, started);
    }
    if (page == 0 && ptx::thread_index() == 0) ptx::store_shared_u32(table.carry, all);
    const u32 left = all > base ? all - base : 0;
    return left < kSegments ? left : kSegments;
}

// Ids for which the ring of stages has place, while it is empty, come in one copy; their runs are one page.
// Reading them as they were needed took as long as a tile of a short K (docs/notes/grouped.md).
DGJ_DEVICE bool come_at_once(const GroupedArgs& args) {
    return args.form == kFormIds && args.units <= kSegments && args.rows <= kIdsRoom;
}

// Then, for a whole block with a unit a thread: lists the runs while the other ids are on their way;
// table.end is the last unit of each until end_runs(). carry: how many.
DGJ_DEVICE void list_units(const GroupTable& table, const GroupedArgs& args, const UnitIds& ids) {
    static_assert(32 * kWarps >= kSegments && kWarps <= 32, "a thread a unit, a lane a warp");
    const u32 lane = ptx::lane_index(), warp = ptx::warp_index(), unit = ptx::thread_index();
    const u32 counts = table.first_tile;  // is written later
    const RunEdges run(args, ids, unit);
    if (lane == 0) ptx::store_shared_u32(counts + 4 * warp, ptx::count_ones(run.mask));
    ptx::sync_block();
    const u32 count = lane < kWarps ? ptx::load_shared_u32(counts + 4 * lane) : 0;
    const u32 segment = run.segment(ptx::sum_of_lanes(lane < warp ? count : 0));
    const u32 all = ptx::sum_of_lanes(count);
    if (run.starts) {
        ptx::store_shared_u32(table.row + 4 * segment, unit * args.alignment);
        ptx::store_shared_u32(table.group + 4 * segment, (u32)run.own);
    }
    if (run.ends) ptx::store_shared_u32(table.end + 4 * segment, unit);
    if (unit == 0) ptx::store_shared_u32(table.carry, all);
    ptx::sync_block();
}

// The ends of those runs, a warp a run, from the ids that stand at `ids` in shared memory.
DGJ_DEVICE void end_runs(const GroupTable& table, const GroupedArgs& args, u32 ids) {
    const u32 lane = ptx::lane_index(), runs = ptx::load_shared_u32(table.carry);
    DGJ_NO_UNROLL
    for (u32 s = ptx::warp_index(); s < runs; s += kWarps) {
        const u32 row = ptx::load_shared_u32(table.end + 4 * s) * args.alignment, left = args.rows - row;
        const u32 rows = left < args.alignment ? left : args.alignment;
        const u32 own = ptx::load_shared_u32(table.group + 4 * s);
        u32 live = 0;
        DGJ_UNROLL
        for (u32 i = 0; i < 128; i += 32) {  // alignments are at most 128
            const u32 r = i + lane;
            const bool in = r < rows && ptx::load_shared_u32(ids + (row + r) * 4) == own;
            const u32 hits = ptx::ballot(in);
            if (hits != 0) live = i + 32 - ptx::count_leading_zeros(hits);
        }
        ptx::sync_warp();  // every lane has read the last unit
        if (lane == 0) ptx::store_shared_u32(table.end + 4 * s, row + live);
    }
}

// A group's rows in pieces of 64. Three pieces make a tile with work for every warpgroup; two pieces that are
// left do with kWideCols columns, and so do four. A group of one or two pieces is one tile of kTileCols
// columns: there weights decide.
struct RowTiles {
    u32 full, wide;
    DGJ_DEVICE explicit RowTiles(u32 rows) {
        const u32 pieces = rows / 64 + (rows % 64 != 0), threes = pieces / 3;
        full = pieces <= 2 ? pieces != 0 : threes - (pieces % 3 == 1);
        wide = pieces <= 2 ? 0 : (pieces - 3 * full) / 2;
    }
    DGJ_DEVICE u32 tiles() const { return full * kColTiles + wide * kWideTiles; }
};

// Into so many parts tiles of the last round are cut.
DGJ_DEVICE u32 parts_of(u32 left) {
    const u32 blocks = ptx::grid_size();
    return left * 3 <= blocks ? 3 : left * 2 <= blocks ? 2 : 1;
}

// Which of tiles that are cut into so many parts each an item is of.
DGJ_DEVICE u32 tile_of(u32 item, u32 parts) { return parts == 3 ? item / 3 : parts == 2 ? item / 2 : item; }

// What a page comes to. Written by one thread.
DGJ_DEVICE void finish_table(const GroupTable& table, u32 page, u32 tiles) {
    const u32 blocks = ptx::grid_size(), left = tiles < blocks ? tiles : tiles % blocks;
    const u32 parts = parts_of(left);
    ptx::store_shared_u32(table.page, page);
    ptx::store_shared_u32(table.whole, tiles - left);
    ptx::store_shared_u32(table.parts, parts);
    ptx::store_shared_u32(table.items, tiles - left + left * parts);
}

// Which tile of which segment, or which of the parts that it is cut into. The same in all lanes.
struct Found {
    u32 row = 0, end = 0, group = 0;  // of the segment; no rows: there is no tile
    u32 tile = 0;                     // in the segment
    u32 cut = 0;                      // cut_into(); 0: it was not looked for yet
    DGJ_DEVICE static u32 cut_into(u32 parts, u32 part) { return parts | part << 2; }
    DGJ_DEVICE u32 parts() const { return cut & 3; }
    DGJ_DEVICE u32 part() const { return cut >> 2; }
    // Of few rows, and known already: `tile` is its first column, `cut` kKnown plus GroupTile::cols.
    static constexpr u32 kKnown = 1u << 16;
    DGJ_DEVICE bool known() const { return cut >= kKnown; }
};

// What a block starts with, of so many tiles: a tile, or one of the parts that it is cut into.
struct FirstItem {
    u32 parts, tile, part;
    DGJ_DEVICE explicit FirstItem(u32 tiles) {
        parts = tiles < ptx::grid_size() ? parts_of(tiles) : 1;
        tile = tile_of(ptx::block_index(), parts);
        part = ptx::block_index() - tile * parts;
    }
};

// Columns of a tile of few rows from `col` on, of which a part has 64, or those that D has; or none.
struct FewColumns {
    u32 col, cols;
    DGJ_DEVICE FewColumns(u32 first, u32 part) : col(first + part * 64) {
        const u32 left = kN - first < kTileCols ? kN - first : kTileCols;
        cols = part * 64 < left ? left - part * 64 : 0;
        if (cols > 64) cols = 64;
    }
};

// A block's first tile where every group with rows has few: each is one row of tiles then, and nothing needs
// to be added up. GroupWalk finds the same in the table, 1400 cycles after the counts are there instead of
// 800.
struct FewTile {
    u32 rank, col, cols = 0;  // of the groups with rows; as in GroupTile
    bool empty = false;       // the third part of two halves
    DGJ_DEVICE explicit FewTile(u32 groups) {
        const FirstItem item(groups * kColTiles);
        rank = item.tile / kColTiles;
        col = (item.tile - rank * kColTiles) * kTileCols;
        if (item.parts == 1) return;
        const FewColumns half(col, item.part);
        col = half.col, cols = half.cols, empty = half.cols == 0;
    }
};

// Called by kBuilders threads; the other warps that read the table see it after a barrier.
DGJ_DEVICE void build_table(const GroupTable& table, const GroupedArgs& args, u32 page) {
    const u32 thread = ptx::thread_index();
    const u32 segments = args.form != kFormIds ? list_groups(table, args, page)
                         : come_at_once(args)  ? ptx::load_shared_u32(table.carry)
                                               : list_runs(table, args, page);
    sync_builders();
    u32 tiles[2];
    DGJ_UNROLL
    for (u32 i = 0; i < 2; i++) {
        const u32 s = 2 * thread + i;
        tiles[i] = 0;
        if (s < segments) {
            const Segment segment = table.segment(s);
            tiles[i] = RowTiles(segment.end - segment.row).tiles();
        }
    }
    const u32 upto = scan(table, tiles[0] + tiles[1], Sum{});
    ptx::store_shared_u32(table.first_tile + 8 * thread, upto - tiles[1] - tiles[0]);
    ptx::store_shared_u32(table.first_tile + 8 * thread + 4, upto - tiles[1]);
    if (thread == kBuilders - 1) finish_table(table, page, upto);
}

// A group, or a run that was listed, a lane: each producer makes the table in registers, and finds its first
// tile there. Known once the block has met.
DGJ_DEVICE bool few_groups(const GroupedArgs& args) { return args.form != kFormIds && args.groups <= 32; }
DGJ_DEVICE bool fits_a_warp(const GroupTable& table, const GroupedArgs& args) {
    if (args.form != kFormIds) return few_groups(args);
    return come_at_once(args) && ptx::shuffle(ptx::load_shared_u32(table.carry), 0) <= 32;
}

// For one whole warp, a group a lane: the words of its group, not waited for yet.
struct SmallIndex {
    i32 value = 0, next = 0;
    SmallIndex() = default;
    DGJ_DEVICE explicit SmallIndex(const GroupedArgs& args) {
        const u32 g = ptx::lane_index() < args.groups ? ptx::lane_index() : 0;
        value = ptx::load_global_i32(args.index + g);
        next = ptx::load_global_i32(args.index + g + (args.form == kFormOffsets));
    }
};

// What list_groups and build_table do, for a whole warp; returns the block's first tile. One warp writes the
// table, which the others see once they have met it.
DGJ_DEVICE Found build_small_table(const GroupTable& table, const GroupedArgs& args, const SmallIndex& index,
                                   bool writes) {
    const u32 lane = ptx::lane_index();
    const bool offsets = args.form == kFormOffsets;
    const u32 value = clamp_rows(index.value, args.rows), next = clamp_rows(index.next, args.rows);
    const bool ids = args.form == kFormIds;
    u32 start = 0, end = next, group = lane;
    if (ids) {
        const bool in = lane < ptx::load_shared_u32(table.carry);
        start = in ? ptx::load_shared_u32(table.row + 4 * lane) : 0;
        end = in ? ptx::load_shared_u32(table.end + 4 * lane) : 0;
        group = in ? ptx::load_shared_u32(table.group + 4 * lane) : 0;
    } else if (args.form != kFormCounts) {
        u32 upto = offsets ? value : round_up(value, args.alignment);
        DGJ_UNROLL
        for (u32 distance = 1; distance < 32; distance *= 2) {
            const u32 below = ptx::shuffle_up(upto, distance);
            if (lane >= distance && below > upto) upto = below;
        }
        const u32 before = ptx::shuffle_up(upto, 1);
        start = offsets ? upto : lane == 0 ? 0 : before;
    }
    if (!ids && (lane >= args.groups || end < start)) end = start;
    const u32 alive = ptx::ballot(end != start);
    if (ptx::ballot(end - start > kFewRows) == 0 && !writes) {
        const FewTile tile(ptx::count_ones(alive));
        const u32 below = ptx::count_ones(alive & ((1u << lane) - 1));
        const u32 mine = ptx::ballot(end != start && below == tile.rank);
        if (mine == 0 || tile.empty) return {.cut = 1};
        const u32 owner = 31 - ptx::count_leading_zeros(mine);
        return {.row = ptx::shuffle(start, owner),
                .end = ptx::shuffle(end, owner),
                .group = ptx::shuffle(group, owner),
                .tile = tile.col,
                .cut = Found::kKnown + tile.cols};
    }
    const u32 tiles = RowTiles(end - start).tiles();
    u32 upto = tiles;
    DGJ_UNROLL
    for (u32 distance = 1; distance < 32; distance *= 2) {
        const u32 below = ptx::shuffle_up(upto, distance);
        if (lane >= distance) upto += below;
    }
    const u32 first = upto - tiles, all = ptx::shuffle(upto, 31);
    if (writes) {
        if (!ids) {  // listed runs are there
            ptx::store_shared_u32(table.row + 4 * lane, start);
            ptx::store_shared_u32(table.end + 4 * lane, end);
            ptx::store_shared_u32(table.group + 4 * lane, lane);
        }
        ptx::store_shared_u32(table.first_tile + 4 * lane, first);
        if (lane == 31) finish_table(table, 0, upto);
        ptx::sync_warp();
    }
    Found found{.cut = 1};
    const FirstItem item(all);
    if (item.tile < all) {
        const u32 segment = ptx::count_ones(ptx::ballot(first <= item.tile)) - 1;
        found.row = ptx::shuffle(start, segment), found.end = ptx::shuffle(end, segment);
        found.group = ptx::shuffle(group, segment);
        found.tile = item.tile - ptx::shuffle(first, segment);
        found.cut = Found::cut_into(item.parts, item.part);
    }
    return found;
}

// Pages there are; known once page 0 has been built.
DGJ_DEVICE u32 page_count(const GroupTable& table, const GroupedArgs& args) {
    const u32 segments = args.form == kFormIds ? ptx::load_shared_u32(table.carry) : args.groups;
    return segments / kSegments + (segments % kSegments != 0);
}

}  // namespace dgj
