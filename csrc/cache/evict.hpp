// The bound on the size of a root: the entries that were used longest ago go first.
//
// The time of last use is the file's own time of change: publishing sets it, and a hit renews it when it is
// more than an hour old. Access times are not used: most file systems do not keep them.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "cache/fs.hpp"

namespace dgj {

inline constexpr std::uint64_t kDefaultMaxSize = std::uint64_t{1} << 30;

// "0", "65536", "512K", "512M", "2G", "1T", also in small letters; nothing else.
std::optional<std::uint64_t> parse_size(std::string_view text);

struct Evicted {
    std::size_t entries = 0;
    std::uint64_t bytes = 0;
    std::uint64_t left = 0;  // bytes of entries that remain
    bool in_use = false;     // one of them was published or used since `busy_since`
};

// Removes entries until at most `keep` bytes remain; never `spared` (a path), nor one that is used or
// replaced meanwhile.
Evicted evict(Fs& fs, const std::string& root, std::uint64_t keep, const std::string& spared = "",
              std::int64_t busy_since = INT64_MAX);

// Makes room for `bytes` whatever the bound is: the disk is full.
Evicted make_room(Fs& fs, const std::string& root, std::uint64_t bytes);

// Keeps a root within its bound while entries are published. Looks at the folder at the first one, and then
// only when it may have grown over the bound or by a sixteenth of it.
class SizeBound {
public:
    SizeBound(Fs& fs, std::uint64_t max_size) : fs_(fs), max_size_(max_size), began_(fs.now()) {}
    Evicted published(const std::string& root, const std::string& path, std::uint64_t bytes);

private:
    Fs& fs_;
    std::uint64_t max_size_;  // 0: none
    std::int64_t began_;
    std::atomic<bool> looked_{false};
    std::atomic<std::uint64_t> known_{0}, since_look_{0};
};

}  // namespace dgj
