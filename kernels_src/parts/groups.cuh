// Which rows of A belong to which group, and the tiles that follow: a table in shared memory, made by each
// block for itself, since the counts are on the device and may have been written by the kernel before. The
// consumer threads make it, or for up to 32 groups one warp, without any barrier of the block, so that the
// first copies start sooner.
//
//   ids      runs of units with one id     -> segments (first row, last live row + 1, group)
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
// Constants: kN, kTileRows, kTileCols, kWideCols.
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
constexpr u32 kBuilderBarrier = 4;  // 1 to 3 are the warpgroups' own
constexpr u32 kFewRows = 32;        // at most so many rows: tokens are the columns of WGMMA
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

// ids: units begin .. end of one warp, a unit a lane at a time.
struct Units {
    const GroupedArgs& args;
    u32 count, begin, end;
    DGJ_DEVICE explicit Units(const GroupedArgs& a) : args(a) {
        count = a.rows / a.alignment + (a.rows % a.alignment != 0);
        const u32 share = count / kBuilderWarps + 1, warp = ptx::warp_index();
        begin = share * warp < count ? share * warp : count;
        end = begin + share < count ? begin + share : count;
    }
    DGJ_DEVICE i32 valid(i32 id) const { return id >= 0 && (u32)id < args.groups ? id : -1; }  // -1: nobody's
    DGJ_DEVICE i32 id(u32 row) const { return valid(ptx::load_global_i32(args.index + row)); }
    // Of this unit and those beside it; -1 where there is none.
    DGJ_DEVICE void read(u32 unit, i32& before, i32& own, i32& after) const {
        const u32 last = count - 1;
        before = id((unit == 0 ? 0 : unit - 1 < last ? unit - 1 : last) * args.alignment);
        own = id((unit < last ? unit : last) * args.alignment);
        after = id((unit + 1 < last ? unit + 1 : last) * args.alignment);
        if (unit == 0) before = -1;
        if (unit >= end) own = -1;
        if (unit >= last) after = -1;
    }
};

// One past the last live row of each lane's unit, where `own` is not negative. Long units are read by the
// whole warp, two at a time.
DGJ_DEVICE u32 live_end(const Units& units, u32 unit, i32 own) {
    const u32 alignment = units.args.alignment, lane = ptx::lane_index(), row = unit * alignment;
    const u32 left = units.args.rows > row ? units.args.rows - row : 0,
              length = left < alignment ? left : alignment;
    u32 result = 0;
    if (alignment < 32) {
        DGJ_NO_UNROLL
        for (u32 r = own < 0 ? 0 : length; r > 0 && result == 0; r--)
            if (units.id(row + r - 1) == own) result = row + r;
        return result;
    }
    constexpr u32 kAtOnce = 2, kIds = 128 / 32;  // units; ids of a lane, since alignments are at most 128
    DGJ_NO_UNROLL
    for (u32 live = ptx::ballot(own >= 0); live != 0;) {
        u32 from[kAtOnce], begin[kAtOnce], rows[kAtOnce];
        i32 id[kAtOnce][kIds];
        DGJ_UNROLL
        for (u32 u = 0; u < kAtOnce; u++) {  // without a second unit, the first one again
            from[u] = u > 0 && live == 0 ? from[0] : 31 - ptx::count_leading_zeros(live & (0 - live));
            live &= live - 1 + (live == 0);
            begin[u] = ptx::shuffle(row, from[u]);
            rows[u] = ptx::shuffle(length, from[u]);
            DGJ_UNROLL
            for (u32 i = 0; i < kIds; i++) {
                const u32 at = lane * kIds + i;
                id[u][i] = ptx::load_global_i32(units.args.index + begin[u] + (at < rows[u] ? at : 0));
            }
        }
        DGJ_UNROLL
        for (u32 u = 0; u < kAtOnce; u++) {
            const i32 wanted = (i32)ptx::shuffle((u32)own, from[u]);
            u32 last = 0;  // of the lane's ids, one past the last live one
            DGJ_UNROLL
            for (u32 i = 0; i < kIds; i++)
                if (id[u][i] == wanted && lane * kIds + i < rows[u]) last = lane * kIds + i + 1;
            // Row 0 of the unit is live, so that some lane has one.
            last = ptx::shuffle(last, 31 - ptx::count_leading_zeros(ptx::ballot(last != 0)));
            if (lane == from[u]) result = begin[u] + last;
        }
    }
    return result;
}

