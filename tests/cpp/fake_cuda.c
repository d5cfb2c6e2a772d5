/* Built by tests as libcuda.so.1. It keeps the driver's rules that the runtime depends on: which context is
   current, what a capture forbids, which handles belong together; it computes nothing. */
#include "fake_cuda.h"

#include <cuda.h>
#include <stdlib.h>
#include <string.h>

static FakeCuda state = {.driver_version = 13000,
                         .device_count = 2,
                         .major = 9,
                         .minor = 0,
                         .sms = 132,
                         .smem_optin = 232448,
                         .args_bytes = 104,
                         .maps = 3}; /* parameters of a kernel: maps, then its arguments */
static int contexts[FAKE_DEVICES];   /* their addresses are the handles */
static __thread CUcontext current;
static __thread CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

#define ADD(counter) __atomic_fetch_add(&state.counter, 1, __ATOMIC_RELAXED)

static int device_of(CUcontext context) { return context == NULL ? -1 : (int)((int*)context - contexts); }
static CUcontext context_of(int device) { return (CUcontext)(contexts + device); }

FakeCuda* fake_cuda_state(void) { return &state; }
void fake_cuda_set_current(int device) { current = device < 0 ? NULL : context_of(device); }
int fake_cuda_get_current(void) { return device_of(current); }
int fake_cuda_capture_mode(void) { return (int)mode; }

static CUresult fake_init(unsigned flags) {
    return flags == 0 ? (CUresult)state.init_result : CUDA_ERROR_INVALID_VALUE;
}

static CUresult fake_version(int* version) {
    *version = state.driver_version;
    return CUDA_SUCCESS;
}

static const struct {
    CUresult result;
    const char *name, *text;
} errors[] = {
    {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {CUDA_ERROR_INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {CUDA_ERROR_NO_BINARY_FOR_GPU, "CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available"},
    {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {CUDA_ERROR_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {CUDA_ERROR_SYSTEM_NOT_READY, "CUDA_ERROR_SYSTEM_NOT_READY", "system not yet initialized"},
    {CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
     "not permitted in capture"},
};

static CUresult fake_error_name(CUresult result, const char** text) {
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].result == result) return *text = errors[i].name, CUDA_SUCCESS;
    return CUDA_ERROR_INVALID_VALUE;
}

static CUresult fake_error_string(CUresult result, const char** text) {
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].result == result) return *text = errors[i].text, CUDA_SUCCESS;
    return CUDA_ERROR_INVALID_VALUE;
}

static CUresult fake_device_get(CUdevice* device, int ordinal) {
    if (ordinal < 0 || ordinal >= state.device_count) return CUDA_ERROR_INVALID_DEVICE;
    *device = 100 + ordinal; /* a handle is not an ordinal */
    return CUDA_SUCCESS;
}

static CUresult fake_device_count(int* count) {
    *count = state.device_count;
    return CUDA_SUCCESS;
}

static CUresult fake_device_name(char* name, int size, CUdevice device) {
    (void)device;
    strncpy(name, "NVIDIA H200", (size_t)size);
    return CUDA_SUCCESS;
}

static CUresult fake_device_attribute(int* value, CUdevice_attribute attribute, CUdevice device) {
    if (device < 100) return CUDA_ERROR_INVALID_DEVICE;
    switch (attribute) {
        case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = state.major; return CUDA_SUCCESS;
        case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = state.minor; return CUDA_SUCCESS;
        case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = state.sms; return CUDA_SUCCESS;
        case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
            *value = state.smem_optin;
            return CUDA_SUCCESS;
        default: return CUDA_ERROR_INVALID_VALUE;
    }
}

static CUresult fake_retain(CUcontext* context, CUdevice device) {
    ADD(retains);
    *context = context_of(device - 100);
    return CUDA_SUCCESS;
}

static CUresult fake_get_current(CUcontext* context) {
    *context = current;
    return CUDA_SUCCESS;
}

static CUresult fake_set_current(CUcontext context) {
    ADD(sets);
    current = context;
    return CUDA_SUCCESS;
}

static CUresult fake_is_capturing(CUstream stream, CUstreamCaptureStatus* status) {
    *status = state.capturing != NULL && stream == (CUstream)state.capturing ? CU_STREAM_CAPTURE_STATUS_ACTIVE
                                                                             : CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
}

static CUresult fake_exchange(CUstreamCaptureMode* value) {
    const CUstreamCaptureMode old = mode;
    mode = *value;
    *value = old;
    return CUDA_SUCCESS;
}

