// Devices as the runtime sees them, and which context is current.
#pragma once

#include <cstdint>

#include "plan/device_profile.hpp"
#include "runtime/driver.hpp"

namespace dgj::runtime {

struct DeviceState {
    int index = 0;
    CUdevice device = 0;
    CUcontext primary = nullptr;  // retained once, kept until the process ends
    std::uint32_t sms = 0;        // of this device, MIG slices included; the profile has those of the model
    const DeviceProfile* profile = nullptr;
};

// Made on first use. Throws Error(kNotImplemented) without a driver or on an architecture that has no
// kernels, Error(kValue) for an index that no device has.
const DeviceState& device_state(int index);

std::uint32_t usable_sms(const DeviceState& device);  // what get_num_sms says of it

// Makes the device's primary context current for a scope and puts back what was, which may be none: a thread
// that never used CUDA has no context. When it is current already, that costs one query.
class ContextGuard {
public:
    explicit ContextGuard(const DeviceState& device);
    ~ContextGuard();
    ContextGuard(const ContextGuard&) = delete;
    ContextGuard& operator=(const ContextGuard&) = delete;

private:
    CUcontext previous_ = nullptr;
    bool changed_ = false;
};

// Lets this thread make calls that a stream capture forbids (loading, allocating), also when another thread
// captures.
class RelaxedCapture {
public:
    RelaxedCapture();
    ~RelaxedCapture();
    RelaxedCapture(const RelaxedCapture&) = delete;
    RelaxedCapture& operator=(const RelaxedCapture&) = delete;

private:
    CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

}  // namespace dgj::runtime
