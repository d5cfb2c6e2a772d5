// The M-grouped GEMMs: public functions and what stands behind their torch ops.
//   m_grouped_fp8_gemm_nt_contiguous   one matrix of rows; a group's id for each row, or the ends of groups
//   m_grouped_fp8_gemm_nt_masked       a matrix for each group, with a count of rows
//   m_grouped_fp8_gemm_nt_offsets      one matrix of rows; groups start and end at any row
#include "bindings/call_args.hpp"
#include "bindings/native_ops.hpp"
#include "bindings/op_support.hpp"
#include "problem/m_grouped_call.hpp"
#include "runtime/runtime.hpp"

namespace dgj::bindings {
namespace {

constexpr const char* kContiguous = "m_grouped_fp8_gemm_nt_contiguous";
constexpr const char* kMasked = "m_grouped_fp8_gemm_nt_masked";
constexpr const char* kOffsets = "m_grouped_fp8_gemm_nt_offsets";

// Operands as Python (PyObject*) or torch (NativeTensor) gave them.
template <class Tensor>
struct Operands {
    Tensor a{}, sfa{}, b{}, sfb{}, d{}, groups{};
};
using GroupedTensors = Operands<PyObject*>;

template <class Tensor>
std::array<Named<Tensor>, 6> named(const Operands<Tensor>& t, MGroupedArgs& args,
                                   const char* name_of_groups) {
    return {{{"a[0]", t.a, &args.a},
             {"a[1]", t.sfa, &args.sfa},
             {"b[0]", t.b, &args.b},
             {"b[1]", t.sfb, &args.sfb},
             {"d", t.d, &args.d},
             {name_of_groups, t.groups, &args.groups}}};
}

struct Operation {
    const char* name;
    const char* groups;  // the argument that says which rows are whose
    TorchOp op;
};
constexpr Operation kContiguousOp{kContiguous, "grouped_layout", TorchOp::kMGroupedContiguous};
constexpr Operation kMaskedOp{kMasked, "masked_m", TorchOp::kMGroupedMasked};
constexpr Operation kOffsetsOp{kOffsets, "offsets", TorchOp::kMGroupedOffsets};

// The GIL, where the caller holds it, is kept for a warm launch and given back for everything that takes
// longer.
void compute(const Operation& op, MGroupedArgs& args) {
    args.alignment = runtime::get_mk_alignment();
    const MGroupedCall call = validate_m_grouped(args, op.name);
    if (call.rows == 0 || call.n == 0) return;
    if (call.device.type == Device::Type::kCuda) {
        void* stream = nullptr;
        if (!current_stream(call.device, &stream)) throw py::error_already_set();
        const bool check = runtime::get_check();
        if (!check && runtime::m_grouped_gemm_if_warm(call, stream)) [[likely]]
            return;
        const WithoutGil released;
        if (check) runtime::check_index(call, stream, op.name);
        runtime::m_grouped_gemm(call, stream);
    } else {
        const WithoutGil released;
        cpu::m_grouped_gemm(call);
    }
}

PyObject* run_grouped(const Operation& op, MGroupedArgs& args) {
    try {
        compute(op, args);
        Py_RETURN_NONE;
    } catch (...) {
        set_python_error_from_current_exception();
        return nullptr;
    }
}

// The arguments of the torch op: tensors, then what its form has.
PyObject* call_torch_op(const Operation& op, const GroupedTensors& t, const MGroupedArgs& args) {
    PyObject* expected_m = PyLong_FromLongLong(args.expected_m);
    if (expected_m == nullptr) return nullptr;
    std::array<PyObject*, 10> arguments{t.a, t.sfa, t.b, t.sfb, t.d, t.groups};
    std::size_t count = 6;
    if (op.op == TorchOp::kMGroupedContiguous) {
        arguments[count++] = args.form == GroupForm::kEnds ? Py_True : Py_False;
        arguments[count++] = args.zero_padding ? Py_True : Py_False;
    }
    if (op.op != TorchOp::kMGroupedOffsets) arguments[count++] = expected_m;
    arguments[count++] = args.b_is_constant ? Py_True : Py_False;
    PyObject* result = PyObject_Vectorcall(torch_op(op.op), arguments.data(), count, nullptr);
    Py_DECREF(expected_m);
    return result;
}

PyObject* run_or_dispatch(const Operation& op, const GroupedTensors& t, MGroupedArgs& args) {
    if (!ensure_attached()) [[unlikely]]
        return nullptr;
    const auto operands = named(t, args, op.groups);
    switch (read_operands(op.name, operands, t.d)) {
        case Hurdle::kNone: return written(run_grouped(op, args), t.d);
        case Hurdle::kDispatcher: return call_torch_op(op, t, args);
        case Hurdle::kError: break;
    }
    return nullptr;
}

bool refuse_epilogue(const Operation& op, PyObject* epilogue) {
    if (!given(epilogue)) [[likely]]
        return true;
    PyErr_Format(PyExc_NotImplementedError, "%s: epilogue is %R; supported: None", op.name, epilogue);
    return false;
}

// ---- public functions ---------------------------------------------------------------------------

PyObject* contiguous(PyObject* /*module*/, PyObject* const* args, Py_ssize_t count, PyObject* keywords) {
    enum : std::size_t {
        kA,
        kB,
        kD,
        kLayout,
        kRecipe,
        kRecipeA,
        kRecipeB,
        kCompiledDims,
        kDisableUe8m0Cast,
        kUsePsumLayout,
        kEnsureZeroPadding,
        kExpectedM,
        kEpilogue,
        kBIsConstant,
        kMIndices,
        kParameters
    };
    static Signature<kParameters> signature(
        kContiguous,
        {"a", "b", "d", "grouped_layout", "recipe", "recipe_a", "recipe_b", "compiled_dims",
         "disable_ue8m0_cast", "use_psum_layout", "ensure_zero_padding", "expected_m_for_psum_layout",
         "epilogue", "b_is_constant", "m_indices"},
        kBIsConstant, kLayout);
    std::array<PyObject*, kParameters> p;
    if (!signature.parse(args, count, keywords, p)) return nullptr;
    Pair a, b;
    if (!split_pair(kContiguous, p[kA], "a", a) || !split_pair(kContiguous, p[kB], "b", b)) return nullptr;
    PyObject* groups = given(p[kLayout]) ? p[kLayout] : p[kMIndices];
    const GroupedTensors t{a.values, a.scales, b.values, b.scales, p[kD], groups};
    if (!given(t.groups) || (given(p[kLayout]) && given(p[kMIndices]))) [[unlikely]]
        return PyErr_Format(PyExc_TypeError,
                            "%s() takes exactly one of 'grouped_layout' and its other name 'm_indices'; %s",
                            kContiguous, !given(t.groups) ? "none was given" : "both were given");
    MGroupedArgs view;
    bool psum = false;
    if (!check_recipes(kContiguous, p[kRecipe], p[kRecipeA], p[kRecipeB]) ||
        !refuse_epilogue(kContiguousOp, p[kEpilogue]) ||
        !read_flag(kContiguous, "use_psum_layout", p[kUsePsumLayout], psum) ||
        !read_flag(kContiguous, "ensure_zero_padding", p[kEnsureZeroPadding], view.zero_padding) ||
        !read_count(kContiguous, "expected_m_for_psum_layout", p[kExpectedM], view.expected_m) ||
        !read_flag(kContiguous, "b_is_constant", p[kBIsConstant], view.b_is_constant))
        return nullptr;
    view.form = psum ? GroupForm::kEnds : GroupForm::kIds;
    return run_or_dispatch(kContiguousOp, t, view);
}

PyObject* masked(PyObject* /*module*/, PyObject* const* args, Py_ssize_t count, PyObject* keywords) {
    enum : std::size_t {
        kA,
        kB,
        kD,
        kMaskedM,
        kExpectedM,
        kRecipe,
        kRecipeA,
        kRecipeB,
        kCompiledDims,
        kDisableUe8m0Cast,
        kEpilogue,
        kBIsConstant,
        kParameters
    };
    static Signature<kParameters> signature(kMasked,
                                            {"a", "b", "d", "masked_m", "expected_m", "recipe", "recipe_a",
                                             "recipe_b", "compiled_dims", "disable_ue8m0_cast", "epilogue",
                                             "b_is_constant"},
                                            kBIsConstant, kRecipe);
    std::array<PyObject*, kParameters> p;
    if (!signature.parse(args, count, keywords, p)) return nullptr;
    Pair a, b;
    if (!split_pair(kMasked, p[kA], "a", a) || !split_pair(kMasked, p[kB], "b", b)) return nullptr;
    const GroupedTensors t{a.values, a.scales, b.values, b.scales, p[kD], p[kMaskedM]};
    MGroupedArgs view;
    view.form = GroupForm::kCounts;
    if (!check_recipes(kMasked, p[kRecipe], p[kRecipeA], p[kRecipeB]) ||
        !refuse_epilogue(kMaskedOp, p[kEpilogue]) ||
        !read_count(kMasked, "expected_m", p[kExpectedM], view.expected_m) ||
        !read_flag(kMasked, "b_is_constant", p[kBIsConstant], view.b_is_constant))
        return nullptr;
    return run_or_dispatch(kMaskedOp, t, view);
}

PyObject* offsets(PyObject* /*module*/, PyObject* const* args, Py_ssize_t count, PyObject* keywords) {
    enum : std::size_t {
        kA,
        kB,
        kD,
        kOffsetsTensor,
        kRecipe,
        kRecipeA,
        kRecipeB,
        kCompiledDims,
        kDisableUe8m0Cast,
        kEpilogue,
        kBIsConstant,
        kParameters
    };
    static Signature<kParameters> signature(kOffsets,
                                            {"a", "b", "d", "offsets", "recipe", "recipe_a", "recipe_b",
                                             "compiled_dims", "disable_ue8m0_cast", "epilogue",
                                             "b_is_constant"},
                                            kBIsConstant, kRecipe);
    std::array<PyObject*, kParameters> p;
    if (!signature.parse(args, count, keywords, p)) return nullptr;
    Pair a, b;
    if (!split_pair(kOffsets, p[kA], "a", a) || !split_pair(kOffsets, p[kB], "b", b)) return nullptr;
    const GroupedTensors t{a.values, a.scales, b.values, b.scales, p[kD], p[kOffsetsTensor]};
    MGroupedArgs view;
    view.form = GroupForm::kOffsets;
    if (!check_recipes(kOffsets, p[kRecipe], p[kRecipeA], p[kRecipeB]) ||
        !refuse_epilogue(kOffsetsOp, p[kEpilogue]) ||
        !read_flag(kOffsets, "b_is_constant", p[kBIsConstant], view.b_is_constant))
        return nullptr;
    return run_or_dispatch(kOffsetsOp, t, view);
}

// ---- behind the torch ops -----------------------------------------------------------------------

void run_kernel(const Operation& op, const TensorArguments<6>& t, MGroupedArgs& args) {
    const auto operands = named<NativeTensor>({t[0], t[1], t[2], t[3], t[4], t[5]}, args, op.groups);
    run_native(op.name, operands, t[4], [&] { compute(op, args); });
}

void contiguous_kernel(torch_abi::Value* stack, std::uint64_t /*inputs*/, std::uint64_t /*outputs*/) {
    MGroupedArgs args;
    args.form = torch_abi::flag(stack[6]) ? GroupForm::kEnds : GroupForm::kIds;
    args.zero_padding = torch_abi::flag(stack[7]);
    args.expected_m = torch_abi::integer(stack[8]);
    args.b_is_constant = torch_abi::flag(stack[9]);
    run_kernel(kContiguousOp, TensorArguments<6>(stack), args);
}

void masked_kernel(torch_abi::Value* stack, std::uint64_t /*inputs*/, std::uint64_t /*outputs*/) {
    MGroupedArgs args;
    args.form = GroupForm::kCounts;
    args.expected_m = torch_abi::integer(stack[6]);
    args.b_is_constant = torch_abi::flag(stack[7]);
    run_kernel(kMaskedOp, TensorArguments<6>(stack), args);
}

void offsets_kernel(torch_abi::Value* stack, std::uint64_t /*inputs*/, std::uint64_t /*outputs*/) {
    MGroupedArgs args;
    args.form = GroupForm::kOffsets;
    args.b_is_constant = torch_abi::flag(stack[6]);
    run_kernel(kOffsetsOp, TensorArguments<6>(stack), args);
}

PyObject* run_for_op(const Operation& op, const GroupedTensors& t, MGroupedArgs& args) {
    if (!ensure_attached() || !refuse_grad(t.d, op.name, "d")) return nullptr;
    const auto operands = named(t, args, op.groups);
    return read_for_op(op.name, operands) ? written(run_grouped(op, args), t.d) : nullptr;
}

PyObject* run_contiguous(PyObject* /*module*/, PyObject* const* args, Py_ssize_t count, PyObject* keywords) {
    static Signature<10> signature("run_m_grouped_fp8_gemm_nt_contiguous",
                                   {"a", "sfa", "b", "sfb", "d", "grouped_layout", "use_psum_layout",
                                    "ensure_zero_padding", "expected_m", "b_is_constant"},
                                   10, 6);
    std::array<PyObject*, 10> p;
    if (!signature.parse(args, count, keywords, p)) return nullptr;
    MGroupedArgs view;
    bool psum = false;
    if (!read_flag(kContiguous, "use_psum_layout", p[6], psum) ||
        !read_flag(kContiguous, "ensure_zero_padding", p[7], view.zero_padding) ||
        !read_count(kContiguous, "expected_m", p[8], view.expected_m) ||
        !read_flag(kContiguous, "b_is_constant", p[9], view.b_is_constant))
        return nullptr;
    view.form = psum ? GroupForm::kEnds : GroupForm::kIds;
    return run_for_op(kContiguousOp, {p[0], p[1], p[2], p[3], p[4], p[5]}, view);
}

PyObject* run_masked(PyObject* /*module*/, PyObject* const* args, Py_ssize_t count, PyObject* keywords) {
    static Signature<8> signature("run_m_grouped_fp8_gemm_nt_masked",
                                  {"a", "sfa", "b", "sfb", "d", "masked_m", "expected_m", "b_is_constant"}, 8,
                                  6);
    std::array<PyObject*, 8> p;
    if (!signature.parse(args, count, keywords, p)) return nullptr;
    MGroupedArgs view;
    view.form = GroupForm::kCounts;
    if (!read_count(kMasked, "expected_m", p[6], view.expected_m) ||
        !read_flag(kMasked, "b_is_constant", p[7], view.b_is_constant))
        return nullptr;
    return run_for_op(kMaskedOp, {p[0], p[1], p[2], p[3], p[4], p[5]}, view);
}

PyObject* run_offsets(PyObject* /*module*/, PyObject* const* args, Py_ssize_t count, PyObject* keywords) {
    static Signature<7> signature("run_m_grouped_fp8_gemm_nt_offsets",
                                  {"a", "sfa", "b", "sfb", "d", "offsets", "b_is_constant"}, 7, 6);
    std::array<PyObject*, 7> p;
    if (!signature.parse(args, count, keywords, p)) return nullptr;
    MGroupedArgs view;
    view.form = GroupForm::kOffsets;
    if (!read_flag(kOffsets, "b_is_constant", p[6], view.b_is_constant)) return nullptr;
    return run_for_op(kOffsetsOp, {p[0], p[1], p[2], p[3], p[4], p[5]}, view);
}

// ---- method table -------------------------------------------------------------------------------

constexpr const char* kContiguousDoc =
    "m_grouped_fp8_gemm_nt_contiguous(a, b, d, grouped_layout=None, recipe=None, recipe_a=None, "
    "recipe_b=None, compiled_dims=\"nk\", disable_ue8m0_cast=False, use_psum_layout=False, "
    "ensure_zero_padding=None, expected_m_for_psum_layout=None, epilogue=None, *, b_is_constant=False, "
    "m_indices=None)\n--\n"
    R"(
D[r] = A[r] @ B[g].T for the group g of each row r, with FP8 operands and block scales; rows of a group lie
together, groups start at multiples of the alignment (set_mk_alignment_for_contiguous_layout, 128 unless set),
which is read at the moment of the call.

a: (values, scales) as a tuple or list. Values: float8_e4m3fn [M, K]. Scales: float32 [M, ceil(K/128)], one
   of the two strides 1, any other stride.
b: (values, scales). Values: float8_e4m3fn [G, N, K], any group stride that is a multiple of 16. Scales:
   float32 [G, ceil(N/128), ceil(K/128)], any strides.
d: bfloat16, float16 or float32 [M, N]; written in place.
grouped_layout, or m_indices: int32, contiguous.
   use_psum_layout=False: [M], the group of each row, or -1. Rows are divided into units of `alignment` from
   row 0 on, the last may be shorter. The first row's id is the unit's; its other rows carry it or -1. Units
   need not be sorted, and a group may have units in several places.
   use_psum_layout=True: [G], where each group's rows end (exclusive). Group 0 starts at row 0, every other
   one at the end before it, rounded up to the alignment. An empty group ends where it starts.
ensure_zero_padding: only True sets the rows of no group to zero; else they are not written.
expected_m_for_psum_layout: None, or the rows of a usual group: a hint, without effect so far.
b_is_constant: True promises that no kernel still running writes b or its scales. Without effect so far.
recipe, recipe_a, recipe_b: None, or (1, 128, 128), (1, 128) and (128, 128): what is supported.
compiled_dims, disable_ue8m0_cast: accepted for compatibility, without effect here. epilogue: None.

Rows of no group may hold anything, in values and scales. On CUDA the values of grouped_layout are not looked
at by the host: an id outside 0..G-1 counts as -1, ends count as no less than their group's start and no more
than M; with DGJ_CHECK=1, and on the CPU always, they raise ValueError.

N is a multiple of 8, K of 16; M == 0 or N == 0 returns at once, K == 0 gives zeros. Matrices have last stride
1; addresses and pitches are multiples of 16 bytes. All tensors are on one device, CUDA (Hopper) or CPU; on
CUDA the work goes to torch's current stream of that device, and nothing waits. Forward only.

Returns None. Raises TypeError (kinds, dtypes, mixed devices), ValueError (shapes, strides, alignment,
overlap, values), NotImplementedError (a recipe, device or architecture without kernels: fall back on it),
CompileError, JitForbiddenError, RuntimeError (driver).)";

constexpr const char* kMaskedDoc =
    "m_grouped_fp8_gemm_nt_masked(a, b, d, masked_m, expected_m, recipe=None, recipe_a=None, recipe_b=None, "
    "compiled_dims=\"nk\", disable_ue8m0_cast=False, epilogue=None, *, b_is_constant=False)\n--\n"
    R"(
D[g, :m] = A[g, :m] @ B[g].T with m = masked_m[g], for every group g, with FP8 operands and block scales.

a: (values, scales). Values: float8_e4m3fn [G, max_m, K]. Scales: float32 [G, max_m, ceil(K/128)], one of the
   last two strides 1, any other strides: row-major, or MN-major with any pitch.
b: (values, scales). Values: float8_e4m3fn [G, N, K]. Scales: float32 [G, ceil(N/128), ceil(K/128)].
d: bfloat16, float16 or float32 [G, max_m, N]; rows at and after masked_m[g] are not written.
masked_m: int32 [G], contiguous, on the device of a; values outside 0..max_m count as the nearest of these on
   CUDA, unless DGJ_CHECK=1, and raise ValueError on the CPU.
expected_m: the rows of a usual group: a hint, which may be wrong, without effect so far.

Rows that do not count may hold anything, in values and scales. The other parameters, what strides and
alignments are allowed, and the errors are those of m_grouped_fp8_gemm_nt_contiguous.)";

