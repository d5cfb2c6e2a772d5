// Names that every device file uses, for the host. The same names as kernels_src/ptx; the work is done by the
// runtime.
#pragma once

#include "runtime/api.hpp"

#define DGJ_DEVICE inline
#define DGJ_UNROLL
#define DGJ_NO_UNROLL
#define DGJ_KERNEL(threads) static void
#define DGJ_KERNEL_SHARING_SM(threads, ctas) static void
#define DGJ_GRID_CONSTANT

namespace dgj {

using emu::i32;
using emu::i64;
using emu::u16;
using emu::u32;
using emu::u64;
using emu::u8;

struct alignas(64) TensorMap {  // runtime/tensor_map.hpp says what the words mean here
    u64 opaque[16];
};

struct Float2 {
    float x, y;
};
struct alignas(16) Float4 {
    float x, y, z, w;
};
struct alignas(16) Word4 {
    u32 x, y, z, w;
};

namespace ptx {

using emu::Where;

DGJ_DEVICE u32 thread_index() { return emu::place().thread; }
DGJ_DEVICE u32 block_index() { return emu::place().block; }
DGJ_DEVICE u32 grid_size() { return emu::place().blocks; }
DGJ_DEVICE u32 lane_index() { return emu::place().thread % 32; }
DGJ_DEVICE u32 hidden(u32 v) { return v; }
DGJ_DEVICE u32 warp_index(Where w = {}) {  // a shuffle: all lanes must call
    return emu::shuffle(emu::Shuffle::kIndex, emu::place().thread / 32, 0, 31, emu::kWholeWarp, w).value;
}

}  // namespace ptx
}  // namespace dgj
