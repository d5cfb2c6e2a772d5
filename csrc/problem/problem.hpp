// What the caller asked, validated: plain data, hashable, printable, no pointers. M is not part of it: M only
// selects among the few plans that a problem has.
#pragma once

#include <compare>
#include <cstdint>
#include <string>

#include "problem/types.hpp"

namespace dgj {

// kMGrouped: every row of A belongs to one of `groups` matrices B, or to none. How rows are assigned (ids,
// ends, offsets, counts) is told at run time: one kernel serves all forms.
enum class GroupLayout : std::uint8_t { kDense, kMGrouped };

// kBlock128: A has an fp32 scale per 1x128, B one per 128x128; partial sums of 128 of K are promoted to FP32.
enum class ScaleRecipe : std::uint8_t { kBlock128 };

inline constexpr std::uint32_t kMaxGroups = 65535;

struct GemmProblem {
    GroupLayout layout = GroupLayout::kDense;
    ScaleRecipe recipe = ScaleRecipe::kBlock128;
    DType d_dtype = DType::kBF16;  // BF16, F16 or F32
    std::uint32_t n = 0;           // rows of B, columns of D; a multiple of 8
    std::uint32_t k = 0;           // inner extent; a multiple of 16
    std::uint32_t groups = 1;
    bool batch_invariant = false;  // a row's bits depend on nothing but its own row of A, B and their scales
    bool extras = false;           // calls with alpha, bias or c; without, kernels compile a fifth faster
    auto operator<=>(const GemmProblem&) const = default;
};

void validate(const GemmProblem& problem);  // throws Error(kValue | kNotImplemented)
std::string to_string(const GemmProblem& problem);

}  // namespace dgj
