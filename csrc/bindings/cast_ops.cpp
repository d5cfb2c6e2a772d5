// Quantisation: what stands behind the torch op cast_to_fp8.
#include "bindings/call_args.hpp"
#include "bindings/op_support.hpp"
#include "runtime/runtime.hpp"

namespace dgj::bindings {
namespace {

constexpr const char* kCast = "cast_to_fp8";

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
    if (!ensure_attached()) return nullptr;
    if (!refuse_grad(p[1], kCast, "q") || !refuse_grad(p[2], kCast, "sf")) return nullptr;
    TensorView x, q, sf;
    const NamedTensor tensors[] = {{"x", p[0], &x}, {"q", p[1], &q}, {"sf", p[2], &sf}};
    if (!read_for_op(kCast, tensors)) return nullptr;
    const long gran_rows = PyLong_AsLong(p[3]), gran_k = PyLong_AsLong(p[4]);
    const int use_ue8m0 = PyObject_IsTrue(p[5]);
    if (PyErr_Occurred() != nullptr) return nullptr;
    try {
        const cpu::CastCall call = cast_call(x, q, sf, gran_rows, gran_k, use_ue8m0 != 0);
        if (call.rows == 0 || call.cols == 0) Py_RETURN_NONE;
        void* stream = nullptr;
        const bool cuda = x.device.type == Device::Type::kCuda;
        if (cuda && !current_stream(x.device, &stream)) return nullptr;
        const py::gil_scoped_release release;
        if (cuda) runtime::cast_to_fp8(call, x.device, stream);
        else cpu::cast_to_fp8(call);
        Py_RETURN_NONE;
    } catch (...) {
        set_python_error_from_current_exception();
        return nullptr;
    }
}

PyMethodDef g_run_cast = {
    "run_cast_to_fp8", as_c_function(&run_cast_to_fp8), METH_FASTCALL | METH_KEYWORDS,
    "run_cast_to_fp8(x, q, sf, gran_rows, gran_k, use_ue8m0)\n--\n\nWhat the torch op runs."};

}  // namespace

void bind_cast_ops(py::module_& m) { add_internal(m, g_run_cast); }

}  // namespace dgj::bindings
