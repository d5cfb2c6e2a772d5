// A file system that fails, or kills the process, at a chosen call: "rename:1:ENOSPC" fails the first rename,
// "write:2+:EIO" the second write and all later ones, "fsync:1:kill" dies before the call, "fsync:1:die"
// after it, "write:1:short" writes one byte only, "write:1:half" half of it and dies, "read:1:hook" runs the
// hook before the call. "any:7:kill" counts the calls of every name.
#pragma once

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "cache/fs.hpp"

namespace driver {

class FaultFs : public dgj::Fs {
public:
    void add(const std::string& rule) {
        const std::size_t first = rule.find(':'), second = rule.rfind(':');
        const std::string count = rule.substr(first + 1, second - first - 1);
        rules_.push_back({rule.substr(0, first), std::atoi(count.c_str()), count.ends_with('+'),
                          rule.substr(second + 1)});
    }
    void set_euid(uid_t uid) { euid_ = static_cast<long>(uid); }
    void set_hook(std::function<void()> hook) { hook_ = std::move(hook); }
    void add_hours(std::int64_t hours) { offset_ += hours * 3600 * 1'000'000'000; }

    int calls() const { return total_; }
    int hooked() const { return hooked_; }
    // "close=2 open=1 ..." since the last time.
    std::string take_counts() {
        std::string text;
        for (const auto& [name, count] : counts_) {
            if (count > taken_[name])
                text += (text.empty() ? "" : " ") + name + "=" + std::to_string(count - taken_[name]);
        }
        taken_ = counts_;
        return text;
    }

    int open(const std::string& path, int flags, mode_t mode) override {
        return call("open", [&] { return Fs::open(path, flags, mode); });
    }
    ssize_t read(int fd, void* out, std::size_t size) override {
        return call("read", [&] { return Fs::read(fd, out, size); });
    }
    ssize_t write(int fd, const void* data, std::size_t size) override {
        limit_ = size;
        return call("write", [&] { return Fs::write(fd, data, limit_); });
    }
    int fsync(int fd) override {
        return call("fsync", [&] { return Fs::fsync(fd); });
    }
    int close(int fd) override {
        const int result = call("close", [&] { return Fs::close(fd); });
        if (result != 0) Fs::close(fd);  // a failed close closes as well
        return result;
    }
    int rename(const std::string& from, const std::string& to) override {
        return call("rename", [&] { return Fs::rename(from, to); });
    }
    int unlink(const std::string& path) override {
        return call("unlink", [&] { return Fs::unlink(path); });
    }
    int rmdir(const std::string& path) override {
        return call("rmdir", [&] { return Fs::rmdir(path); });
    }
    int mkdir(const std::string& path, mode_t mode) override {
        return call("mkdir", [&] { return Fs::mkdir(path, mode); });
    }
    int fstat(int fd, struct stat& info) override {
        return call("fstat", [&] { return Fs::fstat(fd, info); });
    }
    int lstat(const std::string& path, struct stat& info) override {
        return call("lstat", [&] { return Fs::lstat(path, info); });
    }
    int stat(const std::string& path, struct stat& info) override {
        return call("stat", [&] { return Fs::stat(path, info); });
    }
    int touch(int fd) override {
        return call("touch", [&] { return Fs::touch(fd); });
    }
    std::vector<std::string> list(const std::string& path) override {
        std::vector<std::string> names;
        call("list", [&] { return names = Fs::list(path), 0; });
        return names;
    }
    int lock_byte(int fd, off_t offset) override {
        return call("lock_byte", [&] { return Fs::lock_byte(fd, offset); });
    }
    int unlock_byte(int fd, off_t offset) override {
        return call("unlock_byte", [&] { return Fs::unlock_byte(fd, offset); });
    }
    int lock_file(int fd) override {
        return call("lock_file", [&] { return Fs::lock_file(fd); });
    }
    int unlock_file(int fd) override {
        return call("unlock_file", [&] { return Fs::unlock_file(fd); });
    }
    uid_t euid() override { return euid_ >= 0 ? static_cast<uid_t>(euid_) : Fs::euid(); }
    std::int64_t now() override { return Fs::now() + offset_; }

private:
    struct Rule {
        std::string call;
        int at;
        bool later;
        std::string what;
    };

    template <class Real>
    auto call(const std::string& name, Real real) -> decltype(real()) {
        const int count = ++counts_[name];
        ++total_;
        for (const Rule& rule : rules_) {
            const int counted = rule.call == "any" ? total_ : count;
            if (rule.call != "any" && rule.call != name) continue;
            if (rule.later ? counted < rule.at : counted != rule.at) continue;
            if (rule.what == "kill") std::raise(SIGKILL);
            if (rule.what == "hook") {
                hook_();
                ++hooked_;
                continue;
            }
            if (rule.what == "short") {
                limit_ = 1;
                continue;
            }
            if (rule.what == "half") limit_ /= 2;
            if (rule.what == "die" || rule.what == "half") {
                real();
                std::raise(SIGKILL);
            }
            errno = number(rule.what);
            return -1;
        }
        return real();
    }

    static int number(const std::string& name) {
        static const std::map<std::string, int> numbers = {
            {"ENOSPC", ENOSPC}, {"EDQUOT", EDQUOT}, {"EROFS", EROFS},   {"EACCES", EACCES},
            {"EIO", EIO},       {"EXDEV", EXDEV},   {"EMFILE", EMFILE}, {"ENAMETOOLONG", ENAMETOOLONG},
            {"ENOLCK", ENOLCK}, {"ENOSYS", ENOSYS}, {"EINVAL", EINVAL}, {"EOPNOTSUPP", EOPNOTSUPP},
            {"ESTALE", ESTALE}, {"EEXIST", EEXIST}, {"ENOENT", ENOENT}, {"EINTR", EINTR},
        };
        return numbers.at(name);
    }

    std::vector<Rule> rules_;
    std::map<std::string, int> counts_, taken_;
    std::function<void()> hook_;
    std::int64_t offset_ = 0;
    std::size_t limit_ = 0;  // of the write at hand
    int total_ = 0, hooked_ = 0;
    long euid_ = -1;
};

}  // namespace driver
