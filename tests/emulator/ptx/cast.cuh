// What the quantisation kernels need beside memory.cuh and convert.cuh.
#pragma once

#include "ptx/base.cuh"
#include "ptx/convert.cuh"
#include "ptx/memory.cuh"

namespace dgj::ptx {

struct alignas(8) Word2 {
    u32 x, y;
};

DGJ_DEVICE Word4 load_once_word4(const void* p, Where w = {}) {
    Word4 v;
    emu::load_read_only(&v, p, sizeof v, w);
    return v;
}

DGJ_DEVICE void store_global_word2(void* p, Word2 v, Where w = {}) { emu::store_global(p, &v, sizeof v, w); }
DGJ_DEVICE void store_global_u32(void* p, u32 v, Where w = {}) { emu::store_global(p, &v, sizeof v, w); }
DGJ_DEVICE void store_global_u8(void* p, u32 v, Where w = {}) {
    const u8 byte = (u8)v;
    emu::store_global(p, &byte, sizeof byte, w);
}

DGJ_DEVICE u32 shuffle_xor(u32 v, u32 mask, Where w = {}) { return emu::shuffle_xor(v, mask, w); }

DGJ_DEVICE u32 max_u32(u32 a, u32 b) { return a > b ? a : b; }
DGJ_DEVICE u32 max_u16x2(u32 a, u32 b) {
    return max_u32(a >> 16, b >> 16) << 16 | max_u32(a & 0xffff, b & 0xffff);
}

// PTX ISA, max: a NaN loses against a number, and -0 is below +0.
DGJ_DEVICE float max(float a, float b) {
    if (a != a || b != b) return canonical(a != a ? b : a);
    if (a == b) return from_bits(to_bits(a) & to_bits(b));
    return a > b ? a : b;
}
DGJ_DEVICE float div(float a, float b) { return canonical(a / b); }
DGJ_DEVICE float reciprocal(float a) { return canonical(1.0f / a); }

// To nearest even; what is larger than 448 becomes 448 (PTX ISA, cvt: .satfinite), a NaN 0x7f.
DGJ_DEVICE u32 e4m3_bits(float v) {
    if (v != v) return 0x7f;
    const u32 sign = to_bits(v) >> 24 & 0x80;
    const float magnitude = from_bits(to_bits(v) & 0x7fffffff);
    if (magnitude >= 448.0f) return sign | 0x7e;
    // Units of the last of three mantissa bits; below 2^-6 the unit stays that of the subnormals.
    const i32 field = (i32)(to_bits(magnitude) >> 23), exponent = field < 121 ? -6 : field - 127;
    const float units = magnitude * from_bits((u32)(127 + 3 - exponent) << 23);
    return sign | ((u32)(exponent + 6) * 8 + (u32)__builtin_rintf(units));
}
DGJ_DEVICE u32 pack_e4m3(float low, float high) { return e4m3_bits(high) << 8 | e4m3_bits(low); }

DGJ_DEVICE u32 mul_shift(u32 n, u32 multiplier, u32 shift) { return (u32)(((u64)n * multiplier) >> shift); }

}  // namespace dgj::ptx
