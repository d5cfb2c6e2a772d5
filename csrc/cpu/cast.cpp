// Quantisation to E4M3 on the CPU: scale = max(amax, 1e-4) / 448, q = saturate(x * (1 / scale)), all in FP32.
//
// What is not finite spoils its own block only. NaN: the scale and every q of the block are NaN. Infinity
// without NaN: the scale is infinite, so finite elements become 0 and infinite ones NaN.
#include <algorithm>

#include "cpu/clones.hpp"
#include "cpu/convert.hpp"
#include "cpu/cpu_ops.hpp"
#include "cpu/pool.hpp"

#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#elif defined(__GNUC__)
#pragma GCC optimize("O3", "fp-contract=off")
#endif

namespace dgj::cpu {
namespace {

struct Patch {  // the elements that share one scale
    const void* x;
    std::uint8_t* q;
    std::int64_t rows, cols, ldx, ldq;
    bool use_ue8m0;
};

// By value: a store through q, a byte pointer, could change a Patch that is referred to.
template <class T>
DGJ_INLINE float cast_as(const Patch p) {
    const T* x = static_cast<const T*>(p.x);
    // Compared as integers, bit patterns of magnitudes order as the numbers do, infinity above them and NaN
    // on top.
    std::int32_t amax_bits = 0;
    for (std::int64_t i = 0; i < p.rows; ++i) {
        const T* row = x + i * p.ldx;
        for (std::int64_t j = 0; j < p.cols; ++j) {
            amax_bits = std::max(amax_bits, static_cast<std::int32_t>(bits_of(to_f32(row[j])) & 0x7fffffffu));
        }
    }
    const float amax = float_of(static_cast<std::uint32_t>(amax_bits));
    float scale = (amax < 1e-4f ? 1e-4f : amax) / 448.0f;
    // The smallest scale, 2.2e-7, is a normal number: adding all mantissa bits carries unless it is a power
    // of two.
    if (p.use_ue8m0 && scale == scale) scale = float_of((bits_of(scale) + 0x7fffffu) & 0xff800000u);
    const float inverse = 1.0f / scale;
    for (std::int64_t i = 0; i < p.rows; ++i) {
        const T* __restrict row = x + i * p.ldx;
        std::uint8_t* __restrict q = p.q + i * p.ldq;
        for (std::int64_t j = 0; j < p.cols; ++j) q[j] = f32_to_e4m3(to_f32(row[j]) * inverse);
    }
    float plain;
    from_f32(scale, plain);
    return plain;
}
DGJ_CPU_CLONES float cast_f32(const Patch& p) { return cast_as<float>(p); }
DGJ_CPU_CLONES float cast_f16(const Patch& p) { return cast_as<F16>(p); }
DGJ_CPU_CLONES float cast_bf16(const Patch& p) { return cast_as<BF16>(p); }

float cast(DType x_dtype, const Patch& p) {
    switch (x_dtype) {
        case DType::kF16: return cast_f16(p);
        case DType::kBF16: return cast_bf16(p);
        default: return cast_f32(p);
    }
}

void store_exponent(const CastCall& call, std::int64_t row, std::int64_t block, bool is_last, float scale) {
    std::uint8_t* word = reinterpret_cast<std::uint8_t*>(call.sf) +
                         (row * call.sf_stride_row + block / 4 * call.sf_stride_block) * 4;
    word[block % 4] = static_cast<std::uint8_t>(bits_of(scale) >> 23);
    if (is_last) std::fill(word + block % 4 + 1, word + 4, std::uint8_t{0});
}

}  // namespace

void cast_to_fp8(const CastCall& call) {
    if (call.rows == 0 || call.cols == 0) return;
    const std::int64_t x_size = size_of(call.x_dtype);
    const std::int64_t across = (call.cols + call.gran_k - 1) / call.gran_k;
    const std::int64_t patches = across * ((call.rows + call.gran_rows - 1) / call.gran_rows);
    const auto run = [&](std::int64_t index) {
        const std::int64_t block_row = index / across, block = index % across;
        const std::int64_t row = block_row * call.gran_rows, col = block * call.gran_k;
        const Patch patch{.x = static_cast<const char*>(call.x) + (row * call.ldx + col) * x_size,
                          .q = static_cast<std::uint8_t*>(call.q) + row * call.ldq + col,
                          .rows = std::min(call.gran_rows, call.rows - row),
                          .cols = std::min(call.gran_k, call.cols - col),
                          .ldx = call.ldx,
                          .ldq = call.ldq,
                          .use_ue8m0 = call.use_ue8m0};
        const float scale = cast(call.x_dtype, patch);
        if (call.packed_ue8m0) {
            store_exponent(call, block_row, block, block + 1 == across, scale);
        } else {
            call.sf[block_row * call.sf_stride_row + block * call.sf_stride_block] = scale;
        }
    };
    // A task is long enough, about 16384 elements, that taking it and waking a thread for it cost little.
    const std::int64_t patch_size = std::max<std::int64_t>(1, call.gran_rows * call.gran_k);
    const std::int64_t chunk = std::max<std::int64_t>(1, 16384 / patch_size);
    parallel_for((patches + chunk - 1) / chunk, [&](std::int64_t task) {
        for (std::int64_t i = task * chunk; i < std::min(patches, (task + 1) * chunk); ++i) run(i);
    });
}

}  // namespace dgj::cpu
