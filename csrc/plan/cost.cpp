// One model for both families; its constants were fitted to 3616 measured times of 48 shapes (docs/notes/plan.md): times within
// 6 % on average, and the plan it picks 2.6 % slower than the best one.
#include "plan/cost.hpp"

#include <algorithm>
#include <cmath>

namespace dgj {
namespace {

constexpr double kLaunchUs = 2.86;
constexpr double kClocksPerUs = 1950;
constexpr double kStreamBytes = 47.5;   // bytes a clock that one block can bring into shared memory
constexpr double kUse[] = {0.45, 0.57, 0.64};  // share of the tensor core's cycles with 1, 2, 3 consumer warpgroups
constexpr double kUseTwoWaves = 0.54;   // two warpgroups of two waves each
constexpr double kClusterUs = 0.95;     // starting and ending a cluster
constexpr double kClusterGain = 0.015;  // of the main loop, by fewer bytes from L2
constexpr double kDramShare = 0.925;    // of the profile's read rate

double ceil_div(double a, double b) { return static_cast<double>(static_cast<std::int64_t>((a + b - 1) / b)); }

}  // namespace

Cost predict(const KernelPlan& plan, std::int64_t rows, const DeviceProfile& device) {
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
    double compute = tile / 32 / (plan.waves == 2 ? kUseTwoWaves : kUse[plan.warpgroups - 1]);
    if (plan.warpgroups == 1) compute += 1.2 * tile_cols;
    if (plan.warpgroups == 2 && !gemm) compute += 2.4 * tile_cols;
    const bool multicast = plan.cluster_rows * plan.cluster_cols > 1;
    if (multicast) compute *= 1 - kClusterGain;
    const double stream = 128 * (tile_rows + tile_cols) / kStreamBytes;
    const double loop = stages * plan.stage_blocks * std::max(compute, stream);

    const double epilogue = 520 + tile * 0.87 / 64;
    const double hidden = gemm || plan.reuse_ring ? 1.0 : 0.5;  // share that the next tile's loads don't cover
    const double reduction = plan.split_k > 1 ? 1760 + tile * 42.0 / 64 : 0;
    const double clocks = rounds * (loop + hidden * epilogue) + epilogue + reduction;

    const double out_bytes = m * n * size_of(plan.problem.d_dtype);
    const double dram_bytes = (m + n) * plan.problem.k + out_bytes;
    const double block_us = clocks / kClocksPerUs;
    const double dram_us = dram_bytes / (device.dram_tb_s * kDramShare * 1e6);
    Cost cost;
    // Neither hides the other completely: a norm between the larger one and the sum.
    cost.us = kLaunchUs + std::pow(std::pow(block_us, 4) + std::pow(dram_us, 4), 0.25) + (multicast ? kClusterUs : 0);
    cost.bound = dram_us > block_us ? "dram" : compute >= stream ? "tensor core" : "stream";
    cost.per_block_tiles = rounds;
    return cost;
}

}  // namespace dgj
