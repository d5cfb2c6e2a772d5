// Scales of A into shared memory, [K block][row], whatever their strides.
//   MN-major, 16-byte aligned: one bulk copy for each K block. Rows past the end of the matrix keep what
//                              was there: they meet rows of zeros in A, and their sums are never written.
//   anything else:             four bytes a lane with cp.async; rows past the end get zero.
// All lanes of one warp call, and then arrive with barrier_arrive_after_copies.
#pragma once

#include "parts/gemm_args.cuh"
#include "ptx/base.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/memory.cuh"
#include "ptx/tma.cuh"

namespace dgj {

template <u32 kRows>
struct ScaleLoader {
    const float* sfa;
    i64 stride_m, stride_k;
    bool bulk;

    DGJ_DEVICE explicit ScaleLoader(const GemmArgs& args)
        : sfa(args.sfa), stride_m(args.sfa_stride_m), stride_k(args.sfa_stride_k),
          bulk(stride_m == 1 && stride_k % 4 == 0 && (u64)sfa % 16 == 0) {}

    // Blocks kb .. kb + count of rows row .. row + kRows, to `to`, `pitch` bytes a block; rows_left of them
    // exist.
    DGJ_DEVICE void load(u32 to, u32 pitch, u32 row, u32 rows_left, u32 kb, u32 count, u32 barrier) const {
        const u32 lane = ptx::lane_index();
        if (bulk) {
            if (lane != 0 || rows_left == 0) return;
            // Up to three floats past the last row: inside the pitch, or inside the 16 bytes that hold the
            // last row.
            const u32 bytes = ((rows_left < kRows ? rows_left : kRows) + 3) / 4 * 16;
            ptx::barrier_expect(barrier, bytes * count);
            const float* from = sfa + row + (i64)kb * stride_k;
            for (u32 i = 0; i < count; i++, from += stride_k)
                ptx::load_bytes(to + i * pitch, from, bytes, barrier);
            return;
        }
        const float* block = sfa + (i64)(row + lane) * stride_m + (i64)kb * stride_k;
        DGJ_NO_UNROLL
        for (u32 i = 0; i < count; i++, to += pitch, block += stride_k) {
            DGJ_UNROLL
            for (u32 r = 0; r < kRows; r += 32) {
                if (kRows % 32 != 0 && r + lane >= kRows) break;
                const bool in = r + lane < rows_left;
                ptx::copy_async4(to + (r + lane) * 4, in ? block + (i64)r * stride_m : sfa, in);
            }
        }
    }
};

}  // namespace dgj
