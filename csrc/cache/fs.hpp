// Every system call of the cache goes through here, so that tests can make each one fail or crash. The
// functions behave as the calls they are named after: -1 and errno on failure.
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace dgj {

class Fs {
public:
    virtual ~Fs() = default;
    virtual int open(const std::string& path, int flags, mode_t mode);  // adds O_CLOEXEC
    virtual ssize_t read(int fd, void* out, std::size_t size);
    virtual ssize_t write(int fd, const void* data, std::size_t size);
    virtual int fsync(int fd);
    virtual int close(int fd);
    virtual int rename(const std::string& from, const std::string& to);
    virtual int unlink(const std::string& path);
    virtual int rmdir(const std::string& path);
    virtual int mkdir(const std::string& path, mode_t mode);
    virtual int fstat(int fd, struct stat& info);
    virtual int lstat(const std::string& path, struct stat& info);
    virtual int stat(const std::string& path, struct stat& info);
    virtual uid_t euid();
    // The time of the last change becomes now, by the clock of the file system.
    virtual int touch(int fd);
    virtual std::int64_t now();  // nanoseconds since 1970
    // Names in a folder; none when it can not be read.
    virtual std::vector<std::string> list(const std::string& path);

    // Both return at once: EAGAIN when somebody else holds it. The lock belongs to the open file, not to the
    // process.
    virtual int lock_byte(int fd, off_t offset);
    virtual int unlock_byte(int fd, off_t offset);
    virtual int lock_file(int fd);
    virtual int unlock_file(int fd);
};

Fs& real_fs();

// Time of the last change, nanoseconds since 1970.
std::int64_t changed_ns(const struct stat& info);

}  // namespace dgj
