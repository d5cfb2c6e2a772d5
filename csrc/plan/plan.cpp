#include "plan/plan.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.hpp"
#include "plan/cost.hpp"

namespace dgj {
namespace {

constexpr std::uint32_t kSmemLimit = 232448;  // 227 KiB: opt-in shared memory per block on sm_90

// Above this many rows the choice no longer depends on m: the last, partial wave is a small part of the time.
constexpr std::int64_t kLastStep = 16384;

// plan() is constant between these steps: multiples of 8 up to 256 rows, then of 64.
std::int64_t step_of(std::int64_t m) {
    if (m <= 256) return std::max<std::int64_t>(8, (m + 7) / 8 * 8);
    return std::min(kLastStep, (m + 63) / 64 * 64);
}

bool fits(const KernelPlan& plan) { return kernel_shape(plan).smem_bytes <= kSmemLimit; }

struct GemmTile {
    std::uint32_t warpgroups, waves, cols;
};
constexpr GemmTile kGemmTiles[] = {{3, 1, 128}, {2, 2, 128}, {2, 1, 192}, {2, 1, 128}, {2, 1, 64}};

void add_gemm_plans(const GemmProblem& problem, std::vector<KernelPlan>& out) {
    for (const GemmTile& tile : kGemmTiles) {
        for (std::uint32_t cluster_rows : {1u, 2u}) {
            for (std::uint32_t cluster_cols : {1u, 2u}) {
                if (cluster_rows * cluster_cols > 2) continue;
                KernelPlan plan{.problem = problem, .family = Family::kGemm, .warpgroups = tile.warpgroups,
                                .waves = tile.waves};
                plan.tile_rows = 64 * tile.warpgroups * tile.waves;
                plan.tile_cols = tile.cols;
                plan.cluster_rows = cluster_rows;
                plan.cluster_cols = cluster_cols;
                for (plan.stages = 8; plan.stages > 2 && !fits(plan);) plan.stages--;
                if (fits(plan)) out.push_back(plan);
            }
        }
    }
}

void add_swap_ab_plans(const GemmProblem& problem, std::vector<KernelPlan>& out) {
    const std::uint32_t k_blocks = (problem.k + 127) / 128;
    for (std::uint32_t rows : {64u, 128u}) {
        for (std::uint32_t cols : {8u, 16u, 32u, 64u, 128u}) {
            for (std::uint32_t split : {1u, 2u, 3u, 4u}) {
                if (split > 1 && (problem.batch_invariant || k_blocks < 4 * split)) continue;
                for (std::uint32_t blocks : {2u, 4u, 8u, 12u}) {
                    if (blocks > 2 && blocks >= 2 * k_blocks) continue;
                    if (blocks * (rows + cols) * 128 > 100 * 1024) continue;
                    KernelPlan plan{.problem = problem, .family = Family::kGemmSwapAB, .warpgroups = rows / 64};
                    plan.tile_rows = rows;
                    plan.tile_cols = cols;
                    plan.stage_blocks = blocks;
                    plan.split_k = split;
                    plan.raster = 1;
                    for (plan.stages = 8; plan.stages > 2 && !fits(plan);) plan.stages--;
                    if (fits(plan)) out.push_back(plan);
                }
            }
        }
    }
}

std::vector<KernelPlan> every_plan(const GemmProblem& problem) {
    std::vector<KernelPlan> plans;
    add_gemm_plans(problem, plans);
    add_swap_ab_plans(problem, plans);
    return plans;
}

std::vector<std::pair<double, const KernelPlan*>> ranked(const std::vector<KernelPlan>& plans, std::int64_t m,
                                                         const DeviceProfile& device) {
    std::vector<std::pair<double, const KernelPlan*>> order;
    order.reserve(plans.size());
    for (const KernelPlan& p : plans) order.emplace_back(predict(p, m, device).us, &p);
    std::stable_sort(order.begin(), order.end(), [](const auto& x, const auto& y) { return x.first < y.first; });
    return order;
}

const KernelPlan& best_of(const std::vector<KernelPlan>& plans, std::int64_t m, const DeviceProfile& device) {
    const KernelPlan* best = nullptr;
    double best_us = 0;
    for (const KernelPlan& p : plans) {
        const double us = predict(p, m, device).us;
        if (best == nullptr || us < best_us) best = &p, best_us = us;
    }
    return *best;
}

}  // namespace

std::string to_string(const KernelPlan& p) {
    std::string text = fmt::format("{} | {} {}x{} K{} stages {}", to_string(p.problem),
                                   p.family == Family::kGemm ? "gemm" : "gemm_swap_ab", p.tile_rows, p.tile_cols,
                                   128 * p.stage_blocks, p.stages);
    if (p.family == Family::kGemm) text += fmt::format(" warpgroups {}x{}", p.warpgroups, p.waves);
    if (p.cluster_rows * p.cluster_cols > 1) text += fmt::format(" cluster {}x{}", p.cluster_rows, p.cluster_cols);
    if (p.split_k > 1) text += fmt::format(" split-K {}", p.split_k);
    return text;
}

std::vector<Candidate> candidates(const GemmProblem& problem, std::int64_t m, const DeviceProfile& device) {
    validate(problem);
    if (m < 1) fail(ErrorKind::kValue, "candidates: m is {}, but a plan needs at least one row", m);
    const std::vector<KernelPlan> plans = every_plan(problem);
    std::vector<Candidate> out;
    for (const auto& [us, plan] : ranked(plans, step_of(m), device)) {
        const Cost cost = predict(*plan, step_of(m), device);
        out.push_back({*plan, us, fmt::format("{:.0f} tile(s) on the busiest block, bound by {}", cost.per_block_tiles,
                                              cost.bound)});
    }
    return out;
}

KernelPlan plan(const GemmProblem& problem, std::int64_t m, const DeviceProfile& device) {
    validate(problem);
    if (m < 1) fail(ErrorKind::kValue, "plan: m is {}, but a plan needs at least one row", m);
    return best_of(every_plan(problem), step_of(m), device);
}

std::vector<KernelPlan> all_plans(const GemmProblem& problem, const DeviceProfile& device,
                                  std::optional<std::int64_t> max_rows) {
    validate(problem);
    const std::vector<KernelPlan> plans = every_plan(problem);
    const std::int64_t last = max_rows ? step_of(std::max<std::int64_t>(1, *max_rows)) : kLastStep;
    std::vector<KernelPlan> out;
    for (std::int64_t m = 8; m <= last; m = step_of(m + 1)) {
        const KernelPlan& p = best_of(plans, m, device);
        if (std::find(out.begin(), out.end(), p) == out.end()) out.push_back(p);
        if (m == kLastStep) break;
    }
    return out;
}

}  // namespace dgj
