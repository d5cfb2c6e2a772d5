// One entry = one file. All numbers little-endian:
//
//   entry    = magic format meta_size image_size key meta image checksum
//   magic    = "DGJCUBIN"            8 bytes
//   format   = u32                   1
//   meta_size, image_size = u32, u64
//   key      = 32 bytes              echo of the key that the file name says
//   meta     = JSON object, UTF-8    for people and tools; never parsed here
//   image    = the cubin (ELF)
//   checksum = 32 bytes              SHA-256 of everything before it
//
// A file that differs from this in one bit, or in length, is no entry.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "cache/key.hpp"

namespace dgj {

inline constexpr std::size_t kMaxEntryBytes = std::size_t{256}
                                              << 20;  // far above any kernel: bounds what a reader allocates

struct Entry {
    CacheKey key{};
    std::string meta;
    std::vector<std::byte> image;
};

std::vector<std::byte> serialize_entry(const CacheKey& key, const std::string& meta,
                                       std::span<const std::byte> image);

// "" and `entry`, or what is wrong. `same_kernel_only`: the second half of the key may differ (another
// compiler).
std::string parse_entry(std::span<const std::byte> file, const CacheKey& key, bool same_kernel_only,
                        Entry& entry);

}  // namespace dgj
