#include "cache/fs.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cstdio>
#include <ctime>
#include <filesystem>

namespace dgj {
namespace {

int set_byte_lock(int fd, off_t offset, short type) {
    struct flock range{};
    range.l_type = type;
    range.l_whence = SEEK_SET;
    range.l_start = offset;
    range.l_len = 1;
    return ::fcntl(fd, F_OFD_SETLK, &range);
}

}  // namespace

int Fs::open(const std::string& path, int flags, mode_t mode) {
    return ::open(path.c_str(), flags | O_CLOEXEC, mode);
}
ssize_t Fs::read(int fd, void* out, std::size_t size) { return ::read(fd, out, size); }
ssize_t Fs::write(int fd, const void* data, std::size_t size) { return ::write(fd, data, size); }
int Fs::fsync(int fd) { return ::fsync(fd); }
int Fs::close(int fd) { return ::close(fd); }
int Fs::rename(const std::string& from, const std::string& to) {
    return std::rename(from.c_str(), to.c_str());
}
int Fs::unlink(const std::string& path) { return ::unlink(path.c_str()); }
int Fs::rmdir(const std::string& path) { return ::rmdir(path.c_str()); }
int Fs::mkdir(const std::string& path, mode_t mode) { return ::mkdir(path.c_str(), mode); }
int Fs::fstat(int fd, struct stat& info) { return ::fstat(fd, &info); }
int Fs::lstat(const std::string& path, struct stat& info) { return ::lstat(path.c_str(), &info); }
int Fs::stat(const std::string& path, struct stat& info) { return ::stat(path.c_str(), &info); }
uid_t Fs::euid() { return ::geteuid(); }

int Fs::touch(int fd) {
    const timespec times[2] = {{.tv_sec = 0, .tv_nsec = UTIME_OMIT}, {.tv_sec = 0, .tv_nsec = UTIME_NOW}};
    return ::futimens(fd, times);
}

std::int64_t Fs::now() {
    timespec time{};
    ::clock_gettime(CLOCK_REALTIME, &time);
    return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

std::vector<std::string> Fs::list(const std::string& path) {
    std::vector<std::string> names;
    std::error_code error;
    for (std::filesystem::directory_iterator it(path, error), end; !error && it != end; it.increment(error)) {
        names.push_back(it->path().filename().string());
    }
    return names;
}

int Fs::lock_byte(int fd, off_t offset) { return set_byte_lock(fd, offset, F_WRLCK); }
int Fs::unlock_byte(int fd, off_t offset) { return set_byte_lock(fd, offset, F_UNLCK); }
int Fs::lock_file(int fd) { return ::flock(fd, LOCK_EX | LOCK_NB); }
int Fs::unlock_file(int fd) { return ::flock(fd, LOCK_UN); }

Fs& real_fs() {
    static Fs instance;
    return instance;
}

std::int64_t changed_ns(const struct stat& info) {
    return std::int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec;
}

}  // namespace dgj
