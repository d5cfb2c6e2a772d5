#include "base/env.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>

#include "base/error.hpp"
#include "base/log.hpp"

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

std::string_view without_spaces(std::string_view text) {
    constexpr std::string_view kSpaces = " \t\n\v\f\r";
    text.remove_prefix(std::min(text.find_first_not_of(kSpaces), text.size()));
    return text.substr(0, text.find_last_not_of(kSpaces) + 1);
}

// What Python's int() takes: a sign, and digits that single underscores may part. Empty is 0 here.
std::optional<bool> is_nonzero_integer(std::string_view text) {
    if (text.empty()) return false;
    if (text.front() == '+' || text.front() == '-') text.remove_prefix(1);
    bool nonzero = false, after_digit = false;
    for (const char c : text) {
        const bool digit = c >= '0' && c <= '9';
        if (!digit && (c != '_' || !after_digit)) return std::nullopt;
        nonzero = nonzero || (digit && c != '0');
        after_digit = digit;
    }
    return after_digit ? std::optional(nonzero) : std::nullopt;
}
}  // namespace

std::span<const EnvVar* const> table() { return kTable; }

std::optional<std::string> get(const EnvVar& variable) {
    const char* value = std::getenv(variable.name);
    if (value == nullptr) return std::nullopt;
    return std::string(value);
}

std::optional<bool> parse_flag(std::string_view text) {
    std::string value(without_spaces(text));
    for (char& c : value) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    if (value == "1" || value == "true" || value == "yes" || value == "on") return true;
    if (value == "0" || value == "false" || value == "no" || value == "off" || value.empty()) return false;
    return std::nullopt;
}

bool flag(const EnvVar& variable) {
    const std::string text = get(variable).value_or("");
    if (const auto value = parse_flag(text)) return *value;
    fail(ErrorKind::kValue, "{}='{}'; allowed: 1, true, yes, on, 0, false, no, off in any case, or unset",
         variable.name, text);
}

bool integer_flag(const EnvVar& variable) {
    const std::string text = get(variable).value_or("");
    if (const auto value = is_nonzero_integer(without_spaces(text))) return *value;
    log(LogLevel::kWarning,
        fmt::format("{}='{}' is no integer and counts as 0; allowed: 0, 1, or unset", variable.name, text));
    return false;
}

}  // namespace dgj::env
