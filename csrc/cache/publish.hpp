// Everything that is written to the primary root. Nothing here throws or logs; problems come back as text.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cache/evict.hpp"
#include "cache/fs.hpp"
#include "cache/key.hpp"
#include "cache/sweep.hpp"

namespace dgj {

struct Published {
    std::string problem;  // "" or why the entry is not there
    std::string notice;   // the bound is too small for what this process uses
};

class Publisher {
public:
    // `root` need not exist; "" publishes nothing. `max_size`: bytes, 0 for no bound.
    Publisher(Fs& fs, std::string root, std::uint64_t max_size)
        : fs_(fs), root_(std::move(root)), max_size_(max_size), bound_(fs, max_size) {}

    // Makes the folders that locks and entries lie in, at the first call. "" or why that fails.
    std::string prepare();

    Published publish(const CacheKey& key, const std::string& meta, std::span<const std::byte> image);

private:
    std::string write_entry(const CacheKey& key, const std::vector<std::byte>& bytes, int& error);
    void write_tag();

    Fs& fs_;
    const std::string root_;
    const std::uint64_t max_size_;
    SizeBound bound_;
    Daily sweeping_;
    std::atomic<bool> prepared_{false};
};

}  // namespace dgj
