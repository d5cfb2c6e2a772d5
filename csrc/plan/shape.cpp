// What follows from a plan: threads, registers, shared-memory layout, tensor-map boxes, grid.
#include <algorithm>

#include "base/error.hpp"
#include "plan/plan.hpp"

namespace dgj {
namespace {

std::uint32_t align(std::uint32_t x, std::uint32_t to) { return (x + to - 1) / to * to; }

std::uint32_t scale_width(std::uint32_t cols) {  // kScaleWidth in sm90/fp8_gemm.cuh
    for (std::uint32_t width : {128u, 64u, 32u, 16u})
        if (cols % width == 0) return width;
    return 8;
}

SmemLayout gemm_layout(const KernelPlan& plan) {
    SmemLayout l;
    // kScalePitch and kScaleBPitch in sm90/fp8_gemm.cuh
    const std::uint32_t scales = (plan.tile_rows + 4 +
                                  align(plan.tile_cols / scale_width(plan.tile_cols), 4)) *
                                 4;
    l.col_operand = plan.stages * plan.tile_rows * 128;
    l.staging = l.col_operand + plan.stages * plan.tile_cols * 128;
    // Boxes of 8 KB: all of a tile of D, or FP32 sums on their way to rows of D, which need no more than one.
    const bool sums = plan.problem.d_dtype == DType::kF32;
    const std::uint32_t boxes = sums ? 1 : plan.waves * ((plan.tile_cols + 63) / 64);
    l.scales = l.staging + plan.warpgroups * boxes * 8192;
    l.barriers = align(l.scales + 2 * kScaleChunk * scales, 8);
    l.bytes = l.barriers + plan.stages * 16 + 32 + plan.warpgroups * 16;
    return l;
}

SmemLayout swap_ab_layout(const KernelPlan& plan) {
    SmemLayout l;
    const std::uint32_t slice = (plan.tile_cols + plan.split_k - 1) / plan.split_k;
    const std::uint32_t pitch = (64 * plan.waves + 4) * 4;  // kPitch in sm90/fp8_gemm_swap_ab.cuh
    const std::uint32_t sums = plan.warpgroups * slice * plan.split_k * pitch;
    const std::uint32_t received = plan.split_k > 1 ? sums : 0;
    const std::uint32_t scales = plan.stage_blocks * (plan.tile_cols + 4) * 4;
    l.col_operand = plan.stages * plan.stage_blocks * plan.tile_rows * 128;
    const std::uint32_t ring = l.col_operand + plan.stages * plan.stage_blocks * plan.tile_cols * 128;
    l.staging = plan.reuse_ring ? 0 : ring;
    l.received = l.staging + sums;
    l.scales = std::max(ring, l.received + received);
    l.barriers = align(l.scales + plan.stages * scales, 8);
    l.bytes = l.barriers + plan.stages * 16 + plan.warpgroups * 24 + 8;
    return l;
}

SmemLayout grouped_layout(const KernelPlan& plan) {
    SmemLayout l;
    l.staging = plan.stages * (plan.tile_rows + plan.tile_cols) * 128;
    l.scales = l.staging + (plan.problem.d_dtype == DType::kF32 ? 0 : plan.warpgroups * 16384);
    const std::uint32_t scales = kScaleChunk * ((plan.tile_rows + 4) * 4 + 8);  // kScaleBytes, two of them
    l.table = align(l.scales + 2 * scales, 16);
    // GroupTable in parts/groups.cuh, Shared in fp8_gemm_grouped.cuh
    l.barriers = align(l.table + (4 * 512 + 48 + 8 + 8 + 5) * 4, 16);
    l.bytes = l.barriers + plan.stages * 16 + 72 + plan.warpgroups * 32;
    return l;
}

}  // namespace

KernelShape kernel_shape(const KernelPlan& plan) {
    KernelShape s;
    s.threads = 128 * (plan.warpgroups + 1);
    const bool gemm = plan.family == Family::kGemm;
    s.cluster = plan.cluster_rows * plan.cluster_cols * plan.split_k;
    const bool grouped = plan.family == Family::kGemmGrouped;
    s.smem = grouped ? grouped_layout(plan) : gemm ? gemm_layout(plan) : swap_ab_layout(plan);
    s.smem_bytes = s.smem.bytes;
    // A block is launched with 65536 / threads registers each, in steps of 8; setmaxnreg moves them between
    // warpgroups.
    if (plan.warpgroups == 2) s.consumer_registers = 232, s.producer_registers = 40;
    if (plan.warpgroups == 3) s.consumer_registers = 160, s.producer_registers = 32;
    if (grouped) {
        s.a_box_rows = 64;
        s.b_box_rows = 64;
        s.few_box_rows = 32;
        s.d_box_rows = plan.problem.d_dtype == DType::kF32 ? 0 : 64;
    } else if (gemm) {
        s.a_box_rows = plan.tile_rows / plan.cluster_cols;
        s.b_box_rows = plan.tile_cols / plan.cluster_rows;
        s.d_box_rows = plan.problem.d_dtype == DType::kF32 || plan.problem.extras ? 0 : 64;
    } else {
        s.a_box_rows = plan.tile_cols;
        s.b_box_rows = plan.tile_rows;
    }
    return s;
}

std::uint32_t max_clusters(std::uint32_t sms, std::uint32_t cluster) {
    if (cluster <= 2) return std::max(1u, sms / cluster);
    // GPCs of an H100 or H200 have 16 or 18 SMs, and a cluster lies within one.
    const std::uint32_t gpcs = std::max(1u, sms / 16);
    return std::max(1u, gpcs * (sms / gpcs / cluster));
}

std::uint32_t grid_blocks(const KernelPlan& plan, std::int64_t m, std::uint32_t num_sms) {
    if (plan.family == Family::kGemmGrouped)
        return num_sms;  // how many tiles there are is known on the device
    const KernelShape shape = kernel_shape(plan);
    const auto ceil_div = [](std::int64_t a, std::int64_t b) { return (a + b - 1) / b; };
    const std::int64_t n = plan.problem.n;
    std::int64_t units;
    if (plan.family == Family::kGemm)
        units = ceil_div(ceil_div(m, plan.tile_rows), plan.cluster_rows) *
                ceil_div(ceil_div(n, plan.tile_cols), plan.cluster_cols);
    else units = ceil_div(n, plan.tile_rows) * ceil_div(m, plan.tile_cols);
    const std::int64_t clusters = std::min<std::int64_t>(units, max_clusters(num_sms, shape.cluster));
    return static_cast<std::uint32_t>(std::max<std::int64_t>(clusters, 1) * shape.cluster);
}

}  // namespace dgj
