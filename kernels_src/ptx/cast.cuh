// What the quantisation kernels need beside memory.cuh and convert.cuh: read-once loads, narrow stores, e4m3,
// lane exchange.
#pragma once

#include "ptx/base.cuh"

namespace dgj::ptx {

struct alignas(8) Word2 {
    u32 x, y;
};

// 16 bytes that nobody writes during the kernel and that are read once: the read-only path, not kept in L1.
DGJ_DEVICE Word4 load_once_word4(const void* p) {
    Word4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}

DGJ_DEVICE void store_global_word2(void* p, Word2 v) {
    asm volatile("st.global.v2.u32 [%0], {%1, %2};" ::"l"(p), "r"(v.x), "r"(v.y) : "memory");
}
DGJ_DEVICE void store_global_u32(void* p, u32 v) {
    asm volatile("st.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
DGJ_DEVICE void store_global_u8(void* p, u32 v) {  // the low byte of v
    asm volatile("st.global.u8 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

// The value of the lane whose index differs in the bits of `mask`. All 32 lanes must call it.
DGJ_DEVICE u32 shuffle_xor(u32 v, u32 mask) { return __shfl_xor_sync(0xffffffffu, v, mask); }

DGJ_DEVICE u32 max_u32(u32 a, u32 b) { return a > b ? a : b; }
DGJ_DEVICE u32 max_u16x2(u32 a, u32 b) {  // of the two halves, each for itself
    u32 r;
    asm("max.u16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}

DGJ_DEVICE float max(float a, float b) { return fmaxf(a, b); }  // neither is a NaN
DGJ_DEVICE float div(float a, float b) { return __fdiv_rn(a, b); }
DGJ_DEVICE float reciprocal(float a) { return __frcp_rn(a); }

// Two e4m3 (`low` in bits 0-7), to nearest even, saturated at +-448; a NaN gives 0x7f whatever its sign.
DGJ_DEVICE u32 pack_e4m3(float low, float high) {
    u16 r;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(r) : "f"(high), "f"(low));
    return r;
}

// The high 64 - shift bits of n * multiplier: a division by a constant that the host prepared.
DGJ_DEVICE u32 mul_shift(u32 n, u32 multiplier, u32 shift) { return (u32)(((u64)n * multiplier) >> shift); }

}  // namespace dgj::ptx
