#include "runtime/load.hpp"

#include <fmt/format.h>

#include <memory>

#include "base/error.hpp"
#include "base/log.hpp"
#include "cache/kernel_cache.hpp"

namespace dgj::runtime {
namespace {

constexpr int
    kLoadsDuringCapture = 12030;  // the first driver that loads a library while this thread is relaxed
constexpr const char*
    kCaptureFix = "call the operation once with these shapes before the capture begins, or warm up its plans";

// What a driver says of an image that it cannot use. Lazy loading may say it at any step up to the
// attributes.
bool is_rejection(CUresult r) {
    switch (r) {
        case CUDA_ERROR_INVALID_IMAGE:
        case CUDA_ERROR_NO_BINARY_FOR_GPU:
        case CUDA_ERROR_INVALID_SOURCE:
        case CUDA_ERROR_INVALID_PTX:
        case CUDA_ERROR_UNSUPPORTED_PTX_VERSION:
        case CUDA_ERROR_NOT_FOUND:  // the entry is not in it
            return true;
        default: return false;
    }
}

struct Attempt {
    CUresult result = CUDA_SUCCESS;
    const char* step = "";
    LoadedKernel kernel;
};

Attempt try_load(const CachedKernel& image, const char* entry, const DeviceState& device,
                 unsigned smem_bytes) {
    const DriverApi& api = driver();
    Attempt a;
    a.kernel.device = &device;
    CUkernel kernel = nullptr;
    const auto step = [&](const char* name, CUresult r) {
        a.step = name;
        a.result = r;
        return r == CUDA_SUCCESS;
    };
    // Without options the driver copies the image, so nothing has to outlive this call.
    const bool ok = step("cuLibraryLoadData",
                         api.library_load_data(&a.kernel.library, image.cubin.data(), nullptr, nullptr, 0,
                                               nullptr, nullptr, 0)) &&
                    step("cuLibraryGetKernel", api.library_get_kernel(&kernel, a.kernel.library, entry)) &&
                    step("cuKernelGetFunction", api.kernel_get_function(&a.kernel.function, kernel)) &&
                    step("cuKernelSetAttribute",
                         api.kernel_set_attribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                                  static_cast<int>(smem_bytes), kernel, device.device));
    if (!ok && a.kernel.library != nullptr) api.library_unload(a.kernel.library);
    return a;
}

bool is_capturing(StreamHandle stream) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    check(driver().stream_is_capturing(static_cast<CUstream>(stream), &status), "cuStreamIsCapturing");
    return status != CU_STREAM_CAPTURE_STATUS_NONE;
}

std::shared_ptr<const CachedKernel> find_for_capture(const KernelSource& source,
                                                     const std::string& plan_line) {
    auto image = find_cached(source);
    if (image == nullptr)
        fail(ErrorKind::kJitForbidden,
             "a kernel has to be compiled while its stream is being captured into a graph: {} (`python -m "
             "deep_gemm_jit warmup --device {}{}`). Kernel: {}",
             kCaptureFix, source.arch, source.warmup, plan_line);
    if (driver_version() < kLoadsDuringCapture)
        fail(ErrorKind::kRuntime,
             "a kernel has to be loaded while its stream is being captured into a graph, which "
             "this driver (CUDA {}.{}) cannot do; 12.3 can: {}. Kernel: {}",
             driver_version() / 1000, driver_version() % 1000 / 10, kCaptureFix, plan_line);
    return image;
}

}  // namespace

LoadedKernel load_kernel(const KernelSource& source, const std::string& plan_line, int device_index,
                         unsigned smem_bytes, std::optional<StreamHandle> stream) {
    const DeviceState& device = device_state(device_index);
    const ContextGuard current(device);
    const bool capturing = stream.has_value() && is_capturing(*stream);
    auto image = capturing ? find_for_capture(source, plan_line) : get_or_compile(source, plan_line);

    Attempt a;
    {
        const RelaxedCapture relaxed;
        a = try_load(*image, source.entry.c_str(), device, smem_bytes);
    }
    if (is_rejection(a.result)) {
        // Someone else's damage until proven otherwise: forget the image and compile it here, once.
        drop_from_cache(image->key);
        const std::string said = fmt::format("{} said {}", a.step, describe(a.result));
        if (capturing)
            fail(ErrorKind::kJitForbidden,
                 "the driver rejected a cached kernel ({}), and none can be compiled while its "
                 "stream is being captured into a graph: {}. Kernel: {}",
                 said, kCaptureFix, plan_line);
        if (image->origin != CachedKernel::Origin::kCompiled) {
            log(LogLevel::kWarning,
                fmt::format("the driver rejected a cached kernel ({}); compiling it again: {}", said,
                            plan_line));
            image = get_or_compile(source, plan_line);
            const RelaxedCapture relaxed;
            a = try_load(*image, source.entry.c_str(), device, smem_bytes);
            if (is_rejection(a.result)) drop_from_cache(image->key);
        }
    }
    if (a.result != CUDA_SUCCESS)
        fail(ErrorKind::kRuntime,
             "{} failed for a kernel of {} bytes that was compiled for {}: {}. Kernel: {}", a.step,
             image->cubin.size(), source.arch, describe(a.result), plan_line);
    return a.kernel;
}

}  // namespace dgj::runtime
