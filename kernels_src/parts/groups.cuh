// Which rows of A belong to which group, and the tiles that follow: a table in shared memory, made by the
// consumer threads of each block for itself, since the counts are on the device and may have been written by
// the kernel before.
//
//   ids      runs of units with one id     -> segments (first row, last live row + 1, group)
//   ends     running maximum of rounded-up ends  -> one segment a group
//   offsets  running maximum                     -> one segment a group
//   counts   clamp                               -> one segment a group, each in its own plane of A
//
//   segments -> row tiles times column tiles -> prefix sums -> from the number of a tile to its segment by
//   binary search
//
// The table holds kSegments; more are taken in pages of that many, one after the other. Values out of range
// are clamped as dgj::GroupForm says: nothing here can fault on data.
//
// Constants: kN, kTileRows, kTileCols, kWideCols, kRaster.
#pragma once

#include "parts/grouped_args.cuh"
#include "ptx/base.cuh"
#include "ptx/memory.cuh"
#include "ptx/sync.cuh"
#include "ptx/warp.cuh"

namespace dgj {

constexpr u32 kSegments = 512;
constexpr u32 kBuilders = 256;  // threads that make the table: two segments each
constexpr u32 kBuilderWarps = kBuilders / 32;
constexpr u32 kBuilderBarrier = 4;  // 1 to 3 are the warpgroups' own
constexpr u32 kFewRows = 32;        // at most so many rows: tokens are the columns of WGMMA
constexpr u32 kColTiles = (kN + kTileCols - 1) / kTileCols, kWideTiles = (kN + kWideCols - 1) / kWideCols;
enum : u32 { kFormIds, kFormEnds, kFormOffsets, kFormCounts };

struct Segment {
    u32 row, end, group;
};

struct GroupTable {
    u32 row, end, group, first_tile, warp_sums, unit_starts, tiles, segments, carry;  // addresses
    DGJ_DEVICE explicit GroupTable(u32 base)
        : row(base), end(row + 4 * kSegments), group(end + 4 * kSegments), first_tile(group + 4 * kSegments),
          warp_sums(first_tile + 4 * kSegments), unit_starts(warp_sums + 4 * kBuilderWarps),
          tiles(unit_starts + 4 * kBuilderWarps), segments(tiles + 4), carry(tiles + 8) {}

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
        for (u32 r = own < 0 ? 0 : length; r > 0 && result == 0; r--)
            if (units.id(row + r - 1) == own) result = row + r;
        return result;
    }
    constexpr u32 kAtOnce = 2, kWords = 128 / 32;  // alignments are at most 128
    for (u32 live = ptx::ballot(own >= 0); live != 0;) {
        u32 from[kAtOnce];
        i32 id[kAtOnce][kWords];
        DGJ_UNROLL
        for (u32 u = 0; u < kAtOnce; u++) {  // without a second unit, the first one again
            from[u] = u > 0 && live == 0 ? from[0] : 31 - ptx::count_leading_zeros(live & (0 - live));
            live &= live - 1 + (live == 0);
            const u32 begin = ptx::shuffle(row, from[u]), rows = ptx::shuffle(length, from[u]);
            DGJ_UNROLL
            for (u32 w = 0; w < kWords; w++) {
                const u32 at = w * 32 + lane;
                id[u][w] = ptx::load_global_i32(units.args.index + begin + (at < rows ? at : 0));
            }
        }
        DGJ_UNROLL
        for (u32 u = 0; u < kAtOnce; u++) {
            const u32 begin = ptx::shuffle(row, from[u]), rows = ptx::shuffle(length, from[u]);
            const i32 wanted = (i32)ptx::shuffle((u32)own, from[u]);
            DGJ_UNROLL
            for (u32 w = 0; w < kWords; w++) {
                const u32 mask = ptx::ballot(id[u][w] == wanted && w * 32 + lane < rows);
                if (mask != 0 && lane == from[u])
                    result = begin + w * 32 + 32 - ptx::count_leading_zeros(mask);
            }
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

// Called by kBuilders threads; the other warps see the table after a barrier of the block.
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
    if (thread == kBuilders - 1) {
        ptx::store_shared_u32(table.tiles, upto);
        ptx::store_shared_u32(table.segments, segments);
    }
}

// Pages there are; known once page 0 has been built.
DGJ_DEVICE u32 page_count(const GroupTable& table, const GroupedArgs& args) {
    const u32 segments = args.form == kFormIds ? ptx::load_shared_u32(table.carry) : args.groups;
    return segments / kSegments + (segments % kSegments != 0);
}

struct GroupTile {
    u32 group, row, rows, col;  // rows row .. row + rows of A (in plane `group` where there are planes)
    bool wide;                  // kWideCols columns
};

// A block's tiles of one page: every grid-th one. Within a segment, kRaster row tiles are walked together,
// column by column, so that what is in flight shares A and B in L2.
struct GroupWalk {
    const GroupTable& table;
    u32 tile, segment = 0;
    DGJ_DEVICE explicit GroupWalk(const GroupTable& t) : table(t), tile(ptx::block_index()) {}
    // Read again each time: registers are scarcer than this is slow.
    DGJ_DEVICE u32 tiles() const { return ptx::load_shared_u32(table.tiles); }
    DGJ_DEVICE bool valid() const { return tile < tiles(); }
    DGJ_DEVICE bool last() const { return tile + ptx::grid_size() >= tiles(); }
    DGJ_DEVICE void next() { tile += ptx::grid_size(); }

    // For whole warps. What is read from the table is made uniform (known to be equal in all lanes):
    // addresses and coordinates that are not would cost a loop over the lanes at each tensor copy and each
    // WGMMA.
    DGJ_DEVICE GroupTile locate() {
        u32 end = ptx::load_shared_u32(table.segments);
        while (end - segment > 1) {  // the last segment whose first tile is not past this one
            const u32 middle = (segment + end) / 2;
            if (ptx::load_shared_u32(table.first_tile + 4 * middle) <= tile) segment = middle;
            else end = middle;
        }
        segment = ptx::shuffle(segment, 0);
        Segment s = table.segment(segment);
        s.row = ptx::shuffle(s.row, 0);
        s.end = ptx::shuffle(s.end, 0);
        s.group = ptx::shuffle(s.group, 0);
        const u32 at = tile - ptx::shuffle(ptx::load_shared_u32(table.first_tile + 4 * segment), 0);
        const u32 rows = s.end - s.row;
        const RowTiles kinds(rows);
        const u32 in_wide = at - kinds.full * kColTiles;
        const bool wide = at >= kinds.full * kColTiles;
        u32 begin, extent, col;
        if (!wide) {
            const u32 band = at / (kRaster * kColTiles), in_band = at - band * (kRaster * kColTiles);
            const u32 left = kinds.full - band * kRaster, band_rows = left < kRaster ? left : kRaster;
            const u32 in_row = in_band / band_rows;
            begin = (band * kRaster + in_band - in_row * band_rows) * kTileRows;
            extent = kTileRows;
            col = in_row * kTileCols;
        } else {
            const u32 in_row = in_wide / kinds.wide;
            begin = kinds.full * kTileRows + (in_wide - in_row * kinds.wide) * 128;
            extent = 128;
            col = in_row * kWideCols;
        }
        return {s.group, s.row + begin, rows - begin < extent ? rows - begin : extent, col, wide};
    }
};

// Which of up to 64 rows of A are the group's: with ids, rows of nobody lie between its rows.
struct LiveRows {
    i32 low, high;  // the ids of two rows
    LiveRows() = default;
    DGJ_DEVICE LiveRows(const GroupedArgs& args, u32 group, u32 row, u32 rows) {
        const u32 lane = ptx::lane_index();
        low = lane < rows ? (i32)group : -1;
        high = lane + 32 < rows ? (i32)group : -1;
        if (args.form == kFormIds) {
            if (lane < rows) low = ptx::load_global_i32(args.index + row + lane);
            if (lane + 32 < rows) high = ptx::load_global_i32(args.index + row + lane + 32);
        }
    }
};
struct LiveMask {
    u32 low, high;
    LiveMask() = default;
    DGJ_DEVICE LiveMask(const LiveRows& rows, u32 group)
        : low(ptx::ballot(rows.low == (i32)group)), high(ptx::ballot(rows.high == (i32)group)) {}
    DGJ_DEVICE bool has(u32 r) const { return ((r < 32 ? low >> r : high >> (r - 32)) & 1) != 0; }
    DGJ_DEVICE bool all() const { return (low & high) == ~0u; }
};

}  // namespace dgj
