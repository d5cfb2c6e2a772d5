#include "plan/cost.hpp"

#include <algorithm>

namespace dgj {
namespace {

constexpr double kLaunchUs = 2.2;      // start of a kernel until its first bytes are there (docs/notes/plan.md)
constexpr double kClockGhz = 1.75;     // SM clock under load
constexpr double kStreamBytes = 42;    // bytes a clock that one CTA can stream with large stages

double ceil_div(double a, double b) { return static_cast<double>(static_cast<std::int64_t>((a + b - 1) / b)); }

struct Extent {
    double tiles = 0, units = 0, clusters = 0;
};

// Share of the tensor core's cycles that a tile's main loop reaches with loads.
double tensor_use(const KernelPlan& plan) {
    const std::uint32_t rows = plan.tile_rows, cols = plan.tile_cols;
    if (plan.warpgroups == 3) return 0.95;
    if (rows == 256) return 0.90;
    if (cols >= 192) return 0.90;
    if (rows == 128) return 0.75;
    return 0.5;
}

Cost predict_gemm(const KernelPlan& plan, double m, const DeviceProfile& device) {
    const double n = plan.problem.n, k_blocks = ceil_div(plan.problem.k, 128);
    const double cluster = plan.cluster_rows * plan.cluster_cols;
    const double unit_rows = ceil_div(ceil_div(m, plan.tile_rows), plan.cluster_rows);
    const double unit_cols = ceil_div(ceil_div(n, plan.tile_cols), plan.cluster_cols);
    const double units = unit_rows * unit_cols;
    const double clusters = std::min<double>(units, max_clusters(device.sms, static_cast<std::uint32_t>(cluster)));
    const double rounds = ceil_div(units, clusters);
    const double block_clocks = plan.tile_rows * plan.tile_cols / 32.0;
    // A tile's epilogue is hidden but for what the other warpgroups cannot cover; the first stage's latency is not.
    const double epilogue = 250 + plan.tile_rows * plan.tile_cols / 64.0;
    const double compute = rounds * (k_blocks * block_clocks / tensor_use(plan) + epilogue) + 1200;
    const double out_bytes = m * n * size_of(plan.problem.d_dtype);
    const double dram = (m + n) * plan.problem.k + out_bytes;
    const double a_bytes = static_cast<double>(plan.tile_rows) / plan.cluster_cols;
    const double b_bytes = static_cast<double>(plan.tile_cols) / plan.cluster_rows;
    const double l2 = units * cluster * k_blocks * 128 * (a_bytes + b_bytes) + out_bytes;
    Cost cost;
    const double tensor_us = compute / (kClockGhz * 1e3);
    const double dram_us = dram / (device.dram_tb_s * 1e6);
    const double l2_us = l2 / (device.l2_tb_s * 1e6);
    cost.us = kLaunchUs + std::max({tensor_us, dram_us, l2_us});
    cost.bound = tensor_us >= dram_us && tensor_us >= l2_us ? "tensor core" : dram_us >= l2_us ? "dram" : "l2";
    cost.per_block_tiles = rounds;
    return cost;
}

Cost predict_swap_ab(const KernelPlan& plan, double m, const DeviceProfile& device) {
    const double n = plan.problem.n, k_blocks = ceil_div(plan.problem.k, 128);
    const double token_tiles = ceil_div(m, plan.tile_cols), weight_tiles = ceil_div(n, plan.tile_rows);
    const double tiles = token_tiles * weight_tiles;
    const double clusters = std::min<double>(tiles, max_clusters(device.sms, plan.split_k));
    const double rounds = ceil_div(tiles, clusters);
    const double stages = ceil_div(ceil_div(k_blocks, plan.stage_blocks), plan.split_k);  // of the longest part of K
    const double stage_bytes = plan.stage_blocks * 128.0 * (plan.tile_rows + plan.tile_cols);
    // One warpgroup's K block: four WGMMA of N = tile_cols share the tensor core, then the promotion.
    const double mma = 2.0 * plan.tile_cols * plan.warpgroups, promotion = 40 + plan.tile_cols * 1.5;
    const double block_clocks = std::max(mma, 60.0) + promotion;
    const double compute = rounds * stages * plan.stage_blocks * block_clocks;
    const double stream = rounds * stages * (stage_bytes / kStreamBytes + 100);
    const double reduction = plan.split_k > 1 ? 1400 + plan.tile_cols * 12.0 : 300 + plan.tile_cols * 4.0;
    const double fixed_us = kLaunchUs + reduction / (kClockGhz * 1e3);
    const double dram = n * plan.problem.k + m * plan.problem.k + m * n * size_of(plan.problem.d_dtype);
    const double l2 = tiles * plan.split_k * stages * stage_bytes;
    const double compute_us = compute / (kClockGhz * 1e3), stream_us = stream / (kClockGhz * 1e3);
    const double dram_us = dram / (device.dram_tb_s * 1e6), l2_us = l2 / (device.l2_tb_s * 1e6);
    Cost cost;
    const double worst = std::max({compute_us, stream_us, dram_us, l2_us});
    cost.us = fixed_us + worst;
    cost.bound = worst == dram_us ? "dram" : worst == l2_us ? "l2" : worst == stream_us ? "stream" : "tensor core";
    cost.per_block_tiles = rounds;
    return cost;
}

}  // namespace

Cost predict(const KernelPlan& plan, std::int64_t m, const DeviceProfile& device) {
    const double rows = static_cast<double>(m);
    return plan.family == Family::kGemm ? predict_gemm(plan, rows, device) : predict_swap_ab(plan, rows, device);
}

}  // namespace dgj
