#include "emit/emit.hpp"

#include <fmt/format.h>

#include "base/error.hpp"

namespace dgj {
namespace {

// One constant a line, with the reason as a comment.
class Constants {
public:
    void add(const char* name, std::uint32_t value, const char* reason) {
        text_ += fmt::format("constexpr unsigned {} = {};  // {}\n", name, value, reason);
    }
    const std::string& text() const { return text_; }

private:
    std::string text_;
};

std::string wgmma_header_name(std::uint32_t n) { return fmt::format("ptx/wgmma_n{}.cuh", n); }

// The instruction of one exact N: its register list has to be spelled out.
std::string wgmma_header(std::uint32_t n) {
    const std::uint32_t count = n / 2;
    std::string registers, operands;
    for (std::uint32_t i = 0; i < count; i++) {
        registers += fmt::format("{}%{}", i ? ", " : "", i);
        operands += fmt::format("{}\"+f\"(d[{}])", i ? ", " : "", i);
    }
    return fmt::format(
        "// Generated: d (64 x {0}) = a (64 x 32) * b ({0} x 32)^T, plus d when accumulate is not 0.\n"
        "#pragma once\n#include \"ptx/base.cuh\"\nnamespace dgj::ptx {{\n"
        "DGJ_DEVICE void wgmma_e4m3(float (&d)[{1}], u64 a, u64 b, u32 accumulate) {{\n"
        "    asm volatile(\"{{\\n.reg .pred p;\\nsetp.ne.b32 p, %{4}, 0;\\n\"\n"
        "        \"wgmma.mma_async.sync.aligned.m64n{0}k32.f32.e4m3.e4m3 {{{2}}}, %{1}, %{5}, p, 1, "
        "1;\\n}}\"\n"
        "        : {3} : \"l\"(a), \"l\"(b), \"r\"(accumulate));\n}}\n}}\n",
        n, count, registers, operands, count + 2, count + 1);
}

std::string sums_header_name(std::uint32_t n) { return fmt::format("ptx/sums_n{}.cuh", n); }

// The same into either set of Sums, which have names and are no operands.
std::string sums_header(std::uint32_t n) {
    const std::uint32_t count = n / 2;
    std::string functions;
    for (std::uint32_t set = 0; set < 2; set++) {
        std::string names;
        for (std::uint32_t i = 0; i < count; i++)
            names += fmt::format("{}dgj_sum{}_{}", i ? ", " : "", count, set * count + i);
        functions += fmt::format(
            "DGJ_DEVICE void wgmma_e4m3(Sums<{1}, {2}>&, u64 a, u64 b, u32 accumulate) {{\n"
            "    asm volatile(\"{{\\n.reg .pred p;\\nsetp.ne.b32 p, %2, 0;\\n\"\n"
            "        \"wgmma.mma_async.sync.aligned.m64n{0}k32.f32.e4m3.e4m3 {{{3}}}, %0, %1, p, 1, "
            "1;\\n}}\"\n"
            "        :: \"l\"(a), \"l\"(b), \"r\"(accumulate) : \"memory\");\n}}\n",
            n, count, set, names);
    }
    return fmt::format(
        "// Generated: d (64 x {0}) = a (64 x 32) * b ({0} x 32)^T, plus d when accumulate is not 0.\n"
        "#pragma once\n#include \"ptx/wgmma.cuh\"\nnamespace dgj::ptx {{\n{1}}}\n",
        n, functions);
}

const char* output_name(DType t) { return t == DType::kF32 ? "kF32" : t == DType::kF16 ? "kF16" : "kBF16"; }

struct FamilyText {
    const char* file;               // under sm90/
    const char* arguments;          // type of the kernel's arguments
    std::vector<const char*> maps;  // names of its tensor maps
    const char* call;
    std::vector<std::uint32_t> wgmma;  // every N into accumulators; fp8_gemm's for validation on a GPU only
    std::vector<std::uint32_t> sums;   // every N into Sums
    std::string constants;
};

Constants common_constants(const KernelPlan& plan, const KernelShape& shape) {
    Constants c;
    c.add("kN", plan.problem.n, "columns of D, rows of B");
    c.add("kK", plan.problem.k, "inner extent; the tensor maps fill a partial last block of 128 with zeros");
    c.add("kWarpgroups", plan.warpgroups, "consumers: 128 threads each; one more warpgroup produces");
    c.add("kStages", plan.stages, "stages of the ring, as many as shared memory holds");
    c.add("kConsumerRegisters", shape.consumer_registers, "setmaxnreg; 0: as launched");
    c.add("kProducerRegisters", shape.producer_registers,
          "what producers need; the rest goes to the consumers");
    c.add("kSmemScales", shape.smem.scales, "shared memory: scales of each stage");
    c.add("kSmemBarriers", shape.smem.barriers, "full and empty of each stage, then what else a family has");
    return c;
}

FamilyText gemm_text(const KernelPlan& plan, const KernelShape& shape) {
    Constants c = common_constants(plan, shape);
    c.add("kTileRows", plan.tile_rows, "rows of A and D: 64 * kWaves for each warpgroup");
    c.add("kTileCols", plan.tile_cols, "columns of D: N of WGMMA");
    c.add("kWaves", plan.waves, "64-row tiles of a warpgroup, sharing one partial accumulator");
    c.add("kRaster", plan.raster, "rows of tiles walked together, for L2");
    c.add("kClusterRows", plan.cluster_rows, "blocks below one another share B by multicast");
    c.add("kClusterCols", plan.cluster_cols, "blocks beside one another share A by multicast");
    c.add("kScaleChunk", kScaleChunk, "K blocks of scales on one barrier");
    c.add("kSmemA", shape.smem.row_operand, "shared memory: A, kStages times kTileRows rows of 128 bytes");
    c.add("kSmemB", shape.smem.col_operand, "B, kStages times kTileCols rows of 128 bytes");
    c.add("kSmemD", shape.smem.staging, "D on its way out");
    c.add("kExtras", shape.d_box_rows == 0, "1: alpha, bias, c or FP32 sums; 0: D leaves by tensor copies");
    return {"fp8_gemm",       "GemmArgs",       {"a", "b", "d"}, "fp8_gemm(a, b, d, args)",
            {plan.tile_cols}, {plan.tile_cols}, c.text()};
}

FamilyText swap_ab_text(const KernelPlan& plan, const KernelShape& shape) {
    Constants c = common_constants(plan, shape);
    c.add("kTileRows", plan.tile_rows, "rows of B (weights): 64 * kWaves for each warpgroup");
    c.add("kTileCols", plan.tile_cols, "rows of A (tokens): N of WGMMA");
    c.add("kWaves", plan.waves, "64-row tiles of a warpgroup");
    c.add("kStageBlocks", plan.stage_blocks,
          "blocks of 128 of K on one barrier: few, large stages stream fastest");
    c.add("kSplitK", plan.split_k, "blocks of a cluster that share K");
    c.add("kReuseRing", plan.reuse_ring,
          "1: the sums take the ring's memory, since they do not fit beside it");
    c.add("kSmemWeights", shape.smem.row_operand, "shared memory: B, kStages times kStageBlocks boxes");
    c.add("kSmemTokens", shape.smem.col_operand, "A, kStages times kStageBlocks boxes");
    c.add("kSmemStaging", shape.smem.staging, "sums on their way out, [token][64] for each warpgroup");
    c.add("kSmemReceived", shape.smem.received, "slices that the other blocks of a split sent");
    return {"fp8_gemm_swap_ab", "GemmArgs", {"a", "b", "d"}, "fp8_gemm_swap_ab(a, b, args)",
            {plan.tile_cols},   {},         c.text()};
}

std::string warmup_flags(const GemmProblem& problem) {
    std::string flags = fmt::format(" --shape {}x{} --d-dtype {}", problem.n, problem.k,
                                    name_of(problem.d_dtype));
    if (problem.layout == GroupLayout::kMGrouped) flags += " --layout m_grouped";
    if (problem.batch_invariant) flags += " --batch-invariant";
    if (problem.extras) flags += " --extras";
    return flags;
}

FamilyText grouped_text(const KernelPlan& plan, const KernelShape& shape) {
    Constants c = common_constants(plan, shape);
    c.add("kTileRows", plan.tile_rows, "rows of A and D: up to three pieces of 64");
    c.add("kTileCols", plan.tile_cols, "columns of D");
    c.add("kWideCols", 192, "columns of D in tiles of two pieces");
    c.add("kRaster", plan.raster, "row tiles of a group walked together, for L2");
    c.add("kScaleChunk", kScaleChunk, "K blocks of scales on one barrier");
    c.add("kSmemRing", shape.smem.row_operand, "shared memory: stages of 192 + 128 rows of 128 bytes");
    c.add("kSmemD", shape.smem.staging, "D on its way out, 64 x 128 for each warpgroup");
    c.add("kSmemTable", shape.smem.table, "the groups");
    return {"fp8_gemm_grouped",
            "GroupedArgs",
            {"a", "b", "few", "d"},
            "fp8_gemm_grouped(a, b, few, d, args)",
            {32, 64},
            {64, plan.tile_cols},
            c.text()};
}

}  // namespace

KernelSource emit(const KernelPlan& plan) {
    const KernelShape shape = kernel_shape(plan);
    const FamilyText family = plan.family == Family::kGemm         ? gemm_text(plan, shape)
                              : plan.family == Family::kGemmSwapAB ? swap_ab_text(plan, shape)
                                                                   : grouped_text(plan, shape);
    std::vector<NamedText> generated;
    std::string text = fmt::format("// {}\n", to_string(plan));
    for (std::uint32_t n : family.wgmma) generated.push_back({wgmma_header_name(n), wgmma_header(n)});
    for (std::uint32_t n : family.sums) generated.push_back({sums_header_name(n), sums_header(n)});
    for (const NamedText& header : generated) text += fmt::format("#include \"{}\"\n", header.name);
    text += "\nnamespace dgj {\n" + family.constants;
    text += fmt::format(
        "enum class Output : unsigned {{ kF32, kF16, kBF16 }};\n"
        "constexpr Output kOutput = Output::{};  // dtype of D\n}}\n\n",
        output_name(plan.problem.d_dtype));
    text += fmt::format("#include \"sm90/{}.cuh\"\n\n", family.file);
    std::string parameters;
    for (const char* map : family.maps)
        parameters += fmt::format("const DGJ_GRID_CONSTANT dgj::TensorMap {},\n    ", map);
    std::string names;
    for (std::uint32_t n : family.sums) names += fmt::format("    dgj::ptx::name_sums<{}>();\n", n / 2);
    text += fmt::format(
        "DGJ_KERNEL({}) dgj_kernel(\n    {}const DGJ_GRID_CONSTANT dgj::{} args) {{\n{}    dgj::{};\n}}\n",
        shape.threads, parameters, family.arguments, names, family.call);
    KernelSource source;
    source.headers = header_closure(text, generated);
    source.text = std::move(text);
    source.entry = "dgj_kernel";
    source.arch = "sm_90a";
    source.warmup = warmup_flags(plan.problem);
    return source;
}

}  // namespace dgj
