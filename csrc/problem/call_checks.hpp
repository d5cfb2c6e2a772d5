// What the validations of calls share. Every launch passes them, so the path of legal arguments is straight:
// comparisons only, inlined. Whatever builds a message is a cold function that the straight path calls with
// the offending tensor.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <limits>

#include "problem/types.hpp"

#define DGJ_COLD [[gnu::cold, gnu::noinline]]

namespace dgj::checks {

inline constexpr std::int64_t kScaleBlock = 128;
inline constexpr std::int64_t kPitchBytes = 16;  // TMA: addresses and pitches are multiples of 16 bytes
inline constexpr std::int64_t kMaxExtent = std::numeric_limits<std::int32_t>::max();  // int32 coordinates

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
constexpr std::int64_t round_up(std::int64_t a, std::int64_t b) { return ceil_div(a, b) * b; }
inline std::uintptr_t address(const void* p) { return reinterpret_cast<std::uintptr_t>(p); }

struct Arg {  // a tensor and its name in the public signature
    const char* function;
    const char* name;
    const TensorView& t;
};

using Extents = std::initializer_list<std::int64_t>;

// ---- messages -----------------------------------------------------------------------------------

DGJ_COLD [[noreturn]] void bad_operand_dtype(const Arg& arg);
DGJ_COLD [[noreturn]] void bad_scale_dtype(const Arg& arg);
DGJ_COLD [[noreturn]] void bad_d_dtype(const Arg& arg);
DGJ_COLD [[noreturn]] void device_mix(const Arg& arg, Device first);
DGJ_COLD [[noreturn]] void bad_device(const Arg& arg);
DGJ_COLD [[noreturn]] void bad_rank(const Arg& arg, int allowed);
DGJ_COLD [[noreturn]] void bad_shape(const Arg& arg, const char* meaning, Extents wanted);
DGJ_COLD [[noreturn]] void bad_rows(const Arg& arg, std::int64_t rows);
DGJ_COLD [[noreturn]] void bad_extent(const Arg& arg, const char* letter, std::int64_t value, int multiple);
// A scale tensor that fits another known recipe is refused as not implemented, so that callers fall back; any
// other wrong shape is a mistake. operand_rows, k: of the matrix that the scales belong to.
DGJ_COLD [[noreturn]] void bad_scale_shape(const Arg& arg, const char* meaning, std::int64_t operand_rows,
                                           std::int64_t k, Extents wanted);
DGJ_COLD [[noreturn]] void bad_matrix_memory(const Arg& arg, int row_dim, bool is_output);
DGJ_COLD [[noreturn]] void bad_vector_memory(const Arg& arg, int alignment, const char* strides_allowed);

// ---- memory that tensors cover ------------------------------------------------------------------

struct Rows {  // `rows` runs of `width` bytes, `pitch` bytes apart
    std::uintptr_t begin = 0;
    std::uintptr_t rows = 0, pitch = 0, width = 0;
    std::uintptr_t end() const { return begin + (rows - 1) * pitch + width; }
};

inline Rows rows_of(const void* data, std::int64_t rows, std::int64_t pitch, std::int64_t width,
                    int element_size) {
    const auto size = static_cast<std::uintptr_t>(element_size);
    return {address(data), static_cast<std::uintptr_t>(rows), static_cast<std::uintptr_t>(pitch) * size,
            static_cast<std::uintptr_t>(width) * size};
}

DGJ_COLD void check_interleaved(const Arg& arg, const Rows& in, const Rows& d);

// ---- checks of the straight path ----------------------------------------------------------------

inline void check_device(const Arg& arg, Device first) {
    if (arg.t.device != first) [[unlikely]]
        device_mix(arg, first);
}

inline void check_rank(const Arg& arg, int rank) {
    if (arg.t.ndim != rank) [[unlikely]]
        bad_rank(arg, rank);
}

inline void check_d_dtype(const Arg& arg) {
    const DType t = arg.t.dtype;
    if (t != DType::kBF16 && t != DType::kF16 && t != DType::kF32) [[unlikely]]
        bad_d_dtype(arg);
}

inline void check_operand(const Arg& values, const Arg& scales) {
    if (values.t.dtype != DType::kE4M3) [[unlikely]]
        bad_operand_dtype(values);
    if (scales.t.dtype != DType::kF32) [[unlikely]]
        bad_scale_dtype(scales);
}

inline void check_extents(const Arg& a, std::int64_t k, const Arg& b, std::int64_t n) {
    if (k % 16 != 0 || k > kMaxExtent) [[unlikely]]
        bad_extent(a, "K", k, 16);
    if (n % 8 != 0 || n > kMaxExtent) [[unlikely]]
        bad_extent(b, "N", n, 8);
}

// Returns the row pitch in elements; that of a single row is never looked at. Widths are N or K, so never 1,
// and always a whole number of 16-byte units. row_dim: the dimension of rows; columns follow it.
inline std::int64_t check_matrix(const Arg& arg, int row_dim = 0, bool is_output = false) {
    const TensorView& t = arg.t;
    const auto row = static_cast<std::size_t>(row_dim);
    const int size = size_of(t.dtype);
    const std::int64_t width = t.shape[row + 1], pitch = t.shape[row] == 1 ? width : t.stride[row];
    const std::uintptr_t bits = address(t.data) | static_cast<std::uintptr_t>(pitch * size);
    const bool rows_overlap = is_output && pitch < width;
    if (t.data == nullptr || t.stride[row + 1] != 1 || pitch < 0 || bits % kPitchBytes != 0 || rows_overlap)
        [[unlikely]] {
        bad_matrix_memory(arg, row_dim, is_output);
    }
    return pitch;
}

inline void check_apart(const Arg& arg, const Rows& in, const Rows& d) {
    if (in.begin < d.end() && d.begin < in.end()) [[unlikely]]
        check_interleaved(arg, in, d);
}

struct ScaleStrides {
    std::int64_t row, block;
};

// Of A's scales: one stride is 1. A dimension of size 1 takes the stride that makes the layout one of the two
// legal ones: with a single row, that of MN-major; with a single block, the padded MN-major pitch if rows are
// adjacent, else that of row-major.
inline ScaleStrides check_scales_of_a(const Arg& arg, int row_dim, std::int64_t rows, std::int64_t blocks) {
    const TensorView& t = arg.t;
    const auto dim = static_cast<std::size_t>(row_dim);
    const std::int64_t row = rows == 1 ? 1 : t.stride[dim];
    const std::int64_t block = blocks == 1 ? (row == 1 ? round_up(rows, 4) : 1) : t.stride[dim + 1];
    if (t.data == nullptr || address(t.data) % sizeof(float) != 0 || (row != 1 && block != 1) || row < 0 ||
        block < 0) [[unlikely]]
        bad_vector_memory(arg, sizeof(float), "one stride 1, the other not negative");
    return {row, block};
}

// Of B's scales: any strides that are not negative.
inline ScaleStrides check_scales_of_b(const Arg& arg, int row_dim, std::int64_t rows, std::int64_t blocks) {
    const TensorView& t = arg.t;
    const auto dim = static_cast<std::size_t>(row_dim);
    const std::int64_t row = rows == 1 ? 1 : t.stride[dim], block = blocks == 1 ? 1 : t.stride[dim + 1];
    if (t.data == nullptr || address(t.data) % sizeof(float) != 0 || row < 0 || block < 0) [[unlikely]]
        bad_vector_memory(arg, sizeof(float), "any that are not negative");
    return {row, block};
}

}  // namespace dgj::checks
