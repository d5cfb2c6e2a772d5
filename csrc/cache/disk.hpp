// Entries on disk: read and verify, publish in one step, remove. Nothing here throws or logs; problems come
// back as text.
#pragma once

#include <optional>
#include <string>

#include "cache/entry.hpp"
#include "cache/roots.hpp"

namespace dgj {

struct DiskResult {
    std::optional<Entry> entry;
    std::string where;    // path of the entry
    std::string problem;  // "path: reason" of something unusable that was met, also when an entry was found
                          // elsewhere
};

class DiskStore {
public:
    DiskStore(Fs& fs, Roots roots) : fs_(fs), roots_(std::move(roots)) {}

    const Roots& roots() const { return roots_; }

    // The first root that has a sound entry for exactly this key. `seeds`: false looks at the writable root
    // only.
    DiskResult read(const CacheKey& key, bool seeds);

    // An entry of the same kernel from another NVRTC; `primary`: in the writable root too.
    DiskResult read_same_kernel(const CacheKey& key, bool primary);

    // "" or why nothing was published.
    std::string publish(const CacheKey& key, const std::string& meta, std::span<const std::byte> image);

    void remove(const CacheKey& key);

private:
    DiskResult read_file(const Root& root, const std::string& path, const CacheKey& key,
                         bool same_kernel_only);
    void remove_damaged(const std::string& path, const struct stat& seen);
    std::string publish_once(const CacheKey& key, const std::vector<std::byte>& bytes, int& error);

    Fs& fs_;
    Roots roots_;
};

std::string entry_folder(const std::string& root, const CacheKey& key);
std::string entry_path(const std::string& root, const CacheKey& key);

}  // namespace dgj
