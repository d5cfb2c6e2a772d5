#include "runtime/launch.hpp"

#include "base/error.hpp"

namespace dgj::runtime {

void launch(const LoadedKernel& kernel, const LaunchShape& shape, StreamHandle stream, void** params,
            const char* what) {
    const ContextGuard current(*kernel.device);
    const LaunchConfig config(shape, stream);
    const CUresult r = driver().launch_kernel_ex(config.get(), kernel.function, params, nullptr);
    if (r != CUDA_SUCCESS) [[unlikely]]
        fail(ErrorKind::kRuntime, "{}: cuLaunchKernelEx on device {} with {} blocks of {} threads failed: {}",
             what, kernel.device->index, shape.grid_x, shape.threads, describe(r));
}

}  // namespace dgj::runtime
