#include "cache/disk.hpp"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "cache/file.hpp"

namespace dgj {
namespace {

constexpr mode_t kOthersMayWrite = 022;

bool means_absent(int number) { return number == ENOENT || number == ENOTDIR || number == ESTALE; }

// What was used an hour ago or more, or says that it was used in the future.
bool is_stale_stamp(const struct stat& info, std::int64_t now) {
    const std::int64_t age = now - changed_ns(info);
    return age > kNanosecondsPerHour || age < -kNanosecondsPerHour;
}

// The errno that ended the reading, or 0.
int read_all(Fs& fs, int fd, std::vector<std::byte>& bytes) {
    std::size_t done = 0;
    while (done < bytes.size()) {
        const ssize_t n = fs.read(fd, bytes.data() + done, bytes.size() - done);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return errno;
        if (n == 0) break;
        done += static_cast<std::size_t>(n);
    }
    bytes.resize(done);
    return 0;
}

}  // namespace

std::string entry_folder(const std::string& root, const CacheKey& key) {
    return version_folder(root) + "/" + to_hex(key).substr(0, 2);
}

std::string entry_path(const std::string& root, const CacheKey& key) {
    return entry_folder(root, key) + "/" + to_hex(key) + kEntrySuffix;
}

FileResult read_entry_file(Fs& fs, const std::string& path, const CacheKey& key, ReadRules rules) {
    using State = FileResult::State;
    FileResult result;
    result.file.path = path;
    struct stat& info = result.file.seen;
    const auto ends = [&](State state, const std::string& problem) {
        result.state = state;
        result.problem = problem;
        return std::move(result);
    };
    const auto fails = [&](int number) {
        return means_absent(number) ? ends(State::kAbsent, "") : ends(State::kUnreadable, errno_text(number));
    };
    // Without O_NONBLOCK a FIFO at this path would block for ever.
    File file(fs, fs.open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK, 0));
    if (file.get() < 0) {
        const int number = errno;
        const bool no_file = number == ELOOP || number == ENXIO;  // a symbolic link, a socket
        if (no_file && fs.lstat(path, info) == 0) return ends(State::kDamaged, "it is not a regular file");
        return fails(number);
    }
    if (fs.fstat(file.get(), info) != 0) return fails(errno);
    const bool owned = info.st_uid == fs.euid() || (info.st_uid == 0 && !rules.writable);
    if (!owned || (info.st_mode & kOthersMayWrite) != 0) {
        return ends(State::kUnreadable, "another user owns it or may write to it");
    }
    if (!S_ISREG(info.st_mode)) return ends(State::kDamaged, "it is not a regular file");
    if (info.st_size < 0 || static_cast<std::uint64_t>(info.st_size) > kMaxEntryBytes) {
        return ends(State::kDamaged, "it is larger than any kernel");
    }
    std::vector<std::byte> bytes(static_cast<std::size_t>(info.st_size));
    if (const int number = read_all(fs, file.get(), bytes); number != 0) return fails(number);
    const std::string damage = parse_entry(bytes, key, rules.same_kernel_only, result.entry);
    if (!damage.empty()) return ends(State::kDamaged, damage);
    // It stays in the cache for longer. On a read-only disk that fails, and nothing depends on it.
    if (rules.renew_stamp && is_stale_stamp(info, fs.now())) fs.touch(file.get());
    return ends(State::kSound, "");
}

DiskResult DiskStore::read(const CacheKey& key, bool seeds) {
    DiskResult result;
    for (const Root& root : roots_.read) {
        if (!root.writable && !seeds) continue;
        DiskResult one = read_from(root, entry_path(root.path, key), key, false);
        if (one.entry) {
            one.problem = std::move(result.problem);  // a damaged one in an earlier root is still worth a
                                                      // warning
            return one;
        }
        if (!one.problem.empty()) result = std::move(one);
    }
    return result;
}

DiskResult DiskStore::read_same_kernel(const CacheKey& key, bool primary) {
    const std::string prefix = to_hex(std::span(key).first(kSameKernelBytes));
    DiskResult result;
    for (const Root& root : roots_.read) {
        if (root.writable && !primary) continue;
        const std::string folder = entry_folder(root.path, key);
        std::vector<std::string> names = fs_.list(folder);
        std::sort(names.begin(), names.end());  // every process takes the same one
        for (const std::string& name : names) {
            if (!name.starts_with(prefix) || !name.ends_with(kEntrySuffix)) continue;
            DiskResult one = read_from(root, folder + "/" + name, key, true);
            if (one.entry) return one;
            if (!one.problem.empty()) result = std::move(one);
        }
    }
    return result;
}

DiskResult DiskStore::read_from(const Root& root, const std::string& path, const CacheKey& key,
                                bool same_kernel_only) {
    FileResult found = read_entry_file(
        fs_, path, key,
        {.writable = root.writable, .same_kernel_only = same_kernel_only, .renew_stamp = root.writable});
    DiskResult result{.entry = std::nullopt, .where = path, .problem = ""};
    if (!found.problem.empty()) result.problem = fmt::format("{}: {}", path, found.problem);
    if (found.state == FileResult::State::kSound) result.entry = std::move(found.entry);
    if (found.state == FileResult::State::kDamaged && root.writable) remove_same_file(fs_, found.file);
    return result;
}

void DiskStore::remove(const CacheKey& key) {
    if (!roots_.primary.empty()) fs_.unlink(entry_path(roots_.primary, key));
}

}  // namespace dgj
