// Warpgroup matrix multiply. Each warp computes its 16 of the 64 rows by itself, at its own time: the warps
// of a warpgroup are bound to the same sequence of instructions, not to the same moment.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "runtime/checks.hpp"

namespace dgj::emu {
namespace {

constexpr float kPoison = std::numeric_limits<float>::quiet_NaN();

std::array<float, 256> make_e4m3() {
    std::array<float, 256> table{};
    for (int i = 0; i < 256; i++) {
        const int exponent = i >> 3 & 15, mantissa = i & 7;
        float v = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                                : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
        if ((i & 127) == 127) v = std::numeric_limits<float>::quiet_NaN();
        table[i] = i & 128 ? -v : v;
    }
    return table;
}
const std::array<float, 256> kE4m3 = make_e4m3();

// PTX ISA, "Matrix descriptor format": bits 0-13 address / 16, 16-29 leading offset / 16, 32-45 stride offset
// / 16, 49-51 base offset, 62-63 swizzle (0 none, 1: 128, 2: 64, 3: 32 bytes).
struct Descriptor {
    u32 address, stride, swizzle;
};
Descriptor decode(u64 bits, const char* which) {
    Machine& m = machine();
    static constexpr u32 kSwizzle[] = {0, 128, 64, 32};
    const Descriptor d{static_cast<u32>(bits & 0x3fff) << 4, static_cast<u32>(bits >> 32 & 0x3fff) << 4,
                       kSwizzle[bits >> 62]};
    if (d.swizzle != 128)
        m.fault(text("emulator: wgmma %s with a swizzle of %u bytes is not modelled", which, d.swizzle));
    if ((bits >> 49 & 7) != 0) m.fault(text("emulator: wgmma %s with a base offset is not modelled", which));
    if (bits & ~0xc00e3fff3fff3fffull)
        m.fault(text("wgmma %s: reserved bits of descriptor %#llx are set", which, bits));
    return d;
}

// Address of the 16 bytes at k of a row, K-major: groups of 8 rows are `stride` apart, rows of a group one
// swizzle span.
u32 element_address(const Descriptor& d, u32 row, u32 k) {
    return swizzled(d.address + row / 8 * d.stride + row % 8 * d.swizzle + k, d.swizzle);
}

void read_row(const Block& block, const Descriptor& d, u32 row, float (&to)[32]) {
    for (u32 half = 0; half < 2; half++) {
        const u8* from = &block.memory[element_address(d, row, half * 16) - kSharedBase];
        for (u32 i = 0; i < 16; i++) to[half * 16 + i] = kE4m3[from[i]];
    }
}

// d += a * b for this warp's rows; products are exact in FP32, sums are kept in double and rounded once. The
// hardware rounds otherwise (it cuts the addends to a common exponent); docs/emulator.md bounds the
// difference.
void compute(Warp& warp, Product& p) {
    if (p.done) return;
    if (p.before) {
        compute(warp, *p.before);
        if (p.accumulate) p.sums = std::move(p.before->sums);
        p.before.reset();
    }
    const Block& block = *warp.lanes.front()->block;
    const Descriptor a = decode(p.a, "A"), b = decode(p.b, "B");
    float rows[16][32];
    for (u32 r = 0; r < 16; r++) read_row(block, a, warp.index % 4 * 16 + r, rows[r]);
    if (!p.accumulate) p.sums.assign(16 * p.n, 0.0f);
    for (u32 column = 0; column < p.n; column++) {
        float other[32];
        read_row(block, b, column, other);
        for (u32 r = 0; r < 16; r++) {
            double sum = 0;
            for (u32 k = 0; k < 32; k++) sum += static_cast<double>(rows[r][k]) * other[k];
            float& to = p.sums[r * p.n + column];
            to = static_cast<float>(static_cast<double>(to) + sum);
        }
    }
    p.done = true;
}

// PTX ISA, "Register fragments": lane l holds, for each 8 columns, columns 2 * (l % 4), + 1 of rows l / 4 and
// l / 4 + 8.
u32 fragment_index(u32 lane, u32 i, u32 n) {
    return (lane / 4 + i / 2 % 2 * 8) * n + i / 4 * 8 + lane % 4 * 2 + i % 2;
}

void mark_reading(Warp& warp, const Product& p, u32 clock) {
    Shadow& shadow = warp.lanes.front()->block->shadow;
    for (u32 unit : p.reads) shadow.note_warp_read(unit, warp.index, clock);
}

// What the product will read must be there for every lane; one lane drawn at random stands for the others.
void check_operand(Warp& warp, const Descriptor& d, u32 first, u32 rows, const char* which, Product& p,
                   Where w) {
    Block& block = *warp.lanes.front()->block;
    const Clocks& clocks = warp.lanes[machine().random(kWarp)]->clocks;
    for (u32 r = first; r < first + rows; r++)
        for (u32 half = 0; half < 2; half++) {
            const u32 address = element_address(d, r, half * 16);
            shared_at(block, address, 16, 16, which, w);
            check_shared_read(which, block, address, 16, clocks, true, false);
            p.reads.push_back(static_cast<std::uint16_t>(block.shadow.unit(address)));
        }
}

// PTX ISA, wgmma.mma_async: "must be executed by all warps of the warpgroup": they issue the same sequence.
void compare_with_others(Warp& warp, const Product& p) {
    warp.products.push_back(p.a ^ p.b << 1 ^ p.b >> 63 ^ u64{p.n} << 50 ^ u64{p.accumulate} << 60);
    Block& block = *warp.lanes.front()->block;
    const std::size_t i = warp.products.size() - 1;
    for (u32 w = warp.index / 4 * 4; w < warp.index / 4 * 4 + 4; w++) {
        const Warp& other = block.warps[w];
        if (other.products.size() > i && other.products[i] != warp.products[i])
            machine().fault(text("wgmma: warps %u and %u of one warpgroup execute different instructions",
                                 warp.index, w));
    }
}

std::shared_ptr<Product> in_flight_on(Warp& warp, const float* d) {
    std::shared_ptr<Product> latest;
    for (const auto& group : warp.groups)
        for (const auto& p : group)
            if (p->d[0] == d) latest = p;
    for (const auto& p : warp.uncommitted)
        if (p->d[0] == d) latest = p;
    return latest;
}

}  // namespace

void wgmma_fence(Where w) {
    Machine& m = machine();
    m.step(w);
    if (!m.gather("wgmma.fence", w)) return;
    m.thread().warp->fenced = true;
    m.release_lanes();
}

void wgmma_e4m3(float* d, u32 count, u64 a, u64 b, u32 accumulate, Where w) {
    Machine& m = machine();
    m.step(w);
    Thread& t = m.thread();
    Warp& warp = *t.warp;
    t.accumulator = d;
    t.exchange = static_cast<u32>((a * 31 + b) * 2 + (accumulate != 0));
    if (!m.gather("wgmma.mma_async", w)) return;
    for (const Thread* lane : warp.lanes)
        if (lane->exchange != t.exchange)
            m.fault("wgmma.mma_async: the lanes of a warp give different operands");
    // PTX ISA, wgmma.fence: needed before the first wgmma and after any other access to the registers.
    if (!warp.fenced) m.fault("wgmma.mma_async: no wgmma.fence since its accumulators were touched");

    auto p = std::make_shared<Product>();
    p->a = a, p->b = b, p->n = count * 2, p->accumulate = accumulate != 0, p->where = w;
    if (p->n % 8 != 0 || p->n < 8 || p->n > 256) m.fault(text("wgmma.mma_async: N is %u", p->n));
    compare_with_others(warp, *p);
    for (u32 lane = 0; lane < kWarp; lane++) p->d[lane] = warp.lanes[lane]->accumulator;
    check_operand(warp, decode(a, "A"), warp.index % 4 * 16, 16, "wgmma A", *p, w);
    check_operand(warp, decode(b, "B"), 0, p->n, "wgmma B", *p, w);
    mark_reading(warp, *p, Shadow::kReading);

    p->before = in_flight_on(warp, p->d[0]);
    if (!p->before) {
        p->sums.resize(16 * p->n);
        for (u32 lane = 0; lane < kWarp; lane++)
            for (u32 i = 0; i < count; i++) {
                p->sums[fragment_index(lane, i, p->n)] = p->d[lane][i];
                p->d[lane][i] = kPoison;  // nobody may look before the wait
            }
    }
    warp.uncommitted.push_back(p);
    if (m.is_early()) compute(warp, *p);
    m.release_lanes();
}

void wgmma_commit(Where w) {
    Machine& m = machine();
    m.step(w);
    if (!m.gather("wgmma.commit_group", w)) return;
    Warp& warp = *m.thread().warp;
    warp.groups.push_back(std::move(warp.uncommitted));
    warp.uncommitted.clear();
    m.release_lanes();
}

// PTX ISA, wgmma.wait_group: at most `pending` of the latest groups are incomplete afterwards. Accumulators
// appear here.
void wgmma_wait(u32 pending, Where w) {
    Machine& m = machine();
    m.step(w);
    if (!m.gather("wgmma.wait_group", w)) return;
    Warp& warp = *m.thread().warp;
    warp.clock++;
    std::vector<std::shared_ptr<Product>> ended;
    while (warp.groups.size() > pending) {
        for (const auto& p : warp.groups.front()) {
            compute(warp, *p);
            ended.push_back(p);
        }
        warp.groups.pop_front();
    }
    for (const auto& p : ended) {
        mark_reading(warp, *p, warp.clock);
        if (in_flight_on(warp, p->d[0]) || p->sums.empty())
            continue;  // a later product goes on with the sums
        for (u32 lane = 0; lane < kWarp; lane++)
            for (u32 i = 0; i < p->n / 2; i++) p->d[lane][i] = p->sums[fragment_index(lane, i, p->n)];
    }
    for (const auto& group : warp.groups)
        for (const auto& p : group) mark_reading(warp, *p, Shadow::kReading);
    for (Thread* lane : warp.lanes) lane->clocks.advance(warp.component, warp.clock);
    if (!ended.empty()) warp.fenced = false;
    m.release_lanes();
}

}  // namespace dgj::emu
