// Quantisation kernels: what is fixed when one is compiled, and its source. Rows, columns, strides and
// alignment are run-time arguments, so the plans that exist are few and can all be compiled ahead.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/kernel_source.hpp"
#include "problem/types.hpp"

namespace dgj {

enum class CastScale : std::uint8_t {
    kF32,         // amax / 448
    kUe8m0F32,    // rounded up to a power of two, stored as fp32
    kUe8m0Packed  // its biased exponent, four to an int32; per token only
};

struct CastPlan {
    DType x_dtype = DType::kBF16;  // BF16, F16 or F32
    std::uint32_t gran_rows = 1;   // rows that share a scale: 1 (per token) or gran_k (per block)
    std::uint32_t gran_k = 128;    // columns that share a scale: 32, 64 or 128
    CastScale scale = CastScale::kF32;
    auto operator<=>(const CastPlan&) const = default;
};

void validate(const CastPlan& plan);  // throws Error(kValue | kType)
std::string to_string(const CastPlan& plan);

// Every valid plan, and a plan's place in that list.
const std::vector<CastPlan>& all_cast_plans();
inline constexpr std::size_t kCastPlanCount = 45;  // 3 dtypes x 3 gran_k x (3 scales per token + 2 per block)
std::size_t index_of(const CastPlan& plan);

// What follows from a plan; computed in one place so that emit, launch and tests agree.
struct CastShape {
    std::uint32_t threads = 0;
    std::uint32_t unit_elements = 0;  // elements of x in a 16-byte unit
    std::uint32_t units = 0;          // units of x that a thread has in flight
    std::uint32_t span = 0;           // how many of them share a scale
    std::uint32_t lanes = 0;          // threads that share a scale
    std::uint32_t smem_bytes = 0;     // dynamic shared memory
    std::uint32_t ctas_per_sm = 0;    // for which the registers of a thread are few enough
};
CastShape cast_shape(const CastPlan& plan);

KernelSource emit(const CastPlan& plan, std::string_view arch = "sm_90a");

}  // namespace dgj
