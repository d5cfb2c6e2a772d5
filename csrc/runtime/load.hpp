// From kernel source to a function that can be launched: compile or find, load, look up, set attributes.
#pragma once

#include <optional>
#include <string>

#include "base/kernel_source.hpp"
#include "runtime/device.hpp"
#include "runtime/runtime.hpp"

namespace dgj::runtime {

// Loaded into one device's primary context for the rest of the process; copies name the same kernel.
struct LoadedKernel {
    const DeviceState* device = nullptr;
    CUlibrary library = nullptr;
    CUfunction function = nullptr;
};

// Not remembered: callers keep the result. `plan_line` stands in the cache entry, in log lines and in errors.
// `smem_bytes` is the dynamic shared memory that launches may ask for. `stream` is the stream of the call
// that needs the kernel; while it captures, nothing is compiled (Error(kRuntime) names the fix), and a kernel
// from the cache is loaded if
// the driver can do that (CUDA 12.3). May compile for a second: callers release the GIL.
LoadedKernel load_kernel(const KernelSource& source, const std::string& plan_line, int device,
                         unsigned smem_bytes, std::optional<StreamHandle> stream = std::nullopt);

}  // namespace dgj::runtime
