// What a TensorMap holds here: the arguments of cuTensorMapEncodeTiled, unencoded.
#pragma once

#include "runtime/api.hpp"

namespace dgj::emu {

constexpr u64 kMapMagic = 0x6d61702d32642e32;
constexpr u32 kMaxRank = 5;

struct Map {  // the 128 bytes of a TensorMap
    u64 magic;
    u64 address;              // of element (0, 0, ...)
    u64 extent[kMaxRank];     // elements, innermost first
    u64 pitch[kMaxRank - 1];  // bytes between neighbours of every dimension but the innermost
    u32 box[kMaxRank];        // elements
    u32 rank;
    ElementType type;
    u32 swizzle;  // 0, 32, 64 or 128 bytes
    u32 reserved[2];

    u32 element_bytes() const { return bytes_of(type); }
    u32 row_bytes() const { return box[0] * element_bytes(); }  // of a row of the box
    u32 rows() const {                                          // of the box, over all other dimensions
        u32 count = 1;
        for (u32 d = 1; d < rank; d++) count *= box[d];
        return count;
    }
    u32 box_bytes() const { return rows() * row_bytes(); }
};
static_assert(sizeof(Map) == 128);

// Swizzles permute the 16-byte chunks of a row by bits of the shared-memory address (PTX ISA, "Swizzling
// Modes"): with 128 bytes, address bits 4-6 are xor-ed with bits 7-9; with 64, bits 4-5 with 7-8; with 32,
// bit 4 with bit 7.
inline u32 swizzled(u32 address, u32 swizzle) {
    const u32 bits = swizzle == 128 ? 7 : swizzle == 64 ? 3 : swizzle == 32 ? 1 : 0;
    return address ^ ((address >> 7 & bits) << 4);
}

}  // namespace dgj::emu
