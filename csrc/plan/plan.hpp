// A KernelPlan is every compile-time decision about a kernel; plan() is a step function of m, all_plans()
// lists its values.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "plan/device_profile.hpp"
#include "problem/problem.hpp"

namespace dgj {

enum class Family : std::uint8_t {
    kGemm,        // A (tokens) is the 64-row operand of WGMMA: many rows
    kGemmSwapAB,  // B (weights) is the 64-row operand, tokens are its N: few rows
    kGemmGrouped  // groups of rows of any size: either, tile by tile
};

struct KernelPlan {
    GemmProblem problem;
    Family family = Family::kGemm;
    std::uint32_t warpgroups = 0;    // consumer warpgroups
    std::uint32_t waves = 1;         // 64-row WGMMA tiles per warpgroup
    std::uint32_t tile_rows = 0;     // rows of the 64-row operand: 64 * warpgroups * waves
    std::uint32_t tile_cols = 0;     // N of WGMMA: columns of D (kGemm) or tokens (kGemmSwapAB)
    std::uint32_t stage_blocks = 1;  // K blocks of 128 that one stage holds
    std::uint32_t stages = 0;        // stages of the shared-memory ring
    std::uint32_t cluster_rows = 1;  // CTAs of a cluster along tile rows; they share (multicast) the column
                                     // operand
    std::uint32_t cluster_cols = 1;  // CTAs of a cluster along tile columns; they share the row operand
    std::uint32_t split_k = 1;       // CTAs of a cluster along K, reduced through distributed shared memory
    std::uint32_t reuse_ring = 0;    // kGemmSwapAB, 1: the sums take the ring's memory, as they don't fit
                                     // beside it
    std::uint32_t raster = 8;        // tiles of the row dimension that are walked together for L2
    auto operator<=>(const KernelPlan&) const = default;
};

std::string to_string(const KernelPlan& plan);  // one line
void validate(const KernelPlan& plan);          // throws Error(kValue) unless a planner could have made it

inline constexpr std::uint32_t kScaleChunk = 4;  // kGemm: K blocks of scales that one of their two stages
                                                 // holds

// Offsets into dynamic shared memory. "row" is the 64-row operand of WGMMA, "col" the other one.
struct SmemLayout {
    std::uint32_t row_operand = 0, col_operand = 0, staging = 0, received = 0, scales = 0, barriers = 0;
    std::uint32_t table = 0;  // kGemmGrouped: the groups
    std::uint32_t bytes = 0;
};

// What follows from a plan; computed in one place so that emit, launch and tests agree.
struct KernelShape {
    std::uint32_t threads = 0;
    std::uint32_t smem_bytes = 0;                                  // dynamic shared memory
    std::uint32_t cluster = 1;                                     // CTAs of a cluster
    std::uint32_t consumer_registers = 0, producer_registers = 0;  // for setmaxnreg; 0: as launched
    SmemLayout smem;
    // Boxes of the tensor maps, all with the 128-byte swizzle: A and B as bytes, inner extent 128; D in its
    // dtype, inner extent 128 bytes. d_box_rows == 0: the kernel stores D itself and takes an all-zero map.
    std::uint32_t a_box_rows = 0, b_box_rows = 0, d_box_rows = 0;
    // kGemmGrouped: the maps are of tensors of matrices, and A has a second one, with boxes of so many rows.
    std::uint32_t few_box_rows = 0;
};
KernelShape kernel_shape(const KernelPlan& plan);

// Blocks of the grid for m rows when at most num_sms SMs may be used: a multiple of the cluster size, at
// least one cluster.
std::uint32_t grid_blocks(const KernelPlan& plan, std::int64_t m, std::uint32_t num_sms);

struct Candidate {
    KernelPlan plan;
    double predicted_us = 0;
    std::string why;  // how the time comes about: waves, bytes, which ceiling binds
};
// Best first. device is a profile.
std::vector<Candidate> candidates(const GemmProblem& problem, std::int64_t m, const DeviceProfile& device);

// Clusters of `cluster` CTAs that run at once on `sms` SMs: GPCs of 16 or 18 SMs hold whole clusters only.
std::uint32_t max_clusters(std::uint32_t sms, std::uint32_t cluster);

KernelPlan plan(const GemmProblem& problem, std::int64_t m, const DeviceProfile& device);

// The problem as a family's kernels see it. A kernel for groups takes their number at run time, and its rows'
// bits never depend on other rows; alpha, bias and c change only kernels for many rows of 16 bits.
GemmProblem kernel_problem(const GemmProblem& problem, Family family);

// Every value that plan() takes for m in 1..max_rows (nullopt: any m), without duplicates, in order of first
// use.
std::vector<KernelPlan> all_plans(const GemmProblem& problem, const DeviceProfile& device,
                                  std::optional<std::int64_t> max_rows = std::nullopt);

}  // namespace dgj
