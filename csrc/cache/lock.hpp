// One compile per key over all processes of a machine: an advisory lock that the kernel releases when its
// holder dies.
#pragma once

#include <chrono>
#include <string>

#include "cache/fs.hpp"
#include "cache/key.hpp"

namespace dgj {

// Locks one byte, at an offset taken from the key, of version_folder/lock (an OFD lock; that file is never
// removed). Where the file system has no such locks: flock on one of 64 files lock.<n>; where it has neither,
// no lock, which costs a second compile and nothing else. Must not be needed for correctness: a waiter goes
// on without it after `wait`.
class KeyLock {
public:
    enum class Outcome { kHeld, kTimedOut, kUnavailable };

    KeyLock(Fs& fs, const std::string& version_folder, const CacheKey& key, std::chrono::milliseconds wait);
    ~KeyLock();
    KeyLock(const KeyLock&) = delete;
    KeyLock& operator=(const KeyLock&) = delete;

    Outcome outcome() const { return outcome_; }

private:
    bool acquire(const std::string& path, bool whole_file, std::chrono::steady_clock::time_point deadline);
    int try_once(bool whole_file);
    void close_file();

    Fs& fs_;
    int fd_ = -1;
    pid_t owner_ = 0;
    off_t offset_ = 0;
    bool whole_file_ = false;
    Outcome outcome_ = Outcome::kUnavailable;
};

}  // namespace dgj
