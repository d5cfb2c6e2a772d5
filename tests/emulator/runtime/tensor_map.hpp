// What a TensorMap holds here: the arguments of cuTensorMapEncodeTiled for two dimensions, unencoded.
#pragma once

#include "runtime/api.hpp"

namespace dgj::emu {

constexpr u64 kMapMagic = 0x6d61702d32642e31;

struct Map {  // the first words of a TensorMap
    u64 magic;
    u64 address;      // of element (0, 0)
    u64 inner, rows;  // elements of a row, rows
    u64 pitch;        // bytes from row to row
    u64 element_bytes;
    u64 box_inner, box_rows;
    u64 swizzle;  // 0, 32, 64 or 128 bytes
    u64 reserved[7];
};
static_assert(sizeof(Map) == 128);

// Swizzles permute the 16-byte chunks of a row by bits of the shared-memory address (PTX ISA, "Swizzling
// modes"): with 128 bytes, address bits 4-6 are xor-ed with bits 7-9; with 64, bits 4-5 with 7-8; with 32,
// bit 4 with bit 7.
inline u32 swizzled(u32 address, u32 swizzle) {
    const u32 bits = swizzle == 128 ? 7 : swizzle == 64 ? 3 : swizzle == 32 ? 1 : 0;
    return address ^ ((address >> 7 & bits) << 4);
}

}  // namespace dgj::emu
