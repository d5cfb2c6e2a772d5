// One kernel launch, whatever the kernel: grid, cluster and PDL attributes, and the right context.
#pragma once

#include <cstdint>

#include "runtime/load.hpp"

namespace dgj::runtime {

struct LaunchShape {
    unsigned grid_x = 1, grid_y = 1, grid_z = 1;
    unsigned threads = 1;
    unsigned cluster = 1;     // CTAs along x; at most 8, which every device can place
    unsigned smem_bytes = 0;  // dynamic
    // Programmatic stream serialisation: the kernel may start before its predecessor ends. Only for kernels
    // that wait (griddepcontrol.wait) before they touch what the predecessor wrote.
    bool pdl = false;
};

// The driver's launch arguments without heap or copies. Not copyable: config points into it.
class LaunchConfig {
public:
    LaunchConfig(const LaunchShape& shape, StreamHandle stream) { fill(shape, stream); }
    LaunchConfig() = default;
    LaunchConfig(const LaunchConfig&) = delete;
    LaunchConfig& operator=(const LaunchConfig&) = delete;
    // Inline, so that the shape of a call never lies in memory.
    void fill(const LaunchShape& shape, StreamHandle stream) {
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
    const CUlaunchConfig* get() const { return &config_; }

private:
    CUlaunchConfig config_{};
    CUlaunchAttribute attributes_[2]{};
};

// Launches on `stream` of the kernel's device; `params` points to one pointer for each kernel parameter.
// `what` names the operation in errors. Throws Error(kRuntime).
void launch(const LoadedKernel& kernel, const LaunchShape& shape, StreamHandle stream, void** params,
            const char* what);

}  // namespace dgj::runtime
