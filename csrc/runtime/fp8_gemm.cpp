// fp8_gemm_nt on the GPU. Warm path: find the launch plan, reuse tensor maps, fill the arguments, launch.
#include <array>

#include "base/error.hpp"
#include "parts/gemm_args.cuh"
#include "runtime/last_launch.hpp"
#include "runtime/launch_plan.hpp"
#include "runtime/runtime.hpp"
#include "runtime/tensor_map.hpp"

namespace dgj::runtime {
namespace {

// A thread's memory of its recent calls.
struct ThreadState {
    RecentProblems problems;
    TensorMapCache<16> a_maps;  // activations: the caching allocator hands out few addresses
    TensorMapCache<16> d_maps;
    TensorMapCache<128> b_maps;  // weights: one for each layer and projection

    GemmArgs args;
    LastLaunch& last = last_launch();
};

// FP32 outputs have one kernel for both.
bool has_extras(const Fp8GemmCall& call) {
    return (call.bias != nullptr || call.c != nullptr || call.alpha != 1.0f) && call.d_dtype != DType::kF32;
}

ProblemKey key_of(const Fp8GemmCall& call, bool batch_invariant) {
    return ProblemKey::make(call.device.index, call.n, call.k, call.d_dtype, batch_invariant,
                            GroupLayout::kDense, has_extras(call));
}

ThreadState& thread_state() { return thread_local_state<ThreadState>(); }

void launch_gemm(ThreadState& t, const Fp8GemmCall& call, const MNode& node, StreamHandle stream) {
    if (get_compile_mode() != 0) [[unlikely]]
        return;  // the plan is loaded, which is all that was asked
    const LaunchPlan& lp = *node.plan;
    const KernelShape& shape = lp.shape;
    const DeviceState& device = *lp.kernel.device;
    const ContextGuard current(device);
    t.last.kernel = nullptr;

    const CUtensorMap *a = &kNoMap, *b = &kNoMap;
    if (call.k != 0) [[likely]] {
        a = t.a_maps.find_or_encode({reinterpret_cast<std::uintptr_t>(call.a),
                                     static_cast<std::uint64_t>(call.m), static_cast<std::uint64_t>(call.lda),
                                     static_cast<std::uint32_t>(call.k),
                                     static_cast<std::uint16_t>(shape.a_box_rows), DType::kU8},
                                    "a");
        b = t.b_maps.find_or_encode({reinterpret_cast<std::uintptr_t>(call.b),
                                     static_cast<std::uint64_t>(call.n), static_cast<std::uint64_t>(call.ldb),
                                     static_cast<std::uint32_t>(call.k),
                                     static_cast<std::uint16_t>(shape.b_box_rows), DType::kU8},
                                    "b");
    }
    const CUtensorMap* d = &kNoMap;
    if (shape.d_box_rows != 0)
        d = t.d_maps.find_or_encode(
            {reinterpret_cast<std::uintptr_t>(call.d), static_cast<std::uint64_t>(call.m),
             static_cast<std::uint64_t>(call.ldd) * static_cast<unsigned>(size_of(call.d_dtype)),
             static_cast<std::uint32_t>(call.n), static_cast<std::uint16_t>(shape.d_box_rows), call.d_dtype},
            "d");

    t.args = {call.sfa,
              call.sfb,
              call.d,
              call.c,
              call.bias,
              call.sfa_stride_m,
              call.sfa_stride_k,
              call.sfb_stride_n,
              call.sfb_stride_k,
              call.ldd,
              call.ldc,
              static_cast<unsigned>(call.m),
              call.k == 0 ? 1.0f : call.alpha,  // an infinite alpha would make NaN of the empty sum
              call.bias_dtype == DType::kF32,
              0};
    t.last.params = {const_cast<CUtensorMap*>(a), const_cast<CUtensorMap*>(b), const_cast<CUtensorMap*>(d),
                     &t.args};

    const std::uint32_t sms = usable_sms(device);
    const std::uint32_t grid = sms == device.sms ? node.grid : grid_blocks(lp.plan, call.m, sms);
    t.last.launch(lp, grid, stream, "fp8_gemm_nt", call.m);
}

void check_device(const Fp8GemmCall& call) {
    if (call.device.type != Device::Type::kCuda)
        fail(ErrorKind::kValue,
             "fp8_gemm_nt: the GPU implementation was given tensors that are not on a CUDA device");
}

}  // namespace

bool fp8_gemm_nt_if_warm(const Fp8GemmCall& call, StreamHandle stream) {
    if (call.m == 0 || call.n == 0) return true;
    const ProblemKey key = key_of(call, get_batch_invariant());
    ThreadState& t = thread_state();
    const MNode* node = t.problems.find(key, call.m);
    if (node == nullptr) [[unlikely]]
        return false;
    launch_gemm(t, call, *node, stream);
    return true;
}

void fp8_gemm_nt(const Fp8GemmCall& call, StreamHandle stream) {
    check_device(call);
    if (call.m == 0 || call.n == 0) return;
    const bool batch_invariant = get_batch_invariant();
    const ProblemKey key = key_of(call, batch_invariant);
    ThreadState& t = thread_state();
    const MNode* node = t.problems.find(key, call.m);
    if (node == nullptr) {
        const GemmProblem problem{.d_dtype = call.d_dtype,
                                  .n = static_cast<std::uint32_t>(call.n),
                                  .k = static_cast<std::uint32_t>(call.k),
                                  .batch_invariant = batch_invariant,
                                  .extras = has_extras(call)};
        node = &obtain_node(key, problem, call.device.index, call.m, stream);
    }
    launch_gemm(t, call, *node, stream);
}

void fp8_gemm_nt_with_plan(const Fp8GemmCall& call, KernelPlan plan, StreamHandle stream) {
    check_device(call);
    GemmProblem& problem = plan.problem;
    if (problem.layout != GroupLayout::kDense)
        fail(ErrorKind::kValue, "launch_with_plan: the plan is for {}; it must be for a dense problem",
             to_string(problem));
    problem.extras = problem.extras || has_extras(call);
    problem = kernel_problem(problem, plan.family);
    if (problem.n != call.n || problem.k != call.k || problem.d_dtype != call.d_dtype)
        fail(ErrorKind::kValue,
             "launch_with_plan: the plan is for {}, but the tensors have n = {}, k = {}, d {}",
             to_string(problem), call.n, call.k, name_of(call.d_dtype));
    if (call.m == 0) return;
    const LaunchPlan& lp = obtain_plan(plan, call.device.index, stream);
    const MNode node{.m = call.m, .plan = &lp, .grid = grid_blocks(plan, call.m, lp.kernel.device->sms)};
    launch_gemm(thread_state(), call, node, stream);
}

}  // namespace dgj::runtime
