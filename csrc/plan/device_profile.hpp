// What the planner knows of a device. The number of SMs actually in use (set_num_sms) is not here: it changes
// the grid only.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace dgj {

inline constexpr std::uint32_t kSm90SmemBytes = 232448;  // 227 KiB: opt-in shared memory per block

struct DeviceProfile {
    std::string_view name;  // "h200"
    std::string_view arch;  // "sm_90a": what NVRTC compiles for
    std::uint32_t sms = 0;
    double dram_tb_s = 0;          // read bandwidth that tile streaming reaches
    double l2_tb_s = 0;            // L2 to shared memory, all SMs
    double fp8_tflops = 0;         // sustained, with promotion
    std::uint32_t smem_bytes = 0;  // opt-in limit per block
};

std::span<const DeviceProfile> device_profiles();

// A profile by name, or every profile of an architecture ("sm_90a"). Throws Error(kValue) listing the names.
std::vector<const DeviceProfile*> find_profiles(std::string_view profile_or_arch);

// The profile for a device found at run time: by its SM count and name; throws Error(kNotImplemented) for
// other architectures.
const DeviceProfile& profile_for(int major, int minor, std::uint32_t sms, std::string_view device_name);

}  // namespace dgj
