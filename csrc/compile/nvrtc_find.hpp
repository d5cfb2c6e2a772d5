// Where NVRTC is looked for. A pure function of its input and the file system, so that tests can drive it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/env.hpp"
#include "compile/nvrtc.hpp"

namespace dgj {

inline constexpr int kOldestMajor = 12, kOldestMinor = 3;  // C++20 and sm_90a as our kernels need them

struct NvrtcSearch {
    std::vector<std::string> site_packages;  // folders of installed Python packages, import order
    int driver_version = 0;                  // 13000 for CUDA 13.0; 0: no driver, nothing is skipped for it
};

NvrtcIdentity find_nvrtc(const NvrtcSearch& search);

// The CUDA major whose NVRTC the torch in these folders asks for in its metadata; nullopt: no torch, or one
// without NVRTC.
std::optional<int> nvrtc_major_of_torch(const std::vector<std::string>& site_packages);

}  // namespace dgj
