// See call_checks.hpp for how checks are shaped.
#include "problem/m_grouped_call.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.hpp"
#include "problem/call_checks.hpp"

namespace dgj {
namespace {

using namespace checks;

constexpr std::int64_t kMaxAlignment = 128;

const char* argument_name(GroupForm form) {
    switch (form) {
        case GroupForm::kOffsets: return "offsets";
        case GroupForm::kCounts: return "masked_m";
        default: return "grouped_layout";
    }
}

const char* index_shape(GroupForm form) {
    switch (form) {
        case GroupForm::kIds: return "one id for each row of a, [M]";
        case GroupForm::kEnds: return "the end of each group, [G]";
        case GroupForm::kOffsets: return "[G + 1]";
        default: return "[G]";
    }
}

// ---- messages -----------------------------------------------------------------------------------

DGJ_COLD [[noreturn]] void bad_groups(const Arg& b, std::int64_t groups) {
    fail(ErrorKind::kValue, "{}: {} has shape {}, so {} groups; allowed: 1..{}", b.function, b.name,
         shape_text(b.t), groups, kMaxGroups);
}

DGJ_COLD [[noreturn]] void bad_index_dtype(const Arg& arg) {
    fail(ErrorKind::kType, "{}: {} has dtype {}; it must be int32. Convert it with .to(torch.int32)",
         arg.function, arg.name, name_of(arg.t.dtype));
}

DGJ_COLD [[noreturn]] void bad_alignment(const char* function, std::int64_t alignment) {
    fail(ErrorKind::kValue,
         "{}: the alignment is {}; allowed: 1..{}. Set it with set_mk_alignment_for_contiguous_layout",
         function, alignment, kMaxAlignment);
}

DGJ_COLD [[noreturn]] void bad_group_stride(const Arg& arg, std::int64_t stride_bytes, std::int64_t multiple,
                                            bool is_output) {
    fail(ErrorKind::kValue,
         "{}: {} has shape {} and strides {}, {} bytes from group to group; that must be a multiple of {}, "
         "not negative{}. Pass {}.contiguous()",
         arg.function, arg.name, shape_text(arg.t), stride_text(arg.t), stride_bytes, multiple,
         is_output ? ", and groups must not overlap" : "", arg.name);
}

// ---- strides from group to group ----------------------------------------------------------------

struct Slab {  // `groups` matrices of rows x width elements, in elements
    std::int64_t groups, stride, rows, pitch, width;
};

// A single group takes the stride of adjacent ones.
inline std::int64_t group_stride(const TensorView& t, std::int64_t adjacent) {
    return t.shape[0] == 1 ? adjacent : t.stride[0];
}

inline std::int64_t check_group_stride(const Arg& arg, std::int64_t stride, std::int64_t multiple_bytes,
                                       int element_size) {
    const std::int64_t bytes = stride * element_size;
    if (bytes < 0 || bytes % multiple_bytes != 0) [[unlikely]]
        bad_group_stride(arg, bytes, multiple_bytes, false);
    return stride;
}

inline void check_groups_apart(const Arg& d, const Slab& slab) {
    const bool one_after_another = slab.stride >= (slab.rows - 1) * slab.pitch + slab.width;
    const bool side_by_side = slab.stride >= slab.width &&
                              slab.pitch >= (slab.groups - 1) * slab.stride + slab.width;
    if (!one_after_another && !side_by_side) [[unlikely]]
        bad_group_stride(d, slab.stride * size_of(d.t.dtype), kPitchBytes, true);
}

struct Memory {
    const void* data;
    int element_size;
    Slab slab;
    std::uintptr_t end() const {
        const Slab& s = slab;
        const std::int64_t span = (s.groups - 1) * s.stride + (s.rows - 1) * s.pitch + s.width;
        return address(data) + static_cast<std::uintptr_t>(span * element_size);
    }
};

// Evenly spaced rows where the groups continue each other, else everything from first to last byte.
inline Rows rows_of(const Memory& m) {
    const Slab& s = m.slab;
    if (s.groups == 1 || s.stride == s.rows * s.pitch)
        return checks::rows_of(m.data, s.groups * s.rows, s.pitch, s.width, m.element_size);
    const std::int64_t span = (s.groups - 1) * s.stride + (s.rows - 1) * s.pitch + s.width;
    return checks::rows_of(m.data, 1, 0, span, m.element_size);
}

inline void check_apart(const Arg& arg, const Memory& in, const Memory& d) {
    if (address(in.data) < d.end() && address(d.data) < in.end()) [[unlikely]]
        check_interleaved(arg, rows_of(in), rows_of(d));
}

constexpr Slab one_run(std::int64_t width) { return {1, 0, 1, 0, width}; }

// ---- values of `groups` -------------------------------------------------------------------------

void check_ids(const MGroupedCall& call, const std::int32_t* ids, const char* function) {
    for (std::int64_t start = 0; start < call.rows; start += call.alignment) {
        const std::int32_t owner = ids[start];
        for (std::int64_t row = start; row < std::min(start + call.alignment, call.rows); ++row) {
            const std::int32_t id = ids[row];
            if (id < -1 || id >= call.groups)
                fail(ErrorKind::kValue,
                     "{}: grouped_layout[{}] is {}; allowed: a group in 0..{}, or -1 for a row of no group",
                     function, row, id, call.groups - 1);
            if (id != owner && id != -1)
                fail(ErrorKind::kValue,
                     "{}: grouped_layout[{}] is {}, but the unit of {} rows that starts at row {} is group "
                     "{}'s: each of its rows must carry {} or -1. Start every group at a multiple of the "
                     "alignment, or set a smaller one with set_mk_alignment_for_contiguous_layout",
                     function, row, id, call.alignment, start, owner, owner);
        }
    }
}

void check_ends(const MGroupedCall& call, const std::int32_t* ends, const char* function) {
    std::int64_t start = 0;
    for (std::int64_t g = 0; g < call.groups; ++g) {
        const std::int64_t end = ends[g];
        // Empty groups at the end start behind the last row where its number is no multiple.
        if (end < start || (end > call.rows && end != start))
            fail(ErrorKind::kValue,
                 "{}: grouped_layout[{}] is {}; allowed: {}..{}, since group {} starts at row {} (the end "
                 "before it, rounded up to the alignment {}) and a has {} rows. For an empty group pass its "
                 "start",
                 function, g, end, start, std::max(start, call.rows), g, start, call.alignment, call.rows);
        start = round_up(end, call.alignment);
    }
}

void check_offsets(const MGroupedCall& call, const std::int32_t* offsets, const char* function) {
    std::int64_t before = 0;
    for (std::int64_t g = 0; g <= call.groups; ++g) {
        if (offsets[g] < before || offsets[g] > call.rows)
            fail(ErrorKind::kValue,
                 "{}: offsets[{}] is {}; allowed: {}..{}: offsets must not decrease, and a has {} rows",
                 function, g, offsets[g], before, call.rows, call.rows);
        before = offsets[g];
    }
}

void check_counts(const MGroupedCall& call, const std::int32_t* counts, const char* function) {
    for (std::int64_t g = 0; g < call.groups; ++g)
        if (counts[g] < 0 || counts[g] > call.rows)
            fail(ErrorKind::kValue,
                 "{}: masked_m[{}] is {}; allowed: 0..{}, the number of rows that a has for each group",
                 function, g, counts[g], call.rows);
}

}  // namespace

std::int64_t index_size(const MGroupedCall& call) {
    switch (call.form) {
        case GroupForm::kIds: return call.rows;
        case GroupForm::kOffsets: return call.groups + 1;
        default: return call.groups;
    }
}

void check_index(const MGroupedCall& call, const std::int32_t* values, const char* function) {
    switch (call.form) {
        case GroupForm::kIds: return check_ids(call, values, function);
        case GroupForm::kEnds: return check_ends(call, values, function);
        case GroupForm::kOffsets: return check_offsets(call, values, function);
        case GroupForm::kCounts: return check_counts(call, values, function);
    }
}

namespace {

// kMasked: the form is kCounts. A template, so that the path of a call never asks which form it has.
template <bool kMasked>
MGroupedCall validate(const MGroupedArgs& args, const char* function) {
    const Arg a{function, "a[0]", args.a}, sfa{function, "a[1]", args.sfa};
    const Arg b{function, "b[0]", args.b}, sfb{function, "b[1]", args.sfb};
    const Arg d{function, "d", args.d}, index{function, argument_name(args.form), args.groups};
    constexpr int row_dim = kMasked ? 1 : 0;  // of a, its scales and d

    check_operand(a, sfa);
    check_operand(b, sfb);
    check_d_dtype(d);
    if (args.groups.dtype != DType::kI32) [[unlikely]]
        bad_index_dtype(index);

    const Device device = args.a.device;
    check_device(sfa, device);
    check_device(b, device);
    check_device(sfb, device);
    check_device(d, device);
    check_device(index, device);
    if (device.type == Device::Type::kOther) [[unlikely]]
        bad_device(a);

    check_rank(a, row_dim + 2);
    check_rank(b, 3);
    check_rank(d, row_dim + 2);
    check_rank(index, 1);
    constexpr std::size_t at = row_dim;
    const std::int64_t groups = args.b.shape[0], n = args.b.shape[1], k = args.b.shape[2];
    const std::int64_t rows = args.a.shape[at];
    if (groups < 1 || groups > kMaxGroups) [[unlikely]]
        bad_groups(b, groups);
    check_extents(b, k, b, n);
    if (rows > kMaxExtent) [[unlikely]]
        bad_rows(a, rows);

    const std::int64_t k_blocks = ceil_div(k, kScaleBlock), n_blocks = ceil_div(n, kScaleBlock);
    const auto fits = [&](const TensorView& t, std::int64_t columns) {
        return t.shape[at] == rows && t.shape[at + 1] == columns && (!kMasked || t.shape[0] == groups);
    };
    if constexpr (kMasked) {
        if (!fits(args.a, k)) [[unlikely]]
            bad_shape(a, "[G, max_m, K]", {groups, rows, k});
        if (!fits(args.d, n)) [[unlikely]]
            bad_shape(d, "[G, max_m, N]", {groups, rows, n});
        if (args.sfa.ndim != 3 || !fits(args.sfa, k_blocks)) [[unlikely]]
            bad_scale_shape(sfa, "[G, max_m, ceil(K/128)]", rows, k, {groups, rows, k_blocks});
    } else {
        if (!fits(args.a, k)) [[unlikely]]
            bad_shape(a, "[M, K]", {rows, k});
        if (!fits(args.d, n)) [[unlikely]]
            bad_shape(d, "[M, N]", {rows, n});
        if (args.sfa.ndim != 2 || !fits(args.sfa, k_blocks)) [[unlikely]]
            bad_scale_shape(sfa, "[M, ceil(K/128)]", rows, k, {rows, k_blocks});
    }
    if (args.sfb.ndim != 3 || args.sfb.shape[0] != groups || args.sfb.shape[1] != n_blocks ||
        args.sfb.shape[2] != k_blocks) [[unlikely]]
        bad_scale_shape(sfb, "[G, ceil(N/128), ceil(K/128)]", n, k, {groups, n_blocks, k_blocks});

    MGroupedCall call;
    call.rows = rows;
    call.n = n;
    call.k = k;
    call.groups = groups;
    call.d_dtype = args.d.dtype;
    call.device = device;
    call.form = args.form;
    call.zero_padding = args.zero_padding;
    if (args.form == GroupForm::kIds || args.form == GroupForm::kEnds) {
        if (args.alignment < 1 || args.alignment > kMaxAlignment) [[unlikely]]
            bad_alignment(function, args.alignment);
        call.alignment = static_cast<std::int32_t>(args.alignment);
    }
    const std::int64_t index_extent = index_size(call);
    if (args.groups.shape[0] != index_extent) [[unlikely]]
        bad_shape(index, index_shape(args.form), {index_extent});
    if (rows == 0 || n == 0) return call;

    call.index = static_cast<const std::int32_t*>(args.groups.data);
    if (call.index == nullptr || address(call.index) % sizeof(std::int32_t) != 0 ||
        (index_extent > 1 && args.groups.stride[0] != 1)) [[unlikely]]
        bad_vector_memory(index, sizeof(std::int32_t), "stride 1");
    if (device.type == Device::Type::kCpu) check_index(call, call.index, function);

    const std::int64_t slabs = kMasked ? groups : 1;
    const int d_size = size_of(call.d_dtype);
    call.d = args.d.data;
    call.ldd = check_matrix(d, row_dim, true);
    if (kMasked)
        call.d_group = check_group_stride(d, group_stride(args.d, rows * call.ldd), kPitchBytes, d_size);
    const Memory d_memory{call.d, d_size, {slabs, call.d_group, rows, call.ldd, n}};
    if (slabs > 1) check_groups_apart(d, d_memory.slab);
    check_apart(index, {call.index, sizeof(std::int32_t), one_run(index_extent)}, d_memory);
    if (k == 0) return call;  // the operands and their scales have no elements

    call.a = args.a.data;
    call.lda = check_matrix(a, row_dim);
    if (kMasked) call.a_group = check_group_stride(a, group_stride(args.a, rows * call.lda), kPitchBytes, 1);
    check_apart(a, {call.a, 1, {slabs, call.a_group, rows, call.lda, k}}, d_memory);

    call.b = args.b.data;
    call.ldb = check_matrix(b, 1);
    call.b_group = check_group_stride(b, group_stride(args.b, n * call.ldb), kPitchBytes, 1);
    check_apart(b, {call.b, 1, {groups, call.b_group, n, call.ldb, k}}, d_memory);

    call.sfa = static_cast<const float*>(args.sfa.data);
    const ScaleStrides of_a = check_scales_of_a(sfa, row_dim, rows, k_blocks);
    call.sfa_stride_m = of_a.row;
    call.sfa_stride_k = of_a.block;
    Slab sfa_slab = of_a.row == 1 ? Slab{slabs, 0, k_blocks, of_a.block, rows}
                                  : Slab{slabs, 0, rows, of_a.row, k_blocks};
    if (kMasked)
        call.sfa_group = sfa_slab.stride = check_group_stride(
            sfa, group_stride(args.sfa, sfa_slab.rows * sfa_slab.pitch), sizeof(float), sizeof(float));
    check_apart(sfa, {call.sfa, sizeof(float), sfa_slab}, d_memory);

    call.sfb = static_cast<const float*>(args.sfb.data);
    const ScaleStrides of_b = check_scales_of_b(sfb, 1, n_blocks, k_blocks);
    call.sfb_stride_n = of_b.row;
    call.sfb_stride_k = of_b.block;
    const std::int64_t sfb_span = (n_blocks - 1) * of_b.row + (k_blocks - 1) * of_b.block + 1;
    call.sfb_group = check_group_stride(sfb, group_stride(args.sfb, sfb_span), sizeof(float), sizeof(float));
    check_apart(sfb, {call.sfb, sizeof(float), one_run((groups - 1) * call.sfb_group + sfb_span)}, d_memory);
    return call;
}

}  // namespace

MGroupedCall validate_m_grouped(const MGroupedArgs& args, const char* function) {
    return args.form == GroupForm::kCounts ? validate<true>(args, function) : validate<false>(args, function);
}

}  // namespace dgj
