// The CUDA driver, found at run time. Types come from cuda.h; functions never do: nothing links libcuda.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstddef>
#include <string>
#include <string_view>

namespace dgj::runtime {

// Each member is the entry point of the version that driver.cpp's table names, whatever the header's macros
// say.
struct DriverApi {
    CUresult (*init)(unsigned flags);
    CUresult (*driver_get_version)(int* version);
    CUresult (*get_error_name)(CUresult error, const char** text);
    CUresult (*get_error_string)(CUresult error, const char** text);
    CUresult (*device_get)(CUdevice* device, int ordinal);
    CUresult (*device_get_count)(int* count);
    CUresult (*device_get_name)(char* name, int size, CUdevice device);
    CUresult (*device_get_attribute)(int* value, CUdevice_attribute attribute, CUdevice device);
    CUresult (*primary_ctx_retain)(CUcontext* context, CUdevice device);
    CUresult (*ctx_get_current)(CUcontext* context);
    CUresult (*ctx_set_current)(CUcontext context);
    CUresult (*stream_is_capturing)(CUstream stream, CUstreamCaptureStatus* status);
    CUresult (*stream_synchronize)(CUstream stream);
    CUresult (*memcpy_dtoh_async)(void* to, CUdeviceptr from, std::size_t bytes, CUstream stream);
    CUresult (*exchange_capture_mode)(CUstreamCaptureMode* mode);
    CUresult (*library_load_data)(CUlibrary* library, const void* code, CUjit_option* jit_options,
                                  void** jit_values, unsigned jit_count, CUlibraryOption* options,
                                  void** values, unsigned count);
    CUresult (*library_unload)(CUlibrary library);
    CUresult (*library_get_kernel)(CUkernel* kernel, CUlibrary library, const char* name);
    CUresult (*kernel_get_function)(CUfunction* function, CUkernel kernel);
    CUresult (*kernel_set_attribute)(CUfunction_attribute attribute, int value, CUkernel kernel,
                                     CUdevice device);
    CUresult (*tensor_map_encode_tiled)(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank,
                                        void* address, const cuuint64_t* dims, const cuuint64_t* strides,
                                        const cuuint32_t* box, const cuuint32_t* element_strides,
                                        CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                        CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill);
    CUresult (*launch_kernel_ex)(const CUlaunchConfig* config, CUfunction function, void** params,
                                 void** extra);
};

const DriverApi& first_driver();
inline constinit std::atomic<const DriverApi*> g_driver{nullptr};  // once first_driver() has succeeded

// The loaded and initialised driver. Throws Error(kNotImplemented) when this machine has none, one that is
// older than CUDA 12.0, or no device; the first outcome is remembered.
inline const DriverApi& driver() {
    const DriverApi* api = g_driver.load(std::memory_order_acquire);
    return api != nullptr ? *api : first_driver();
}

// "CUDA_ERROR_INVALID_VALUE (invalid argument)"
std::string describe(CUresult result);

// Throws Error(kRuntime): "<what> failed: <describe(result)>".
[[noreturn]] void fail_driver(CUresult result, std::string_view what);

inline void check(CUresult result, std::string_view what) {
    if (result != CUDA_SUCCESS) [[unlikely]]
        fail_driver(result, what);
}

}  // namespace dgj::runtime