/* Loading during a capture, by any thread, breaks it unless the thread is relaxed and the driver is new
 * enough. */
static int breaks_capture(void) {
    if (state.capturing == NULL) return 0;
    if (mode == CU_STREAM_CAPTURE_MODE_RELAXED && state.driver_version >= 12030) return 0;
    state.capture_broken = 1;
    return 1;
}

static CUresult rejected(int step) {
    if (state.rejections == 0 || state.reject_step != step) return CUDA_SUCCESS;
    state.rejections--;
    return (CUresult)state.reject_result;
}

static CUresult fake_load(CUlibrary* library, const void* code, CUjit_option* jit, void** jit_values,
                          unsigned jits, CUlibraryOption* options, void** values, unsigned count) {
    (void)jit, (void)jit_values, (void)jits, (void)options, (void)values, (void)count;
    ADD(loads);
    if (breaks_capture()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (memcmp(code, "\177ELF", 4) != 0) return CUDA_ERROR_INVALID_IMAGE;
    const CUresult r = rejected(FAKE_STEP_LOAD);
    if (r == CUDA_SUCCESS) *library = (CUlibrary)malloc(1);
    return r;
}

static CUresult fake_unload(CUlibrary library) {
    ADD(unloads);
    free(library);
    return CUDA_SUCCESS;
}

static CUresult fake_get_kernel(CUkernel* kernel, CUlibrary library, const char* name) {
    if (library == NULL || strcmp(name, "dgj_kernel") != 0) return CUDA_ERROR_NOT_FOUND;
    *kernel = (CUkernel)library;
    return rejected(FAKE_STEP_KERNEL);
}

static CUresult fake_get_function(CUfunction* function, CUkernel kernel) {
    if (kernel == NULL) return CUDA_ERROR_INVALID_HANDLE;
    if (current == NULL) return CUDA_ERROR_INVALID_CONTEXT;
    *function = (CUfunction)current; /* all that a launch needs to know of it is its context */
    return rejected(FAKE_STEP_FUNCTION);
}

static CUresult fake_set_attribute(CUfunction_attribute attribute, int value, CUkernel kernel,
                                   CUdevice device) {
    if (kernel == NULL || device < 100) return CUDA_ERROR_INVALID_HANDLE;
    ADD(attribute_calls);
    if (attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) state.smem_attribute = value;
    return rejected(FAKE_STEP_ATTRIBUTE);
}

static CUresult fake_encode(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
                            const cuuint64_t* dims, const cuuint64_t* strides, const cuuint32_t* box,
                            const cuuint32_t* steps, CUtensorMapInterleave interleave,
                            CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                            CUtensorMapFloatOOBfill fill) {
    ADD(encodes);
    if (state.encode_result != 0) return (CUresult)state.encode_result;
    if ((uintptr_t)map % 64 != 0) ADD(unaligned_maps);
    if (rank < 2 || rank > 4 || (uintptr_t)address % 16 != 0) return CUDA_ERROR_INVALID_VALUE;
    for (cuuint32_t i = 0; i < rank; i++)
        if (box[i] == 0 || box[i] > 256 || dims[i] == 0 || steps[i] != 1 || (i > 0 && strides[i - 1] % 16))
            return CUDA_ERROR_INVALID_VALUE;
    const FakeMap made = {(uint64_t)(uintptr_t)address,
                          {dims[0], dims[1], rank > 2 ? dims[2] : 0, rank > 3 ? dims[3] : 0},
                          strides[0],
                          rank > 3 ? strides[1] : 0,
                          rank > 2 ? strides[rank - 2] : 0,
                          {box[0], box[1]},
                          type,
                          swizzle,
                          promotion,
                          fill,
                          interleave,
                          rank};
    memset(map, 0, sizeof *map);
    memcpy(map, &made, sizeof made);
    return CUDA_SUCCESS;
}

static void record(const CUlaunchConfig* config, CUfunction function, void** params) {
    FakeLaunch* l = &state.last;
    memset(l, 0, sizeof *l);
    const uint32_t grid[3] = {config->gridDimX, config->gridDimY, config->gridDimZ};
    const uint32_t block[3] = {config->blockDimX, config->blockDimY, config->blockDimZ};
    memcpy(l->grid, grid, sizeof grid);
    memcpy(l->block, block, sizeof block);
    l->smem = config->sharedMemBytes;
    l->stream = config->hStream;
    l->device = device_of((CUcontext)function);
    l->attributes = config->numAttrs;
    for (unsigned i = 0; i < config->numAttrs; i++) {
        const CUlaunchAttribute* a = &config->attrs[i];
        if (a->id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
            l->cluster = a->value.clusterDim.x * a->value.clusterDim.y * a->value.clusterDim.z;
        if (a->id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION)
            l->pdl = (uint32_t)a->value.programmaticStreamSerializationAllowed;
    }
    for (int i = 0; i < state.maps; i++) memcpy(&l->maps[i], params[i], sizeof l->maps[i]);
    memcpy(l->args, params[state.maps], (size_t)state.args_bytes);
}

static CUresult fake_launch(const CUlaunchConfig* config, CUfunction function, void** params, void** extra) {
    (void)extra;
    ADD(launches);
    if (current == NULL || (CUcontext)function != current) {
        ADD(wrong_context);
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (!state.quiet) record(config, function, params);
    return (CUresult)state.launch_result;
}

static int waiting_is_forbidden(void) {
    return state.capturing != NULL && mode != CU_STREAM_CAPTURE_MODE_RELAXED;
}

/* Device memory is the host's here. A copy has happened only after the stream was waited for. */
static struct {
    void* to;
    CUdeviceptr from;
    size_t bytes;
} copy;

static CUresult fake_copy_to_host(void* to, CUdeviceptr from, size_t bytes, CUstream stream) {
    (void)stream;
    if (current == NULL) return CUDA_ERROR_INVALID_CONTEXT;
    if (waiting_is_forbidden()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    copy.to = to;
    copy.from = from;
    copy.bytes = bytes;
    return CUDA_SUCCESS;
}

static CUresult fake_synchronize(CUstream stream) {
    (void)stream;
    if (current == NULL) return CUDA_ERROR_INVALID_CONTEXT;
    if (waiting_is_forbidden()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    memcpy(copy.to, (const void*)copy.from, copy.bytes);
    copy.bytes = 0;
    return CUDA_SUCCESS;
}

static const struct {
    const char* name;
    int version;
    void* function;
} table[] = {
    {"cuInit", 2000, (void*)fake_init},
    {"cuDriverGetVersion", 2020, (void*)fake_version},
    {"cuGetErrorName", 6000, (void*)fake_error_name},
    {"cuGetErrorString", 6000, (void*)fake_error_string},
    {"cuDeviceGet", 2000, (void*)fake_device_get},
    {"cuDeviceGetCount", 2000, (void*)fake_device_count},
    {"cuDeviceGetName", 2000, (void*)fake_device_name},
    {"cuDeviceGetAttribute", 2000, (void*)fake_device_attribute},
    {"cuDevicePrimaryCtxRetain", 7000, (void*)fake_retain},
    {"cuCtxGetCurrent", 4000, (void*)fake_get_current},
    {"cuCtxSetCurrent", 4000, (void*)fake_set_current},
    {"cuStreamIsCapturing", 10000, (void*)fake_is_capturing},
    {"cuStreamSynchronize", 2000, (void*)fake_synchronize},
    {"cuMemcpyDtoHAsync", 3020, (void*)fake_copy_to_host},
    {"cuThreadExchangeStreamCaptureMode", 10010, (void*)fake_exchange},
    {"cuLibraryLoadData", 12000, (void*)fake_load},
    {"cuLibraryUnload", 12000, (void*)fake_unload},
    {"cuLibraryGetKernel", 12000, (void*)fake_get_kernel},
    {"cuKernelGetFunction", 12000, (void*)fake_get_function},
    {"cuKernelSetAttribute", 12000, (void*)fake_set_attribute},
    {"cuTensorMapEncodeTiled", 12000, (void*)fake_encode},
    {"cuLaunchKernelEx", 11060, (void*)fake_launch},
};

/* The version has to be the one that introduced the signature: asking for another one may give another
 * signature. */
CUresult cuGetProcAddress_v2(const char* symbol, void** function, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult* found) {
    (void)found;
    ADD(lookups);
    if (flags == CU_GET_PROC_ADDRESS_LEGACY_STREAM) ADD(legacy_lookups);
    const char* missing = state.missing != NULL ? state.missing : getenv("FAKE_CUDA_MISSING");
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        if (strcmp(table[i].name, symbol) != 0 || table[i].version != version) continue;
        if (missing != NULL && strcmp(missing, symbol) == 0) break;
        *function = table[i].function;
        return CUDA_SUCCESS;
    }
    *function = NULL;
    return CUDA_ERROR_NOT_FOUND;
}
