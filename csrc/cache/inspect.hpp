// For people and tools: what the roots hold, and whether each entry would be used. Changes nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cache/files.hpp"
#include "cache/roots.hpp"

namespace dgj {

struct CacheState {
    Roots roots;
    std::uint64_t max_size = 0;  // bytes, 0: no bound
};

// The roots as a look-up would open them now, with the environment of now.
CacheState inspect_roots();

struct EntryReport {
    std::string problem;  // "" or why no look-up uses it
    std::string key;      // hex, from the file's name; "" when that is no key
    std::string meta;     // JSON; empty when there is a problem
    std::vector<std::byte> image;
};

// `writable`: whether the file is of the writable root.
EntryReport inspect_entry(const EntryFile& file, bool writable);

// Files in the tmp folders of a root, young ones included: some are being written.
std::vector<EntryFile> list_unfinished(const std::string& root);

}  // namespace dgj
