// Files that a crash left behind are removed when nobody can be writing them any more.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "cache/files.hpp"

namespace dgj {

inline constexpr std::int64_t kLitterAge = kNanosecondsPerHour;
inline constexpr std::int64_t kFailedSourceAge = 7 * 24 * kNanosecondsPerHour;

// Old files in the tmp folders of root, and sources in root/failed that nobody looked at for a week.
std::size_t sweep(Fs& fs, const std::string& root);

// True once, then once a day for a process that runs longer.
class Daily {
public:
    bool due(std::int64_t now);

private:
    std::atomic<std::int64_t> last_{INT64_MIN};
};

}  // namespace dgj
