// Run-time arguments of the M-grouped FP8 GEMM kernel. One definition for the host, which fills it, and for
// NVRTC. The entry is dgj_kernel(const __grid_constant__ TensorMap a, b, few, d; const __grid_constant__
// GroupedArgs args), where `few` is A once more, in boxes of kFewRows rows; RowsOfBox
// (parts/grouped_rows.cuh) says what maps a, few and d are.
#pragma once

namespace dgj {

struct GroupedArgs {
    const float* sfa;  // scale of A: row r of group plane p, K block kb at p * sfa_group + r * sfa_stride_m +
                       // kb * sfa_stride_k
    const float* sfb;  // scale of B: g * sfb_group + nb * sfb_stride_n + kb * sfb_stride_k
    void* d;           // row r of plane p at p * d_group + r * ldd
    const int* index;  // int32, see form
    long long sfa_stride_m, sfa_stride_k, sfa_group;
    long long sfb_stride_n, sfb_stride_k, sfb_group;
    long long ldd, d_group;
    unsigned rows;  // of A, or of one plane of it (counts)
    unsigned groups;
    unsigned form;          // 0: ids, 1: ends, 2: offsets, 3: counts (dgj::GroupForm; planes are groups)
    unsigned alignment;     // ids, ends: groups start at its multiples
    unsigned zero_padding;  // ids, ends: 1: rows of no group become zero
    unsigned units;         // ids: of `alignment` rows, the last may be short
};

}  // namespace dgj
