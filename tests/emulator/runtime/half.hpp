// FP16 by integers: not every host compiler has the type.
#pragma once

namespace dgj::emu {

// To nearest even; a NaN gives 0x7fff (PTX ISA, cvt).
inline unsigned half_from_float(float v) {
    if (v != v) return 0x7fff;
    const unsigned bits = __builtin_bit_cast(unsigned, v), sign = bits >> 16 & 0x8000,
                   size = bits & 0x7fffffff;
    if (size >= 0x477ff000) return sign | 0x7c00;  // 65520, half a step above the largest
    if (size < 0x38800000)                         // 2^-14: steps of 2^-24
        return sign | (unsigned)__builtin_rintf(__builtin_bit_cast(float, size) * 16777216.0f);
    return sign | (((size + 0xfff + (size >> 13 & 1)) >> 13) - (112u << 10));
}

inline float float_from_half(unsigned half) {
    const unsigned sign = (half & 0x8000) << 16, exponent = half >> 10 & 31, mantissa = half & 0x3ff;
    if (exponent == 31) return __builtin_bit_cast(float, mantissa != 0 ? 0x7fffffffu : sign | 0x7f800000u);
    const float size = exponent == 0 ? (float)mantissa * 0x1p-24f
                                     : __builtin_bit_cast(float, (exponent + 112) << 23 | mantissa << 13);
    return __builtin_bit_cast(float, sign | __builtin_bit_cast(unsigned, size));
}

}  // namespace dgj::emu
