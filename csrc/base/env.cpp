#include "base/env.hpp"

#include <array>
#include <cctype>
#include <cstdlib>

namespace dgj::env {
namespace {
constexpr std::array<const EnvVar*, 17> kTable = {
    &kNvrtc,
    &kCacheDir,
    &kCacheMaxSize,
    &kDgCacheDir,
    &kXdgCacheHome,
    &kHome,
    &kJit,
    &kSaveSource,
    &kCudaHome,
    &kCudaPath,
    &kCondaPrefix,
    &kBatchInvariant,
    &kVllmBatchInvariant,
    &kBackend,
    &kCheck,
    &kNumThreads,
    &kTuning,
};
}

std::span<const EnvVar* const> table() { return kTable; }

std::optional<std::string> get(const EnvVar& variable) {
    const char* value = std::getenv(variable.name);
    if (value == nullptr) return std::nullopt;
    return std::string(value);
}

bool flag(const EnvVar& variable) {
    std::string value = get(variable).value_or("");
    for (char& c : value) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    return value == "1" || value == "true" || value == "yes" || value == "on";
}

}  // namespace dgj::env