// ids: runs of units. Returns the segments of the page. carry: segments in all, unit_starts: before each
// warp's.
DGJ_DEVICE u32 list_runs(const GroupTable& table, const GroupedArgs& args, u32 page) {
    const u32 lane = ptx::lane_index(), warp = ptx::warp_index(), base = page * kSegments;
    const Units units(args);
    i32 before, own, after;
    if (page == 0) {
        u32 count = 0;
        DGJ_NO_UNROLL
        for (u32 first = units.begin; first < units.end; first += 32) {
            units.read(first + lane, before, own, after);
            count += ptx::count_ones(ptx::ballot(own >= 0 && before != own));
        }
        const u32 upto = scan(table, lane == 31 ? count : 0, Sum{});
        if (lane == 31) ptx::store_shared_u32(table.unit_starts + 4 * warp, upto - count);
        if (ptx::thread_index() == kBuilders - 1) ptx::store_shared_u32(table.carry, upto);
    }
    sync_builders();
    u32 started = ptx::load_shared_u32(table.unit_starts + 4 * warp);  // segments that start before the batch
    DGJ_NO_UNROLL
    for (u32 first = units.begin; first < units.end; first += 32) {
        const u32 unit = first + lane;
        units.read(unit, before, own, after);
        const bool starts = own >= 0 && before != own;
        const u32 mask = ptx::ballot(starts);
        const u32 segment = started + ptx::count_ones(mask << (31 - lane)) - 1 - base;  // of this unit
        const bool here = own >= 0 && segment < kSegments;
        if (here && starts) {
            ptx::store_shared_u32(table.row + 4 * segment, unit * args.alignment);
            ptx::store_shared_u32(table.group + 4 * segment, (u32)own);
        }
        // The first row of a unit is live, so only the last unit of a run says where it ends.
        const bool ends = here && after != own;
        const u32 end = live_end(units, unit, ends ? own : -1);
        if (ends) ptx::store_shared_u32(table.end + 4 * segment, end);
        started += ptx::count_ones(mask);
    }
    sync_builders();
    const u32 all = ptx::load_shared_u32(table.carry), left = all > base ? all - base : 0;
    return left < kSegments ? left : kSegments;
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
};

// Called by kBuilders threads; the other warps that read the table see it after a barrier.
DGJ_DEVICE void build_table(const GroupTable& table, const GroupedArgs& args, u32 page) {
    const u32 thread = ptx::thread_index();
    const u32 segments = args.form == kFormIds ? list_runs(table, args, page)
                                               : list_groups(table, args, page);
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

// A group a lane: each producer makes the table in registers, and finds its first tile there.
DGJ_DEVICE bool fits_a_warp(const GroupedArgs& args) { return args.form != kFormIds && args.groups <= 32; }

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
    u32 start = 0, end = next;
    if (args.form != kFormCounts) {
        u32 upto = offsets ? value : round_up(value, args.alignment);
        DGJ_UNROLL
        for (u32 distance = 1; distance < 32; distance *= 2) {
            const u32 below = ptx::shuffle_up(upto, distance);
            if (lane >= distance && below > upto) upto = below;
        }
        const u32 before = ptx::shuffle_up(upto, 1);
        start = offsets ? upto : lane == 0 ? 0 : before;
    }
    if (lane >= args.groups || end < start) end = start;
    const u32 tiles = RowTiles(end - start).tiles();
    u32 upto = tiles;
    DGJ_UNROLL
    for (u32 distance = 1; distance < 32; distance *= 2) {
        const u32 below = ptx::shuffle_up(upto, distance);
        if (lane >= distance) upto += below;
    }
    const u32 first = upto - tiles, all = ptx::shuffle(upto, 31), item = ptx::block_index();
    if (writes) {
        ptx::store_shared_u32(table.row + 4 * lane, start);
        ptx::store_shared_u32(table.end + 4 * lane, end);
        ptx::store_shared_u32(table.group + 4 * lane, lane);
        ptx::store_shared_u32(table.first_tile + 4 * lane, first);
        if (lane == 31) finish_table(table, 0, upto);
        ptx::sync_warp();
    }
    Found found{.cut = 1};
    const u32 parts = all < ptx::grid_size() ? parts_of(all) : 1, tile = tile_of(item, parts);
    if (tile < all) {
        found.group = ptx::count_ones(ptx::ballot(first <= tile)) - 1;
        found.row = ptx::shuffle(start, found.group), found.end = ptx::shuffle(end, found.group);
        found.tile = tile - ptx::shuffle(first, found.group);
        found.cut = Found::cut_into(parts, item - tile * parts);
    }
    return found;
}

// Pages there are; known once page 0 has been built.
DGJ_DEVICE u32 page_count(const GroupTable& table, const GroupedArgs& args) {
    const u32 segments = args.form == kFormIds ? ptx::load_shared_u32(table.carry) : args.groups;
    return segments / kSegments + (segments % kSegments != 0);
}

}  // namespace dgj
