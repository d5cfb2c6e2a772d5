// Scalar conversions between FP32 and the storage types, written without branches or tables so that the
// compiler vectorises the loops that call them. Encoders round to nearest even; every NaN becomes the
// format's plain one, since the payload that x86 keeps depends on the instructions chosen.
#pragma once

#include <bit>
#include <cstdint>

#include "problem/types.hpp"

namespace dgj::cpu {

struct BF16 {
    std::uint16_t bits;
};
struct F16 {
    std::uint16_t bits;
};

inline std::uint32_t bits_of(float x) { return std::bit_cast<std::uint32_t>(x); }
inline float float_of(std::uint32_t bits) { return std::bit_cast<float>(bits); }

// By mask: of the conditional operator GCC makes branches, which keep it from vectorising.
inline std::uint32_t select(bool condition, std::uint32_t yes, std::uint32_t no) {
    return no ^ ((yes ^ no) & (0u - static_cast<std::uint32_t>(condition)));
}

// ---- to FP32, exact ----
// A small exponent field is rebiased by an integer addition. Subnormals get exponent field 1 with a hidden
// bit, which a subtraction takes off again: no FP32 subnormal appears, so flush-to-zero mode changes nothing.

inline float e4m3_to_f32(std::uint8_t x) {
    const std::uint32_t magnitude = x & 0x7fu;
    const std::uint32_t normal = (magnitude << 20) + (120u << 23);  // exponent bias 127 - 7
    const std::uint32_t subnormal = bits_of(float_of((magnitude << 20) + (121u << 23)) - 0x1p-6f);
    std::uint32_t bits = select(magnitude < 8, subnormal, normal);
    bits = select(magnitude == 0x7f, 0x7fc00000u, bits);
    return float_of(bits | (x & 0x80u) << 24);
}

inline float to_f32(float x) { return x; }

inline float to_f32(BF16 x) { return float_of(static_cast<std::uint32_t>(x.bits) << 16); }

inline float to_f32(F16 x) {
    const std::uint32_t magnitude = x.bits & 0x7fffu;
    const std::uint32_t normal = (magnitude << 13) + (112u << 23);  // exponent bias 127 - 15
    const std::uint32_t subnormal = bits_of(float_of((magnitude << 13) + (113u << 23)) - 0x1p-14f);
    std::uint32_t bits = select(magnitude < 0x400, subnormal, normal);
    bits = select(magnitude >= 0x7c00, normal + (112u << 23), bits);  // infinity and NaN: exponent field 255
    return float_of(bits | (x.bits & 0x8000u) << 16);
}

// ---- from FP32 ----

inline void from_f32(float x, float& out) { out = float_of(select(x != x, 0x7fc00000u, bits_of(x))); }

inline void from_f32(float x, BF16& out) {
    const std::uint32_t bits = bits_of(x);
    const std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1)) >> 16;
    out.bits = static_cast<std::uint16_t>(select(x != x, 0x7fc0u, rounded));
}

inline void from_f32(float x, F16& out) {
    const std::uint32_t magnitude = bits_of(x) & 0x7fffffffu;
    // Adding 0.5, whose last place is 2^-24, leaves the subnormal's rounded integer in the low bits.
    const std::uint32_t subnormal = bits_of(float_of(magnitude) + 0.5f) - bits_of(0.5f);
    const std::uint32_t normal = (magnitude + 0xfffu + ((magnitude >> 13) & 1) - (112u << 23)) >> 13;
    std::uint32_t half = select(magnitude < bits_of(0x1p-14f), subnormal, normal);
    half = select(magnitude >= bits_of(65520.0f), 0x7c00u, half);  // half a step above the largest: infinity
    half |= (bits_of(x) >> 16) & 0x8000u;
    out.bits = static_cast<std::uint16_t>(select(magnitude > 0x7f800000u, 0x7e00u, half));
}

// Saturates at +-448, infinities too. E4M3 has no infinity.
inline std::uint8_t f32_to_e4m3(float x) {
    const std::uint32_t all = bits_of(x) & 0x7fffffffu;
    const std::uint32_t magnitude = select(all > bits_of(448.0f), bits_of(448.0f), all);
    // 2^14 has last place 2^-9, the subnormal step; eight steps carry into the smallest normal as they
    // should.
    const std::uint32_t subnormal = bits_of(float_of(magnitude) + 0x1p14f) - bits_of(0x1p14f);
    const std::uint32_t normal = (magnitude + 0x7ffffu + ((magnitude >> 20) & 1) - (120u << 23)) >> 20;
    std::uint32_t byte = select(magnitude < bits_of(0x1p-6f), subnormal, normal);
    byte |= (bits_of(x) >> 24) & 0x80u;
    return static_cast<std::uint8_t>(select(all > 0x7f800000u, 0x7fu, byte));
}

// Calls f with a null pointer of the element type that a floating-point dtype stands for.
template <class F>
void with_float_type(DType dtype, F&& f) {
    switch (dtype) {
        case DType::kF16: f(static_cast<F16*>(nullptr)); break;
        case DType::kBF16: f(static_cast<BF16*>(nullptr)); break;
        default: f(static_cast<float*>(nullptr)); break;
    }
}

}  // namespace dgj::cpu
