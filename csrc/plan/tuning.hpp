// The table of measured winners that DGJ_TUNING names. It reorders the plans that a problem has anyway.
//
//   {"format": 1, "package": "0.1.0",
//    "winners": [{"device": "h200", "problem": "n=4096 k=7168 ...", "m": 64, "plan": "... | gemm ..."}, ...]}
//
// Problem and plan stand there as to_string() prints them. Read at the first use of the planner. A table that
// cannot be read, or is of another version of the package, is left aside with one warning.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "plan/plan.hpp"

namespace dgj {

inline constexpr int kTuningFormat = 1;

// For each step, given by its largest m and in rising order, the measured winner: an index into `plans`. A
// step without a measurement of its own takes the winner of both neighbours that have one, if these agree.
std::vector<std::optional<std::size_t>> tuned_winners(const GemmProblem& problem, const DeviceProfile& device,
                                                      const std::vector<KernelPlan>& plans,
                                                      const std::vector<std::int64_t>& steps);

// The planner reads the table again when it needs it next, from where DGJ_TUNING points then.
void forget_tuning();
unsigned tuning_generation();  // counts the calls of forget_tuning

}  // namespace dgj
