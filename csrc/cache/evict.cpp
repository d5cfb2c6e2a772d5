#include "cache/evict.hpp"

#include <fcntl.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <vector>

#include "cache/files.hpp"

namespace dgj {
namespace {

constexpr std::uint64_t kSteps = 16;  // how finely the bound is kept: a look at the folder costs milliseconds

std::uint64_t size_of(const EntryFile& file) { return static_cast<std::uint64_t>(file.seen.st_size); }

std::uint64_t total(const std::vector<EntryFile>& files) {
    std::uint64_t bytes = 0;
    for (const EntryFile& file : files) bytes += size_of(file);
    return bytes;
}

std::vector<EntryFile> removable_entries(Fs& fs, const std::string& root) {
    std::vector<EntryFile> files = list_entries(fs, root);
    std::erase_if(files, [](const EntryFile& file) { return !is_entry(file); });
    return files;
}

// Another machine's clock may be ahead: such a stamp counts as now. If they all are, ours is wrong and their
// order is still right.
void sort_by_use(std::vector<EntryFile>& files, std::int64_t now) {
    std::sort(files.begin(), files.end(), [now](const EntryFile& a, const EntryFile& b) {
        const std::int64_t at = changed_ns(a.seen), bt = changed_ns(b.seen);
        const std::int64_t a_used = std::min(at, now), b_used = std::min(bt, now);
        if (a_used != b_used) return a_used < b_used;
        return at != bt ? at < bt : a.path < b.path;
    });
}

// Otherwise an entry that was stamped in the future would stay for good, used or not.
void correct_future_stamps(Fs& fs, const std::vector<EntryFile>& files, std::int64_t now) {
    for (const EntryFile& file : files) {
        if (changed_ns(file.seen) <= now + kNanosecondsPerHour) continue;
        const int fd = fs.open(file.path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK, 0);
        if (fd < 0) continue;
        fs.touch(fd);
        fs.close(fd);
    }
}

Evicted evict_from(Fs& fs, std::vector<EntryFile> files, std::uint64_t keep, const std::string& spared,
                   std::int64_t busy_since) {
    Evicted done;
    const std::int64_t now = fs.now();
    sort_by_use(files, now);
    done.left = total(files);
    std::vector<EntryFile> stay;
    for (EntryFile& file : files) {
        const bool goes = done.left > keep && file.path != spared && remove_unchanged(fs, file);
        if (!goes) {
            stay.push_back(std::move(file));
            continue;
        }
        done.left -= size_of(file);
        done.bytes += size_of(file);
        ++done.entries;
        done.in_use = done.in_use || changed_ns(file.seen) >= busy_since;
    }
    correct_future_stamps(fs, stay, now);
    return done;
}

}  // namespace

std::optional<std::uint64_t> parse_size(std::string_view text) {
    std::uint64_t number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc()) return std::nullopt;
    std::string_view unit(end, static_cast<std::size_t>(text.data() + text.size() - end));
    if (unit.empty()) return number;
    constexpr std::string_view kUnits = "kmgt";
    const std::size_t at = unit.size() == 1 ? kUnits.find(static_cast<char>(unit[0] | 0x20)) : kUnits.npos;
    if (at == kUnits.npos) return std::nullopt;
    const std::size_t shift = 10 * (at + 1);
    if (number > std::numeric_limits<std::uint64_t>::max() >> shift) return std::nullopt;
    return number << shift;
}

Evicted evict(Fs& fs, const std::string& root, std::uint64_t keep, const std::string& spared,
              std::int64_t busy_since) {
    return evict_from(fs, removable_entries(fs, root), keep, spared, busy_since);
}

Evicted make_room(Fs& fs, const std::string& root, std::uint64_t bytes) {
    std::vector<EntryFile> files = removable_entries(fs, root);
    const std::uint64_t all = total(files);
    return evict_from(fs, std::move(files), all - std::min(all, bytes), "", INT64_MAX);
}

Evicted SizeBound::published(const std::string& root, const std::string& path, std::uint64_t bytes) {
    if (max_size_ == 0) return {};
    const std::uint64_t grown = since_look_ += bytes;
    if (looked_ && grown <= max_size_ / kSteps && known_ + grown <= max_size_) return {};
    std::vector<EntryFile> files = removable_entries(fs_, root);
    Evicted done{.left = total(files)};
    if (done.left > max_size_)
        done = evict_from(fs_, std::move(files), max_size_ - max_size_ / kSteps, path, began_);
    known_ = done.left;
    since_look_ = 0;
    looked_ = true;
    return done;
}

}  // namespace dgj
