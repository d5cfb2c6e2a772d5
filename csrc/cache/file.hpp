// An open file that is closed with its scope.
#pragma once

#include <utility>

#include "cache/fs.hpp"

namespace dgj {

class File {
public:
    File(Fs& fs, int fd) : fs_(fs), fd_(fd) {}
    ~File() { close(); }
    File(const File&) = delete;
    File& operator=(const File&) = delete;

    int get() const { return fd_; }  // -1: it could not be opened
    int close() {
        const int fd = std::exchange(fd_, -1);
        return fd < 0 ? 0 : fs_.close(fd);
    }

private:
    Fs& fs_;
    int fd_;
};

}  // namespace dgj
