// M-grouped FP8 GEMM on the GPU: one kernel for every way to say which rows are whose, chosen by N, K and the
// dtype of D alone. Warm path as for the dense one.
#include "base/error.hpp"
#include "parts/grouped_args.cuh"
#include "runtime/last_launch.hpp"
#include "runtime/launch_plan.hpp"
#include "runtime/runtime.hpp"

namespace dgj::runtime {
namespace {

constexpr std::int64_t kAnyRows = 1;  // plans of grouped problems do not depend on the number of rows

struct ThreadState {
    RecentProblems problems;
    TensorMapCache<16, TwoBoxesMapKey> a_maps;
    TensorMapCache<16, EndedMapKey> d_maps;
    TensorMapCache<128, MatricesMapKey> b_maps;
    GroupedArgs args;
    LastLaunch& last = last_launch();
};

ProblemKey key_of(const MGroupedCall& call) {
    return ProblemKey::make(call.device.index, call.n, call.k, call.d_dtype, false, GroupLayout::kMGrouped);
}

// Groups of A and D are matrices of their own where they are padded to the same number of rows, else rows of
// one.
MatricesMapKey map_key(const MGroupedCall& call, const void* data, std::int64_t pitch, std::int64_t step,
                       std::int64_t inner, std::uint32_t box_rows, DType dtype) {
    const bool planes = call.form == GroupForm::kCounts;
    const auto size = static_cast<std::uint64_t>(size_of(dtype));
    return {.address = reinterpret_cast<std::uintptr_t>(data),
            .rows = static_cast<std::uint64_t>(call.rows),
            .pitch_bytes = static_cast<std::uint64_t>(pitch) * size,
            .step_bytes = static_cast<std::uint64_t>(planes ? step : pitch) * size,
            .matrices = planes ? static_cast<std::uint32_t>(call.groups) : 1,
            .inner = static_cast<std::uint32_t>(inner),
            .box_rows = static_cast<std::uint16_t>(box_rows),
            .dtype = dtype};
}

void launch_grouped(ThreadState& t, const MGroupedCall& call, const MNode& node, StreamHandle stream) {
    if (get_compile_mode() != 0) [[unlikely]]
        return;  // the plan is loaded, which is all that was asked
    const LaunchPlan& lp = *node.plan;
    const KernelShape& shape = lp.shape;
    const DeviceState& device = *lp.kernel.device;
    const ContextGuard current(device);
    t.last.kernel = nullptr;

    const CUtensorMap *a = &kNoMap, *b = &kNoMap, *few = &kNoMap, *d = &kNoMap;
    if (call.k != 0) [[likely]] {
        const TwoBoxesMaps* of_a = t.a_maps.find_or_encode(
            {map_key(call, call.a, call.lda, call.a_group, call.k, shape.a_box_rows, DType::kU8),
             static_cast<std::uint16_t>(shape.few_box_rows)},
            "a");
        a = &of_a->map;
        few = &of_a->few;
        b = t.b_maps.find_or_encode({.address = reinterpret_cast<std::uintptr_t>(call.b),
                                     .rows = static_cast<std::uint64_t>(call.n),
                                     .pitch_bytes = static_cast<std::uint64_t>(call.ldb),
                                     .step_bytes = static_cast<std::uint64_t>(call.b_group),
                                     .matrices = static_cast<std::uint32_t>(call.groups),
                                     .inner = static_cast<std::uint32_t>(call.k),
                                     .box_rows = static_cast<std::uint16_t>(shape.b_box_rows),
                                     .dtype = DType::kU8},
                                    "b");
    }
    if (shape.d_box_rows != 0)
        d = t.d_maps.find_or_encode(
            {map_key(call, call.d, call.ldd, call.d_group, call.n, shape.d_box_rows, call.d_dtype)}, "d");
    t.args = {call.sfa,
              call.sfb,
              call.d,
              call.index,
              call.sfa_stride_m,
              call.sfa_stride_k,
              call.sfa_group,
              call.sfb_stride_n,
              call.sfb_stride_k,
              call.sfb_group,
              call.ldd,
              call.d_group,
              static_cast<unsigned>(call.rows),
              static_cast<unsigned>(call.groups),
              static_cast<unsigned>(call.form),
              static_cast<unsigned>(call.alignment),
              call.zero_padding,
              call.form == GroupForm::kIds
                  ? static_cast<unsigned>((call.rows + call.alignment - 1) / call.alignment)
                  : 0u};
    t.last.params = {const_cast<CUtensorMap*>(a), const_cast<CUtensorMap*>(b), const_cast<CUtensorMap*>(few),
                     const_cast<CUtensorMap*>(d), &t.args};
    const std::uint32_t sms = usable_sms(device);
    const std::uint32_t grid = sms == device.sms ? node.grid : grid_blocks(lp.plan, call.rows, sms);
    t.last.launch(lp, grid, stream, "m_grouped_gemm", call.rows, call.groups);
}

}  // namespace

bool m_grouped_gemm_if_warm(const MGroupedCall& call, StreamHandle stream) {
    if (call.rows == 0 || call.n == 0 || call.groups == 0) return true;
    ThreadState& t = thread_local_state<ThreadState>();
    const MNode* node = t.problems.find(key_of(call), kAnyRows);
    if (node == nullptr) [[unlikely]]
        return false;
    launch_grouped(t, call, *node, stream);
    return true;
}

void m_grouped_gemm(const MGroupedCall& call, StreamHandle stream) {
    if (call.device.type != Device::Type::kCuda)
        fail(ErrorKind::kValue,
             "m_grouped_gemm: the GPU implementation was given tensors that are not on a CUDA device");
    if (call.rows == 0 || call.n == 0 || call.groups == 0) return;
    const ProblemKey key = key_of(call);
    ThreadState& t = thread_local_state<ThreadState>();
    const MNode* node = t.problems.find(key, kAnyRows);
    if (node == nullptr)
        node = &obtain_node(key,
                            {.layout = GroupLayout::kMGrouped,
                             .d_dtype = call.d_dtype,
                             .n = static_cast<std::uint32_t>(call.n),
                             .k = static_cast<std::uint32_t>(call.k)},
                            call.device.index, kAnyRows, stream);
    launch_grouped(t, call, *node, stream);
}

}  // namespace dgj::runtime
