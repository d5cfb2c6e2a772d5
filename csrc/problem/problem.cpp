#include "problem/problem.hpp"

#include <fmt/format.h>

#include <limits>

#include "base/error.hpp"

namespace dgj {

void validate(const GemmProblem& problem) {
    constexpr std::uint32_t kMaxExtent = std::numeric_limits<std::int32_t>::max();  // TMA coordinates are
                                                                                    // int32
    if (problem.layout != GroupLayout::kDense && problem.layout != GroupLayout::kMGrouped) {
        fail(ErrorKind::kNotImplemented,
             "GemmProblem: group layout {} is not supported; supported: dense, m_grouped",
             static_cast<int>(problem.layout));
    }
    if (problem.recipe != ScaleRecipe::kBlock128) {
        fail(ErrorKind::kNotImplemented, "GemmProblem: scale recipe {} is not supported; supported: block128",
             static_cast<int>(problem.recipe));
    }
    if (problem.layout == GroupLayout::kDense && problem.groups != 1) {
        fail(ErrorKind::kValue, "GemmProblem: groups is {}; a dense problem has exactly 1", problem.groups);
    }
    if (problem.groups < 1 || problem.groups > kMaxGroups) {
        fail(ErrorKind::kValue, "GemmProblem: groups is {}; it must be in 1..{}", problem.groups, kMaxGroups);
    }
    if (problem.extras && problem.layout != GroupLayout::kDense) {
        fail(ErrorKind::kNotImplemented,
             "GemmProblem: extras is true, but M-grouped GEMMs have no alpha, bias or c; leave it out");
    }
    if (problem.d_dtype != DType::kBF16 && problem.d_dtype != DType::kF16 && problem.d_dtype != DType::kF32) {
        fail(ErrorKind::kValue, "GemmProblem: d_dtype is {}; allowed: bfloat16, float16, float32",
             name_of(problem.d_dtype));
    }
    if (problem.n == 0 || problem.n % 8 != 0 || problem.n > kMaxExtent) {
        fail(ErrorKind::kValue,
             "GemmProblem: n is {}; it must be a multiple of 8 in 8..{}; pad the rows of B", problem.n,
             kMaxExtent);
    }
    if (problem.k % 16 != 0 || problem.k > kMaxExtent) {
        fail(ErrorKind::kValue,
             "GemmProblem: k is {}; it must be a multiple of 16 in 0..{}; pad A and B with zeros", problem.k,
             kMaxExtent);
    }
}

std::string to_string(const GemmProblem& problem) {
    std::string text = fmt::format("n={} k={} d={}", problem.n, problem.k, name_of(problem.d_dtype));
    text += problem.recipe == ScaleRecipe::kBlock128 ? " scales=block128" : " scales=?";
    text += problem.layout == GroupLayout::kDense ? " dense"
                                                  : fmt::format(" m_grouped groups={}", problem.groups);
    if (problem.batch_invariant) text += " batch_invariant";
    if (problem.extras) text += " extras";
    return text;
}

}  // namespace dgj
