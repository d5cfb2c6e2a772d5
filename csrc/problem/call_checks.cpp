#include "problem/call_checks.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string>
#include <string_view>

#include "base/error.hpp"

namespace dgj::checks {
namespace {

std::string device_text(Device device) {
    if (device.type == Device::Type::kCpu) return "cpu";
    if (device.type == Device::Type::kCuda) return fmt::format("cuda:{}", device.index);
    return fmt::format("device {} of a type that is neither CPU nor CUDA", device.index);
}

std::string extents_text(Extents extents) {  // "[3, 5]"
    return fmt::format("[{}]", fmt::join(extents.begin(), extents.end(), ", "));
}

[[noreturn]] void no_memory(const Arg& arg) {
    fail(ErrorKind::kValue,
         "{}: {} has shape {} but no memory (NULL data pointer); pass a tensor that is allocated",
         arg.function, arg.name, shape_text(arg.t));
}

}  // namespace

void bad_operand_dtype(const Arg& arg) {
    const DType t = arg.t.dtype;
    const bool other_recipe = t == DType::kE5M2 || t == DType::kI8 || t == DType::kU8 ||
                              t == DType::kF4x2;  // E5M2, packed FP4
    fail(other_recipe ? ErrorKind::kNotImplemented : ErrorKind::kType,
         "{}: {} has dtype {}; supported: float8_e4m3fn. Quantise with per_token_cast_to_fp8 (a) and "
         "per_block_cast_to_fp8 (b)",
         arg.function, arg.name, name_of(t));
}

void bad_scale_dtype(const Arg& arg) {
    const DType t = arg.t.dtype;
    const bool other_recipe = t == DType::kI32 || t == DType::kU8 || t == DType::kE4M3 ||
                              t == DType::kE8M0;  // packed UE8M0, MX, NVFP4
    fail(other_recipe ? ErrorKind::kNotImplemented : ErrorKind::kType,
         "{}: {} (scales) has dtype {}; supported: float32 scales, one per 1x128 of a and per 128x128 of b",
         arg.function, arg.name, name_of(t));
}

void bad_d_dtype(const Arg& arg) {
    fail(ErrorKind::kType,
         "{}: {} has dtype {}; allowed: bfloat16, float16, float32. Allocate it with one of these",
         arg.function, arg.name, name_of(arg.t.dtype));
}

void device_mix(const Arg& arg, Device first) {
    fail(ErrorKind::kType,
         "{}: {} is on {} but a[0] is on {}; all tensors must be on one device. Move it with .to()",
         arg.function, arg.name, device_text(arg.t.device), device_text(first));
}

void bad_device(const Arg& arg) {
    fail(ErrorKind::kNotImplemented,
         "{}: {} is on {}; supported: CPU and CUDA tensors. Move the tensors with .to()", arg.function,
         arg.name, device_text(arg.t.device));
}

void bad_rank(const Arg& arg, int allowed) {
    fail(ErrorKind::kValue, "{}: {} has {} dimensions, shape {}; it must have {}. Reshape it with .view()",
         arg.function, arg.name, arg.t.ndim, shape_text(arg.t), allowed);
}

void bad_shape(const Arg& arg, const char* meaning, Extents wanted) {
    fail(ErrorKind::kValue, "{}: {} has shape {}; it must be {} = {} to go with the other arguments",
         arg.function, arg.name, shape_text(arg.t), meaning, extents_text(wanted));
}

void bad_extent(const Arg& arg, const char* letter, std::int64_t value, int multiple) {
    fail(ErrorKind::kValue,
         "{}: {} of {} is {}; it must be a multiple of {} in 0..{}. Pad the tensors with zeros", arg.function,
         letter, arg.name, value, multiple, kMaxExtent);
}

void bad_rows(const Arg& arg, std::int64_t rows) {
    fail(ErrorKind::kValue, "{}: {} has {} rows; at most {} are possible. Split the call", arg.function,
         arg.name, rows, kMaxExtent);
}

void bad_scale_shape(const Arg& arg, const char* meaning, std::int64_t operand_rows, std::int64_t k,
                     Extents wanted) {
    const TensorView& t = arg.t;
    const int rank = static_cast<int>(wanted.size());
    bool known = t.ndim == 0 || (t.ndim == 1 && t.shape[0] == 1);
    if (t.ndim == rank) {
        const std::size_t row = rank == 2 ? 0 : 1;
        const std::int64_t rows = t.shape[row], blocks = t.shape[row + 1];
        const auto per = [&](std::int64_t gran) { return blocks == ceil_div(k, gran); };
        const bool groups_fit = rank == 2 || t.shape[0] == *wanted.begin();
        const bool rows_known = rows == operand_rows || rows == ceil_div(operand_rows, kScaleBlock) ||
                                rows == 1;
        known = groups_fit && rows_known &&
                (per(16) || per(32) || per(64) || per(kScaleBlock) || blocks == 1);
    }
    if (known) {
        fail(ErrorKind::kNotImplemented,
             "{}: {} has shape {}, another scale recipe than the supported one: {} = {}, float32 scales "
             "per 1x128 of a and per 128x128 of b",
             arg.function, arg.name, shape_text(t), meaning, extents_text(wanted));
    }
    if (t.ndim != rank) bad_rank(arg, rank);
    bad_shape(arg, meaning, wanted);
}

void bad_matrix_memory(const Arg& arg, int row_dim, bool is_output) {
    const TensorView& t = arg.t;
    const auto row = static_cast<std::size_t>(row_dim);
    if (t.data == nullptr) no_memory(arg);
    if (t.stride[row + 1] != 1 || (t.shape[row] > 1 && t.stride[row] < 0)) {
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
    const std::int64_t pitch_bytes = t.stride[row] * size_of(t.dtype);
    if (pitch_bytes % kPitchBytes != 0) {
        fail(ErrorKind::kValue,
             "{}: {} has strides {}, a row pitch of {} bytes; it must be a multiple of {} bytes. "
             "Pass {}.contiguous() or pad the pitch",
             arg.function, arg.name, stride_text(t), pitch_bytes, kPitchBytes, arg.name);
    }
    fail(ErrorKind::kValue,
         "{}: {} has shape {} and strides {}, so its rows overlap{}. Pass a tensor whose row pitch is "
         "at least its width, such as {}.contiguous()",
         arg.function, arg.name, shape_text(t), stride_text(t),
         is_output ? " and would overwrite each other" : "", arg.name);
}

void bad_vector_memory(const Arg& arg, int alignment, const char* strides_allowed) {
    const TensorView& t = arg.t;
    if (t.data == nullptr) no_memory(arg);
    if (address(t.data) % static_cast<std::uintptr_t>(alignment) != 0) {
        fail(ErrorKind::kValue,
             "{}: {} starts at address {:#x}, which is no multiple of {} bytes. Pass {}.clone()",
             arg.function, arg.name, address(t.data), alignment, arg.name);
    }
    fail(ErrorKind::kValue, "{}: {} has shape {} and strides {}; allowed: {}. Pass {}.contiguous()",
         arg.function, arg.name, shape_text(t), stride_text(t), strides_allowed, arg.name);
}

// Ranges meet; still legal where the rows interleave, as columns of one wider buffer do. Decided exactly for
// one common pitch, refused otherwise.
void check_interleaved(const Arg& arg, const Rows& in, const Rows& d) {
    const bool in_single = in.rows == 1 || in.pitch == 0, d_single = d.rows == 1;
    const std::uintptr_t pitch = in_single ? d.pitch : in.pitch;
    if (!(in_single && d_single) && (in_single || d_single || in.pitch == d.pitch) && pitch != 0) {
        const std::uintptr_t ahead = in.begin >= d.begin ? (in.begin - d.begin) % pitch
                                                         : (pitch - (d.begin - in.begin) % pitch) % pitch;
        if (ahead >= d.width && ahead + in.width <= pitch) return;
    }
    const bool is_c = std::string_view(arg.name) == "c";
    fail(ErrorKind::kValue,
         "{}: {} (bytes {:#x} to {:#x}) overlaps d (bytes {:#x} to {:#x}); {}. Write to another d or pass a "
         "copy, {}.clone()",
         arg.function, arg.name, in.begin, in.end(), d.begin, d.end(),
         is_c ? "c may be d itself, with the same pointer and strides, but not a part of it"
              : "what is read must not be written",
         arg.name);
}

}  // namespace dgj::checks
