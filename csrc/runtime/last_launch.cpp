#include "runtime/last_launch.hpp"

#include <algorithm>
#include <chrono>

#include "base/error.hpp"
#include "runtime/launch_plan.hpp"
#include "runtime/runtime.hpp"

namespace dgj::runtime {

LastLaunch& last_launch() { return thread_local_state<LastLaunch>(); }

void LastLaunch::launch(const LaunchPlan& lp, std::uint32_t grid, StreamHandle stream, const char* what,
                        std::int64_t rows, std::int64_t groups) {
    config.fill({.grid_x = grid,
                 .threads = lp.shape.threads,
                 .cluster = lp.shape.cluster,
                 .smem_bytes = lp.shape.smem_bytes,
                 .pdl = get_pdl()},
                stream);
    const CUresult r = driver().launch_kernel_ex(config.get(), lp.kernel.function, params.data(), nullptr);
    if (r != CUDA_SUCCESS) [[unlikely]]
        fail(ErrorKind::kRuntime,
             "{}: cuLaunchKernelEx on device {} failed for {} groups, {} rows, grid {}: {}. Kernel: {}", what,
             lp.kernel.device->index, groups, rows, grid, describe(r), to_string(lp.plan));
    kernel = &lp.kernel;
}

double repeat_last_launch_ns(unsigned times) {
    const LastLaunch& last = last_launch();
    if (last.kernel == nullptr)
        fail(ErrorKind::kValue, "repeat_last_launch_ns: this thread has not launched a GEMM: call one first");
    const ContextGuard current(*last.kernel->device);
    const auto launch_kernel = driver().launch_kernel_ex;
    CUresult r = CUDA_SUCCESS;
    const auto begin = std::chrono::steady_clock::now();
    for (unsigned i = 0; i < times && r == CUDA_SUCCESS; ++i)
        r = launch_kernel(last.config.get(), last.kernel->function, const_cast<void**>(last.params.data()),
                          nullptr);
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
