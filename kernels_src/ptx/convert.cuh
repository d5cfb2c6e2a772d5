// FP32 arithmetic with one fixed rounding (never contracted), and conversions to and from 16-bit types.
#pragma once

#include "ptx/base.cuh"

namespace dgj::ptx {

DGJ_DEVICE float fma(float a, float b, float c) { return __fmaf_rn(a, b, c); }
DGJ_DEVICE float mul(float a, float b) { return __fmul_rn(a, b); }
DGJ_DEVICE float add(float a, float b) { return __fadd_rn(a, b); }

// `low` in bits 0-15.
DGJ_DEVICE u32 pack_bf16(float low, float high) {
    u32 r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}
DGJ_DEVICE u32 pack_f16(float low, float high) {
    u32 r;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}
DGJ_DEVICE float from_bf16(u16 v) { return __uint_as_float((u32)v << 16); }
DGJ_DEVICE float from_f16(u16 v) {
    float r;
    asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(v));
    return r;
}
// Both halves, the low one first.
DGJ_DEVICE Float2 from_bf16x2(u32 v) { return {__uint_as_float(v << 16), __uint_as_float(v & 0xffff0000u)}; }
DGJ_DEVICE Float2 from_f16x2(u32 v) {
    Float2 r;
    asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %2;\n"
        "cvt.f32.f16 %0, low;\ncvt.f32.f16 %1, high;\n}"
        : "=f"(r.x), "=f"(r.y)
        : "r"(v));
    return r;
}
DGJ_DEVICE float from_bits(u32 v) { return __uint_as_float(v); }
DGJ_DEVICE u32 to_bits(float v) { return __float_as_uint(v); }

}  // namespace dgj::ptx
