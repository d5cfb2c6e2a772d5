// One model for both families; its constants were fitted to measured times of 48 shapes (docs/notes/plan.md):
// times within 6 % on average, and the plan it picks 1.5 % slower than the best one. The three corrections at
// the end came later and are not in these figures, nor is what large tiles gained since (their use of the
// tensor core, fitted to six shapes of 4096 rows: the choice among them, not the times).
#include "plan/cost.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>

namespace dgj {
namespace {

constexpr double kLaunchUs = 2.75;
constexpr double kClocksPerUs = 1950;
constexpr double kBusyClocksPerUs = 1450;  // of a grouped kernel that keeps the tensor cores busy, under
                                           // power
constexpr double kStreamBytes = 59.6;      // bytes a clock that one block can bring into shared memory
constexpr double kDramShare = 0.9;         // of the profile's read rate
constexpr double kL2Share = 1.73;          // of the profile's L2 rate

// Share of the tensor core's cycles that a main loop reaches at that clock.
double tensor_use(const KernelPlan& plan) {
    if (plan.family == Family::kGemmSwapAB)
        return plan.waves == 2 ? 0.59 : plan.warpgroups == 1 ? 0.59 : 0.69;
    if (plan.waves == 2) return 0.8;
    if (plan.warpgroups == 3) return 0.785;
    if (plan.tile_cols == 192) return 0.75;
    return 0.65;
}

double ceil_div(double a, double b) {
    return static_cast<double>(static_cast<std::int64_t>((a + b - 1) / b));
}

// What one column of tiles, 128 columns of D, of a group takes, in clocks of the SM, by measured times of
// tiles with few rows, with one, two and three pieces of 64, and of wide ones (docs/notes/plan.md). tiles:
// how many they are.
double grouped_clocks(double rows, double k_blocks, double& tiles) {
    const double pieces = ceil_div(rows, 64);
    const auto tile = [&](double p) {
        const double block = rows <= 32 ? 360 : p <= 1 ? 520 : p <= 2 ? 730 : 815;
        const double stream = 128 * (128 + std::min(rows, p * 64)) / kStreamBytes;
        return k_blocks * std::max(block, stream) + 1100;
    };
    if (pieces <= 2) return tiles = 1, tile(pieces);
    const double full = std::floor(pieces / 3) - (std::fmod(pieces, 3) == 1), wide = (pieces - 3 * full) / 2;
    tiles = full + wide * 2 / 3;
    return full * tile(3) + wide * (k_blocks * 877 + 1150) * 2 / 3;
}

// m: rows in all. Groups differ, so a group's time is the mean over sizes about the mean one. Nothing is
// chosen by it, as there is one plan; `explain` shows it.
Cost predict_grouped(const KernelPlan& plan, const GemmProblem& problem, double m,
                     const DeviceProfile& device) {
    const double n = problem.n, k_blocks = ceil_div(problem.k, 128), col_tiles = ceil_div(n, 128);
    const double live = std::min<double>(m, problem.groups), rows = m / live;
    double clocks = 0, tiles = 0;
    constexpr double kSizes[] = {0.7, 0.8, 0.9, 1, 1.1, 1.2, 1.3};
    for (double size : kSizes) {
        double of_group = 0;
        clocks += grouped_clocks(std::max(1.0, rows * size), k_blocks, of_group);
        tiles += of_group;
    }
    const double columns = live * col_tiles / static_cast<double>(std::size(kSizes));
    const double block_us = columns * clocks / device.sms / kBusyClocksPerUs;
    const double bytes = live * n * problem.k + m * problem.k + m * n * size_of(plan.problem.d_dtype);
    const double dram_us = bytes / (device.dram_tb_s * kDramShare * 1e6);
    Cost cost;
    cost.us = kLaunchUs + 1 + std::pow(std::pow(block_us, 4) + std::pow(dram_us, 4), 0.25);
    cost.bound = dram_us > block_us ? "dram" : "tensor core";
    cost.per_block_tiles = columns * tiles / device.sms;
    return cost;
}

}  // namespace

Cost predict(const KernelPlan& plan, const GemmProblem& problem, std::int64_t rows,
             const DeviceProfile& device) {
    if (plan.family == Family::kGemmGrouped)
        return predict_grouped(plan, problem, static_cast<double>(rows), device);
    const bool gemm = plan.family == Family::kGemm;
    const double m = static_cast<double>(rows), n = plan.problem.n, k_blocks = ceil_div(plan.problem.k, 128);
    const double tile_rows = plan.tile_rows, tile_cols = plan.tile_cols, tile = tile_rows * tile_cols;
    const std::uint32_t cluster = plan.cluster_rows * plan.cluster_cols * plan.split_k;
    const double units = gemm ? ceil_div(ceil_div(m, tile_rows), plan.cluster_rows) *
                                    ceil_div(ceil_div(n, tile_cols), plan.cluster_cols)
                              : ceil_div(n, tile_rows) * ceil_div(m, tile_cols);
    const double clusters = std::min<double>(units, max_clusters(device.sms, cluster));
    const double rounds = ceil_div(units, clusters);
    const double stages = gemm ? k_blocks : ceil_div(ceil_div(k_blocks, plan.stage_blocks), plan.split_k);

    // One K block of 128: products and what of the promotion is not hidden, or its bytes.
    double compute = tile / 32 / tensor_use(plan);
    if (!gemm) compute += (plan.warpgroups == 1 ? 0.9 : 2.5) * tile_cols;
    const double stream = 128 * (tile_rows + tile_cols) / kStreamBytes;
    const double loop = stages * plan.stage_blocks * std::max(compute, stream);

    const double rounds_of_boxes = !gemm ? 0 : plan.waves == 2 ? 1800 : plan.tile_cols == 192 ? 300 : 0;
    const double epilogue = 480 + tile * 2.6 / 64 + rounds_of_boxes;
    const double reduction = plan.split_k > 1 ? 4300 + tile * 14.7 / 64 : 0;
    const double clocks = rounds * (loop + epilogue) + epilogue + reduction + (plan.reuse_ring ? 1320 : 0);

    const double out_bytes = m * n * size_of(plan.problem.d_dtype);
    const double dram_bytes = (m + n) * plan.problem.k + out_bytes;
    const double block_us = clocks / kClocksPerUs;
    const double dram_us = dram_bytes / (device.dram_tb_s * kDramShare * 1e6);
    const double l2_bytes = gemm ? units * cluster * k_blocks * 128 * (tile_rows + tile_cols) + out_bytes : 0;
    const double l2_us = l2_bytes / (device.l2_tb_s * kL2Share * 1e6);
    Cost cost;
    // None hides the others completely: a norm between the largest one and the sum.
    const double norm = std::pow(block_us, 4) + std::pow(dram_us, 4) + std::pow(l2_us, 4);
    cost.us = kLaunchUs + std::pow(norm, 0.25);
    // Large stages help one warpgroup, which waits once a stage, and hurt two (measured).
    if (!gemm && plan.stage_blocks == 4) cost.us *= plan.warpgroups == 1 && stages >= 3 ? 0.97 : 1.03;
    // Columns of tokens that hold no token cost more than their products and bytes (measured: 10 % for 16 too
    // many).
    if (!gemm && m < tile_cols) cost.us *= 1 + 0.003 * (tile_cols - 8 * ceil_div(m, 8));
    // Every further tile of tokens reads the weights again from L2: with narrow tiles no more than two were
    // measured.
    if (!gemm && plan.tile_cols < 64 && 2 * tile_cols < m) cost.us *= 1.3;
    cost.bound = dram_us > block_us ? "dram" : compute >= stream ? "tensor core" : "stream";
    cost.per_block_tiles = rounds;
    return cost;
}

}  // namespace dgj
