#include "plan/device_profile.hpp"

#include <fmt/ranges.h>

#include <array>

#include "base/error.hpp"

namespace dgj {
namespace {

constexpr std::string_view kSm90a = "sm_90a";

// H200 is measured: cold reads run at 4.45 TB/s, promoted main loops sustain 1250-1335 TFLOPS at 700 W.
// The others are scaled from it by data-sheet bandwidth (0.93 of it is reached), SM count, clock and power.
constexpr std::array<DeviceProfile, 5> kProfiles = {{
    // name        arch    SMs  DRAM  L2   FP8 TFLOPS  shared memory
    {"h100", kSm90a, 132, 3.10, 8.0, 1290, kSm90SmemBytes},
    {"h200", kSm90a, 132, 4.45, 8.0, 1290, kSm90SmemBytes},
    {"h20", kSm90a, 78, 3.70, 5.0, 280, kSm90SmemBytes},  // 78 SMs whose tensor cores run at about a third
    {"gh200", kSm90a, 132, 3.70, 8.0, 1290, kSm90SmemBytes},
    {"h100-pcie", kSm90a, 114, 1.85, 6.0, 800, kSm90SmemBytes},  // 350 W
}};

const DeviceProfile& named(std::string_view name) {
    for (const DeviceProfile& p : kProfiles)
        if (p.name == name) return p;
    return kProfiles.front();
}

}  // namespace

std::span<const DeviceProfile> device_profiles() { return kProfiles; }

std::vector<const DeviceProfile*> find_profiles(std::string_view profile_or_arch) {
    std::vector<const DeviceProfile*> found;
    for (const DeviceProfile& p : kProfiles)
        if (p.name == profile_or_arch || p.arch == profile_or_arch) found.push_back(&p);
    if (!found.empty()) return found;
    std::vector<std::string_view> names;
    for (const DeviceProfile& p : kProfiles) names.push_back(p.name);
    fail(ErrorKind::kValue, "device '{}' is not known: pass one of the profiles {} or the architecture '{}'",
         profile_or_arch, fmt::join(names, ", "), kSm90a);
}

const DeviceProfile& profile_for(int major, int minor, std::uint32_t sms, std::string_view device_name) {
    if (major != 9 || minor != 0)
        fail(ErrorKind::kNotImplemented,
             "device '{}' has compute capability {}.{}: only 9.0 (Hopper) has kernels in this version; "
             "move the tensors to a Hopper GPU or to the CPU",
             device_name, major, minor);
    const auto has = [&](std::string_view part) { return device_name.find(part) != std::string_view::npos; };
    // Longer names first: "H20" is a part of "H200", and that of "GH200".
    if (has("GH200")) return named("gh200");
    if (has("H200")) return named("h200");
    if (has("H20")) return named("h20");
    if (has("PCIe")) return named("h100-pcie");
    // Unknown names (H800, MIG slices, virtual GPUs) go by size; the SMs in use are read from the device
    // anyway.
    if (sms >= 123) return named("h100");
    return sms >= 96 ? named("h100-pcie") : named("h20");
}

}  // namespace dgj
