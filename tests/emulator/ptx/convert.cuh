// FP32 arithmetic with one rounding each (the kernel is compiled with -ffp-contract=off), and 16-bit
// conversions. A NaN that comes out is the canonical one (PTX ISA, "Floating Point Instructions").
#pragma once

#include "ptx/base.cuh"
#include "runtime/half.hpp"

namespace dgj::ptx {

DGJ_DEVICE float from_bits(u32 v) { return __builtin_bit_cast(float, v); }
DGJ_DEVICE u32 to_bits(float v) { return __builtin_bit_cast(u32, v); }

DGJ_DEVICE float canonical(float v) { return v == v ? v : from_bits(0x7fffffff); }
DGJ_DEVICE float fma(float a, float b, float c) { return canonical(__builtin_fmaf(a, b, c)); }
DGJ_DEVICE float mul(float a, float b) { return canonical(a * b); }
DGJ_DEVICE float add(float a, float b) { return canonical(a + b); }

// To nearest even; a NaN gives the canonical NaN (PTX ISA, cvt: 0x7fff).
DGJ_DEVICE u32 bf16_bits(float v) {
    if (v != v) return 0x7fff;
    const u32 bits = to_bits(v);
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
DGJ_DEVICE u32 f16_bits(float v) { return emu::half_from_float(v); }
DGJ_DEVICE u32 pack_bf16(float low, float high) { return bf16_bits(high) << 16 | bf16_bits(low); }
DGJ_DEVICE u32 pack_f16(float low, float high) { return f16_bits(high) << 16 | f16_bits(low); }
DGJ_DEVICE float from_bf16(u16 v) { return from_bits((u32)v << 16); }
DGJ_DEVICE float from_f16(u16 v) { return emu::float_from_half(v); }
DGJ_DEVICE Float2 from_bf16x2(u32 v) { return {from_bf16((u16)v), from_bf16((u16)(v >> 16))}; }
DGJ_DEVICE Float2 from_f16x2(u32 v) { return {from_f16((u16)v), from_f16((u16)(v >> 16))}; }

}  // namespace dgj::ptx
