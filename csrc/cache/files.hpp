// What lies in the folders of a root, and how files leave it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cache/fs.hpp"

namespace dgj {

inline constexpr const char* kEntrySuffix = ".dgk";
inline constexpr std::int64_t kNanosecondsPerHour = std::int64_t{3600} * 1'000'000'000;

struct EntryFile {
    std::string path;
    struct stat seen{};
};

// None for a symbolic link: nothing is ever removed through one.
std::vector<std::string> names_in(Fs& fs, const std::string& folder);

// root/v1, root/v2, ...: entries of other schemas take space too, and are nobody else's to remove.
std::vector<std::string> version_folders(Fs& fs, const std::string& root);

// Everything in the folders of entries, whatever its name and kind; no file is opened.
std::vector<EntryFile> list_entries(Fs& fs, const std::string& root);

// Whether a look-up could ever find it: a regular file named as an entry.
bool is_entry(const EntryFile& file);

// Only if the path still names what was seen, unchanged: an entry may have been published over it or used
// since. A folder goes if it is empty. Whether something was removed.
bool remove_unchanged(Fs& fs, const EntryFile& file);

// The same, but a use meanwhile does not protect it: what was seen is damaged.
bool remove_same_file(Fs& fs, const EntryFile& file);

}  // namespace dgj
