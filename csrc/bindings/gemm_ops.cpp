// fp8_gemm_nt: the public function, what stands behind its torch op, and a launch with a given plan.
#include <limits>

#include "bindings/call_args.hpp"
#include "bindings/native_ops.hpp"
#include "bindings/op_support.hpp"
#include "problem/fp8_gemm_call.hpp"
#include "runtime/runtime.hpp"

namespace dgj::bindings {
namespace {

constexpr const char* kGemm = "fp8_gemm_nt";

// Operands as Python (PyObject*) or torch (NativeTensor) gave them; nullptr for an absent c or bias.
template <class Tensor>
struct Operands {
    Tensor a{}, sfa{}, b{}, sfb{}, d{}, c{}, bias{};
};
using GemmTensors = Operands<PyObject*>;

template <class Tensor>
std::array<Named<Tensor>, 7> named(const Operands<Tensor>& t, Fp8GemmArgs& args) {
    return {{{"a[0]", t.a, &args.a},
             {"a[1]", t.sfa, &args.sfa},
             {"b[0]", t.b, &args.b},
             {"b[1]", t.sfb, &args.sfb},
             {"d", t.d, &args.d},
             {"c", t.c, &args.c},
             {"bias", t.bias, &args.bias}}};
}

// The GIL, where the caller holds it, is kept for a warm launch and given back for everything that takes
// longer.
void compute(const Fp8GemmArgs& args) {
    const Fp8GemmCall call = validate_fp8_gemm(args, kGemm);
    if (call.m == 0 || call.n == 0) return;
    if (call.device.type == Device::Type::kCuda) {
        void* stream = nullptr;
        if (!current_stream(call.device, &stream)) throw py::error_already_set();
        if (runtime::fp8_gemm_nt_if_warm(call, stream)) return;
        const WithoutGil released;
        runtime::fp8_gemm_nt(call, stream);
    } else {
        const WithoutGil released;
        cpu::fp8_gemm_nt(call);
    }
}

PyObject* run_gemm(const Fp8GemmArgs& args) {
    try {
        compute(args);
        Py_RETURN_NONE;
    } catch (...) {
        set_python_error_from_current_exception();
        return nullptr;
    }
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
    if (value == -1.0 && PyErr_Occurred() != nullptr) {
        if (PyErr_ExceptionMatches(PyExc_OverflowError) == 0) return false;
        PyErr_Clear();
        value = std::numeric_limits<double>::max();  // refused below: float32 does not hold it either
    }
    try {
        alpha_in_float32(value, kGemm);
        return true;
    } catch (const Error& error) {
        set_python_error(error);
        return false;
    }
}

PyObject* call_torch_op(const GemmTensors& t, double alpha) {
    PyObject* alpha_object = PyFloat_FromDouble(alpha);
    if (alpha_object == nullptr) return nullptr;
    PyObject* args[] = {t.a, t.sfa, t.b, t.sfb, t.d, or_none(t.c), or_none(t.bias), alpha_object};
    PyObject* result = PyObject_Vectorcall(torch_op(TorchOp::kFp8GemmNt), args, 8, nullptr);
    Py_DECREF(alpha_object);
    return result;
}

PyObject* fp8_gemm_nt(PyObject* /*module*/, PyObject* const* args, Py_ssize_t count, PyObject* keywords) {
    std::array<PyObject*, kParameters> p;
    if (!gemm_signature().parse(args, count, keywords, p)) return nullptr;
    Pair a, b;
    if (!split_pair(kGemm, p[kA], "a", a) || !split_pair(kGemm, p[kB], "b", b)) return nullptr;
    GemmTensors t{a.values, a.scales, b.values, b.scales, p[kD]};
    if (given(p[kC])) t.c = p[kC];
    if (given(p[kBias])) t.bias = p[kBias];
    double alpha = 1.0;
    if (!check_recipes(kGemm, p[kRecipe], p[kRecipeA], p[kRecipeB]) || !read_alpha(p[kAlpha], alpha))
        return nullptr;
    if (given(p[kEpilogue])) [[unlikely]]
        return PyErr_Format(PyExc_NotImplementedError,
                            "%s: epilogue is %R; supported: None. Use alpha, bias and c", kGemm,
                            p[kEpilogue]);
    if (!ensure_attached()) [[unlikely]]
        return nullptr;

    Fp8GemmArgs view;
    view.alpha = static_cast<float>(alpha);
    const auto operands = named(t, view);
    switch (read_operands(kGemm, operands, t.d)) {
        case Hurdle::kNone: return written(run_gemm(view), t.d);
        case Hurdle::kDispatcher: return call_torch_op(t, alpha);
        case Hurdle::kError: break;
    }
    return nullptr;
}

// ---- behind the torch op ------------------------------------------------------------------------

void fp8_gemm_nt_kernel(torch_abi::Value* stack, std::uint64_t /*inputs*/, std::uint64_t /*outputs*/) {
    const TensorArguments<5, 2> t(stack);
    Fp8GemmArgs view;
    const auto operands = named<NativeTensor>({t[0], t[1], t[2], t[3], t[4], t[5], t[6]}, view);
    run_native(kGemm, operands, t[4], [&] {
        view.alpha = alpha_in_float32(torch_abi::number(stack[7]), kGemm);
        compute(view);
    });
}

PyObject* run_fp8_gemm_nt(PyObject* /*module*/, PyObject* const* args, Py_ssize_t count, PyObject* keywords) {
    static Signature<8> signature("run_fp8_gemm_nt", {"a", "sfa", "b", "sfb", "d", "c", "bias", "alpha"}, 8,
                                  5);
    std::array<PyObject*, 8> p;
    if (!signature.parse(args, count, keywords, p)) return nullptr;
    if (!ensure_attached()) return nullptr;
    const GemmTensors t{
        p[0], p[1], p[2], p[3], p[4], given(p[5]) ? p[5] : nullptr, given(p[6]) ? p[6] : nullptr};
    double alpha = 1.0;
    if (!read_alpha(p[7], alpha) || !refuse_grad(t.d, kGemm, "d")) return nullptr;
    Fp8GemmArgs view;
    view.alpha = static_cast<float>(alpha);
    const auto operands = named(t, view);
    return read_for_op(kGemm, operands) ? written(run_gemm(view), t.d) : nullptr;
}

// One given plan on a GPU: tests run every candidate, the tuner times them.
PyObject* launch_with_plan(PyObject* /*module*/, PyObject* const* args, Py_ssize_t count,
                           PyObject* keywords) {
    static Signature<9> signature("launch_with_plan",
                                  {"plan", "a", "sfa", "b", "sfb", "d", "c", "bias", "alpha"}, 9, 6);
    std::array<PyObject*, 9> p;
    if (!signature.parse(args, count, keywords, p)) return nullptr;
    if (!py::isinstance<KernelPlan>(py::handle(p[0])))
        return PyErr_Format(PyExc_TypeError, "launch_with_plan: plan is a %s; it must be a KernelPlan",
                            Py_TYPE(p[0])->tp_name);
    if (!ensure_attached()) return nullptr;
    const GemmTensors t{
        p[1], p[2], p[3], p[4], p[5], given(p[6]) ? p[6] : nullptr, given(p[7]) ? p[7] : nullptr};
    double alpha = 1.0;
    if (!read_alpha(p[8], alpha) || !refuse_grad(t.d, "launch_with_plan", "d")) return nullptr;
    Fp8GemmArgs view;
    view.alpha = static_cast<float>(alpha);
    const auto operands = named(t, view);
    if (!read_for_op("launch_with_plan", operands)) return nullptr;
    try {
        const KernelPlan plan = py::cast<KernelPlan>(py::handle(p[0]));
        const Fp8GemmCall call = validate_fp8_gemm(view, "launch_with_plan");
        void* stream = nullptr;
        if (call.device.type == Device::Type::kCuda && !current_stream(call.device, &stream)) return nullptr;
        const py::gil_scoped_release release;
        runtime::fp8_gemm_nt_with_plan(call, plan, stream);
    } catch (...) {
        set_python_error_from_current_exception();
        return nullptr;
    }
    return written(Py_NewRef(Py_None), t.d);
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

N is a multiple of 8, K of 16; M is any up to 2^31 - 1, and M == 0 or N == 0 returns at once. K == 0 gives
bias + C, or zeros. Matrices have last stride 1; base addresses and row pitches are multiples of 16 bytes. All
tensors are on one device, CUDA (Hopper) or CPU; on CUDA the work goes to torch's current stream of that
device. Forward only: d gets no grad history.

Returns None. The first call for a shape compiles a kernel (or finds it on disk); later calls only launch it.

Raises TypeError (kinds, dtypes, mixed devices), ValueError (shapes, strides, alignment, overlap),
NotImplementedError (a recipe, device or architecture without kernels: fall back on it), CompileError,
JitForbiddenError, RuntimeError (driver).)";

PyMethodDef g_public = {kGemm, as_c_function(&fp8_gemm_nt), METH_FASTCALL | METH_KEYWORDS, kGemmDoc};
PyMethodDef g_internal[] = {
    {"launch_with_plan", as_c_function(&launch_with_plan), METH_FASTCALL | METH_KEYWORDS,
     "launch_with_plan(plan, a, sfa, b, sfb, d, c=None, bias=None, alpha=1.0)\n--\n\n"
     "fp8_gemm_nt on a GPU with this plan instead of the planner's choice."},
    {"run_fp8_gemm_nt", as_c_function(&run_fp8_gemm_nt), METH_FASTCALL | METH_KEYWORDS,
     "run_fp8_gemm_nt(a, sfa, b, sfb, d, c=None, bias=None, alpha=1.0)\n--\n\nWhat the torch op runs."},
};

}  // namespace

void bind_gemm_ops(py::module_& m) {
    add_public(m, g_public);
    for (PyMethodDef& method : g_internal) add_internal(m, method);
    add_native_operator(kGemm, &fp8_gemm_nt_kernel);
}

}  // namespace dgj::bindings
