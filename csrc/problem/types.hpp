// Element types, and a view of a tensor that needs neither torch nor CUDA.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <string>

namespace dgj {

enum class DType : std::uint8_t {
    kUnknown,
    kF32,
    kF16,
    kBF16,
    kE4M3,
    kE5M2,
    kI8,
    kU8,
    kI32,
    kI64,
    kF64,
    kE8M0,
    kF4x2,  // two E2M1 a byte
    // Only named, in messages:
    kBool,
    kI16,
    kU16,
    kU32,
    kU64,
    kComplex32,
    kComplex64,
    kComplex128,
    kE4M3Fnuz,
    kE5M2Fnuz
};

constexpr int size_of(DType t) {
    switch (t) {
        case DType::kF32:
        case DType::kI32:
        case DType::kU32:
        case DType::kComplex32: return 4;
        case DType::kF16:
        case DType::kBF16:
        case DType::kI16:
        case DType::kU16: return 2;
        case DType::kI64:
        case DType::kU64:
        case DType::kF64:
        case DType::kComplex64: return 8;
        case DType::kComplex128: return 16;
        case DType::kUnknown: return 0;
        default: return 1;
    }
}

constexpr const char* name_of(DType t) {  // torch's names, since they stand in messages that torch users read
    switch (t) {
        case DType::kF32: return "float32";
        case DType::kF16: return "float16";
        case DType::kBF16: return "bfloat16";
        case DType::kE4M3: return "float8_e4m3fn";
        case DType::kE5M2: return "float8_e5m2";
        case DType::kI8: return "int8";
        case DType::kU8: return "uint8";
        case DType::kI32: return "int32";
        case DType::kI64: return "int64";
        case DType::kF64: return "float64";
        case DType::kE8M0: return "float8_e8m0fnu";
        case DType::kF4x2: return "float4_e2m1fn_x2";
        case DType::kBool: return "bool";
        case DType::kI16: return "int16";
        case DType::kU16: return "uint16";
        case DType::kU32: return "uint32";
        case DType::kU64: return "uint64";
        case DType::kComplex32: return "complex32";
        case DType::kComplex64: return "complex64";
        case DType::kComplex128: return "complex128";
        case DType::kE4M3Fnuz: return "float8_e4m3fnuz";
        case DType::kE5M2Fnuz: return "float8_e5m2fnuz";
        default: return "unknown";
    }
}

struct Device {
    enum class Type : std::int32_t { kCpu, kCuda, kOther } type = Type::kCpu;
    std::int32_t index = 0;
    bool operator==(const Device& other) const {  // one comparison
        return std::bit_cast<std::uint64_t>(*this) == std::bit_cast<std::uint64_t>(other);
    }
};

// A borrowed tensor: strides are in elements and always filled in.
struct TensorView {
    static constexpr int kMaxDims = 4;
    void* data = nullptr;
    DType dtype = DType::kUnknown;
    Device device{};
    int ndim = 0;
    // The first ndim; the others are left alone, since every call would pay for clearing them.
    std::array<std::int64_t, kMaxDims> shape;
    std::array<std::int64_t, kMaxDims> stride;
};

std::string shape_text(const TensorView& t);   // "[3, 5]"
std::string stride_text(const TensorView& t);  // "(5, 1)"

}  // namespace dgj
