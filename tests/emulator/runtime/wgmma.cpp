// Warpgroup matrix multiply. Each warp computes its 16 of the 64 rows by itself, at its own time: the warps
// of a warpgroup are bound to the same sequence of instructions, not to the same moment.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "runtime/checks.hpp"
#include "runtime/half.hpp"

namespace dgj::emu {
namespace {

constexpr u32 kPoison = 0xffffffff;   // a NaN as float
constexpr u32 kNan = 0x7fffffff;      // what the tensor core gives
constexpr u32 kStepBytes = 32;        // of K, an instruction
constexpr u32 kMaxStep = kStepBytes;  // elements

std::array<float, 256> make_fp8(int mantissa_bits, int bias, bool has_infinity) {
    std::array<float, 256> table{};
    const int one = 1 << mantissa_bits;
    for (int i = 0; i < 256; i++) {
        const int exponent = (i & 127) >> mantissa_bits, mantissa = i & (one - 1);
        float v = exponent == 0
                      ? std::ldexp(static_cast<float>(mantissa), 1 - bias - mantissa_bits)
                      : std::ldexp(static_cast<float>(one + mantissa), exponent - bias - mantissa_bits);
        if (has_infinity && exponent == 31)
            v = mantissa == 0 ? std::numeric_limits<float>::infinity()
                              : std::numeric_limits<float>::quiet_NaN();
        if (!has_infinity && (i & 127) == 127) v = std::numeric_limits<float>::quiet_NaN();
        table[i] = i & 128 ? -v : v;
    }
    return table;
}
const std::array<float, 256> kE4m3 = make_fp8(3, 7, false), kE5m2 = make_fp8(2, 15, true);

u32 size_of(MatrixType t) { return t == MatrixType::kBF16 || t == MatrixType::kF16 ? 2 : 1; }
bool is_integer(MatrixType t) { return t == MatrixType::kS8 || t == MatrixType::kU8; }

// Every element of these types is a float exactly.
float element_value(MatrixType t, const u8* from) {
    u16 half = 0;
    if (size_of(t) == 2) std::memcpy(&half, from, 2);
    switch (t) {
        case MatrixType::kE4M3: return kE4m3[*from];
        case MatrixType::kE5M2: return kE5m2[*from];
        case MatrixType::kS8: return static_cast<float>(static_cast<signed char>(*from));
        case MatrixType::kU8: return static_cast<float>(*from);
        case MatrixType::kBF16: return std::bit_cast<float>(u32{half} << 16);
        case MatrixType::kF16: return float_from_half(half);
    }
    return 0;
}

// PTX ISA, "Matrix Descriptor Format": bits 0-13 address / 16, 16-29 leading dimension byte offset / 16,
// 32-45 stride dimension byte offset / 16, 49-51 base offset, 62-63 swizzle (0 none, 1: 128, 2: 64, 3: 32
// bytes).
struct Descriptor {
    u32 address, leading, stride, swizzle;
    bool mn_major;
    u32 size;  // of an element
};
Descriptor decode(u64 bits, bool mn_major, MatrixType type, const char* which) {
    Machine& m = machine();
    static constexpr u32 kSwizzle[] = {0, 128, 64, 32};
    const Descriptor d{static_cast<u32>(bits & 0x3fff) << 4,
                       static_cast<u32>(bits >> 16 & 0x3fff) << 4,
                       static_cast<u32>(bits >> 32 & 0x3fff) << 4,
                       kSwizzle[bits >> 62],
                       mn_major,
                       size_of(type)};
    if ((bits >> 49 & 7) != 0) m.fault(text("emulator: wgmma %s with a base offset is not modelled", which));
    if (bits & ~0xc00e3fff3fff3fffull)
        m.fault(text("wgmma %s: reserved bits of descriptor %#llx are set", which, bits));
    return d;
}

// Address of the 16-byte chunk that holds element (row, k); row counts along M or N (PTX ISA, "Strides").
// With core matrices of 8 x 16 bytes and a swizzle span of S bytes (16 without swizzle):
//   K-major   rows of a group of 8 are S apart, groups `stride`; chunks along K are neighbours in the span,
//             or `leading` apart without swizzle.
//   MN-major  S bytes along M or N are contiguous, the next span is `leading` further; 8 k are S apart, the
//             next 8 `stride`. Without swizzle the two offsets change places.
u32 chunk_address(const Descriptor& d, u32 row, u32 k) {
    const u32 span = d.swizzle == 0 ? 16 : d.swizzle;
    u32 at = d.address;
    if (!d.mn_major) {
        const u32 chunk = k * d.size / 16;
        at += row / 8 * d.stride + row % 8 * span + chunk * (d.swizzle == 0 ? d.leading : 16);
    } else {
        const u32 byte = row * d.size;
        at += k % 8 * span + byte % span / 16 * 16;
        at += d.swizzle == 0 ? byte / span * d.stride + k / 8 * d.leading
                             : byte / span * d.leading + k / 8 * d.stride;
    }
    return swizzled(at, d.swizzle);
}

void read_row(const Block& block, const Descriptor& d, MatrixType type, u32 row, float (&to)[kMaxStep]) {
    const u32 count = kStepBytes / d.size, in_chunk = d.mn_major ? 1 : 16 / d.size;
    const float* table = type == MatrixType::kE4M3 ? kE4m3.data()
                                                   : nullptr;  // the usual case, without a switch
    for (u32 k = 0; k < count; k += in_chunk) {
        const u8* from = &block.memory[chunk_address(d, row, k) - kSharedBase];
        if (d.mn_major) from += row * d.size % 16;
        for (u32 i = 0; i < in_chunk; i++)
            to[k + i] = table != nullptr ? table[from[i]] : element_value(type, from + i * d.size);
    }
}

// PTX ISA, "Register Fragments", matrix A: the four words of lane l hold, of rows l / 4 and l / 4 + 8, the
// bytes 4 * (l % 4).. of the first and of the second half of K.
void read_registers(const Product& p, u32 row, float (&to)[kMaxStep]) {
    const u32 size = size_of(p.form.a);
    for (u32 k = 0; k < kStepBytes / size; k++) {
        const u32 byte = k * size, lane = row % 8 * 4 + byte % 16 / 4;
        const u32 word = p.registers[lane][row / 8 + byte / 16 * 2];
        to[k] = element_value(p.form.a, reinterpret_cast<const u8*>(&word) + byte % 4);
    }
}

constexpr int kLowestExponent = -126;

// v without what lies more than 13 bits below an exponent.
double cut(double v, int exponent) {
    const double unit = std::ldexp(1.0, std::max(exponent, kLowestExponent) - 13);
    return std::trunc(v / unit) * unit;
}

// As Hopper sums e4m3 (tests/validation): the 32 products and the sum so far are cut at the largest exponent,
// a product's being the sum of its factors'; their sum is cut at its own.
float add_cut(float before, const float* a, const float* b, u32 count) {
    int largest = before != 0 ? std::ilogb(before) : kLowestExponent;
    for (u32 k = 0; k < count; k++)
        if (a[k] != 0 && b[k] != 0) largest = std::max(largest, std::ilogb(a[k]) + std::ilogb(b[k]));
    double sum = 0;
    sum += cut(before, largest);
    for (u32 k = 0; k < count; k++) sum += cut(static_cast<double>(a[k]) * b[k], largest);
    return sum == 0 ? 0.0f : static_cast<float>(cut(sum, std::ilogb(sum)));
}

// Products are exact in double, and so are their sums but for the widest ranges; unless the launch asks for
// sums that are cut, the sum is rounded once. docs/emulator.md bounds the difference.
u32 add_products(const Wgmma& form, u32 before, const float* a, const float* b, u32 count) {
    double sum = 0;
    for (u32 k = 0; k < count; k++) sum += static_cast<double>(a[k]) * b[k];
    if (is_integer(form.a)) return before + static_cast<u32>(static_cast<std::int64_t>(sum));
    const float start = std::bit_cast<float>(before);
    float total = static_cast<float>(static_cast<double>(start) + sum);
    const bool e4m3 = form.a == MatrixType::kE4M3 && form.b == MatrixType::kE4M3;
    if (machine().launch.cut_sums && e4m3 && std::isfinite(start) && std::isfinite(sum))
        total = add_cut(start, a, b, count);
    return total != total ? kNan : std::bit_cast<u32>(total);
}

// d += a * b for this warp's rows.
void compute(Warp& warp, Product& p) {
    if (p.done) return;
    if (p.before) {
        compute(warp, *p.before);
        if (p.accumulate) p.sums = std::move(p.before->sums);
        p.before.reset();
    }
    const Block& block = *warp.lanes.front()->block;
    const Wgmma& form = p.form;
    const Descriptor b = decode(p.b, form.b_mn_major, form.b, "B");
    float rows[16][kMaxStep];
    for (u32 r = 0; r < 16; r++) {
        if (!p.registers.empty()) read_registers(p, r, rows[r]);
        else
            read_row(block, decode(p.a, form.a_mn_major, form.a, "A"), form.a, warp.index % 4 * 16 + r,
                     rows[r]);
    }
    if (!p.accumulate) p.sums.assign(16 * form.n, 0);
    const u32 count = kStepBytes / size_of(form.a);
    for (u32 column = 0; column < form.n; column++) {
        float other[kMaxStep];
        read_row(block, b, form.b, column, other);
        for (u32 r = 0; r < 16; r++) {
            u32& to = p.sums[r * form.n + column];
            to = add_products(form, to, rows[r], other, count);
        }
    }
    p.done = true;
}

// PTX ISA, "Register Fragments", matrix D: lane l holds, for each 8 columns, columns 2 * (l % 4), + 1 of rows
// l / 4 and l / 4 + 8.
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
    const u32 chunk = 16 / d.size, row_step = d.mn_major ? chunk : 1, k_step = d.mn_major ? 1 : chunk;
    for (u32 r = first; r < first + rows; r += row_step)
        for (u32 k = 0; k < kStepBytes / d.size; k += k_step) {
            const u32 address = chunk_address(d, r, k);
            shared_at(block, address, 16, 16, which, w);
            check_shared_read(which, block, address, 16, clocks, true, false);
            p.reads.push_back(static_cast<std::uint16_t>(block.shadow.unit(address)));
        }
}

// PTX ISA, wgmma.mma_async: the mandatory .sync and .aligned: all warps of the warpgroup issue the same
// sequence.
void compare_with_others(Warp& warp, const Product& p) {
    const u64 form = static_cast<u64>(p.form.a) << 3 | static_cast<u64>(p.form.b) |
                     u64{!p.registers.empty()} << 6;
    warp.products.push_back(p.a ^ p.b << 1 ^ p.b >> 63 ^ u64{p.form.n} << 50 ^ u64{p.accumulate} << 60 ^
                            form << 4);
    Block& block = *warp.lanes.front()->block;
    const std::size_t i = warp.products.size() - 1;
    for (u32 w = warp.index / 4 * 4; w < warp.index / 4 * 4 + 4; w++) {
        const Warp& other = block.warps[w];
        if (other.products.size() > i && other.products[i] != warp.products[i])
            machine().fault(text("wgmma: warps %u and %u of one warpgroup execute different instructions",
                                 warp.index, w));
    }
}

// PTX ISA, wgmma.mma_async: shapes and types; only 16-bit types may be M- or N-major in shared memory.
void check_form(const Wgmma& form) {
    Machine& m = machine();
    const bool integers = is_integer(form.a);
    if (form.n % 8 != 0 || form.n < 8 || form.n > 256 || (integers && form.n > 32 && form.n % 16 != 0))
        m.fault(text("wgmma.mma_async: N is %u", form.n));
    const bool wide = size_of(form.a) == 2;
    if (wide ? form.a != form.b : size_of(form.b) == 2 || integers != is_integer(form.b))
        m.fault("wgmma.mma_async: these types of A and B do not go together");
    if (!wide && (form.a_mn_major || form.b_mn_major))
        m.fault("wgmma.mma_async: 8-bit types must be K-major");
}

std::shared_ptr<Product> in_flight_on(Warp& warp, const u8* d) {
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

void wgmma(void* d, const Wgmma& form, u64 a, const u32* registers, u64 b, u32 accumulate, Where w) {
    Machine& m = machine();
    m.step(w);
    Thread& t = m.thread();
    Warp& warp = *t.warp;
    t.accumulator = static_cast<u8*>(d);
    t.exchange = (a * 31 + b) * 2 + (accumulate != 0);
    if (registers != nullptr) std::memcpy(t.tiles, registers, sizeof t.tiles);
    if (!m.gather("wgmma.mma_async", w)) return;
    for (const Thread* lane : warp.lanes)
        if (lane->exchange != t.exchange)
            m.fault("wgmma.mma_async: the lanes of a warp give different operands");
    // PTX ISA, wgmma.fence: needed before the first wgmma and after any other access to the registers.
    if (!warp.fenced) m.fault("wgmma.mma_async: no wgmma.fence since its accumulators were touched");
    check_form(form);

    auto p = std::make_shared<Product>();
    p->a = registers == nullptr ? a : 0, p->b = b, p->form = form, p->accumulate = accumulate != 0;
    p->where = w;
    if (registers != nullptr)
        for (const Thread* lane : warp.lanes) p->registers.push_back(std::to_array(lane->tiles));
    compare_with_others(warp, *p);
    for (u32 lane = 0; lane < kWarp; lane++) p->d[lane] = warp.lanes[lane]->accumulator;
    if (registers == nullptr)
        check_operand(warp, decode(a, form.a_mn_major, form.a, "A"), warp.index % 4 * 16, 16, "wgmma A", *p,
                      w);
    check_operand(warp, decode(b, form.b_mn_major, form.b, "B"), 0, form.n, "wgmma B", *p, w);
    mark_reading(warp, *p, Shadow::kReading);

    p->before = in_flight_on(warp, p->d[0]);
    if (!p->before) {
        p->sums.resize(16 * form.n);
        for (u32 lane = 0; lane < kWarp; lane++)
            for (u32 i = 0; i < form.n / 2; i++) {
                std::memcpy(&p->sums[fragment_index(lane, i, form.n)], p->d[lane] + i * 4, 4);
                std::memcpy(p->d[lane] + i * 4, &kPoison, 4);  // nobody may look before the wait
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
            for (u32 i = 0; i < p->form.n / 2; i++)
                std::memcpy(p->d[lane] + i * 4, &p->sums[fragment_index(lane, i, p->form.n)], 4);
    }
    for (const auto& group : warp.groups)
        for (const auto& p : group) mark_reading(warp, *p, Shadow::kReading);
    for (Thread* lane : warp.lanes) lane->clocks.advance(warp.component, warp.clock);
    if (!ended.empty()) warp.fenced = false;
    m.release_lanes();
}

}  // namespace dgj::emu
