#include "cache/roots.hpp"

#include <fmt/format.h>
#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <optional>
#include <system_error>

#include "base/env.hpp"
#include "cache/key.hpp"

namespace dgj {
namespace {

constexpr const char* kOurFolder = "/deep_gemm_jit";
constexpr mode_t kOthersMayWrite = 022;

std::vector<std::string> split(const std::string& text, char separator) {
    std::vector<std::string> parts(1);
    for (char c : text) {
        if (c == separator) parts.emplace_back();
        else parts.back() += c;
    }
    return parts;
}

std::string absolute(const std::string& path) {
    std::error_code error;
    const std::filesystem::path full = std::filesystem::absolute(path, error);
    std::string text = error ? path : full.lexically_normal().string();
    while (text.size() > 1 && text.back() == '/') text.pop_back();
    return text;
}

std::string home_of_user(uid_t uid) {
    std::array<char, 16384> buffer;
    passwd entry{};
    passwd* found = nullptr;
    if (getpwuid_r(uid, &entry, buffer.data(), buffer.size(), &found) != 0 || found == nullptr) return "";
    return found->pw_dir != nullptr ? found->pw_dir : "";
}

std::string home_folder(Fs& fs) {
    const std::string home = env::get(env::kHome).value_or("");
    return home.empty() ? home_of_user(fs.euid()) : home;
}

// A part of a configured list; a shell expands no ~ there in quotes, after a :, or in a container's settings.
// "" where there is no home folder to begin with.
std::string from_list(Fs& fs, const std::string& part, std::string& problem) {
    if (!part.starts_with("~/")) return part.empty() ? "" : absolute(part);
    const std::string home = home_folder(fs);
    if (!home.empty()) return absolute(home + part.substr(1));
    problem = fmt::format("{} is in a home folder, and there is none; set HOME", part);
    return "";
}

// The configured list, primary first; an empty primary means "no writable root". `problem`: why there is
// none, or one less than asked for.
std::vector<std::string> configured(Fs& fs, std::string& problem) {
    std::vector<std::string> roots;
    if (const auto value = env::get(env::kCacheDir)) {
        for (const std::string& part : split(*value, ':')) roots.push_back(from_list(fs, part, problem));
        return roots;
    }
    if (const auto value = env::get(env::kDgCacheDir); value && !value->empty()) {
        for (const std::string& part : split(*value, ':')) {
            const std::string folder = from_list(fs, part, problem);
            roots.push_back(folder.empty() ? "" : folder + kOurFolder);
        }
        return roots;
    }
    // The XDG convention: a relative value is invalid and ignored.
    if (const auto value = env::get(env::kXdgCacheHome); value && value->starts_with('/')) {
        return {absolute(*value) + kOurFolder};
    }
    const std::string home = home_folder(fs);
    struct stat info{};
    // A home that does not exist, or is somebody else's (sudo, containers), is never created or written to.
    if (home.empty()) {
        problem = "there is no home folder";
    } else if (fs.stat(home, info) != 0) {
        problem = fmt::format("the home folder {}: {}", home, errno_text(errno));
    } else if (!S_ISDIR(info.st_mode) || info.st_uid != fs.euid()) {
        problem = fmt::format("the home folder {} is not a folder of this user", home);
    } else {
        return {absolute(home) + "/.cache" + kOurFolder};
    }
    problem += "; set DGJ_CACHE_DIR to a folder that this user can write";
    return {};
}

enum class Trust { kWritable, kReadOnly, kAbsent, kRefused };

Trust trust(Fs& fs, const std::string& folder, std::string& reason) {
    struct stat info{};
    if (fs.lstat(folder, info) != 0) {
        reason = errno_text(errno);
        return Trust::kAbsent;  // or out of reach, which making it will show
    }
    if (!S_ISDIR(info.st_mode)) {
        reason = S_ISLNK(info.st_mode) ? "it is a symbolic link" : "it is not a folder";
        return Trust::kRefused;
    }
    if (info.st_mode & kOthersMayWrite) {
        reason = fmt::format("its mode is {:04o}: other users may write to it (chmod 700)",
                             info.st_mode & 07777);
        return Trust::kRefused;
    }
    if (info.st_uid == fs.euid()) return Trust::kWritable;
    reason = fmt::format("it belongs to user {}, not to {}", info.st_uid, fs.euid());
    return info.st_uid == 0 ? Trust::kReadOnly : Trust::kRefused;
}

// A root and, where it is there, its folder of this schema.
Trust trust_root(Fs& fs, const std::string& root, std::string& reason) {
    const Trust whole = trust(fs, root, reason);
    if (whole == Trust::kAbsent || whole == Trust::kRefused) return whole;
    std::string inner_reason;
    const Trust inner = trust(fs, version_folder(root), inner_reason);
    if (inner == Trust::kAbsent || inner == Trust::kWritable) return whole;
    reason = fmt::format("{}: {}", version_folder(root), inner_reason);
    return inner == Trust::kRefused ? inner : Trust::kReadOnly;
}

// Missing parents too. mkdir ignores the mode of a folder that exists, so the caller looks at the result.
int make_folders(Fs& fs, const std::string& path) {
    if (fs.mkdir(path, 0700) == 0 || errno == EEXIST) return 0;
    const std::size_t slash = path.rfind('/');
    if (errno != ENOENT || slash == std::string::npos || slash == 0) return -1;
    if (make_folders(fs, path.substr(0, slash)) != 0) return -1;
    return fs.mkdir(path, 0700) == 0 || errno == EEXIST ? 0 : -1;
}

}  // namespace

std::string errno_text(int number) { return std::generic_category().message(number); }

std::string version_folder(const std::string& root) { return root + "/v" + kCacheSchema; }

std::string prepare_writable_root(Fs& fs, const std::string& root) {
    const std::string version = version_folder(root);
    for (const std::string& folder : {root, version, version + "/tmp"}) {
        const int made = make_folders(fs, folder);
        const int number = errno;
        std::string reason;
        const Trust level = trust(fs, folder, reason);
        if (level == Trust::kWritable) continue;
        if (made != 0 && number != EEXIST) reason = errno_text(number);
        return fmt::format("{}: {}", folder, reason);
    }
    return "";
}

Roots open_roots(Fs& fs) {
    Roots roots;
    std::string problem;
    const std::vector<std::string> paths = configured(fs, problem);
    const bool none = std::all_of(paths.begin(), paths.end(), [](const auto& path) { return path.empty(); });
    if (!problem.empty())
        roots.warnings.push_back(fmt::format("{}: {}", none ? "no disk cache" : "a cache folder is left out",
                                             problem));
    for (std::size_t i = 0; i < paths.size(); ++i) {
        if (paths[i].empty()) continue;
        std::string reason;
        const Trust level = trust_root(fs, paths[i], reason);
        const bool first = i == 0;
        if (first && (level == Trust::kWritable || level == Trust::kAbsent)) {
            roots.primary = paths[i];
            roots.read.push_back({.path = paths[i], .writable = true});
        } else if (level == Trust::kWritable || level == Trust::kReadOnly) {
            roots.read.push_back({.path = paths[i], .writable = false});
            if (first) roots.unwritable = fmt::format("{}: {}", paths[i], reason);
        } else {
            roots.warnings.push_back(fmt::format("the cache folder {} is not used{}: {}", paths[i],
                                                 first ? ", kernels are kept in memory only" : "", reason));
        }
    }
    return roots;
}

}  // namespace dgj
