// One call of an M-grouped FP8 GEMM: D[r, n] = round(sum_k A[r, k] B[g(r), n, k]), where every row r of A
// belongs to one group g(r) or to none. Shared by the CPU and the GPU implementation, so both refuse the same
// arguments with the same words.
#pragma once

#include <cstdint>

#include "problem/problem.hpp"
#include "problem/types.hpp"

namespace dgj {

// How the int32 tensor `groups` says which rows are whose. What is out of range never faults on a device:
// see the clamps.
enum class GroupForm : std::uint8_t {
    kIds,      // [rows]: the group of each row, or -1. Units of `alignment` rows from row 0, the last may be
               // short; the first row's id is the unit's, its other rows carry it or -1. Units need not be
               // sorted and a group may recur. An id outside 0..G-1 counts as -1.
    kEnds,     // [G]: group g ends at ends[g] (exclusive) and starts where group g - 1 ends, rounded up to
               // `alignment`; group 0 starts at row 0. Ends clamp to 0..rows and to at least the start.
    kOffsets,  // [G + 1]: group g is rows offsets[g] .. offsets[g + 1], clamped to 0..rows and to be
               // non-decreasing.
    kCounts    // [G], masked: A is [G, rows, K], group g is the first counts[g] rows of A[g], clamped to
               // 0..rows.
};

struct MGroupedArgs {   // as given
    TensorView a;       // e4m3 [rows, K]; kCounts: [G, rows, K]
    TensorView sfa;     // fp32 [rows, ceil(K/128)]; kCounts: [G, rows, ceil(K/128)]
    TensorView b;       // e4m3 [G, N, K], any group stride
    TensorView sfb;     // fp32 [G, ceil(N/128), ceil(K/128)]
    TensorView d;       // bf16 | fp16 | fp32 [rows, N]; kCounts: [G, rows, N]
    TensorView groups;  // int32, see GroupForm
    GroupForm form = GroupForm::kIds;
    std::int64_t alignment = 128;  // kIds, kEnds: 1..128
    bool zero_padding = false;     // kIds, kEnds: rows of no group are set to zero, else never written
    bool b_is_constant = false;    // the caller promises that no kernel still running writes b or its scales
                                 // (neither this nor expected_m changes what runs: counts are on the device)
    std::int64_t expected_m = 0;  // rows of a usual group, a hint that may be wrong; 0: unknown
};

struct MGroupedCall {  // strides in elements; every size-1 dimension's stride replaced by a legal one
    std::int64_t rows = 0, n = 0, k = 0, groups = 0;  // rows: of A, or of one group of it (kCounts)
    DType d_dtype = DType::kBF16;
    Device device;
    GroupForm form = GroupForm::kIds;
    std::int32_t alignment = 128;
    bool zero_padding = false;
    const void* a = nullptr;
    const void* b = nullptr;
    const float* sfa = nullptr;
    const float* sfb = nullptr;
    void* d = nullptr;
    const std::int32_t* index = nullptr;                 // data of `groups`, contiguous
    std::int64_t lda = 0, ldb = 0, ldd = 0;              // row pitches
    std::int64_t a_group = 0, b_group = 0, d_group = 0;  // from group to group; a, d: kCounts, else 0
    std::int64_t sfa_stride_m = 0, sfa_stride_k = 0,
                 sfa_group = 0;  // one of m and k is 1; sfa_group as a_group
    std::int64_t sfb_stride_n = 0, sfb_stride_k = 0, sfb_group = 0;  // any
};

// Throws Error with the argument's name, value, what is allowed and the remedy. `function` is the public
// name. Values of `groups` are looked at only where it is on the CPU.
MGroupedCall validate_m_grouped(const MGroupedArgs& args, const char* function);

std::int64_t index_size(const MGroupedCall& call);  // elements of `groups`

// The check of the values of `groups`, for a copy of them on the host.
void check_index(const MGroupedCall& call, const std::int32_t* values, const char* function);

}  // namespace dgj
