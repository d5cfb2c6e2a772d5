// Predicted kernel time of a plan. The constants are measured (docs/notes/plan.md); only their ratios decide.
#pragma once

#include <cstdint>
#include <string>

#include "plan/plan.hpp"

namespace dgj {

struct Cost {
    double us = 0;
    const char* bound = "";      // "tensor core", "dram" or "stream" (into one block)
    double per_block_tiles = 0;  // tiles that the busiest block takes
};

// The plan is one of the problem's; m rows in all, taken to be spread evenly over the groups.
Cost predict(const KernelPlan& plan, const GemmProblem& problem, std::int64_t m, const DeviceProfile& device);

}  // namespace dgj
