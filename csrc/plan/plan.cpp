#include "plan/plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string_view>
#include <tuple>
#include <utility>

#include "base/error.hpp"
#include "plan/cost.hpp"
#include "plan/tuning.hpp"

namespace dgj {
namespace {

// Above this many rows the choice no longer depends on m: the last, partial wave is a small part of the time.
constexpr std::int64_t kLastStep = 16384;

// plan() is constant between these steps: multiples of 8 up to 256 rows, then of 64.
std::int64_t step_of(std::int64_t m) {
    if (m <= 256) return std::max<std::int64_t>(8, (m + 7) / 8 * 8);
    if (m >= kLastStep) return kLastStep;  // first: the sum below must not overflow
    return (m + 63) / 64 * 64;
}

bool fits(const KernelPlan& plan) { return kernel_shape(plan).smem_bytes <= kSm90SmemBytes; }

struct GemmTile {
    std::uint32_t warpgroups, waves, cols;
};
constexpr GemmTile kGemmTiles[] = {{3, 1, 128}, {2, 2, 128}, {2, 1, 192}, {2, 1, 128}, {2, 1, 64}};

// Clusters with multicast are not among them: measured, they were slower on every shape (docs/notes/gemm.md).
void add_gemm_plans(const GemmProblem& problem, std::vector<KernelPlan>& out) {
    for (const GemmTile& tile : kGemmTiles) {
        KernelPlan plan{.problem = kernel_problem(problem, Family::kGemm),
                        .family = Family::kGemm,
                        .warpgroups = tile.warpgroups,
                        .waves = tile.waves};
        plan.tile_rows = 64 * tile.warpgroups * tile.waves;
        plan.tile_cols = tile.cols;
        plan.stages = 8;
        while (plan.stages > 3 && !fits(plan)) plan.stages--;
        if (fits(plan)) out.push_back(plan);
    }
}

// The ring as deep as shared memory allows, the sums beside it if they fit, else in it.
bool fit_swap_ab(KernelPlan& plan) {
    for (std::uint32_t reuse : {0u, 1u}) {
        plan.reuse_ring = reuse;
        for (plan.stages = 8; plan.stages >= 2; plan.stages--)
            if (fits(plan)) return true;
    }
    return false;
}

void add_swap_ab_plans(const GemmProblem& problem, std::vector<KernelPlan>& out) {
    const std::uint32_t k_blocks = (problem.k + 127) / 128;
    struct Rows {
        std::uint32_t warpgroups, waves;
    };
    for (const Rows& rows : {Rows{1, 1}, Rows{2, 1}, Rows{2, 2}}) {
        for (std::uint32_t cols : {8u, 16u, 32u, 64u, 128u}) {
            for (std::uint32_t split : {1u, 2u, 3u, 4u, 5u, 6u, 8u}) {
                if (split > 1 && (problem.batch_invariant || k_blocks < 4 * split)) continue;
                for (std::uint32_t blocks : {1u, 2u, 4u}) {
                    if (blocks > 1 && (blocks >= 2 * k_blocks || blocks * split > k_blocks)) continue;
                    KernelPlan plan{.problem = kernel_problem(problem, Family::kGemmSwapAB),
                                    .family = Family::kGemmSwapAB,
                                    .warpgroups = rows.warpgroups,
                                    .waves = rows.waves};
                    plan.tile_rows = 64 * rows.warpgroups * rows.waves;
                    plan.tile_cols = cols;
                    const std::uint32_t stage_bytes = blocks * (plan.tile_rows + cols) * 128;
                    // Large stages stream fastest; one block of 128 is for tiles that are large by
                    // themselves.
                    if (stage_bytes > 100 * 1024 || (blocks == 1 && plan.tile_rows + cols < 256)) continue;
                    plan.stage_blocks = blocks;
                    plan.split_k = split;
                    plan.raster = 1;
                    if (fit_swap_ab(plan)) out.push_back(plan);
                }
            }
        }
    }
}

KernelPlan grouped_plan(const GemmProblem& problem) {
    KernelPlan plan{.problem = kernel_problem(problem, Family::kGemmGrouped),
                    .family = Family::kGemmGrouped,
                    .warpgroups = 3,
                    .waves = 1};
    plan.tile_rows = 192;
    plan.tile_cols = 128;
    plan.stages = 4;
    return plan;
}

std::vector<KernelPlan> every_plan(const GemmProblem& problem) {
    std::vector<KernelPlan> plans;
    if (problem.layout == GroupLayout::kMGrouped) return {grouped_plan(problem)};
    add_gemm_plans(problem, plans);
    add_swap_ab_plans(problem, plans);
    return plans;
}

std::vector<std::pair<double, const KernelPlan*>> ranked(const std::vector<KernelPlan>& plans,
                                                         const GemmProblem& problem, std::int64_t m,
                                                         const DeviceProfile& device) {
    std::vector<std::pair<double, const KernelPlan*>> order;
    order.reserve(plans.size());
    for (const KernelPlan& p : plans) order.emplace_back(predict(p, problem, m, device).us, &p);
    std::stable_sort(order.begin(), order.end(),
                     [](const auto& x, const auto& y) { return x.first < y.first; });
    return order;
}

// The few plans of a problem and which of them each step takes. A problem must be warm with few kernels, so
// the set is the smallest found (greedily) in which every step has a plan close to its best: 1 %, or more
// until kMostPlans are enough.
struct PlanTable {
    std::vector<KernelPlan> plans;                             // in order of first use by the steps
    std::vector<std::pair<std::int64_t, std::uint8_t>> steps;  // last m of the step, index into plans
    std::vector<std::uint8_t> measured;  // for each step the index to take: of a measurement, else as
                                         // predicted
};

constexpr std::size_t kMostPlans = 10;

std::vector<std::size_t> cover(const std::vector<std::vector<double>>& us, const std::vector<double>& best,
                               double tolerance) {
    std::vector<bool> covered(best.size(), false);
    std::vector<std::size_t> chosen;
    for (std::size_t left = best.size(); left > 0;) {
        double most = 0;
        std::size_t pick = 0;
        for (std::size_t p = 0; p < us.size(); p++) {
            double score = 0;  // steps covered; of equal plans the faster one
            for (std::size_t s = 0; s < best.size(); s++)
                if (!covered[s] && us[p][s] <= best[s] * tolerance)
                    score += 1 + (tolerance - us[p][s] / best[s]);
            if (score > most) most = score, pick = p;
        }
        for (std::size_t s = 0; s < best.size(); s++) {
            if (covered[s] || us[pick][s] > best[s] * tolerance) continue;
            covered[s] = true;
            left--;
        }
        chosen.push_back(pick);
    }
    return chosen;
}

PlanTable make_table(const GemmProblem& problem, const DeviceProfile& device) {
    const std::vector<KernelPlan> plans = every_plan(problem);
    PlanTable table;
    for (std::int64_t m = 8;; m = step_of(m + 1)) {
        table.steps.emplace_back(m, 0);
        if (m == kLastStep) break;
    }
    std::vector<std::vector<double>> us(plans.size());
    std::vector<double> best(table.steps.size(), 1e30);
    for (std::size_t p = 0; p < plans.size(); p++) {
        for (std::size_t s = 0; s < best.size(); s++) {
            us[p].push_back(predict(plans[p], problem, table.steps[s].first, device).us);
            best[s] = std::min(best[s], us[p].back());
        }
    }
    double tolerance = 1.01;
    std::vector<std::size_t> chosen = cover(us, best, tolerance);
    while (chosen.size() > kMostPlans) chosen = cover(us, best, tolerance += 0.01);
    for (std::size_t s = 0; s < best.size(); s++) {
        std::size_t pick = chosen[0];
        for (std::size_t c : chosen)
            if (us[c][s] < us[pick][s]) pick = c;
        const auto known = std::find(table.plans.begin(), table.plans.end(), plans[pick]);
        table.steps[s].second = static_cast<std::uint8_t>(known - table.plans.begin());
        if (known == table.plans.end()) table.plans.push_back(plans[pick]);
    }
    std::vector<std::int64_t> ends;
    for (const auto& step : table.steps) ends.push_back(step.first);
    const auto winners = tuned_winners(problem, device, table.plans, ends);
    for (std::size_t s = 0; s < ends.size(); s++)
        table.measured.push_back(static_cast<std::uint8_t>(winners[s].value_or(table.steps[s].second)));
    return table;
}

// Tables are made once for each problem and device: some milliseconds.
std::shared_ptr<const PlanTable> table_of(const GemmProblem& problem, const DeviceProfile& device) {
    static std::shared_mutex mutex;
    static std::map<std::tuple<GemmProblem, std::string_view, unsigned>, std::shared_ptr<const PlanTable>>
        tables;
    const auto key = std::make_tuple(problem, device.name, tuning_generation());
    {
        std::shared_lock lock(mutex);
        if (const auto found = tables.find(key); found != tables.end()) return found->second;
    }
    auto table = std::make_shared<const PlanTable>(make_table(problem, device));
    std::unique_lock lock(mutex);
    return tables.emplace(key, std::move(table)).first->second;
}

const KernelPlan& plan_at(const PlanTable& table, std::int64_t m) {
    const auto step = std::lower_bound(table.steps.begin(), table.steps.end(), step_of(m),
                                       [](const auto& s, std::int64_t rows) { return s.first < rows; });
    return table.plans[table.measured[static_cast<std::size_t>(step - table.steps.begin())]];
}

}  // namespace

GemmProblem kernel_problem(const GemmProblem& problem, Family family) {
    GemmProblem seen = problem;
    if (family == Family::kGemmGrouped) seen.groups = 1, seen.batch_invariant = false;
    if (family != Family::kGemm || problem.d_dtype == DType::kF32) seen.extras = false;
    return seen;
}

std::string to_string(const KernelPlan& p) {
    const char* family = p.family == Family::kGemm         ? "gemm"
                         : p.family == Family::kGemmSwapAB ? "gemm_swap_ab"
                                                           : "gemm_grouped";
    std::string text = fmt::format("{} | {} {}x{} K{} stages {}", to_string(p.problem), family, p.tile_rows,
                                   p.tile_cols, 128 * p.stage_blocks, p.stages);
    text += fmt::format(" warpgroups {}x{}", p.warpgroups, p.waves);
    if (p.cluster_rows * p.cluster_cols > 1)
        text += fmt::format(" cluster {}x{}", p.cluster_rows, p.cluster_cols);
    if (p.split_k > 1) text += fmt::format(" split-K {}", p.split_k);
    if (p.reuse_ring) text += " reuse-ring";
    return text;
}

void validate(const KernelPlan& plan) {
    validate(plan.problem);
    const std::vector<KernelPlan> plans = every_plan(plan.problem);
    if (std::find(plans.begin(), plans.end(), plan) == plans.end())
        fail(ErrorKind::kValue, "KernelPlan: no kernel is built like this: {}. Take a plan from candidates()",
             to_string(plan));
}

std::vector<Candidate> candidates(const GemmProblem& problem, std::int64_t m, const DeviceProfile& device) {
    validate(problem);
    if (m < 1) fail(ErrorKind::kValue, "candidates: m is {}, but a plan needs at least one row", m);
    const std::vector<KernelPlan> plans = every_plan(problem);
    // What plan() looks at; a grouped problem has one plan, so that its time can be that of m itself.
    const std::int64_t rows = problem.layout == GroupLayout::kMGrouped ? m : step_of(m);
    std::vector<Candidate> out;
    for (const auto& [us, plan] : ranked(plans, problem, rows, device)) {
        const Cost cost = predict(*plan, problem, rows, device);
        out.push_back({*plan, us,
                       fmt::format("{:.0f} tile(s) on the busiest block, bound by {}", cost.per_block_tiles,
                                   cost.bound)});
    }
    return out;
}

KernelPlan plan(const GemmProblem& problem, std::int64_t m, const DeviceProfile& device) {
    validate(problem);
    if (m < 1) fail(ErrorKind::kValue, "plan: m is {}, but a plan needs at least one row", m);
    return plan_at(*table_of(problem, device), m);
}

std::vector<KernelPlan> all_plans(const GemmProblem& problem, const DeviceProfile& device,
                                  std::optional<std::int64_t> max_rows) {
    validate(problem);
    const auto table = table_of(problem, device);
    const std::int64_t last = max_rows ? step_of(std::max<std::int64_t>(1, *max_rows)) : kLastStep;
    // What measurements choose and what the model would choose, so that a warm cache is warm with and without
    // a tuning table.
    std::vector<KernelPlan> out;
    for (std::size_t s = 0; s < table->steps.size() && table->steps[s].first <= last; s++)
        for (std::size_t index : {table->measured[s], table->steps[s].second})
            if (std::find(out.begin(), out.end(), table->plans[index]) == out.end())
                out.push_back(table->plans[index]);
    return out;
}

}  // namespace dgj
