// Tensor maps of row-major matrices, or of several of them, encoded once and reused while address, shape and
// pitch stay.
#pragma once

#include <cuda.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "problem/types.hpp"

namespace dgj::runtime {

// Everything that a map depends on. A map is a pure function of it, so a remembered one never goes stale, not
// even when the address is freed and used again.
struct TensorMapKey {
    std::uint64_t address = 0;
    std::uint64_t rows = 0;
    std::uint64_t pitch_bytes = 0;
    std::uint32_t inner = 0;     // elements of a row
    std::uint16_t box_rows = 0;  // the box is 128 bytes of `inner` times this
    DType dtype = DType::kUnknown;
    bool operator==(const TensorMapKey&) const = default;
};

// `matrices` matrices, `step_bytes` apart.
struct MatricesMapKey {
    std::uint64_t address = 0;
    std::uint64_t rows = 0;
    std::uint64_t pitch_bytes = 0;
    std::uint64_t step_bytes = 0;
    std::uint32_t matrices = 0;
    std::uint32_t inner = 0;
    std::uint16_t box_rows = 0;  // the box is 128 bytes of `inner` times this, in one matrix
    DType dtype = DType::kUnknown;
    bool operator==(const MatricesMapKey&) const = default;
};

// The same for boxes that end before their last row, at any row (RowsOfBox, parts/grouped_rows.cuh):
// dimensions inner, height, rows - height + 1, matrices, where height is box_rows or, if there are fewer,
// rows; the middle two both have the pitch of a row.
struct EndedMapKey {
    MatricesMapKey matrices;
    bool operator==(const EndedMapKey&) const = default;
};

// The same with two boxes.
struct TwoBoxesMapKey {
    MatricesMapKey matrices;  // with the first box
    std::uint16_t few_box_rows = 0;
    bool operator==(const TwoBoxesMapKey&) const = default;
};
struct TwoBoxesMaps {
    CUtensorMap map, few;
};

// FP8 as bytes, others as they are; 128-byte swizzle, 128-byte L2 promotion, zeros outside. `name` is the
// tensor's name in an error. Throws Error(kRuntime).
CUtensorMap encode_tensor_map(const TensorMapKey& key, const char* name);
CUtensorMap encode_tensor_map(const MatricesMapKey& key, const char* name);
CUtensorMap encode_tensor_map(const EndedMapKey& key, const char* name);
TwoBoxesMaps encode_tensor_map(const TwoBoxesMapKey& key, const char* name);

inline std::uint64_t hash_of(const TensorMapKey& key) { return key.address ^ (key.rows << 40) ^ key.inner; }
inline std::uint64_t hash_of(const MatricesMapKey& key) { return key.address ^ (key.rows << 40) ^ key.inner; }
inline std::uint64_t hash_of(const EndedMapKey& key) { return hash_of(key.matrices); }
inline std::uint64_t hash_of(const TwoBoxesMapKey& key) { return hash_of(key.matrices); }

// A thread's recent maps of one operand: kSets sets of four, oldest out. All zeros is the empty cache, so
// that memory from calloc is one and its pages stay untouched until used.
template <std::size_t kSets, class Key = TensorMapKey>
class TensorMapCache {
    static_assert((kSets & (kSets - 1)) == 0, "the set is chosen by the low bits of a hash");

public:
    using Maps = decltype(encode_tensor_map(Key{}, ""));

    const Maps* find_or_encode(const Key& key, const char* name) {
        // Addresses are multiples of 16 and mostly of 512: multiply, and take high bits.
        const std::uint64_t hash = hash_of(key) * 0x9E3779B97F4A7C15ull;
        Set& set = sets_[(hash >> 40) & (kSets - 1)];
        for (std::size_t way = 0; way < kWays; ++way)
            if (set.keys[way] == key) return &set.maps[way];
        const std::size_t way = set.next;
        set.keys[way] = {};  // nothing may be found here if encoding throws
        set.maps[way] = encode_tensor_map(key, name);
        set.keys[way] = key;
        set.next = static_cast<std::uint32_t>((way + 1) % kWays);
        return &set.maps[way];
    }

private:
    static constexpr std::size_t kWays = 4;
    struct Set {
        std::array<Key, kWays> keys;
        std::uint32_t next;
        std::array<Maps, kWays> maps;
    };
    std::array<Set, kSets> sets_;
};

}  // namespace dgj::runtime
