#include "runtime/launch.hpp"

#include "base/error.hpp"

namespace dgj::runtime {

void LaunchConfig::fill(const LaunchShape& shape, StreamHandle stream) {
    config_.gridDimX = shape.grid_x;
    config_.gridDimY = shape.grid_y;
    config_.gridDimZ = shape.grid_z;
    config_.blockDimX = shape.threads;
    config_.blockDimY = 1;
    config_.blockDimZ = 1;
    config_.sharedMemBytes = shape.smem_bytes;
    config_.hStream = static_cast<CUstream>(stream);
    config_.attrs = attributes_;
    config_.numAttrs = 0;
    if (shape.cluster > 1) {
        CUlaunchAttribute& a = attributes_[config_.numAttrs++];
        a.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
        a.value.clusterDim.x = shape.cluster;
        a.value.clusterDim.y = 1;
        a.value.clusterDim.z = 1;
    }
    if (shape.pdl) {
        CUlaunchAttribute& a = attributes_[config_.numAttrs++];
        a.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
        a.value.programmaticStreamSerializationAllowed = 1;
    }
}

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
