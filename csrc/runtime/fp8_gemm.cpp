// fp8_gemm_nt on the GPU. Warm path: find the launch plan, reuse tensor maps, fill the arguments, launch.
#include <algorithm>
#include <array>
#include <chrono>
#include <memory>

#include "base/error.hpp"
#include "parts/gemm_args.cuh"
#include "runtime/launch.hpp"
#include "runtime/launch_plan.hpp"
#include "runtime/runtime.hpp"
#include "runtime/tensor_map.hpp"

namespace dgj::runtime {
namespace {

// A thread's memory of its recent calls. The launch itself is kept too (and not built on the stack), so that
// a benchmark can repeat it exactly.
struct ThreadState {
    struct Problem {
        ProblemKey key;
        ProblemEntry* entry;
    };
    static constexpr std::size_t kProblems = 64;  // a model has a handful of weight shapes

    std::array<Problem, kProblems> problems;
    TensorMapCache<16> a_maps;  // activations: the caching allocator hands out few addresses
    TensorMapCache<16> d_maps;
    TensorMapCache<128> b_maps;  // weights: one for each layer and projection

    GemmArgs args;
    std::array<void*, 4> params;
    LaunchConfig config;
    const LoadedKernel* last = nullptr;  // what config and params launch
};

constinit thread_local ThreadState* t_state = nullptr;

ThreadState& thread_state() {
    if (t_state != nullptr) [[likely]]
        return *t_state;
    // The owner frees it at the thread's end; the plain pointer is what is fast to read.
    thread_local std::unique_ptr<ThreadState> owner;
    owner = std::make_unique<ThreadState>();
    return *(t_state = owner.get());
}

alignas(64) constexpr CUtensorMap kNoMap{};

const MNode* find_node(ThreadState& t, const ProblemKey& key, std::int64_t m) {
    ThreadState::Problem& known = t.problems[key.hash() % ThreadState::kProblems];
    if (!(known.key == key)) [[unlikely]] {
        ProblemEntry* entry = find_problem(key);
        if (entry == nullptr) return nullptr;
        known = {key, entry};
    }
    return known.entry->find(m);
}

const MNode& obtain_node(const ProblemKey& key, const GemmProblem& problem, int device, std::int64_t m,
                         StreamHandle stream) {
    ProblemEntry* entry = find_problem(key);
    if (entry == nullptr) entry = &obtain_problem(key, problem, device);
    return entry->obtain(m, stream);
}

void launch_gemm(ThreadState& t, const Fp8GemmCall& call, const MNode& node, StreamHandle stream) {
    if (get_compile_mode() != 0) [[unlikely]]
        return;  // the plan is loaded, which is all that was asked
    const LaunchPlan& lp = *node.plan;
    const KernelShape& shape = lp.shape;
    const DeviceState& device = *lp.kernel.device;
    const ContextGuard current(device);
    t.last = nullptr;

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
    t.params = {const_cast<CUtensorMap*>(a), const_cast<CUtensorMap*>(b), const_cast<CUtensorMap*>(d),
                &t.args};

    const auto sms = static_cast<std::uint32_t>(get_num_sms(device.index));
    const std::uint32_t grid = sms == device.sms ? node.grid : grid_blocks(lp.plan, call.m, sms);
    t.config.fill({.grid_x = grid,
                   .threads = shape.threads,
                   .cluster = shape.cluster,
                   .smem_bytes = shape.smem_bytes,
                   .pdl = get_pdl()},
                  stream);
    const CUresult r = driver().launch_kernel_ex(t.config.get(), lp.kernel.function, t.params.data(),
                                                 nullptr);
    if (r != CUDA_SUCCESS) [[unlikely]]
        fail(ErrorKind::kRuntime,
             "fp8_gemm_nt: cuLaunchKernelEx on device {} failed for m = {}, grid {}: {}. "
             "Kernel: {}",
             device.index, call.m, grid, describe(r), to_string(lp.plan));
    t.last = &lp.kernel;
}

void check_device(const Fp8GemmCall& call) {
    if (call.device.type != Device::Type::kCuda)
        fail(ErrorKind::kValue,
             "fp8_gemm_nt: the GPU implementation was given tensors that are not on a CUDA device");
}

}  // namespace

bool fp8_gemm_nt_if_warm(const Fp8GemmCall& call, StreamHandle stream) {
    if (call.m == 0 || call.n == 0) return true;
    const ProblemKey key = ProblemKey::make(call.device.index, call.n, call.k, call.d_dtype,
                                            get_batch_invariant());
    ThreadState& t = thread_state();
    const MNode* node = find_node(t, key, call.m);
    if (node == nullptr) [[unlikely]]
        return false;
    launch_gemm(t, call, *node, stream);
    return true;
}

void fp8_gemm_nt(const Fp8GemmCall& call, StreamHandle stream) {
    check_device(call);
    if (call.m == 0 || call.n == 0) return;
    const bool batch_invariant = get_batch_invariant();
    const ProblemKey key = ProblemKey::make(call.device.index, call.n, call.k, call.d_dtype, batch_invariant);
    ThreadState& t = thread_state();
    const MNode* node = find_node(t, key, call.m);
    if (node == nullptr) {
        const GemmProblem problem{.d_dtype = call.d_dtype,
                                  .n = static_cast<std::uint32_t>(call.n),
                                  .k = static_cast<std::uint32_t>(call.k),
                                  .batch_invariant = batch_invariant};
        node = &obtain_node(key, problem, call.device.index, call.m, stream);
    }
    launch_gemm(t, call, *node, stream);
}

void fp8_gemm_nt_with_plan(const Fp8GemmCall& call, const KernelPlan& plan, StreamHandle stream) {
    check_device(call);
    const GemmProblem& problem = plan.problem;
    if (problem.n != call.n || problem.k != call.k || problem.d_dtype != call.d_dtype)
        fail(ErrorKind::kValue,
             "launch_with_plan: the plan is for {}, but the tensors have n = {}, k = {}, d {}",
             to_string(problem), call.n, call.k, name_of(call.d_dtype));
    if (call.m == 0) return;
    const LaunchPlan& lp = obtain_plan(plan, call.device.index, stream);
    const MNode node{.m = call.m, .plan = &lp, .grid = grid_blocks(plan, call.m, lp.kernel.device->sms)};
    launch_gemm(thread_state(), call, node, stream);
}

double repeat_last_launch_ns(unsigned times) {
    ThreadState& t = thread_state();
    if (t.last == nullptr)
        fail(ErrorKind::kValue,
             "repeat_last_launch_ns: this thread has not launched a GEMM: call fp8_gemm_nt first");
    const ContextGuard current(*t.last->device);
    const auto launch_kernel = driver().launch_kernel_ex;
    CUresult r = CUDA_SUCCESS;
    const auto begin = std::chrono::steady_clock::now();
    for (unsigned i = 0; i < times && r == CUDA_SUCCESS; ++i)
        r = launch_kernel(t.config.get(), t.last->function, t.params.data(), nullptr);
    const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - begin;
    check(r, "repeat_last_launch_ns: cuLaunchKernelEx");
    return took.count() / std::max(times, 1u);
}

double null_call_ns(unsigned times) {
    const auto get_current = driver().ctx_get_current;
    CUcontext context = nullptr;
    CUresult r = CUDA_SUCCESS;
    const auto begin = std::chrono::steady_clock::now();
    for (unsigned i = 0; i < times && r == CUDA_SUCCESS; ++i) r = get_current(&context);
    const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - begin;
    check(r, "null_call_ns: cuCtxGetCurrent");
    return took.count() / std::max(times, 1u);
}

}  // namespace dgj::runtime
