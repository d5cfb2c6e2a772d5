// Quantisation on the GPU: finds the loaded kernel by a small index, no string once warm, and launches it.
#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>

#include "base/error.hpp"
#include "cast/cast_args.cuh"
#include "emit/emit_cast.hpp"
#include "runtime/launch.hpp"
#include "runtime/load.hpp"
#include "runtime/runtime.hpp"

namespace dgj::runtime {
namespace {

constexpr int kMaxDevices = 64;
constexpr std::int64_t kIndexLimit = std::int64_t{1} << 31;  // what a Divider can divide

// Published once each and never freed, like the kernels that they name.
std::array<std::array<std::atomic<const LoadedKernel*>, kCastPlanCount>, kMaxDevices> g_kernels{};
std::mutex g_mutex;

const LoadedKernel& loaded(const CastPlan& plan, int device, std::optional<StreamHandle> stream) {
    if (device < 0 || device >= kMaxDevices)
        fail(ErrorKind::kValue, "cast to fp8: CUDA device {} is not one of 0 to {}", device, kMaxDevices - 1);
    auto& place = g_kernels[static_cast<std::size_t>(device)][index_of(plan)];
    if (const LoadedKernel* known = place.load(std::memory_order_acquire)) [[likely]]
        return *known;

    const DeviceState& state = device_state(device);
    const std::lock_guard lock(g_mutex);
    if (const LoadedKernel* known = place.load(std::memory_order_acquire)) return *known;
    const KernelSource source = emit(plan, state.profile->arch);
    auto kernel = std::make_unique<LoadedKernel>(load_kernel(source, to_string(plan), device,
                                                             cast_shape(plan).smem_bytes, stream));
    const LoadedKernel* published = kernel.release();
    place.store(published, std::memory_order_release);
    return *published;
}

CastPlan plan_of(const cpu::CastCall& call) {
    const auto small = [](std::int64_t v) {
        return static_cast<std::uint32_t>(std::clamp<std::int64_t>(v, 0, 1 << 20));
    };
    if (call.packed_ue8m0 && !call.use_ue8m0)
        fail(ErrorKind::kValue, "cast to fp8: packed scales are UE8M0; pass use_ue8m0=True");
    const CastScale scale = call.packed_ue8m0 ? CastScale::kUe8m0Packed
                            : call.use_ue8m0  ? CastScale::kUe8m0F32
                                              : CastScale::kF32;
    const CastPlan plan{call.x_dtype, small(call.gran_rows), small(call.gran_k), scale};
    validate(plan);
    return plan;
}

// With l = ceil(log2 d) and multiplier = ceil(2^(31 + l) / d), the product is too large by less than
// n / 2^31 / d, so for n < 2^31 it never reaches the next integer. The multiplier is below 2^32.
Divider divider(std::uint32_t d) {
    const unsigned shift = 31 + static_cast<unsigned>(std::bit_width(d - 1));
    const std::uint64_t multiplier = ((std::uint64_t{1} << shift) + d - 1) / d;
    return {d, static_cast<unsigned>(multiplier), shift};
}

bool is_aligned(const void* p, std::int64_t bytes) {
    return reinterpret_cast<std::uintptr_t>(p) % static_cast<std::uintptr_t>(bytes) == 0;
}

}  // namespace

void load_plan(const CastPlan& plan, int device) {
    validate(plan);
    loaded(plan, device, std::nullopt);
}

void cast_to_fp8(const cpu::CastCall& call, Device device, StreamHandle stream) {
    const CastPlan plan = plan_of(call);
    if (call.rows == 0 || call.cols == 0) return;
    if (call.cols > kIndexLimit - 1024)
        fail(ErrorKind::kValue,
             "cast to fp8: x has {} columns; at most {} are supported: reshape it into "
             "more rows",
             call.cols, kIndexLimit - 1024);
    const CastShape shape = cast_shape(plan);
    const LoadedKernel& kernel = loaded(plan, device.index, stream);

    const std::int64_t element = size_of(call.x_dtype), unit = shape.unit_elements;
    const bool one_row = call.rows == 1;
    const bool vector = call.cols % unit == 0 && is_aligned(call.x, 16) && is_aligned(call.q, unit) &&
                        (one_row || (call.ldx * element % 16 == 0 && call.ldq % unit == 0));

    const bool per_token = plan.gran_rows == 1;
    const std::int64_t scale_blocks = (call.cols + plan.gran_k - 1) / plan.gran_k;
    // What a row (of scale blocks) and a CTA hold of what the kernel counts: slots or scale blocks.
    const std::int64_t per_row = per_token ? scale_blocks * shape.lanes : scale_blocks;
    const std::int64_t per_cta = per_token ? shape.threads * (shape.units / shape.span)
                                           : shape.threads / shape.lanes;

    CastArgs args{};
    args.ldx = call.ldx * element;
    args.ldq = call.ldq;
    args.sf_stride_row = call.sf_stride_row;
    args.sf_stride_block = call.sf_stride_block;
    args.cols = static_cast<unsigned>(call.cols);
    args.per_row = divider(static_cast<std::uint32_t>(per_row));
    args.vector = vector;

    // A CTA for each tile, unless only some of the SMs may be used: then one CTA for each of those.
    const auto sms = static_cast<std::uint32_t>(get_num_sms(device.index));
    const std::int64_t most_ctas = sms == kernel.device->sms ? kIndexLimit : sms;
    // One launch, unless x is so large that 32-bit counters would overflow.
    const std::int64_t slab_rows = (kIndexLimit - per_cta) / per_row * plan.gran_rows;
    for (std::int64_t row = 0; row < call.rows; row += slab_rows) {
        const std::int64_t rows = std::min(slab_rows, call.rows - row);
        const std::int64_t scale_rows = (rows + plan.gran_rows - 1) / plan.gran_rows;
        args.x = static_cast<const char*>(call.x) + row * args.ldx;
        args.q = static_cast<char*>(call.q) + row * args.ldq;
        args.sf = call.sf + row / plan.gran_rows * call.sf_stride_row;
        args.rows = static_cast<unsigned>(rows);
        const std::int64_t tiles = (scale_rows * per_row + per_cta - 1) / per_cta;
        args.tiles = static_cast<unsigned>(tiles);
        const LaunchShape launch_shape{.grid_x = static_cast<unsigned>(std::min(tiles, most_ctas)),
                                       .threads = shape.threads,
                                       .smem_bytes = shape.smem_bytes,
                                       .pdl = get_pdl()};
        void* params[] = {&args};
        launch(kernel, launch_shape, stream, params, "cast to fp8");
    }
}

}  // namespace dgj::runtime
