// Scales of A into shared memory, some K blocks of a tile's rows at a time, whatever their strides.
//   bulk    MN-major (stride_m == 1): one bulk copy for each K block, from the 16 bytes that hold its first
//           row;
//           [K block][skew + row], where the skew is 0 to 3 floats
//   quads   K-major in whole 16 bytes: one 16-byte copy a row for four K blocks; [row][K block]
//   words   any strides: 4 bytes a copy; [K block][row]
// Rows past `rows_left` are nobody's: words and quads make them zero, bulk leaves what was there. They meet
// rows of A whose results are not written.
#pragma once

#include "ptx/base.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/memory.cuh"
#include "ptx/tma.cuh"
#include "ptx/warp.cuh"

namespace dgj {

struct ScaleStrides {  // element (m, kb) at sfa[m * m_stride + kb * k_stride]
    const float* sfa;
    i64 m, k;
    DGJ_DEVICE bool bulk() const { return m == 1; }
    DGJ_DEVICE bool quads() const { return k == 1 && m % 4 == 0 && (u64)sfa % 16 == 0; }
    DGJ_DEVICE bool aligned() const { return m == 1 && k % 4 == 0 && (u64)sfa % 16 == 0; }  // bulk, no skew
    DGJ_DEVICE u32 skew(u32 row, u32 kb) const { return ((u32)((u64)sfa / 4) + row + kb * (u32)k) & 3; }
};

// All lanes of one warp call, and then arrive with barrier_arrive_after_copies. K block kb + i of `rows` rows
// goes to to + i * pitch; kQuads: kb is a multiple of 4 and count at most 4.
template <bool kQuads>
DGJ_DEVICE void load_scales(const ScaleStrides& from, bool bulk, u32 to, u32 pitch, u32 row, u32 rows,
                            u32 rows_left, u32 kb, u32 count, u32 barrier) {
    const u32 lane = ptx::lane_index();
    if (bulk) {
        if (lane >= count || rows_left == 0) return;
        const u32 skew = from.skew(row, kb + lane);
        // Up to three floats before the first row and past the last one, in 16 bytes that hold one of ours.
        const u32 bytes = ((rows_left < rows ? rows_left : rows) + skew + 3) / 4 * 16;
        ptx::barrier_expect(barrier, bytes);
        ptx::load_bytes(to + lane * pitch, from.sfa + row + (i64)(kb + lane) * from.k - skew, bytes, barrier);
        return;
    }
    // Rolled, and one loop for both: spelled out it would take the compiler as long as a tile's products.
    const bool quads = kQuads && from.quads();
    const u32 bytes = quads ? 16 : 4, rounds = quads ? 1 : count;
    const float* block = from.sfa + (i64)(row + lane) * from.m + (i64)kb * from.k;
    DGJ_NO_UNROLL
    for (u32 i = 0; i < rounds; i++, to += pitch, block += from.k) {
        const float* scale = block;
        DGJ_NO_UNROLL
        for (u32 r = lane; r < rows; r += 32, scale += 32 * from.m) {
            const bool in = r < rows_left;
            const float* source = in ? scale : from.sfa;
            if (quads) ptx::copy_async16(to + r * bytes, source, in ? count * 4 : 0);
            else ptx::copy_async4(to + r * bytes, source, in);
        }
    }
}

// Where consumers find the scale of a row, for load_scales with kQuads and bulk() where it applies. Stages
// start with a multiple of four K blocks, after which a skew repeats.
struct ScaleReader {
    u32 eight_rows = 32, block_bytes, skew = 0, skew_step = 0;  // all in bytes
    bool skewed = false;
    // pitch: as given to load_scales; row: the tile's first.
    DGJ_DEVICE ScaleReader(const ScaleStrides& from, u32 pitch, u32 row) : block_bytes(pitch), skewed(true) {
        if (from.bulk()) {
            skew = from.skew(row, 0) * 4;
            skew_step = (u32)from.k * 4;
        } else if (from.quads()) {
            eight_rows = 128;
            block_bytes = 4;
        }
        // What ptxas knows to be one of two constants it chooses again for each block. It knows nothing of
        // what comes from another lane.
        eight_rows = ptx::shuffle(eight_rows, 0), block_bytes = ptx::shuffle(block_bytes, 0);
        skew = ptx::shuffle(skew, 0), skew_step = ptx::shuffle(skew_step, 0);
    }
    // Where only `aligned` copies are bulk ones, and there are no quads.
    DGJ_DEVICE explicit ScaleReader(u32 pitch) : block_bytes(pitch) {}
    // From a block's place and its skew to the next one's.
    DGJ_DEVICE void next_block(u32& place, u32& at_skew) const {
        place = ptx::hidden(place + block_bytes);
        if (skewed) at_skew = ptx::hidden((at_skew + skew_step) % 16);
    }
};

}  // namespace dgj
