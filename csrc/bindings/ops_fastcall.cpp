// The functions on the hot path, in the raw C API: what pybind11 adds to a call would be half of what a
// launch may cost.
//   fp8_gemm_nt        the public function; runs at once where the dispatcher has nothing to do, else the op
//   run_fp8_gemm_nt    what stands behind the torch op, for CPU and CUDA
//   run_cast_to_fp8    the same for the quantisation op
#include "bindings/bindings.hpp"
#include "bindings/call_args.hpp"
#include "bindings/torch_bridge.hpp"
#include "problem/fp8_gemm_call.hpp"
#include "runtime/runtime.hpp"

namespace dgj::bindings {
namespace {

constexpr const char* kGemm = "fp8_gemm_nt";
constexpr const char* kCast = "cast_to_fp8";

bool given(PyObject* value) { return value != nullptr && value != Py_None; }

// ---- running ------------------------------------------------------------------------------------

// Operands as Python gave them; nullptr for an absent c or bias.
struct GemmTensors {
    PyObject *a = nullptr, *sfa = nullptr, *b = nullptr, *sfb = nullptr, *d = nullptr, *c = nullptr,
             *bias = nullptr;
};

// Keeps the operands alive while another thread may run Python code (a list can lose its items meanwhile).
class Held {
public:
    explicit Held(const GemmTensors& t) : objects_{t.a, t.sfa, t.b, t.sfb, t.d, t.c, t.bias} {
        for (PyObject* object : objects_) Py_XINCREF(object);
    }
    ~Held() {
        for (PyObject* object : objects_) Py_XDECREF(object);
    }
    Held(const Held&) = delete;
    Held& operator=(const Held&) = delete;

private:
    std::array<PyObject*, 7> objects_;
};

PyObject* too_many_dims(const char* function, const char* name, const TensorView& view) {
    return PyErr_Format(PyExc_ValueError,
                        "%s: %s has %d dimensions; at most %d are possible. Reshape it with .view()",
                        function, name, view.ndim, TensorView::kMaxDims);
}

// Runs a validated call. The GIL is kept for a warm launch and given back for everything that takes longer.
PyObject* run_gemm(const GemmTensors& tensors, const Fp8GemmArgs& args) {
    try {
        const Fp8GemmCall call = validate_fp8_gemm(args, kGemm);
        if (call.m == 0 || call.n == 0) Py_RETURN_NONE;
        if (call.device.type == Device::Type::kCuda) {
            void* stream = nullptr;
            if (!current_stream(call.device, &stream)) return nullptr;
            if (runtime::fp8_gemm_nt_if_warm(call, stream)) Py_RETURN_NONE;
            const Held held(tensors);
            const py::gil_scoped_release release;
            runtime::fp8_gemm_nt(call, stream);
        } else {
            const Held held(tensors);
            const py::gil_scoped_release release;
            cpu::fp8_gemm_nt(call);
        }
        Py_RETURN_NONE;
    } catch (...) {
        set_python_error_from_current_exception();
        return nullptr;
    }
}

struct NamedTensor {
    const char* name;
    PyObject* object;
    TensorView* view;
};

std::array<NamedTensor, 7> named(const GemmTensors& t, Fp8GemmArgs& args) {
    return {{{"a[0]", t.a, &args.a},
             {"a[1]", t.sfa, &args.sfa},
             {"b[0]", t.b, &args.b},
             {"b[1]", t.sfb, &args.sfb},
             {"d", t.d, &args.d},
             {"c", t.c, &args.c},
             {"bias", t.bias, &args.bias}}};
}

// ---- the public function ------------------------------------------------------------------------

enum GemmParameter : std::size_t {
    kA,
    kB,
    kD,
    kC,
    kRecipe,
    kRecipeA,
    kRecipeB,
    kCompiledDims,
    kDisableUe8m0Cast,
    kAlpha,
    kEpilogue,
    kBias,
    kParameters
};

Signature<kParameters>& gemm_signature() {
    static Signature<kParameters> signature(kGemm,
                                            {"a", "b", "d", "c", "recipe", "recipe_a", "recipe_b",
                                             "compiled_dims", "disable_ue8m0_cast", "alpha", "epilogue",
                                             "bias"},
                                            kBias, kC);
    return signature;
}

bool attach(bool& failed) {
    // The first call: importing deep_gemm_jit.ops registers the ops and hands over torch's parts.
    PyObject* module = PyImport_ImportModule("deep_gemm_jit.ops");
    PyObject* done = module == nullptr ? nullptr : PyObject_CallMethod(module, "register", nullptr);
    failed = done == nullptr || !torch_attached();
    if (done != nullptr && !torch_attached())
        PyErr_SetString(PyExc_RuntimeError, "deep_gemm_jit: torch could not be attached");
    Py_XDECREF(done);
    Py_XDECREF(module);
    return !failed;
}

bool split_pair(PyObject* pair, const char* name, PyObject** values, PyObject** scales) {
    const bool sequence = PyTuple_Check(pair) != 0 || PyList_Check(pair) != 0;
    if (sequence && PySequence_Fast_GET_SIZE(pair) == 2) [[likely]] {
        *values = PySequence_Fast_GET_ITEM(pair, 0);
        *scales = PySequence_Fast_GET_ITEM(pair, 1);
        return true;
    }
    if (sequence)
        PyErr_Format(PyExc_ValueError,
                     "%s: %s has %zd items; it must be a tuple or list of two: (values, scales)", kGemm, name,
                     PySequence_Fast_GET_SIZE(pair));
    else
        PyErr_Format(PyExc_TypeError,
                     "%s: %s is a %s; it must be a tuple or list of two: (values, scales), as "
                     "per_token_cast_to_fp8 and per_block_cast_to_fp8 return",
                     kGemm, name, Py_TYPE(pair)->tp_name);
    return false;
}

template <std::size_t kSize>
bool check_recipe(PyObject* recipe, const char* name, std::array<long, kSize> supported, const char* text) {
    if (!given(recipe)) [[likely]]
        return true;
    if (PyTuple_Check(recipe) == 0 && PyList_Check(recipe) == 0) {
        PyErr_Format(PyExc_TypeError, "%s: %s is a %s; it must be None or a tuple of integers, %s", kGemm,
                     name, Py_TYPE(recipe)->tp_name, text);
        return false;
    }
    bool same = PySequence_Fast_GET_SIZE(recipe) == static_cast<Py_ssize_t>(kSize);
    for (std::size_t i = 0; same && i < kSize; ++i) {
        const long value = PyLong_AsLong(PySequence_Fast_GET_ITEM(recipe, static_cast<Py_ssize_t>(i)));
        if (value == -1 && PyErr_Occurred() != nullptr) return false;
        same = value == supported[i];
    }
    if (!same)
        PyErr_Format(PyExc_NotImplementedError,
                     "%s: %s is %R; supported: None or %s (float32 scales, one per 1x128 of a "
                     "and per 128x128 of b)",
                     kGemm, name, recipe, text);
    return same;
}

bool read_alpha(PyObject* alpha, double& value) {
    value = 1.0;
    if (!given(alpha)) [[likely]]
        return true;
    if (PyFloat_Check(alpha) == 0 && (PyLong_Check(alpha) == 0 || PyBool_Check(alpha) != 0)) {
        PyErr_Format(PyExc_TypeError,
                     "%s: alpha is a %s; it must be None or a Python float (for a tensor, alpha.item())",
                     kGemm, Py_TYPE(alpha)->tp_name);
        return false;
    }
    value = PyFloat_AsDouble(alpha);
    return value != -1.0 || PyErr_Occurred() == nullptr;
}

PyObject* call_torch_op(const GemmTensors& t, double alpha) {
    PyObject* alpha_object = PyFloat_FromDouble(alpha);
    if (alpha_object == nullptr) return nullptr;
    const auto or_none = [](PyObject* object) { return object == nullptr ? Py_None : object; };
    PyObject* args[] = {t.a, t.sfa, t.b, t.sfb, t.d, or_none(t.c), or_none(t.bias), alpha_object};
    const Held held(t);
    PyObject* result = PyObject_Vectorcall(fp8_gemm_nt_op(), args, 8, nullptr);
    Py_DECREF(alpha_object);
    return result;
}

// What keeps a call from running at once.
enum class Hurdle { kNone, kDispatcher, kError };

Hurdle read_operands(const GemmTensors& tensors, Fp8GemmArgs& args) {
    bool to_dispatcher = dispatcher_needed();
    for (const NamedTensor& t : named(tensors, args)) {
        if (t.object == nullptr) continue;
        const TensorKind kind = kind_of(t.object);
        if (kind == TensorKind::kOther) [[unlikely]] {
            PyErr_Format(PyExc_TypeError, "%s: %s is a %s; it must be a torch.Tensor", kGemm, t.name,
                         Py_TYPE(t.object)->tp_name);
            return Hurdle::kError;
        }
        to_dispatcher = to_dispatcher || kind == TensorKind::kSubclass;
        if (to_dispatcher) continue;
        const ReadResult read = read_tensor(t.object, *t.view);
        if (read == ReadResult::kTooMany) [[unlikely]] {
            too_many_dims(kGemm, t.name, *t.view);
            return Hurdle::kError;
        }
        if (read == ReadResult::kFailed) PyErr_Clear();
        // torch cannot negate e4m3, so it has no meaning for a negated view of it either: not worth a call.
        to_dispatcher = read != ReadResult::kOk ||
                        (t.view->dtype != DType::kE4M3 && is_lazy_negation(t.object, t.view == &args.sfb));
    }
    return to_dispatcher || wants_grad(tensors.d) ? Hurdle::kDispatcher : Hurdle::kNone;
}

PyObject* fp8_gemm_nt(PyObject* /*module*/, PyObject* const* args, Py_ssize_t count, PyObject* keywords) {
    std::array<PyObject*, kParameters> p;
    if (!gemm_signature().parse(args, count, keywords, p)) return nullptr;
    GemmTensors t;
    if (!split_pair(p[kA], "a", &t.a, &t.sfa) || !split_pair(p[kB], "b", &t.b, &t.sfb)) return nullptr;
    t.d = p[kD];
    if (given(p[kC])) t.c = p[kC];
    if (given(p[kBias])) t.bias = p[kBias];
    double alpha = 1.0;
    if (!check_recipe<3>(p[kRecipe], "recipe", {1, 128, 128}, "(1, 128, 128)") ||
        !check_recipe<2>(p[kRecipeA], "recipe_a", {1, 128}, "(1, 128)") ||
        !check_recipe<2>(p[kRecipeB], "recipe_b", {128, 128}, "(128, 128)") || !read_alpha(p[kAlpha], alpha))
        return nullptr;
    if (given(p[kEpilogue])) [[unlikely]]
        return PyErr_Format(PyExc_NotImplementedError,
                            "%s: epilogue is %R; supported: None. Use alpha, bias and c", kGemm,
                            p[kEpilogue]);
    bool failed = false;
    if (!torch_attached() && !attach(failed)) [[unlikely]]
        return nullptr;

    Fp8GemmArgs view;
    view.alpha = static_cast<float>(alpha);
    switch (read_operands(t, view)) {
        case Hurdle::kNone: return run_gemm(t, view);
        case Hurdle::kDispatcher: return call_torch_op(t, alpha);
        case Hurdle::kError: break;
    }
    return nullptr;
}

// ---- behind the torch ops -----------------------------------------------------------------------

bool refuse_grad(PyObject* output, const char* function, const char* name) {
    if (!wants_grad(output)) [[likely]]
        return true;
    PyErr_Format(PyExc_RuntimeError,
                 "%s: %s requires grad, but the operation is forward only and writes it in place. Pass "
                 "a tensor that does not require grad, or call under torch.no_grad()",
                 function, name);
    return false;
}

bool read_for_op(const char* function, const NamedTensor& t) {
    switch (read_tensor(t.object, *t.view)) {
        case ReadResult::kOk:
        case ReadResult::kNoData: return true;  // validation names the tensor that has no memory
        case ReadResult::kTooMany: too_many_dims(function, t.name, *t.view); return false;
        case ReadResult::kFailed: return false;
    }
    return false;
}

PyObject* run_fp8_gemm_nt(PyObject* /*module*/, PyObject* const* args, Py_ssize_t count, PyObject* keywords) {
    static Signature<8> signature("run_fp8_gemm_nt", {"a", "sfa", "b", "sfb", "d", "c", "bias", "alpha"}, 8,
                                  5);
    std::array<PyObject*, 8> p;
    if (!signature.parse(args, count, keywords, p)) return nullptr;
    bool failed = false;
    if (!torch_attached() && !attach(failed)) return nullptr;
    const GemmTensors t{
        p[0], p[1], p[2], p[3], p[4], given(p[5]) ? p[5] : nullptr, given(p[6]) ? p[6] : nullptr};
    double alpha = 1.0;
    if (!read_alpha(p[7], alpha) || !refuse_grad(t.d, kGemm, "d")) return nullptr;
    Fp8GemmArgs view;
    view.alpha = static_cast<float>(alpha);
    for (const NamedTensor& tensor : named(t, view))
        if (tensor.object != nullptr && !read_for_op(kGemm, tensor)) return nullptr;
    return run_gemm(t, view);
}

// One given plan on a GPU: tests run every candidate, the tuner times them.
PyObject* launch_with_plan(PyObject* /*module*/, PyObject* const* args, Py_ssize_t count,
                           PyObject* keywords) {
    static Signature<9> signature("launch_with_plan",
                                  {"plan", "a", "sfa", "b", "sfb", "d", "c", "bias", "alpha"}, 9, 6);
    std::array<PyObject*, 9> p;
    if (!signature.parse(args, count, keywords, p)) return nullptr;
    bool failed = false;
    if (!torch_attached() && !attach(failed)) return nullptr;
    const GemmTensors t{
        p[1], p[2], p[3], p[4], p[5], given(p[6]) ? p[6] : nullptr, given(p[7]) ? p[7] : nullptr};
    double alpha = 1.0;
    if (!read_alpha(p[8], alpha) || !refuse_grad(t.d, "launch_with_plan", "d")) return nullptr;
    Fp8GemmArgs view;
    view.alpha = static_cast<float>(alpha);
    for (const NamedTensor& tensor : named(t, view))
        if (tensor.object != nullptr && !read_for_op("launch_with_plan", tensor)) return nullptr;
    try {
        const KernelPlan plan = py::cast<KernelPlan>(py::handle(p[0]));
        const Fp8GemmCall call = validate_fp8_gemm(view, "launch_with_plan");
        void* stream = nullptr;
        if (call.device.type == Device::Type::kCuda && !current_stream(call.device, &stream)) return nullptr;
        const Held held(t);
        const py::gil_scoped_release release;
        runtime::fp8_gemm_nt_with_plan(call, plan, stream);
    } catch (...) {
        set_python_error_from_current_exception();
        return nullptr;
    }
    Py_RETURN_NONE;
}

cpu::CastCall cast_call(const TensorView& x, const TensorView& q, const TensorView& sf, long gran_rows,
                        long gran_k, bool use_ue8m0) {
    if (x.dtype != DType::kBF16 && x.dtype != DType::kF16 && x.dtype != DType::kF32)
        fail(ErrorKind::kType, "{}: x has dtype {}; allowed: bfloat16, float16, float32", kCast,
             name_of(x.dtype));
    if (q.dtype != DType::kE4M3)
        fail(ErrorKind::kType, "{}: q has dtype {}; it must be float8_e4m3fn", kCast, name_of(q.dtype));
    const bool packed = sf.dtype == DType::kI32;  // four UE8M0 exponents a word
    if (sf.dtype != DType::kF32 && !packed)
        fail(ErrorKind::kType, "{}: sf has dtype {}; it must be float32, or int32 for packed UE8M0", kCast,
             name_of(sf.dtype));
    if (packed && (!use_ue8m0 || gran_rows != 1))
        fail(ErrorKind::kValue, "{}: sf is int32 (packed UE8M0), which needs use_ue8m0 and one scale per row",
             kCast);
    if (q.device != x.device || sf.device != x.device)
        fail(ErrorKind::kType, "{}: x, q and sf must be on one device; move them with .to()", kCast);
    if (x.device.type == Device::Type::kOther)
        fail(ErrorKind::kNotImplemented, "{}: x is neither on a CPU nor on a CUDA device; move it with .to()",
             kCast);
    if (x.ndim != 2 || q.ndim != 2 || sf.ndim != 2)
        fail(ErrorKind::kValue,
             "{}: x, q and sf have {}, {} and {} dimensions; each must have 2. Use .view()", kCast, x.ndim,
             q.ndim, sf.ndim);
    if ((gran_rows != 1 && gran_rows != gran_k) || (gran_k != 32 && gran_k != 64 && gran_k != 128))
        fail(ErrorKind::kNotImplemented,
             "{}: one scale per {}x{}; supported: 1 row by 32, 64 or 128, or a square of "
             "32, 64 or 128",
             kCast, gran_rows, gran_k);
    const std::int64_t rows = x.shape[0], cols = x.shape[1];
    if (q.shape[0] != rows || q.shape[1] != cols)
        fail(ErrorKind::kValue, "{}: q has shape {}; it must be that of x, {}", kCast, shape_text(q),
             shape_text(x));
    const std::int64_t sf_rows = (rows + gran_rows - 1) / gran_rows,
                       per_column = packed ? gran_k * 4 : gran_k;
    const std::int64_t blocks = (cols + per_column - 1) / per_column;
    if (sf.shape[0] != sf_rows || sf.shape[1] != blocks)
        fail(ErrorKind::kValue, "{}: sf has shape {}; it must be [{}, {}]", kCast, shape_text(sf), sf_rows,
             blocks);
    const auto check_rows = [&](const TensorView& t, const char* name) {
        const bool unit = t.shape[1] <= 1 || t.stride[1] == 1;
        if (!unit || (t.shape[0] > 1 && t.stride[0] < 0))
            fail(ErrorKind::kValue, "{}: {} has strides {}; the last must be 1. Pass {}.contiguous()", kCast,
                 name, stride_text(t), name);
    };
    check_rows(x, "x");
    check_rows(q, "q");
    if (rows > 1 && q.stride[0] < cols)
        fail(ErrorKind::kValue, "{}: the rows of q overlap (strides {})", kCast, stride_text(q));
    return {.x = x.data,
            .x_dtype = x.dtype,
            .rows = rows,
            .cols = cols,
            .ldx = rows > 1 ? x.stride[0] : cols,
            .ldq = rows > 1 ? q.stride[0] : cols,
            .q = q.data,
            .sf = static_cast<float*>(sf.data),
            .sf_stride_row = sf.stride[0],
            .sf_stride_block = sf.stride[1],
            .gran_rows = gran_rows,
            .gran_k = gran_k,
            .use_ue8m0 = use_ue8m0,
            .packed_ue8m0 = packed};
}

PyObject* run_cast_to_fp8(PyObject* /*module*/, PyObject* const* args, Py_ssize_t count, PyObject* keywords) {
    static Signature<6> signature("run_cast_to_fp8", {"x", "q", "sf", "gran_rows", "gran_k", "use_ue8m0"}, 6,
                                  6);
    std::array<PyObject*, 6> p;
    if (!signature.parse(args, count, keywords, p)) return nullptr;
    bool failed = false;
    if (!torch_attached() && !attach(failed)) return nullptr;
    if (!refuse_grad(p[1], kCast, "q") || !refuse_grad(p[2], kCast, "sf")) return nullptr;
    TensorView x, q, sf;
    if (!read_for_op(kCast, {"x", p[0], &x}) || !read_for_op(kCast, {"q", p[1], &q}) ||
        !read_for_op(kCast, {"sf", p[2], &sf}))
        return nullptr;
    const long gran_rows = PyLong_AsLong(p[3]), gran_k = PyLong_AsLong(p[4]);
    const int use_ue8m0 = PyObject_IsTrue(p[5]);
    if (PyErr_Occurred() != nullptr) return nullptr;
    try {
        const cpu::CastCall call = cast_call(x, q, sf, gran_rows, gran_k, use_ue8m0 != 0);
        if (call.rows == 0 || call.cols == 0) Py_RETURN_NONE;
        void* stream = nullptr;
        const bool cuda = x.device.type == Device::Type::kCuda;
        if (cuda && !current_stream(x.device, &stream)) return nullptr;
        const Held held({.a = p[0], .b = p[1], .d = p[2]});
        const py::gil_scoped_release release;
        if (cuda) runtime::cast_to_fp8(call, x.device, stream);
        else cpu::cast_to_fp8(call);
        Py_RETURN_NONE;
    } catch (...) {
        set_python_error_from_current_exception();
        return nullptr;
    }
}

// ---- method table -------------------------------------------------------------------------------

constexpr const char* kGemmDoc =
    "fp8_gemm_nt(a, b, d, c=None, recipe=None, recipe_a=None, recipe_b=None, compiled_dims=\"nk\", "
    "disable_ue8m0_cast=False, alpha=None, epilogue=None, *, bias=None)\n--\n"
    R"(
D = alpha * (A @ B.T) + bias + C, with FP8 operands and block scales, computed in FP32 and rounded once.

a: (values, scales) as a tuple or list. Values: float8_e4m3fn [M, K]. Scales: float32 [M, ceil(K/128)], one
   of the two strides 1, any other stride.
b: (values, scales). Values: float8_e4m3fn [N, K]. Scales: float32 [ceil(N/128), ceil(K/128)], any strides.
d: bfloat16, float16 or float32 [M, N]; written in place.
c: None, or a tensor of d's dtype and shape; may be d itself.
recipe, recipe_a, recipe_b: None, or (1, 128, 128), (1, 128) and (128, 128): what is supported.
compiled_dims, disable_ue8m0_cast: accepted for compatibility, without effect here.
alpha: None (1.0) or a Python float.
epilogue: None.
bias: None or [N], float32 or d's dtype.

N is a multiple of 8, K of 16; M is any, and M == 0 or N == 0 returns at once. K == 0 gives bias + C, or
zeros. Matrices have last stride 1; base addresses and row pitches are multiples of 16 bytes. All tensors are
on one device, CUDA (Hopper) or CPU; on CUDA the work goes to torch's current stream of that device. Forward
only: d gets no grad history.

Returns None. The first call for a shape compiles a kernel (or finds it on disk); later calls only launch it.

Raises TypeError (kinds, dtypes, mixed devices), ValueError (shapes, strides, alignment, overlap),
NotImplementedError (a recipe, device or architecture without kernels: fall back on it), CompileError,
JitForbiddenError, RuntimeError (driver).)";

template <class Function>
PyCFunction as_c_function(Function* function) {
    return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

PyMethodDef g_public_methods[] = {
    {kGemm, as_c_function(&fp8_gemm_nt), METH_FASTCALL | METH_KEYWORDS, kGemmDoc},
};
PyMethodDef g_internal_methods[] = {
    {"launch_with_plan", as_c_function(&launch_with_plan), METH_FASTCALL | METH_KEYWORDS,
     "launch_with_plan(plan, a, sfa, b, sfb, d, c=None, bias=None, alpha=1.0)\n--\n\n"
     "fp8_gemm_nt on a GPU with this plan instead of the planner's choice."},
    {"run_fp8_gemm_nt", as_c_function(&run_fp8_gemm_nt), METH_FASTCALL | METH_KEYWORDS,
     "run_fp8_gemm_nt(a, sfa, b, sfb, d, c=None, bias=None, alpha=1.0)\n--\n\nWhat the torch op runs."},
    {"run_cast_to_fp8", as_c_function(&run_cast_to_fp8), METH_FASTCALL | METH_KEYWORDS,
     "run_cast_to_fp8(x, q, sf, gran_rows, gran_k, use_ue8m0)\n--\n\nWhat the torch op runs."},
    {"attach_torch", &attach_torch, METH_O, "attach_torch(parts)\n--\n\nCalled once by deep_gemm_jit.ops."},
};

void add_method(py::module_& m, PyMethodDef& method, const char* module_name) {
    const py::str name(module_name);
    PyObject* function = PyCFunction_NewEx(&method, nullptr, name.ptr());
    if (function == nullptr) throw py::error_already_set();
    m.add_object(method.ml_name, py::reinterpret_steal<py::object>(function));
}

}  // namespace

void bind_ops(py::module_& m) {
    for (PyMethodDef& method : g_public_methods) add_method(m, method, "deep_gemm_jit");
    for (PyMethodDef& method : g_internal_methods) add_method(m, method, "deep_gemm_jit._core");
    m.def("torch_attached", &torch_attached);
}

}  // namespace dgj::bindings
