/* A CUDA driver for machines without a GPU: what a test may set, and what the fake recorded. */
#ifndef FAKE_CUDA_H
#define FAKE_CUDA_H

#include <stdint.h>

#define FAKE_DEVICES 4

typedef struct { /* what the fake writes into a CUtensorMap */
    /* pitch: of dimension 1; second_pitch: of 2, where there are 4; step: from one matrix to the next */
    uint64_t address, dims[4], pitch, second_pitch, step;
    uint32_t box[2], type, swizzle, promotion, fill, interleave, rank;
} FakeMap;

typedef struct {
    uint32_t grid[3], block[3], smem, cluster, pdl, attributes;
    void* stream;
    int device;
    FakeMap maps[4];
    unsigned char args[128];
} FakeLaunch;

enum { FAKE_STEP_LOAD = 1, FAKE_STEP_KERNEL, FAKE_STEP_FUNCTION, FAKE_STEP_ATTRIBUTE };

typedef struct {
    /* set by tests */
    int driver_version, device_count, major, minor, sms, smem_optin, args_bytes, maps;
    int init_result, launch_result, encode_result;
    int rejections, reject_step, reject_result; /* the next `rejections` loads fail at this step */
    const char* missing;                        /* an entry point that cuGetProcAddress does not know */
    void* capturing;                            /* the stream that is being captured */
    int quiet;                                  /* launches are not recorded: for timing */
    /* recorded */
    int retains, sets, loads, unloads, encodes, launches, attribute_calls, smem_attribute, capture_broken;
    int wrong_context, unaligned_maps, legacy_lookups, lookups;
    FakeLaunch last;
} FakeCuda;

/* Functions that a test finds by dlsym in libcuda.so.1. */
typedef FakeCuda* (*FakeState)(void);       /* "fake_cuda_state" */
typedef void (*FakeSetCurrent)(int device); /* "fake_cuda_set_current": -1: none; of this thread */
typedef int (*FakeGetCurrent)(void);        /* "fake_cuda_get_current" */
typedef int (*FakeCaptureMode)(void);       /* "fake_cuda_capture_mode" of this thread */

#endif
