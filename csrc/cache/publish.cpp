#include "cache/publish.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <random>
#include <string_view>

#include "cache/disk.hpp"
#include "cache/entry.hpp"
#include "cache/file.hpp"
#include "cache/roots.hpp"

namespace dgj {
namespace {

// bford.info/cachedir: backup programs skip a folder that has it.
constexpr std::string_view kCacheTag = "Signature: 8a477f597d28d172789f06886806bc55\n";
constexpr std::uint64_t kRoomFactor = 4;  // a full disk: make room for the next few entries as well

// A file that nobody sees until commit(), and that disappears without it.
class AtomicFile {
public:
    AtomicFile(Fs& fs, const std::string& folder)
        : fs_(fs), path_(fmt::format("{}/{}.{:08x}{:08x}", folder, ::getpid(), std::random_device{}(),
                                     std::random_device{}())),
          file_(fs, fs.open(path_, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0600)), open_(file_.get() >= 0) {
    }
    ~AtomicFile() {
        const int number = errno;  // callers report why it failed
        file_.close();
        if (open_ && !committed_) fs_.unlink(path_);
        errno = number;
    }

    bool is_open() const { return open_; }

    bool write(std::span<const std::byte> bytes) {
        while (!bytes.empty()) {
            const ssize_t n = fs_.write(file_.get(), bytes.data(), bytes.size());
            if (n < 0 && errno == EINTR) continue;
            if (n == 0) errno = ENOSPC;
            if (n <= 0) return false;
            bytes = bytes.subspan(static_cast<std::size_t>(n));
        }
        return true;
    }

    // close() may report what write() could not know (NFS, quotas), so it counts as well.
    bool commit(const std::string& target) {
        if (fs_.fsync(file_.get()) != 0 || file_.close() != 0) return false;
        committed_ = fs_.rename(path_, target) == 0;
        return committed_;
    }

private:
    Fs& fs_;
    std::string path_;
    File file_;
    bool open_;
    bool committed_ = false;
};

bool is_full(int number) { return number == ENOSPC || number == EDQUOT; }
// Somebody removed the whole folder under us, or a network file system shows an old state of it.
bool is_gone(int number) { return number == ENOENT || number == ESTALE; }

}  // namespace

std::string Publisher::prepare() {
    if (prepared_) return "";
    std::string problem = prepare_writable_root(fs_, root_);
    prepared_ = problem.empty();
    return problem;
}

Published Publisher::publish(const CacheKey& key, const std::string& meta, std::span<const std::byte> image) {
    Published out;
    if (root_.empty()) return out;
    out.problem = prepare();
    if (!out.problem.empty()) return out;
    const std::vector<std::byte> bytes = serialize_entry(key, meta, image);
    int error = 0;
    out.problem = write_entry(key, bytes, error);
    bool again = false;
    if (is_gone(error)) {
        out.problem = prepare_writable_root(fs_, root_);
        again = out.problem.empty();
    } else if (is_full(error)) {
        again = make_room(fs_, root_, kRoomFactor * bytes.size()).entries > 0;
    }
    if (again) out.problem = write_entry(key, bytes, error);
    if (!out.problem.empty()) return out;

    write_tag();
    if (sweeping_.due(fs_.now())) sweep(fs_, root_);
    if (bound_.published(root_, entry_path(root_, key), bytes.size()).in_use) {
        out.notice = fmt::format(
            "the kernel cache {} is bounded to {} bytes, and entries that this process "
            "uses had to leave it; set DGJ_CACHE_MAX_SIZE to more",
            root_, max_size_);
    }
    return out;
}

std::string Publisher::write_entry(const CacheKey& key, const std::vector<std::byte>& bytes, int& error) {
    const std::string temporary = version_folder(root_) + "/tmp";
    const std::string folder = entry_folder(root_, key);
    const std::string target = entry_path(root_, key);
    const auto failed = [&](const char* step, const std::string& path) {
        error = errno;
        return fmt::format("{} {}: {}", step, path, errno_text(error));
    };
    if (fs_.mkdir(folder, 0700) != 0 && errno != EEXIST) return failed("creating", folder);
    {
        AtomicFile file(fs_, temporary);
        if (!file.is_open()) return failed("creating a file in", temporary);
        if (!file.write(bytes)) return failed("writing to", temporary);
        if (!file.commit(target)) return failed("publishing", target);
    }
    // The entry is whole already; this only makes it survive a power cut, and some file systems refuse it.
    File directory(fs_, fs_.open(folder, O_RDONLY | O_DIRECTORY, 0));
    if (directory.get() >= 0) fs_.fsync(directory.get());
    return "";
}

void Publisher::write_tag() {
    struct stat info{};
    const std::string tag = version_folder(root_) + "/CACHEDIR.TAG";
    if (fs_.lstat(tag, info) == 0) return;
    AtomicFile file(fs_, version_folder(root_) + "/tmp");
    if (file.is_open() && file.write(std::as_bytes(std::span(kCacheTag)))) file.commit(tag);
}

}  // namespace dgj
