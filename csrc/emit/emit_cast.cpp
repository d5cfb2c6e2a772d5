#include "emit/emit_cast.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/error.hpp"
#include "emit/emit.hpp"

namespace dgj {
namespace {

constexpr std::array kDTypes = {DType::kBF16, DType::kF16, DType::kF32};
constexpr std::array<std::uint32_t, 3> kGranK = {32, 64, 128};
constexpr std::uint32_t kThreads = 256;

const char* x_type(DType t) {
    switch (t) {
        case DType::kBF16: return "kBF16";
        case DType::kF16: return "kF16";
        default: return "kF32";
    }
}

struct ScaleText {
    const char* constant;
    const char* name;
    const char* reason;
};
ScaleText scale_text(CastScale scale) {
    switch (scale) {
        case CastScale::kF32: return {"kF32", "fp32", "amax / 448"};
        case CastScale::kUe8m0F32: return {"kUe8m0F32", "ue8m0", "rounded up to a power of two, in fp32"};
        default: return {"kUe8m0Packed", "ue8m0_packed", "exponents of powers of two, four to an int32"};
    }
}

template <class List, class Value>
std::size_t position(const List& list, Value value) {
    return static_cast<std::size_t>(std::find(list.begin(), list.end(), value) - list.begin());
}

std::vector<CastPlan> make_all_plans() {
    std::vector<CastPlan> plans;
    for (DType dtype : kDTypes) {
        for (std::uint32_t gran_k : kGranK) {
            for (CastScale scale : {CastScale::kF32, CastScale::kUe8m0F32, CastScale::kUe8m0Packed})
                plans.push_back({dtype, 1, gran_k, scale});
            for (CastScale scale : {CastScale::kF32, CastScale::kUe8m0F32})
                plans.push_back({dtype, gran_k, gran_k, scale});
        }
    }
    return plans;
}

}  // namespace

void validate(const CastPlan& plan) {
    if (std::find(kDTypes.begin(), kDTypes.end(), plan.x_dtype) == kDTypes.end())
        fail(ErrorKind::kType,
             "cast to fp8: x has dtype {}; bfloat16, float16 and float32 can be quantised: "
             "convert it with x.to(torch.bfloat16)",
             name_of(plan.x_dtype));
    if (std::find(kGranK.begin(), kGranK.end(), plan.gran_k) == kGranK.end())
        fail(ErrorKind::kValue, "cast to fp8: gran_k is {}; allowed are 32, 64 and 128", plan.gran_k);
    if (plan.gran_rows != 1 && plan.gran_rows != plan.gran_k)
        fail(ErrorKind::kValue,
             "cast to fp8: a scale covers {} rows x {} columns; allowed are 1 row (per "
             "token) and {} rows (per block)",
             plan.gran_rows, plan.gran_k, plan.gran_k);
    if (plan.scale == CastScale::kUe8m0Packed && plan.gran_rows != 1)
        fail(ErrorKind::kValue,
             "cast to fp8: packed UE8M0 scales exist for per-token casts only; cast per "
             "block to fp32 scales and pack those with get_mn_major_tma_aligned_packed_ue8m0_tensor");
}

std::string to_string(const CastPlan& plan) {
    const char* scale = scale_text(plan.scale).name;
    return fmt::format("cast_to_fp8 x={} scale={} per {}x{}", name_of(plan.x_dtype), scale, plan.gran_rows,
                       plan.gran_k);
}

const std::vector<CastPlan>& all_cast_plans() {
    static const std::vector<CastPlan> plans = make_all_plans();
    return plans;
}

std::size_t index_of(const CastPlan& plan) {  // by arithmetic: it stands on the warm path
    const std::size_t kind = static_cast<std::size_t>(plan.scale) + (plan.gran_rows == 1 ? 0 : 3);
    return (position(kDTypes, plan.x_dtype) * kGranK.size() + position(kGranK, plan.gran_k)) * 5 + kind;
}

CastShape cast_shape(const CastPlan& plan) {
    CastShape s;
    s.threads = kThreads;
    s.unit_elements = 16 / static_cast<std::uint32_t>(size_of(plan.x_dtype));
    const std::uint32_t block_units = plan.gran_rows * plan.gran_k / s.unit_elements;
    if (plan.gran_rows == 1) {
        // 64 bytes a thread, with 1280 threads on an SM, cover the latency of memory. Four units that share a
        // scale halve the instructions against one; few threads a block would make short store segments.
        s.units = 4;
        s.span = std::clamp(block_units / 4, 2u, 4u);
        s.lanes = block_units / s.span;
    } else {
        // A scale block stays in the registers of 1 to 8 warps: 128 bytes a thread (256 for the largest).
        const std::uint32_t warps = std::clamp(block_units / (32 * 8), 1u, kThreads / 32);
        s.units = s.span = block_units / (32 * warps);
        s.lanes = 32 * warps;
        s.smem_bytes = warps > 1 ? kThreads / 32 * 4 : 0;  // one amax a warp
    }
    // As many as registers allow: a unit of x takes four, and its elements while they are converted, of which
    // there are eight in a unit where they have 16 bits.
    s.ctas_per_sm = s.units <= 4 ? 5 : s.units > 8 ? 2 : s.unit_elements == 4 ? 4 : 3;
    return s;
}

KernelSource emit(const CastPlan& plan, std::string_view arch) {
    validate(plan);
    const CastShape shape = cast_shape(plan);
    const ScaleText scale = scale_text(plan.scale);
    const bool per_token = plan.gran_rows == 1;
    KernelSource source;
    source.entry = "dgj_kernel";
    source.arch = arch;
    source.text = fmt::format(
        "// {line}\n"
        "#include \"cast/quantize.cuh\"\n"
        "\n"
        "struct Cast {{\n"
        "    static constexpr dgj::XType kXType = dgj::XType::{x_type};  // dtype of x\n"
        "    static constexpr dgj::ScaleFormat kScale = dgj::ScaleFormat::{scale};  // {scale_reason}\n"
        "    static constexpr unsigned kGranRows = {gran_rows};  // rows that share a scale\n"
        "    static constexpr unsigned kGranK = {gran_k};  // columns that share a scale\n"
        "    static constexpr unsigned kThreads = {threads};\n"
        "    static constexpr unsigned kUnits = {units};  // 16-byte loads that a thread has in flight\n"
        "    static constexpr unsigned kSpan = {span};  // of these share a scale; {lanes} threads a scale\n"
        "}};\n"
        "\n"
        "// {ctas} blocks on an SM hide the latency of each other's loads.\n"
        "DGJ_KERNEL_SHARING_SM(Cast::kThreads, {ctas})\n"
        "dgj_kernel(const DGJ_GRID_CONSTANT dgj::CastArgs args) {{\n"
        "    dgj::{body}<Cast>(args);\n"
        "}}\n",
        fmt::arg("line", to_string(plan)), fmt::arg("x_type", x_type(plan.x_dtype)),
        fmt::arg("scale", scale.constant), fmt::arg("scale_reason", scale.reason),
        fmt::arg("gran_rows", plan.gran_rows), fmt::arg("gran_k", plan.gran_k),
        fmt::arg("threads", shape.threads), fmt::arg("units", shape.units), fmt::arg("span", shape.span),
        fmt::arg("lanes", shape.lanes), fmt::arg("ctas", shape.ctas_per_sm),
        fmt::arg("body", per_token ? "cast_per_token" : "cast_per_block"));
    source.headers = header_closure(source.text, {});
    source.warmup = " --casts all";
    return source;
}

}  // namespace dgj
