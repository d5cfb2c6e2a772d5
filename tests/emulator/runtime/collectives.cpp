// Instructions that the lanes of a warp execute together: shuffles, votes, matrix loads and stores.
#include <array>
#include <cstring>

#include "runtime/checks.hpp"

namespace dgj::emu {
namespace {

// Runs `work` once for the lanes that take part; each lane gives `value` and finds its result in exchange.
template <class Work>
u64 together(const char* what, u64 value, u32 members, Where w, Work work) {
    Machine& m = machine();
    m.step(w);
    Thread& t = m.thread();
    t.exchange = value;
    if (m.gather(what, w, members, false)) {
        const u32 there = m.gathered();
        std::array<u64, kWarp> given{};
        for (u32 lane = 0; lane < kWarp; lane++) given[lane] = t.warp->lanes[lane]->exchange;
        for (u32 lane = 0; lane < kWarp; lane++)
            if (there >> lane & 1) t.warp->lanes[lane]->exchange = work(lane, there, given);
        m.release_lanes();
    }
    return t.exchange;
}

}  // namespace

// PTX ISA, shfl.sync: the source lane from operands b and c; reading a lane that does not take part is
// undefined.
Shuffled shuffle(Shuffle kind, u32 value, u32 b, u32 c, u32 members, Where w) {
    static constexpr const char* kNames[] = {"shfl.sync.up", "shfl.sync.down", "shfl.sync.bfly",
                                             "shfl.sync.idx"};
    const char* what = kNames[static_cast<int>(kind)];
    // Operands may differ between lanes: they travel with the value.
    const u64 packed = value | u64{b & 31} << 32 | u64{c & 0x1f1f} << 40;
    const u64 result = together(what, packed, members, w, [kind, what](u32 lane, u32 there, auto& given) {
        const u32 delta = given[lane] >> 32 & 31, clamp = given[lane] >> 40 & 31,
                  segment = given[lane] >> 48 & 31;
        const u32 first = lane & segment, last = first | (clamp & ~segment);
        i32 from = 0;
        bool in_range = false;
        switch (kind) {
            case Shuffle::kUp:
                from = static_cast<i32>(lane - delta);
                in_range = from >= static_cast<i32>(last);
                break;
            case Shuffle::kDown:
                from = static_cast<i32>(lane + delta);
                in_range = from <= static_cast<i32>(last);
                break;
            case Shuffle::kXor:
                from = static_cast<i32>(lane ^ delta);
                in_range = from <= static_cast<i32>(last);
                break;
            case Shuffle::kIndex:
                from = static_cast<i32>(first | (delta & ~segment));
                in_range = from <= static_cast<i32>(last);
                break;
        }
        if (!in_range) from = static_cast<i32>(lane);
        if ((there >> from & 1) == 0)
            machine().fault(text("%s: lane %u reads lane %d, which does not take part", what, lane, from));
        return (given[static_cast<u32>(from)] & 0xffffffff) | u64{in_range} << 32;
    });
    return {static_cast<u32>(result), (result >> 32 & 1) != 0};
}

u32 shuffle_xor(u32 value, u32 mask, Where w) {
    return shuffle(Shuffle::kXor, value, mask, 31, kAllLanes, w).value;
}

u32 vote(Vote kind, bool predicate, u32 members, Where w) {
    static constexpr const char* kNames[] = {"vote.sync.all", "vote.sync.any", "vote.sync.uni",
                                             "vote.sync.ballot"};
    auto count = [kind](u32, u32 there, auto& given) -> u64 {
        u32 ballot = 0;
        for (u32 i = 0; i < kWarp; i++)
            if (there >> i & 1) ballot |= static_cast<u32>(given[i]) << i;
        switch (kind) {
            case Vote::kAll: return ballot == there;
            case Vote::kAny: return ballot != 0;
            case Vote::kUniform: return ballot == there || ballot == 0;
            default: return ballot;
        }
    };
    return static_cast<u32>(together(kNames[static_cast<int>(kind)], predicate, members, w, count));
}

u32 match_any(u64 value, u32 members, Where w) {
    return static_cast<u32>(together("match.any.sync", value, members, w,
                                     [](u32 lane, u32 there, auto& given) {
                                         u64 same = 0;
                                         for (u32 i = 0; i < kWarp; i++)
                                             if (there >> i & 1 && given[i] == given[lane])
                                                 same |= u64{1} << i;
                                         return same;
                                     }));
}

u32 match_all(u64 value, u32 members, Where w) {
    return static_cast<u32>(together("match.all.sync", value, members, w,
                                     [](u32 lane, u32 there, auto& given) {
                                         for (u32 i = 0; i < kWarp; i++)
                                             if (there >> i & 1 && given[i] != given[lane]) return u64{0};
                                         return u64{there};
                                     }));
}

// PTX ISA, elect.sync: the same leader each time for the same mask, but nothing says which one. The seed
// does.
u32 elect(u32 members, Where w) {
    const u64 seed = machine().launch.seed;
    return static_cast<u32>(together("elect.sync", 0, members, w, [seed](u32, u32 there, auto&) -> u64 {
        u32 skip = seed < 2 ? 0
                            : static_cast<u32>((seed * 0x9e3779b97f4a7c15 ^ there) >> 7) %
                                  static_cast<u32>(__builtin_popcount(there));
        while (skip-- > 0) there &= there - 1;
        return static_cast<u64>(__builtin_ctz(there));
    }));
}

namespace {

// Lane l gives the address of row l % 8 of tile l / 8. Element (row, column) of a tile lies with lane row * 4
// + column / 2, half column % 2; transposed, with rows and columns exchanged (PTX ISA, ldmatrix, stmatrix).
struct Element {
    u32 row, column;
};
Element element(u32 lane, u32 half, bool transposed) {
    const u32 a = lane / 4, b = lane % 4 * 2 + half;
    return transposed ? Element{b, a} : Element{a, b};
}

u32 row_address(const Warp& warp, u32 tile, u32 row) { return warp.lanes[tile * 8 + row]->addresses; }

bool arrive_with(const char* what, u32 count, u32 address, const u32* tiles, Where w) {
    Machine& m = machine();
    m.step(w);
    Thread& t = m.thread();
    if (count != 1 && count != 2 && count != 4) m.fault(text("%s: %u matrices", what, count));
    t.addresses = address;
    if (tiles != nullptr) std::memcpy(t.tiles, tiles, count * 4);
    if (!m.gather(what, w)) return false;
    for (u32 i = 0; i < count * 8; i++) shared_at(*t.block, t.warp->lanes[i]->addresses, 16, 16, what, w);
    return true;
}

}  // namespace

void store_matrix(u32 address, const u32* tiles, u32 count, bool transposed, Where w) {
    if (!arrive_with("stmatrix", count, address, tiles, w)) return;
    Machine& m = machine();
    Warp& warp = *m.thread().warp;
    Block& block = *m.thread().block;
    const auto each = [&](auto&& work) {
        for (u32 tile = 0; tile < count; tile++)
            for (Thread* t : warp.lanes)
                for (u32 half = 0; half < 2; half++) {
                    const Element e = element(t->place.thread % kWarp, half, transposed);
                    work(*t, row_address(warp, tile, e.row) + e.column * 2, t->tiles[tile] >> 16 * half);
                }
    };
    // All checks first: two lanes may write the halves of one word.
    each([&](Thread& t, u32 to, u32) { check_shared_write("stmatrix", block, to, 2, t.clocks, false); });
    each([&](Thread& t, u32 to, u32 bits) {
        block.shadow.note_write(to, 2, Shadow::Kind::kGeneric, t.id, t.clocks.order(t.id), w.line);
        const u16 value = static_cast<u16>(bits);
        std::memcpy(shared_at(block, to, 2, 2, "stmatrix", w), &value, 2);
    });
    m.release_lanes();
}

void load_matrix(u32* tiles, u32 count, bool transposed, u32 address, Where w) {
    Machine& m = machine();
    Thread& self = m.thread();
    if (arrive_with("ldmatrix", count, address, nullptr, w)) {
        Warp& warp = *self.warp;
        Block& block = *self.block;
        for (u32 tile = 0; tile < count; tile++)
            for (Thread* t : warp.lanes) {
                t->tiles[tile] = 0;
                for (u32 half = 0; half < 2; half++) {
                    const Element e = element(t->place.thread % kWarp, half, transposed);
                    const u32 from = row_address(warp, tile, e.row) + e.column * 2;
                    // Nothing says which lane reads: the one that gives the address, or the one that
                    // receives.
                    const Thread& giver = *warp.lanes[tile * 8 + e.row];
                    check_shared_read("ldmatrix", block, from, 2, t->clocks, false, true);
                    check_shared_read("ldmatrix", block, from, 2, giver.clocks, false, true);
                    block.shadow.note_read(from, 2, t->place.thread, t->clocks.order(t->id));
                    u16 value;
                    std::memcpy(&value, shared_at(block, from, 2, 2, "ldmatrix", w), 2);
                    t->tiles[tile] |= u32{value} << 16 * half;
                }
            }
        m.release_lanes();
    }
    std::memcpy(tiles, self.tiles, count * 4);
}

}  // namespace dgj::emu
