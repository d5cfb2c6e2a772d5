#include "runtime/combine.hpp"

#include <algorithm>
#include <bit>
#include <cstdint>

#include "runtime/half.hpp"

namespace dgj::emu {
namespace {

float to_float(ElementType t, u64 bits) {
    if (t == ElementType::kF16) return float_from_half(static_cast<u16>(bits));
    if (t == ElementType::kBF16) return std::bit_cast<float>(static_cast<u32>(bits) << 16);
    return std::bit_cast<float>(static_cast<u32>(bits));
}

u64 from_float(ElementType t, float v) {
    if (t == ElementType::kF32) return std::bit_cast<u32>(v);
    if (v != v) return 0x7fff;
    if (t == ElementType::kF16) return half_from_float(v);
    const u32 bits = std::bit_cast<u32>(v);
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

template <class T>
u64 on_integers(Combine c, u64 old, u64 value) {
    const T a = static_cast<T>(old), b = static_cast<T>(value);
    using Unsigned = std::make_unsigned_t<T>;
    switch (c) {
        case Combine::kAdd: return static_cast<Unsigned>(static_cast<Unsigned>(a) + static_cast<Unsigned>(b));
        case Combine::kMin: return static_cast<Unsigned>(std::min(a, b));
        case Combine::kMax: return static_cast<Unsigned>(std::max(a, b));
        case Combine::kAnd: return static_cast<Unsigned>(a & b);
        case Combine::kOr: return static_cast<Unsigned>(a | b);
        case Combine::kXor: return static_cast<Unsigned>(a ^ b);
        default: return static_cast<Unsigned>(b);
    }
}

bool is_float(ElementType t) {
    return t == ElementType::kF16 || t == ElementType::kBF16 || t == ElementType::kF32 ||
           t == ElementType::kF64;
}

}  // namespace

const char* name_of(Combine c) {
    static constexpr const char* kNames[] = {"store", "add", "min", "max", "and", "or", "xor", "exch", "cas"};
    return kNames[static_cast<int>(c)];
}

bool can_combine(Combine c, ElementType t) {
    if (c == Combine::kReplace || c == Combine::kExchange || c == Combine::kCompareAndSwap) return true;
    if (t == ElementType::kU8 || t == ElementType::kU16 || t == ElementType::kF64) return false;
    if (!is_float(t)) return true;
    if (t == ElementType::kF32) return c == Combine::kAdd;
    return c == Combine::kAdd || c == Combine::kMin || c == Combine::kMax;
}

u64 combine(Combine c, ElementType t, u64 old, u64 value) {
    if (is_float(t) && (c == Combine::kAdd || c == Combine::kMin || c == Combine::kMax)) {
        const float a = to_float(t, old), b = to_float(t, value);
        if (c == Combine::kAdd) return from_float(t, a + b);
        // A NaN loses against a number (PTX ISA, min / max).
        if (a != a) return value;
        if (b != b) return old;
        return (c == Combine::kMin) == (a < b) ? old : value;
    }
    switch (t) {
        case ElementType::kI32: return on_integers<std::int32_t>(c, old, value);
        case ElementType::kI64: return on_integers<std::int64_t>(c, old, value);
        case ElementType::kU32: return on_integers<std::uint32_t>(c, old, value);
        default: return on_integers<std::uint64_t>(c, old, value);
    }
}

}  // namespace dgj::emu
