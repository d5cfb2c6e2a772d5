#include "cache/lock.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace dgj {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::microseconds kFirstPause{500}, kLongestPause{10'000};
constexpr unsigned kStripes = 64;

// A forked child shares the open file, and with it the lock: it would keep the lock alive after its parent
// died. So the child closes every lock file at once.
struct OpenLocks {
    std::mutex mutex;
    std::vector<int> fds;
};

OpenLocks& open_locks() {
    static OpenLocks& instance = []() -> OpenLocks& {
        OpenLocks& leaked = *std::make_unique<OpenLocks>().release();  // outlives every static destructor and
                                                                       // thread
        pthread_atfork([] { open_locks().mutex.lock(); }, [] { open_locks().mutex.unlock(); },
                       [] {
                           for (int fd : open_locks().fds) ::close(fd);
                           open_locks().fds.clear();
                           open_locks().mutex.unlock();
                       });
        return leaked;
    }();
    return instance;
}

bool held_by_another(int number) { return number == EAGAIN || number == EACCES || number == EINTR; }

}  // namespace

KeyLock::KeyLock(Fs& fs, const std::string& version_folder, const CacheKey& key,
                 std::chrono::milliseconds wait)
    : fs_(fs), owner_(::getpid()) {
    // Bytes of the second half: the same kernel from two compilers need not wait for one another.
    std::uint64_t bits = 0;
    for (std::size_t i = 0; i < 8; ++i) bits = bits << 8 | key[kSameKernelBytes + i];
    offset_ = static_cast<off_t>(bits >> 2);  // 62 bits: the largest offset plus one byte still fits off_t
    const Clock::time_point deadline = Clock::now() + wait;
    if (!acquire(version_folder + "/lock", false, deadline)) {
        acquire(fmt::format("{}/lock.{}", version_folder, bits % kStripes), true, deadline);
    }
}

// True when the question is settled (held or timed out), false when this kind of lock does not work here.
bool KeyLock::acquire(const std::string& path, bool whole_file, Clock::time_point deadline) {
    whole_file_ = whole_file;
    auto pause = kFirstPause;
    while (true) {
        if (fd_ < 0) {
            // No fork may come between the open and the note of it.
            const std::lock_guard guard(open_locks().mutex);
            fd_ = fs_.open(path, O_RDWR | O_CREAT | O_NOFOLLOW, 0600);
            if (fd_ < 0) return false;
            open_locks().fds.push_back(fd_);
        }
        if (try_once(whole_file) == 0) {
            struct stat mine{}, there{};
            const bool removed = fs_.fstat(fd_, mine) == 0 &&
                                 (fs_.lstat(path, there) == 0
                                      ? mine.st_ino != there.st_ino || mine.st_dev != there.st_dev
                                      : errno == ENOENT);
            if (!removed) {
                outcome_ = Outcome::kHeld;
                return true;
            }
            close_file();  // somebody removed the lock file: others lock the new one
        } else if (!held_by_another(errno)) {
            close_file();
            return false;
        }
        if (Clock::now() >= deadline) {
            outcome_ = Outcome::kTimedOut;
            close_file();
            return true;
        }
        std::this_thread::sleep_for(pause);
        pause = std::min(2 * pause, kLongestPause);
    }
}

int KeyLock::try_once(bool whole_file) {
    return whole_file ? fs_.lock_file(fd_) : fs_.lock_byte(fd_, offset_);
}

void KeyLock::close_file() {
    if (fd_ < 0 || owner_ != ::getpid()) return;
    const std::lock_guard guard(open_locks().mutex);
    std::erase(open_locks().fds, fd_);
    fs_.close(fd_);
    fd_ = -1;
}

KeyLock::~KeyLock() {
    if (fd_ < 0 || owner_ != ::getpid()) return;
    // Explicitly: closing alone leaves the lock to a child that was started without our fork handler (vfork,
    // clone).
    if (outcome_ == Outcome::kHeld) whole_file_ ? fs_.unlock_file(fd_) : fs_.unlock_byte(fd_, offset_);
    close_file();
}

}  // namespace dgj
