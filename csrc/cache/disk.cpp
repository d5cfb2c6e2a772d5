#include "cache/disk.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <random>
#include <utility>

namespace dgj {
namespace {

constexpr const char* kSuffix = ".dgk";
constexpr const char* kCacheTag = "Signature: 8a477f597d28d172789f06886806bc55\n";  // bford.info/cachedir:
                                                                                    // backups skip it

class File {
public:
    File(Fs& fs, int fd) : fs_(fs), fd_(fd) {}
    ~File() { close(); }
    File(const File&) = delete;
    File& operator=(const File&) = delete;
    int get() const { return fd_; }
    int close() {
        const int fd = std::exchange(fd_, -1);
        return fd < 0 ? 0 : fs_.close(fd);
    }

private:
    Fs& fs_;
    int fd_;
};

// A file that nobody sees until commit(), and that disappears without it.
class AtomicFile {
public:
    AtomicFile(Fs& fs, const std::string& folder)
        : fs_(fs), path_(fmt::format("{}/{}.{:08x}{:08x}", folder, ::getpid(), std::random_device{}(),
                                     std::random_device{}())),
          file_(fs, fs.open(path_, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0600)), open_(file_.get() >= 0) {
    }
    ~AtomicFile() {
        file_.close();
        if (open_ && !committed_) fs_.unlink(path_);
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

bool means_absent(int number) { return number == ENOENT || number == ENOTDIR || number == ESTALE; }

}  // namespace

std::string entry_folder(const std::string& root, const CacheKey& key) {
    return version_folder(root) + "/" + to_hex(key).substr(0, 2);
}

std::string entry_path(const std::string& root, const CacheKey& key) {
    return entry_folder(root, key) + "/" + to_hex(key) + kSuffix;
}

DiskResult DiskStore::read(const CacheKey& key, bool seeds) {
    DiskResult result;
    for (const Root& root : roots_.read) {
        if (!root.writable && !seeds) continue;
        DiskResult one = read_file(root, entry_path(root.path, key), key, false);
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
            if (!name.starts_with(prefix) || !name.ends_with(kSuffix)) continue;
            DiskResult one = read_file(root, folder + "/" + name, key, true);
            if (one.entry) return one;
            if (!one.problem.empty()) result = std::move(one);
        }
    }
    return result;
}

DiskResult DiskStore::read_file(const Root& root, const std::string& path, const CacheKey& key,
                                bool same_kernel_only) {
    DiskResult result{.entry = std::nullopt, .where = path, .problem = ""};
    const auto fails = [&](const std::string& reason) {
        result.problem = fmt::format("{}: {}", path, reason);
        return result;
    };
    struct stat info{};
    // Without O_NONBLOCK a FIFO at this path would block for ever.
    File file(fs_, fs_.open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK, 0));
    if (file.get() < 0) {
        const int number = errno;
        if (means_absent(number)) return result;
        const bool no_file = number == ELOOP || number == ENXIO;  // a symbolic link, a socket
        if (no_file && root.writable && fs_.lstat(path, info) == 0) remove_damaged(path, info);
        return fails(errno_text(number));
    }
    if (fs_.fstat(file.get(), info) != 0) return fails(errno_text(errno));
    const bool owned = info.st_uid == fs_.euid() || (info.st_uid == 0 && !root.writable);
    if (!owned || (info.st_mode & 022) != 0) return fails("another user owns it or may write to it");
    std::string damage;
    if (!S_ISREG(info.st_mode)) {
        damage = "it is not a regular file";
    } else if (info.st_size < 0 || static_cast<std::uint64_t>(info.st_size) > kMaxEntryBytes) {
        damage = "it is larger than any kernel";
    } else {
        std::vector<std::byte> bytes(static_cast<std::size_t>(info.st_size));
        std::size_t done = 0;
        while (done < bytes.size()) {
            const ssize_t n = fs_.read(file.get(), bytes.data() + done, bytes.size() - done);
            if (n < 0 && errno == EINTR) continue;
            if (n < 0 && errno == ESTALE) return result;
            if (n < 0) return fails(errno_text(errno));  // the disk's problem, not the entry's: it stays
            if (n == 0) break;
            done += static_cast<std::size_t>(n);
        }
        bytes.resize(done);
        Entry entry;
        damage = parse_entry(bytes, key, same_kernel_only, entry);
        if (damage.empty()) {
            result.entry = std::move(entry);
            return result;
        }
    }
    if (root.writable) remove_damaged(path, info);
    return fails(damage);
}

// Only if the path still names what was read: a sound entry may have been published over it meanwhile.
void DiskStore::remove_damaged(const std::string& path, const struct stat& seen) {
    struct stat now{};
    if (fs_.lstat(path, now) != 0 || now.st_ino != seen.st_ino || now.st_dev != seen.st_dev) return;
    if (fs_.unlink(path) != 0) fs_.rmdir(path);
}

std::string DiskStore::publish(const CacheKey& key, const std::string& meta,
                               std::span<const std::byte> image) {
    if (roots_.primary.empty()) return "";  // was said when the roots were opened
    const std::vector<std::byte> bytes = serialize_entry(key, meta, image);
    int error = 0;
    std::string problem = publish_once(key, bytes, error);
    if (error == ENOENT) {  // somebody removed the whole folder under us
        problem = prepare_writable_root(fs_, roots_.primary);
        if (problem.empty()) problem = publish_once(key, bytes, error);
    }
    return problem;
}

std::string DiskStore::publish_once(const CacheKey& key, const std::vector<std::byte>& bytes, int& error) {
    const std::string version = version_folder(roots_.primary);
    const std::string folder = entry_folder(roots_.primary, key);
    const std::string target = entry_path(roots_.primary, key);
    const auto failed = [&](const char* step, const std::string& path) {
        error = errno;
        return fmt::format("{} {}: {}", step, path, errno_text(error));
    };
    if (fs_.mkdir(folder, 0700) != 0 && errno != EEXIST) return failed("creating", folder);
    {
        AtomicFile file(fs_, version + "/tmp");
        if (!file.is_open()) return failed("creating a file in", version + "/tmp");
        if (!file.write(bytes)) return failed("writing to", version + "/tmp");
        if (!file.commit(target)) return failed("publishing", target);
    }
    // The entry is whole already; this only makes it survive a power cut, and some file systems refuse it.
    File directory(fs_, fs_.open(folder, O_RDONLY | O_DIRECTORY, 0));
    if (directory.get() >= 0) fs_.fsync(directory.get());
    struct stat info{};
    const std::string tag = version + "/CACHEDIR.TAG";
    if (fs_.lstat(tag, info) != 0) {
        AtomicFile file(fs_, version + "/tmp");
        if (file.is_open() && file.write(std::as_bytes(std::span(std::string_view(kCacheTag)))))
            file.commit(tag);
    }
    return "";
}

void DiskStore::remove(const CacheKey& key) {
    if (!roots_.primary.empty()) fs_.unlink(entry_path(roots_.primary, key));
}

}  // namespace dgj
