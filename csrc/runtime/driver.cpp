#include "runtime/driver.hpp"

#include <dlfcn.h>

#include <memory>

#include "base/error.hpp"
#include "runtime/runtime.hpp"

namespace dgj::runtime {
namespace {

using GetProcAddress = CUresult (*)(const char*, void**, int, cuuint64_t, CUdriverProcAddressQueryResult*);

struct EntryPoint {
    const char* symbol;
    int version;  // the CUDA version whose signature driver.hpp declares
    void** target;
};

// The outcome of looking for the driver: `problem` is empty when everything in `api` may be called.
struct Loaded {
    DriverApi api{};
    int version = 0;
    std::string problem;
    ErrorKind problem_kind = ErrorKind::kNotImplemented;
};

template <class Function>
void** slot(Function*& function) {
    return reinterpret_cast<void**>(&function);
}

void resolve(Loaded& out, GetProcAddress get) {
    DriverApi& a = out.api;
    const EntryPoint entries[] = {
        {"cuInit", 2000, slot(a.init)},
        {"cuDriverGetVersion", 2020, slot(a.driver_get_version)},
        {"cuGetErrorName", 6000, slot(a.get_error_name)},
        {"cuGetErrorString", 6000, slot(a.get_error_string)},
        {"cuDeviceGet", 2000, slot(a.device_get)},
        {"cuDeviceGetCount", 2000, slot(a.device_get_count)},
        {"cuDeviceGetName", 2000, slot(a.device_get_name)},
        {"cuDeviceGetAttribute", 2000, slot(a.device_get_attribute)},
        {"cuDevicePrimaryCtxRetain", 7000, slot(a.primary_ctx_retain)},
        {"cuCtxGetCurrent", 4000, slot(a.ctx_get_current)},
        {"cuCtxSetCurrent", 4000, slot(a.ctx_set_current)},
        {"cuStreamIsCapturing", 10000, slot(a.stream_is_capturing)},
        {"cuStreamSynchronize", 2000, slot(a.stream_synchronize)},
        {"cuMemcpyDtoHAsync", 3020, slot(a.memcpy_dtoh_async)},
        {"cuThreadExchangeStreamCaptureMode", 10010, slot(a.exchange_capture_mode)},
        {"cuLibraryLoadData", 12000, slot(a.library_load_data)},
        {"cuLibraryUnload", 12000, slot(a.library_unload)},
        {"cuLibraryGetKernel", 12000, slot(a.library_get_kernel)},
        {"cuKernelGetFunction", 12000, slot(a.kernel_get_function)},
        {"cuKernelSetAttribute", 12000, slot(a.kernel_set_attribute)},
        {"cuTensorMapEncodeTiled", 12000, slot(a.tensor_map_encode_tiled)},
        {"cuLaunchKernelEx", 11060, slot(a.launch_kernel_ex)},
    };
    for (const EntryPoint& e : entries) {
        // Streams are given as plain handles, so 0 has to mean the legacy default stream, as it does in
        // torch.
        const CUresult r = get(e.symbol, e.target, e.version, CU_GET_PROC_ADDRESS_LEGACY_STREAM, nullptr);
        if (r == CUDA_SUCCESS && *e.target != nullptr) continue;
        out.problem = fmt::format(
            "the CUDA driver (libcuda.so.1) has no {} of CUDA {}.{}: install a driver for "
            "CUDA 12.0 or newer",
            e.symbol, e.version / 1000, e.version % 1000 / 10);
        return;
    }
}

Loaded load_driver() {
    Loaded out;
    void* handle = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
        const char* why = dlerror();
        out.problem = fmt::format(
            "no CUDA driver: libcuda.so.1 cannot be loaded ({}); install an NVIDIA driver, or "
            "use CPU tensors",
            why != nullptr ? why : "no reason given");
        return out;
    }
    const auto get = reinterpret_cast<GetProcAddress>(dlsym(handle, "cuGetProcAddress_v2"));
    if (get == nullptr) {
        out.problem = "the CUDA driver (libcuda.so.1) is older than CUDA 12.0: install a newer one";
        return out;
    }
    resolve(out, get);
    if (out.problem.empty() && out.api.driver_get_version(&out.version) != CUDA_SUCCESS) out.version = 0;
    return out;
}

// Two steps, because asking for the version must not initialise CUDA: a process that did cannot fork workers.
// Neither object is ever destroyed: a thread may still launch while the process exits.
Loaded& loaded() {
    static Loaded& instance = *std::make_unique<Loaded>(load_driver()).release();
    return instance;
}

const Loaded& initialised() {
    static const Loaded& instance = []() -> const Loaded& {
        Loaded& l = loaded();
        if (!l.problem.empty()) return l;
        const CUresult r = l.api.init(0);
        if (r == CUDA_SUCCESS) return l;
        auto failed = std::make_unique<Loaded>(l);
        const bool none = r == CUDA_ERROR_NO_DEVICE || r == CUDA_ERROR_STUB_LIBRARY;
        failed->problem_kind = none ? ErrorKind::kNotImplemented : ErrorKind::kRuntime;
        const char *name = "", *text = "";
        l.api.get_error_name(r, &name);
        l.api.get_error_string(r, &text);
        failed->problem = fmt::format("{}: cuInit failed: {} ({})",
                                      none ? "no CUDA device" : "the CUDA driver does not start", name, text);
        return *failed.release();
    }();
    return instance;
}

}  // namespace

const DriverApi& first_driver() {
    const Loaded& l = initialised();
    if (!l.problem.empty()) throw Error(l.problem_kind, l.problem);
    g_driver.store(&l.api, std::memory_order_release);
    return l.api;
}

int driver_version() { return loaded().version; }

std::string describe(CUresult result) {
    const DriverApi& api = loaded().api;
    const char* name = nullptr;
    const char* text = nullptr;
    if (api.get_error_name != nullptr) api.get_error_name(result, &name);
    if (api.get_error_string != nullptr) api.get_error_string(result, &text);
    return fmt::format("{} ({})",
                       name != nullptr ? name : fmt::format("CUDA error {}", static_cast<int>(result)),
                       text != nullptr ? text : "no description");
}

void fail_driver(CUresult result, std::string_view what) {
    fail(ErrorKind::kRuntime, "{} failed: {}", what, describe(result));
}

}  // namespace dgj::runtime
