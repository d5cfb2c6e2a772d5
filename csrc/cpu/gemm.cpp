// fp8_gemm_nt on the CPU.
//
// Work is cut into tiles of D. A tile walks K in blocks of 128: both operands of a block are decoded to FP32
// (A row by row, B transposed into panels of 16 columns), multiplied by a register kernel, scaled and added
// to the tile:
//
//     sum     = 0; for k in the block: sum += A[m, k] * B[n, k]     products of two E4M3 are exact in FP32
//     acc    += (sfa[m, block] * sfb[n / 128, block]) * sum         blocks in order
//     D[m, n] = round(alpha * acc + bias[n] + c[m, n])
//
// Vector lanes are columns, so each element's sum runs over k in order on every machine, whatever the tile.
#include <algorithm>
#include <array>
#include <cstring>

#include "cpu/clones.hpp"
#include "cpu/convert.hpp"
#include "cpu/cpu_ops.hpp"
#include "cpu/gemm_tile.hpp"
#include "cpu/pool.hpp"

#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#elif defined(__GNUC__)
#pragma GCC optimize("O3", "fp-contract=off")
#endif

namespace dgj::cpu {
namespace {

constexpr int kBlockK = 128;  // of the scale recipe
constexpr int kRows = 6;      // register kernel: 6 x 16 sums fill 12 of 16 AVX2 registers

// ---- decode -------------------------------------------------------------------------------------

using Bytes16 = std::uint8_t __attribute__((vector_size(16)));

DGJ_INLINE Bytes16 interleave_low(Bytes16 a, Bytes16 b) {
    return __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
}
DGJ_INLINE Bytes16 interleave_high(Bytes16 a, Bytes16 b) {
    return __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
}

// 16 x 16 bytes: four rounds, each merging row i with row i + 8.
DGJ_INLINE void transpose(std::array<Bytes16, 16>& v) {
    for (int round = 0; round < 4; ++round) {
        std::array<Bytes16, 16> w;
        for (int i = 0; i < 8; ++i) {
            w[2 * i] = interleave_low(v[i], v[i + 8]);
            w[2 * i + 1] = interleave_high(v[i], v[i + 8]);
        }
        v = w;
    }
}

DGJ_INLINE void decode(const std::uint8_t* __restrict in, float* __restrict out, int count) {
    for (int i = 0; i < count; ++i) out[i] = e4m3_to_f32(in[i]);
}

DGJ_CPU_CLONES void decode_rows(const std::uint8_t* a, std::int64_t lda, int rows, int depth, float* out) {
    for (int i = 0; i < rows; ++i) decode(a + i * lda, out + i * kBlockK, depth);
}

// out[panel][k][16 columns]; columns past the last are zero. depth is a multiple of 16.
DGJ_CPU_CLONES void decode_panels(const std::uint8_t* b, std::int64_t ldb, int cols, int depth, float* out) {
    for (int col = 0; col < cols; col += kCols, out += kCols * kBlockK) {
        const int valid = std::min(kCols, cols - col);
        for (int k = 0; k < depth; k += 16) {
            std::array<Bytes16, 16> v{};
            for (int j = 0; j < valid; ++j) std::memcpy(&v[j], b + (col + j) * ldb + k, 16);
            transpose(v);
            alignas(64) std::uint8_t bytes[16 * kCols];
            std::memcpy(bytes, &v, sizeof bytes);
            decode(bytes, out + k * kCols, 16 * kCols);
        }
    }
}

// ---- multiply -----------------------------------------------------------------------------------

// A vector type, not a loop that the compiler may or may not vectorise: the sums have to stay in registers.
// Where registers are narrower it becomes two of them, with the same bits. may_alias: it reads arrays of
// float.
using Lanes __attribute__((vector_size(32), may_alias)) = float;

template <int kR>
DGJ_INLINE void multiply_panel(const float* __restrict a, const float* __restrict b,
                               const float* __restrict scale, int depth, float* __restrict acc,
                               int acc_pitch) {
    Lanes sum[kR][2] = {};
    for (int k = 0; k < depth; ++k) {
        const Lanes* b_lanes = reinterpret_cast<const Lanes*>(b + k * kCols);
        for (int i = 0; i < kR; ++i) {
            sum[i][0] += a[i * kBlockK + k] * b_lanes[0];
            sum[i][1] += a[i * kBlockK + k] * b_lanes[1];
        }
    }
    for (int i = 0; i < kR; ++i) {
        Lanes* acc_lanes = reinterpret_cast<Lanes*>(acc + i * acc_pitch);
        acc_lanes[0] += scale[i] * sum[i][0];
        acc_lanes[1] += scale[i] * sum[i][1];
    }
}

struct Block {  // one K block of a tile, decoded
    const float* a;
    const float* b;
    const float* sfa;  // of each row
    const float* sfb;  // of each panel
    int rows, panels, depth;
    float* acc;
};

DGJ_CPU_CLONES void multiply(const Block& t) {
    const int pitch = t.panels * kCols;
    for (int p = 0; p < t.panels; ++p) {
        const float* b = t.b + p * kCols * kBlockK;
        for (int row = 0; row < t.rows; row += kRows) {
            const int rows = std::min(kRows, t.rows - row);
            const float* a = t.a + row * kBlockK;
            float* acc = t.acc + row * pitch + p * kCols;
            float scale[kRows];
            for (int i = 0; i < rows; ++i) scale[i] = t.sfa[row + i] * t.sfb[p];
            switch (rows) {
                case 1: multiply_panel<1>(a, b, scale, t.depth, acc, pitch); break;
                case 2: multiply_panel<2>(a, b, scale, t.depth, acc, pitch); break;
                case 3: multiply_panel<3>(a, b, scale, t.depth, acc, pitch); break;
                case 4: multiply_panel<4>(a, b, scale, t.depth, acc, pitch); break;
                case 5: multiply_panel<5>(a, b, scale, t.depth, acc, pitch); break;
                default: multiply_panel<kRows>(a, b, scale, t.depth, acc, pitch); break;
            }
        }
    }
}

// ---- epilogue -----------------------------------------------------------------------------------

struct Finish {  // one row of a tile
    const float* acc;
    const float* bias;  // FP32 already, or nullptr
    const void* c;      // D's dtype, or nullptr
    void* d;
    int cols;
    float alpha;
};

template <class T>
DGJ_INLINE void finish_as(const Finish& f) {
    const T* c = static_cast<const T*>(f.c);
    T* d = static_cast<T*>(f.d);
    alignas(64) float value[kMaxTileCols];
    for (int j = 0; j < f.cols; ++j) value[j] = f.alpha * f.acc[j];
    if (f.bias != nullptr)
        for (int j = 0; j < f.cols; ++j) value[j] += f.bias[j];
    if (c != nullptr)
        for (int j = 0; j < f.cols; ++j) value[j] += to_f32(c[j]);
    for (int j = 0; j < f.cols; ++j) from_f32(value[j], d[j]);
}
DGJ_CPU_CLONES void finish_f32(const Finish& f) { finish_as<float>(f); }
DGJ_CPU_CLONES void finish_f16(const Finish& f) { finish_as<F16>(f); }
DGJ_CPU_CLONES void finish_bf16(const Finish& f) { finish_as<BF16>(f); }

void finish(DType d_dtype, const Finish& f) {
    switch (d_dtype) {
        case DType::kF16: return finish_f16(f);
        case DType::kBF16: return finish_bf16(f);
        default: return finish_f32(f);
    }
}

}  // namespace

// ---- tiles --------------------------------------------------------------------------------------

void compute_tile(const Fp8GemmCall& call, std::int64_t row0, std::int64_t col0, int rows, int cols) {
    const int panels = (cols + kCols - 1) / kCols, pitch = panels * kCols;
    float* a = scratch(static_cast<std::size_t>(kMaxTileRows + kMaxTileCols) * kBlockK +
                       kMaxTileRows * kMaxTileCols);
    float* b = a + kMaxTileRows * kBlockK;
    float* acc = b + kMaxTileCols * kBlockK;
    std::fill(acc, acc + rows * pitch, 0.0f);

    float sfa[kMaxTileRows], sfb[kMaxTileCols / kCols];
    for (std::int64_t k = 0, block = 0; k < call.k; k += kBlockK, ++block) {
        const int depth = static_cast<int>(std::min<std::int64_t>(kBlockK, call.k - k));
        decode_rows(static_cast<const std::uint8_t*>(call.a) + row0 * call.lda + k, call.lda, rows, depth, a);
        decode_panels(static_cast<const std::uint8_t*>(call.b) + col0 * call.ldb + k, call.ldb, cols, depth,
                      b);
        for (int i = 0; i < rows; ++i)
            sfa[i] = call.sfa[(row0 + i) * call.sfa_stride_m + block * call.sfa_stride_k];
        for (int p = 0; p < panels; ++p) {
            sfb[p] = call.sfb[(col0 + p * kCols) / 128 * call.sfb_stride_n + block * call.sfb_stride_k];
        }
        multiply({a, b, sfa, sfb, rows, panels, depth, acc});
    }

    float bias[kMaxTileCols];
    if (call.bias != nullptr) {
        with_float_type(call.bias_dtype, [&](auto* type) {
            const auto* from = static_cast<decltype(type)>(const_cast<void*>(call.bias)) + col0;
            for (int j = 0; j < cols; ++j) bias[j] = to_f32(from[j]);
        });
    }
    const std::int64_t size = size_of(call.d_dtype);
    for (int i = 0; i < rows; ++i) {
        char* d = static_cast<char*>(call.d) + ((row0 + i) * call.ldd + col0) * size;
        const char* c = call.c ? static_cast<const char*>(call.c) + ((row0 + i) * call.ldc + col0) * size
                               : nullptr;
        // Without K there is nothing for alpha to scale, whatever its value.
        finish(call.d_dtype, {.acc = acc + i * pitch,
                              .bias = call.bias ? bias : nullptr,
                              .c = c,
                              .d = d,
                              .cols = cols,
                              .alpha = call.k == 0 ? 1.0f : call.alpha});
    }
}

void fp8_gemm_nt(const Fp8GemmCall& call) {
    if (call.m == 0 || call.n == 0) return;
    const bool threaded = worth_threads(call.m, call.n, call.k);
    const std::int64_t tile_rows = std::min<std::int64_t>(call.m, kMaxTileRows);
    const std::int64_t down = (call.m + tile_rows - 1) / tile_rows;
    const std::int64_t cols = tile_cols(down, call.n, threaded ? num_threads() : 1);
    const std::int64_t across = (call.n + cols - 1) / cols;
    const auto run = [&](std::int64_t index) {
        const std::int64_t row = index / across * tile_rows, col = index % across * cols;
        compute_tile(call, row, col, static_cast<int>(std::min(tile_rows, call.m - row)),
                     static_cast<int>(std::min(cols, call.n - col)));
    };
    if (threaded) {
        parallel_for(down * across, run);
    } else {
        for (std::int64_t i = 0; i < down * across; ++i) run(i);
    }
}

}  // namespace dgj::cpu
