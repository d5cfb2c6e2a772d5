// Every launch passes here, so the path of legal arguments is straight: comparisons only. Whatever builds a
// message is a cold function that the straight path calls with the offending tensor.
#include "problem/fp8_gemm_call.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "base/error.hpp"

#define DGJ_COLD [[gnu::cold, gnu::noinline]]

namespace dgj {
namespace {

constexpr std::int64_t kScaleBlock = 128;
constexpr std::int64_t kPitchBytes = 16;  // TMA: base addresses and row pitches are multiples of 16 bytes
constexpr std::int64_t kMaxExtent = std::numeric_limits<std::int32_t>::max();  // TMA coordinates are int32

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
constexpr std::int64_t round_up(std::int64_t a, std::int64_t b) { return ceil_div(a, b) * b; }
std::uintptr_t address(const void* p) { return reinterpret_cast<std::uintptr_t>(p); }

struct Arg {  // a tensor and its name in the public signature
    const char* function;
    const char* name;
    const TensorView& t;
};

// ---- dtype, device ------------------------------------------------------------------------------

DGJ_COLD [[noreturn]] void bad_operand_dtype(const Arg& arg) {
    const DType t = arg.t.dtype;
    const bool other_recipe = t == DType::kE5M2 || t == DType::kI8 || t == DType::kU8;  // E5M2, packed FP4
    fail(other_recipe ? ErrorKind::kNotImplemented : ErrorKind::kType,
         "{}: {} has dtype {}; supported: float8_e4m3fn. Quantise with per_token_cast_to_fp8 (a) and "
         "per_block_cast_to_fp8 (b)",
         arg.function, arg.name, name_of(t));
}

DGJ_COLD [[noreturn]] void bad_scale_dtype(const Arg& arg) {
    const DType t = arg.t.dtype;
    const bool other_recipe = t == DType::kI32 || t == DType::kU8 || t == DType::kE4M3 ||
                              t == DType::kE8M0;  // packed UE8M0, MX, NVFP4
    fail(other_recipe ? ErrorKind::kNotImplemented : ErrorKind::kType,
         "{}: {} (scales) has dtype {}; supported: float32 scales, one per 1x128 of a and per 128x128 of b",
         arg.function, arg.name, name_of(t));
}

DGJ_COLD [[noreturn]] void bad_d_dtype(const Arg& arg) {
    fail(ErrorKind::kType,
         "{}: {} has dtype {}; allowed: bfloat16, float16, float32. Allocate it with one of these",
         arg.function, arg.name, name_of(arg.t.dtype));
}

DGJ_COLD [[noreturn]] void bad_addend_dtype(const Arg& arg, DType d, bool or_float32) {
    fail(ErrorKind::kType, "{}: {} has dtype {}; allowed: {}, the dtype of d{}. Convert it with .to()",
         arg.function, arg.name, name_of(arg.t.dtype), name_of(d), or_float32 ? ", or float32" : "");
}

std::string device_text(Device device) {
    if (device.type == Device::Type::kCpu) return "cpu";
    if (device.type == Device::Type::kCuda) return fmt::format("cuda:{}", device.index);
    return fmt::format("device {} of a type that is neither CPU nor CUDA", device.index);
}

DGJ_COLD [[noreturn]] void device_mix(const Arg& arg, Device first) {
    fail(ErrorKind::kType,
         "{}: {} is on {} but a[0] is on {}; all tensors must be on one device. Move it with .to()",
         arg.function, arg.name, device_text(arg.t.device), device_text(first));
}

DGJ_COLD [[noreturn]] void bad_device(const Arg& arg) {
    fail(ErrorKind::kNotImplemented,
         "{}: {} is on {}; supported: CPU and CUDA tensors. Move the tensors with .to()", arg.function,
         arg.name, device_text(arg.t.device));
}

// ---- rank, shape --------------------------------------------------------------------------------

DGJ_COLD [[noreturn]] void bad_rank(const Arg& arg, int allowed) {
    fail(ErrorKind::kValue, "{}: {} has {} dimensions, shape {}; it must have {}. Reshape it with .view()",
         arg.function, arg.name, arg.t.ndim, shape_text(arg.t), allowed);
}

DGJ_COLD [[noreturn]] void bad_shape(const Arg& arg, const char* meaning, std::int64_t rows,
                                     std::int64_t cols) {
    fail(ErrorKind::kValue, "{}: {} has shape {}; it must be {} = [{}, {}] to go with the other arguments",
         arg.function, arg.name, shape_text(arg.t), meaning, rows, cols);
}

DGJ_COLD [[noreturn]] void bad_bias_shape(const Arg& arg, std::int64_t n) {
    fail(ErrorKind::kValue, "{}: {} has shape {}; it must be [N] = [{}]", arg.function, arg.name,
         shape_text(arg.t), n);
}

DGJ_COLD [[noreturn]] void bad_extent(const Arg& arg, const char* letter, std::int64_t value, int multiple) {
    fail(ErrorKind::kValue,
         "{}: {} of {} is {}; it must be a multiple of {} in 0..{}. Pad the tensors with zeros", arg.function,
         letter, arg.name, value, multiple, kMaxExtent);
}

// A scale tensor that fits another known recipe is refused as not implemented, so that callers fall back; any
// other wrong shape is a mistake.
DGJ_COLD [[noreturn]] void bad_scale_shape(const Arg& arg, const char* meaning, std::int64_t operand_rows,
                                           std::int64_t k, std::int64_t rows, std::int64_t cols) {
    const TensorView& t = arg.t;
    bool known = t.ndim == 0 || (t.ndim == 1 && t.shape[0] == 1);
    if (t.ndim == 2) {
        const bool rows_known = t.shape[0] == operand_rows ||
                                t.shape[0] == ceil_div(operand_rows, kScaleBlock) || t.shape[0] == 1;
        const auto per = [&](std::int64_t gran) { return t.shape[1] == ceil_div(k, gran); };
        known = rows_known && (per(16) || per(32) || per(64) || per(kScaleBlock) || t.shape[1] == 1);
    }
    if (known) {
        fail(ErrorKind::kNotImplemented,
             "{}: {} has shape {}, another scale recipe than the supported one: {} = [{}, {}], float32 "
             "scales per 1x128 "
             "of a and per 128x128 of b",
             arg.function, arg.name, shape_text(t), meaning, rows, cols);
    }
    if (t.ndim != 2) bad_rank(arg, 2);
    bad_shape(arg, meaning, rows, cols);
}

// ---- memory -------------------------------------------------------------------------------------

DGJ_COLD [[noreturn]] void bad_matrix_memory(const Arg& arg, bool is_output) {
    const TensorView& t = arg.t;
    if (t.data == nullptr) {
        fail(ErrorKind::kValue,
             "{}: {} has shape {} but no memory (NULL data pointer); pass a tensor that is allocated",
             arg.function, arg.name, shape_text(t));
    }
    if (t.stride[1] != 1 || (t.shape[0] > 1 && t.stride[0] < 0)) {
        fail(ErrorKind::kValue,
             "{}: {} has strides {}; the last must be 1 and none negative. Pass {}.contiguous()",
             arg.function, arg.name, stride_text(t), arg.name);
    }
    if (address(t.data) % kPitchBytes != 0) {
        fail(ErrorKind::kValue,
             "{}: {} starts at address {:#x}, which is no multiple of {} bytes. Pass "
             "{}.contiguous() of a fresh allocation ({}.clone() where it is contiguous already)",
             arg.function, arg.name, address(t.data), kPitchBytes, arg.name, arg.name);
    }
    if (t.stride[0] * size_of(t.dtype) % kPitchBytes != 0) {
        fail(ErrorKind::kValue,
             "{}: {} has strides {}, a row pitch of {} bytes; it must be a multiple of {} bytes. "
             "Pass {}.contiguous() or pad the pitch",
             arg.function, arg.name, stride_text(t), t.stride[0] * size_of(t.dtype), kPitchBytes, arg.name);
    }
    fail(ErrorKind::kValue,
         "{}: {} has shape {} and strides {}, so its rows overlap{}. Pass a tensor whose row pitch is "
         "at least its width, such as {}.contiguous()",
         arg.function, arg.name, shape_text(t), stride_text(t),
         is_output ? " and would overwrite each other" : "", arg.name);
}

DGJ_COLD [[noreturn]] void bad_vector_memory(const Arg& arg, int alignment, const char* strides_allowed) {
    const TensorView& t = arg.t;
    if (t.data == nullptr) {
        fail(ErrorKind::kValue,
             "{}: {} has shape {} but no memory (NULL data pointer); pass a tensor that is allocated",
             arg.function, arg.name, shape_text(t));
    }
    if (address(t.data) % static_cast<std::uintptr_t>(alignment) != 0) {
        fail(ErrorKind::kValue,
             "{}: {} starts at address {:#x}, which is no multiple of {} bytes. Pass {}.clone()",
             arg.function, arg.name, address(t.data), alignment, arg.name);
    }
    fail(ErrorKind::kValue, "{}: {} has shape {} and strides {}; allowed: {}. Pass {}.contiguous()",
         arg.function, arg.name, shape_text(t), stride_text(t), strides_allowed, arg.name);
}

struct Rows {  // memory that a tensor covers: `rows` runs of `width` bytes, `pitch` bytes apart
    std::uintptr_t begin = 0;
    std::uintptr_t rows = 0, pitch = 0, width = 0;
    std::uintptr_t end() const { return begin + (rows - 1) * pitch + width; }
};

Rows rows_of(const void* data, std::int64_t rows, std::int64_t pitch, std::int64_t width, int element_size) {
    const auto size = static_cast<std::uintptr_t>(element_size);
    return {address(data), static_cast<std::uintptr_t>(rows), static_cast<std::uintptr_t>(pitch) * size,
            static_cast<std::uintptr_t>(width) * size};
}

// Ranges meet; still legal where the rows interleave, as columns of one wider buffer do. Decided exactly for
// one common pitch, refused otherwise.
DGJ_COLD void check_interleaved(const Arg& arg, const Rows& in, const Rows& d) {
    const bool in_single = in.rows == 1 || in.pitch == 0, d_single = d.rows == 1;
    const std::uintptr_t pitch = in_single ? d.pitch : in.pitch;
    if (!(in_single && d_single) && (in_single || d_single || in.pitch == d.pitch) && pitch != 0) {
        const std::uintptr_t ahead = in.begin >= d.begin ? (in.begin - d.begin) % pitch
                                                         : (pitch - (d.begin - in.begin) % pitch) % pitch;
        if (ahead >= d.width && ahead + in.width <= pitch) return;
    }
    fail(ErrorKind::kValue,
         "{}: {} (bytes {:#x} to {:#x}) overlaps d (bytes {:#x} to {:#x}); only c may be d itself, "
         "with the same pointer and strides. Write to another d or pass a copy, {}.clone()",
         arg.function, arg.name, in.begin, in.end(), d.begin, d.end(), arg.name);
}

// ---- checks of the straight path ----------------------------------------------------------------

inline void check_device(const Arg& arg, Device first) {
    if (arg.t.device != first) [[unlikely]]
        device_mix(arg, first);
}

inline void check_rank(const Arg& arg, int rank) {
    if (arg.t.ndim != rank) [[unlikely]]
        bad_rank(arg, rank);
}

// Returns the row pitch in elements; that of a single row is never looked at. Widths are N or K, so never 1,
// and always a whole number of 16-byte units.
inline std::int64_t check_matrix(const Arg& arg, bool is_output = false) {
    const TensorView& t = arg.t;
    const int size = size_of(t.dtype);
    const std::int64_t pitch = t.shape[0] == 1 ? t.shape[1] : t.stride[0];
    const std::uintptr_t bits = address(t.data) | static_cast<std::uintptr_t>(pitch * size);
    const bool rows_overlap = is_output && pitch < t.shape[1];
    if (t.data == nullptr || t.stride[1] != 1 || pitch < 0 || bits % kPitchBytes != 0 || rows_overlap)
        [[unlikely]] {
        bad_matrix_memory(arg, is_output);
    }
    return pitch;
}

inline void check_apart(const Arg& arg, const Rows& in, const Rows& d) {
    if (in.begin < d.end() && d.begin < in.end()) [[unlikely]]
        check_interleaved(arg, in, d);
}

}  // namespace

Fp8GemmCall validate_fp8_gemm(const Fp8GemmArgs& args, const char* function) {
    const Arg a{function, "a[0]", args.a}, sfa{function, "a[1]", args.sfa};
    const Arg b{function, "b[0]", args.b}, sfb{function, "b[1]", args.sfb};
    const Arg d{function, "d", args.d}, c{function, "c", args.c}, bias{function, "bias", args.bias};
    const bool has_c = args.c.ndim >= 0, has_bias = args.bias.ndim >= 0;

    if (args.a.dtype != DType::kE4M3) [[unlikely]]
        bad_operand_dtype(a);
    if (args.b.dtype != DType::kE4M3) [[unlikely]]
        bad_operand_dtype(b);
    if (args.sfa.dtype != DType::kF32) [[unlikely]]
        bad_scale_dtype(sfa);
    if (args.sfb.dtype != DType::kF32) [[unlikely]]
        bad_scale_dtype(sfb);
    const DType d_dtype = args.d.dtype;
    if (d_dtype != DType::kBF16 && d_dtype != DType::kF16 && d_dtype != DType::kF32) [[unlikely]]
        bad_d_dtype(d);
    if (has_c && args.c.dtype != d_dtype) [[unlikely]]
        bad_addend_dtype(c, d_dtype, false);
    if (has_bias && args.bias.dtype != d_dtype && args.bias.dtype != DType::kF32) [[unlikely]] {
        bad_addend_dtype(bias, d_dtype, true);
    }

    const Device device = args.a.device;
    check_device(sfa, device);
    check_device(b, device);
    check_device(sfb, device);
    check_device(d, device);
    if (has_c) check_device(c, device);
    if (has_bias) check_device(bias, device);
    if (device.type == Device::Type::kOther) [[unlikely]]
        bad_device(a);

    check_rank(a, 2);
    check_rank(b, 2);
    check_rank(d, 2);
    const std::int64_t m = args.a.shape[0], n = args.b.shape[0], k = args.a.shape[1];
    if (args.b.shape[1] != k) [[unlikely]]
        bad_shape(b, "[N, K]", n, k);
    if (k % 16 != 0 || k > kMaxExtent) [[unlikely]]
        bad_extent(a, "K", k, 16);
    if (n % 8 != 0 || n > kMaxExtent) [[unlikely]]
        bad_extent(b, "N", n, 8);
    if (args.d.shape[0] != m || args.d.shape[1] != n) [[unlikely]]
        bad_shape(d, "[M, N]", m, n);
    const std::int64_t k_blocks = ceil_div(k, kScaleBlock), n_blocks = ceil_div(n, kScaleBlock);
    if (args.sfa.ndim != 2 || args.sfa.shape[0] != m || args.sfa.shape[1] != k_blocks) [[unlikely]] {
        bad_scale_shape(sfa, "[M, ceil(K/128)]", m, k, m, k_blocks);
    }
    if (args.sfb.ndim != 2 || args.sfb.shape[0] != n_blocks || args.sfb.shape[1] != k_blocks) [[unlikely]] {
        bad_scale_shape(sfb, "[ceil(N/128), ceil(K/128)]", n, k, n_blocks, k_blocks);
    }
    if (has_c) {
        check_rank(c, 2);
        if (args.c.shape[0] != m || args.c.shape[1] != n) [[unlikely]]
            bad_shape(c, "[M, N]", m, n);
    }
    if (has_bias) {
        check_rank(bias, 1);
        if (args.bias.shape[0] != n) [[unlikely]]
            bad_bias_shape(bias, n);
    }

    Fp8GemmCall call;
    call.m = m;
    call.n = n;
    call.k = k;
    call.d_dtype = d_dtype;
    call.bias_dtype = has_bias ? args.bias.dtype : DType::kUnknown;
    call.device = device;
    call.alpha = args.alpha;
    if (m == 0 || n == 0) return call;

    const int d_size = size_of(d_dtype);
    call.d = args.d.data;
    call.ldd = check_matrix(d, true);
    const Rows d_rows = rows_of(call.d, m, call.ldd, n, d_size);

    if (has_c) {
        call.c = args.c.data;
        call.ldc = check_matrix(c);
        if (call.c != call.d || call.ldc != call.ldd)
            check_apart(c, rows_of(call.c, m, call.ldc, n, d_size), d_rows);
    }
    if (has_bias) {
        const int size = size_of(args.bias.dtype);
        call.bias = args.bias.data;
        if (call.bias == nullptr || args.bias.stride[0] != 1 ||
            (address(call.bias) & static_cast<unsigned>(size - 1)) != 0) [[unlikely]]
            bad_vector_memory(bias, size, "stride 1");
        check_apart(bias, rows_of(call.bias, 1, 0, n, size), d_rows);
    }
    if (k == 0) return call;  // the operands and their scales have no elements

    call.a = args.a.data;
    call.b = args.b.data;
    call.lda = check_matrix(a);
    call.ldb = check_matrix(b);
    check_apart(a, rows_of(call.a, m, call.lda, k, 1), d_rows);
    check_apart(b, rows_of(call.b, n, call.ldb, k, 1), d_rows);

    // A dimension of size 1 takes the stride that makes the layout one of the two legal ones: with a single
    // row, that of MN-major; with a single block, the padded MN-major pitch if rows are adjacent, else that
    // of row-major.
    call.sfa = static_cast<const float*>(args.sfa.data);
    std::int64_t s0 = m == 1 ? 1 : args.sfa.stride[0];
    std::int64_t s1 = k_blocks == 1 ? (s0 == 1 ? round_up(m, 4) : 1) : args.sfa.stride[1];
    if (call.sfa == nullptr || address(call.sfa) % sizeof(float) != 0 || (s0 != 1 && s1 != 1) || s0 < 0 ||
        s1 < 0) [[unlikely]]
        bad_vector_memory(sfa, sizeof(float), "one stride 1, the other not negative");
    call.sfa_stride_m = s0;
    call.sfa_stride_k = s1;
    check_apart(sfa,
                s0 == 1 ? rows_of(call.sfa, k_blocks, s1, m, sizeof(float))
                        : rows_of(call.sfa, m, s0, k_blocks, sizeof(float)),
                d_rows);

    call.sfb = static_cast<const float*>(args.sfb.data);
    s0 = n_blocks == 1 ? 1 : args.sfb.stride[0];
    s1 = k_blocks == 1 ? 1 : args.sfb.stride[1];
    if (call.sfb == nullptr || address(call.sfb) % sizeof(float) != 0 || s0 < 0 || s1 < 0) [[unlikely]]
        bad_vector_memory(sfb, sizeof(float), "any that are not negative");
    call.sfb_stride_n = s0;
    call.sfb_stride_k = s1;
    const std::int64_t sfb_span = (n_blocks - 1) * s0 + (k_blocks - 1) * s1 + 1;
    check_apart(sfb, rows_of(call.sfb, 1, 0, sfb_span, sizeof(float)), d_rows);
    return call;
}

}  // namespace dgj
