// 16-bit results of a warpgroup on their way out: boxes of 64 rows of D x 64 columns in shared memory.
//   box: 64 rows of 128 bytes; the 16-byte chunk c of row r stands at chunk c ^ (r % 8): no bank conflicts,
//   and the 128-byte swizzle of tensor maps
#pragma once

#include "parts/output.cuh"
#include "ptx/base.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/memory.cuh"

namespace dgj {

constexpr u32 kBoxBytes = 64 * 128;

// One thread: for each warpgroup, `staged` (each of its warps has written its rows of the boxes) and `sent`
// (the copies have read them).
template <u32 kCount>
DGJ_DEVICE void init_box_barriers(u32 staged, u32 sent) {
    for (u32 w = 0; w < kCount; w++) {
        ptx::barrier_init(staged + 8 * w, 4);
        ptx::barrier_init(sent + 8 * w, 1);
    }
}

// Columns first .. first + 64 (as far as there are any) of an accumulator whose rows are rows of D. `first`
// is a constant once the caller's loop is unrolled, so that the accumulator stays in registers.
template <class Out, u32 kSize>
DGJ_DEVICE void stage_rows(u32 box, const float (&acc)[kSize], u32 first) {
    const u32 thread = ptx::thread_index() % 128, lane = thread % 32;
    const u32 place = box +
                      ptx::hidden((thread / 32 * 16 + lane % 16) * 128 + ((lane / 16) ^ (lane % 8)) * 16);
    DGJ_UNROLL
    for (u32 chunk = 0; chunk < 8; chunk += 2) {  // two chunks of 8 columns an instruction
        if (first + chunk * 8 >= 2 * kSize) break;
        u32 words[4];
        DGJ_UNROLL
        for (u32 i = 0; i < 4; i++) {  // words 0, 1: rows r, r + 8 of the first chunk; 2, 3: of the second
            const u32 at = (first + (chunk + i / 2) * 8) / 2 + 2 * (i % 2);
            words[i] = Out::pack(acc[at], acc[at + 1]);
        }
        ptx::store_matrix4(place ^ (chunk * 16), words[0], words[1], words[2], words[3]);
    }
}

// An accumulator whose 64 rows are columns of D and whose columns (at most 64) are rows of D.
template <class Out, u32 kSize>
DGJ_DEVICE void stage_columns(u32 box, const float (&acc)[kSize]) {
    const u32 thread = ptx::thread_index() % 128, lane = thread % 32;
    // Lane l gives row l % 8 of tile l / 8: tiles 0, 1 are accumulator rows r and r + 8 of one chunk of 8
    // rows of D, tiles 2, 3 of the next.
    const u32 row = box + (lane / 16 * 8 + lane % 8) * 128;
    const u32 place = ((thread / 32 * 2 + lane / 8 % 2) ^ (lane % 8)) * 16;
    DGJ_UNROLL
    for (u32 i = 0; i < kSize; i += 8)
        ptx::store_matrix4_transposed(row + i * 256 + place, Out::pack(acc[i], acc[i + 1]),
                                      Out::pack(acc[i + 2], acc[i + 3]), Out::pack(acc[i + 4], acc[i + 5]),
                                      Out::pack(acc[i + 6], acc[i + 7]));
}

}  // namespace dgj
