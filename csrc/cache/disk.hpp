// Reading entries from every root: look up and verify. Nothing here throws or logs; problems come back as
// text.
#pragma once

#include <optional>
#include <string>

#include "cache/entry.hpp"
#include "cache/files.hpp"
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

    void remove(const CacheKey& key);

private:
    DiskResult read_from(const Root& root, const std::string& path, const CacheKey& key,
                         bool same_kernel_only);

    Fs& fs_;
    Roots roots_;
};

std::string entry_folder(const std::string& root, const CacheKey& key);
std::string entry_path(const std::string& root, const CacheKey& key);

// One file, without any consequence for it.
struct FileResult {
    enum class State {
        kSound,
        kAbsent,
        kUnreadable,  // the disk's problem, or another user's file: it stays
        kDamaged      // no look-up can ever use it
    } state = State::kAbsent;
    std::string problem;  // of the last two
    EntryFile file;
    Entry entry;
};
struct ReadRules {
    bool writable = false;          // of the writable root: nobody else's file counts
    bool same_kernel_only = false;  // another compiler's entry will do
    bool renew_stamp = false;       // the entry is being used
};
FileResult read_entry_file(Fs& fs, const std::string& path, const CacheKey& key, ReadRules rules);

}  // namespace dgj
