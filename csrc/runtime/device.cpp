#include "runtime/device.hpp"

#include <array>
#include <atomic>
#include <memory>
#include <mutex>

#include "base/error.hpp"
#include "runtime/runtime.hpp"

namespace dgj::runtime {
namespace {

constexpr int kMaxDevices = 64;

// Published once each and never freed: the warm path reads one pointer.
std::array<std::atomic<const DeviceState*>, kMaxDevices> g_devices{};
std::mutex g_mutex;

int attribute(const DriverApi& api, CUdevice device, CUdevice_attribute which) {
    int value = 0;
    check(api.device_get_attribute(&value, which, device), "cuDeviceGetAttribute");
    return value;
}

const DeviceState& make_state(int index) {
    const DriverApi& api = driver();
    int count = 0;
    check(api.device_get_count(&count), "cuDeviceGetCount");
    if (count == 0) fail(ErrorKind::kNotImplemented, "no CUDA device is visible; use CPU tensors");
    if (index < 0 || index >= count || index >= kMaxDevices)
        fail(ErrorKind::kValue, "CUDA device {} does not exist: {} device(s) are visible, numbered from 0",
             index, count);
    const std::lock_guard lock(g_mutex);
    if (const DeviceState* known = g_devices[static_cast<std::size_t>(index)].load()) return *known;

    auto state = std::make_unique<DeviceState>();
    state->index = index;
    check(api.device_get(&state->device, index), "cuDeviceGet");
    char name[256] = {};
    check(api.device_get_name(name, sizeof name - 1, state->device), "cuDeviceGetName");
    const int major = attribute(api, state->device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
    const int minor = attribute(api, state->device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
    state->sms = static_cast<std::uint32_t>(attribute(api, state->device,
                                                      CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT));
    state->profile = &profile_for(major, minor, state->sms, name);
    const int smem = attribute(api, state->device, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
    if (static_cast<std::uint32_t>(smem) < state->profile->smem_bytes)
        fail(ErrorKind::kNotImplemented,
             "device {} ({}) offers {} bytes of shared memory a block, kernels are planned "
             "for {}",
             index, name, smem, state->profile->smem_bytes);
    check(api.primary_ctx_retain(&state->primary, state->device), "cuDevicePrimaryCtxRetain");
    const DeviceState* published = state.release();
    g_devices[static_cast<std::size_t>(index)].store(published, std::memory_order_release);
    return *published;
}

}  // namespace

const DeviceState& device_state(int index) {
    if (index >= 0 && index < kMaxDevices) [[likely]] {
        if (const DeviceState* s = g_devices[static_cast<std::size_t>(index)].load(std::memory_order_acquire))
            return *s;
    }
    return make_state(index);
}

const DeviceProfile& device_profile(int device) { return *device_state(device).profile; }

ContextGuard::ContextGuard(const DeviceState& device) {
    const DriverApi& api = driver();
    check(api.ctx_get_current(&previous_), "cuCtxGetCurrent");
    if (previous_ == device.primary) [[likely]]
        return;
    check(api.ctx_set_current(device.primary), "cuCtxSetCurrent");
    changed_ = true;
}

ContextGuard::~ContextGuard() {
    if (changed_) driver().ctx_set_current(previous_);
}

RelaxedCapture::RelaxedCapture() {
    check(driver().exchange_capture_mode(&mode_), "cuThreadExchangeStreamCaptureMode");
}

RelaxedCapture::~RelaxedCapture() { driver().exchange_capture_mode(&mode_); }

}  // namespace dgj::runtime