constexpr const char* kOffsetsDoc =
    "m_grouped_fp8_gemm_nt_offsets(a, b, d, offsets, recipe=None, recipe_a=None, recipe_b=None, "
    "compiled_dims=\"nk\", disable_ue8m0_cast=False, epilogue=None, *, b_is_constant=False)\n--\n"
    R"(
D[r] = A[r] @ B[g].T for offsets[g] <= r < offsets[g + 1], with FP8 operands and block scales. Groups start at
any row: no padding, no alignment.

a: (values, scales). Values: float8_e4m3fn [M, K]. Scales: float32 [M, ceil(K/128)], one of the two strides 1.
b: (values, scales). Values: float8_e4m3fn [G, N, K]. Scales: float32 [G, ceil(N/128), ceil(K/128)].
d: bfloat16, float16 or float32 [M, N]; rows before offsets[0] and from offsets[G] on are not written.
offsets: int32 [G + 1], contiguous, on the device of a, not decreasing, in 0..M. Other values count as the
   nearest that are allowed on CUDA, unless DGJ_CHECK=1, and raise ValueError on the CPU.

The other parameters, what strides and alignments are allowed, and the errors are those of
m_grouped_fp8_gemm_nt_contiguous.)";

constexpr int kFlags = METH_FASTCALL | METH_KEYWORDS;
PyMethodDef g_public[] = {
    {kContiguous, as_c_function(&contiguous), kFlags, kContiguousDoc},
    {kMasked, as_c_function(&masked), kFlags, kMaskedDoc},
    {kOffsets, as_c_function(&offsets), kFlags, kOffsetsDoc},
};
PyMethodDef g_internal[] = {
    {"run_m_grouped_fp8_gemm_nt_contiguous", as_c_function(&run_contiguous), kFlags,
     "run_m_grouped_fp8_gemm_nt_contiguous(a, sfa, b, sfb, d, grouped_layout, use_psum_layout=False, "
     "ensure_zero_padding=False, expected_m=0, b_is_constant=False)\n--\n\nWhat the torch op runs."},
    {"run_m_grouped_fp8_gemm_nt_masked", as_c_function(&run_masked), kFlags,
     "run_m_grouped_fp8_gemm_nt_masked(a, sfa, b, sfb, d, masked_m, expected_m=0, "
     "b_is_constant=False)\n--\n\n"
     "What the torch op runs."},
    {"run_m_grouped_fp8_gemm_nt_offsets", as_c_function(&run_offsets), kFlags,
     "run_m_grouped_fp8_gemm_nt_offsets(a, sfa, b, sfb, d, offsets, b_is_constant=False)\n--\n\n"
     "What the torch op runs."},
};

}  // namespace

void bind_grouped_ops(py::module_& m) {
    for (PyMethodDef& method : g_public) add_public(m, method);
    for (PyMethodDef& method : g_internal) add_internal(m, method);
    add_native_operator(kContiguous, &contiguous_kernel);
    add_native_operator(kMasked, &masked_kernel);
    add_native_operator(kOffsets, &offsets_kernel);
}

}  // namespace dgj::bindings
