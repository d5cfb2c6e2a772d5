// Warpgroup matrix multiply. One function template takes the place of every generated ptx/wgmma_n<N>.cuh: the
// size of the accumulator says N.
#pragma once

#include "ptx/base.cuh"
#include "ptx/convert.cuh"

namespace dgj::ptx {

// The same bits as on the device: the runtime decodes them.
DGJ_DEVICE u64 matrix_descriptor(u32 shared) {
    return (u64)((shared & 0x3FFFF) >> 4) | (1ull << 16) | (64ull << 32) | (1ull << 62);
}

DGJ_DEVICE u64 recompute_from(u64 descriptor) { return descriptor; }

DGJ_DEVICE u64 offset_descriptor(u64 descriptor, u32 offset) { return descriptor + offset; }

DGJ_DEVICE void wgmma_fence(Where w = {}) { emu::wgmma_fence(w); }
DGJ_DEVICE void wgmma_commit(Where w = {}) { emu::wgmma_commit(w); }
template <u32 kPending>
DGJ_DEVICE void wgmma_wait(Where w = {}) {
    emu::wgmma_wait(kPending, w);
}
template <u32 kCount>
DGJ_DEVICE void wgmma_e4m3(float (&d)[kCount], u64 a, u64 b, u32 accumulate, Where w = {}) {
    constexpr auto kE4M3 = emu::MatrixType::kE4M3;
    emu::wgmma(d, {2 * kCount, kE4M3, kE4M3}, a, nullptr, b, accumulate, w);
}

// The registers of one thread.
template <u32 kCount, u32 kSet>
struct Sums {
    float values[kCount];
};
template <u32 kCount>
DGJ_DEVICE void name_sums() {}
template <u32 kCount, u32 kSet>
DGJ_DEVICE void wgmma_e4m3(Sums<kCount, kSet>& d, u64 a, u64 b, u32 accumulate, Where w = {}) {
    wgmma_e4m3(d.values, a, b, accumulate, w);
}
template <u32 kFirst, u32 kCount, u32 kSet>
DGJ_DEVICE void add_sums(float* to, const Sums<kCount, kSet>& sums, float low, float high) {
    asm volatile("" : : "r"(sums.values) : "memory");
    for (u32 k = 0; k < 8; k++) to[k] = fma(k % 4 < 2 ? low : high, sums.values[kFirst + k], to[k]);
}

// The accumulators stay in memory, where the runtime writes poison and results.
template <u32 kCount>
DGJ_DEVICE void pin_registers(float (&r)[kCount]) {
    asm volatile("" : : "r"(r) : "memory");
}

}  // namespace dgj::ptx
