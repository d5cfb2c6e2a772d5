#include "cache/sweep.hpp"

namespace dgj {
namespace {

constexpr std::int64_t kDay = 24 * kNanosecondsPerHour;

std::size_t sweep_folder(Fs& fs, const std::string& folder, std::int64_t age) {
    std::size_t removed = 0;
    const std::int64_t now = fs.now();
    for (const std::string& name : names_in(fs, folder)) {
        EntryFile file{.path = folder + "/" + name, .seen = {}};
        if (fs.lstat(file.path, file.seen) != 0 || S_ISDIR(file.seen.st_mode)) continue;
        const std::int64_t changed = changed_ns(file.seen);
        // Far in the future is no age to wait for: a clock was wrong.
        if (now - changed > age || changed - now > kDay) removed += remove_unchanged(fs, file);
    }
    return removed;
}

}  // namespace

std::size_t sweep(Fs& fs, const std::string& root) {
    std::size_t removed = sweep_folder(fs, root + "/failed", kFailedSourceAge);
    for (const std::string& version : version_folders(fs, root)) {
        removed += sweep_folder(fs, version + "/tmp", kLitterAge);
    }
    return removed;
}

bool Daily::due(std::int64_t now) {
    std::int64_t last = last_;
    if (last != INT64_MIN && now - last < kDay) return false;
    return last_.compare_exchange_strong(last, now);  // of two threads one
}

}  // namespace dgj
