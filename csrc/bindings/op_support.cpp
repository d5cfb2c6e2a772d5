#include "bindings/op_support.hpp"

#include <unistd.h>

#include <limits>

namespace dgj::bindings {
namespace {

bool attach() {
    PyObject* module = PyImport_ImportModule("deep_gemm_jit.ops");
    PyObject* done = module == nullptr ? nullptr : PyObject_CallMethod(module, "register", nullptr);
    const bool attached = done != nullptr && torch_attached();
    if (done != nullptr && !attached)
        PyErr_SetString(PyExc_RuntimeError, "deep_gemm_jit: torch could not be attached");
    Py_XDECREF(done);
    Py_XDECREF(module);
    return attached;
}

bool check_recipe(const char* function, PyObject* recipe, const char* name, std::span<const long> supported,
                  const char* text) {
    if (PyTuple_Check(recipe) == 0 && PyList_Check(recipe) == 0) {
        PyErr_Format(PyExc_TypeError, "%s: %s is a %s; it must be None or a tuple of integers, %s", function,
                     name, Py_TYPE(recipe)->tp_name, text);
        return false;
    }
    const auto size = static_cast<Py_ssize_t>(supported.size());
    bool same = PySequence_Fast_GET_SIZE(recipe) == size;
    for (std::size_t i = 0; same && i < supported.size(); ++i) {
        PyObject* item = Py_NewRef(PySequence_Fast_GET_ITEM(recipe, static_cast<Py_ssize_t>(i)));
        int overflow = 0;  // no error: that is no supported value either
        const long value = PyLong_AsLongAndOverflow(item, &overflow);  // its __index__ may change the list
        Py_DECREF(item);
        if (value == -1 && PyErr_Occurred() != nullptr) {
            if (PyErr_ExceptionMatches(PyExc_TypeError) != 0)
                PyErr_Format(PyExc_TypeError, "%s: %s is %R; it must be None or a tuple of integers, %s",
                             function, name, recipe, text);
            return false;
        }
        same = value == supported[i] && PySequence_Fast_GET_SIZE(recipe) == size;
    }
    if (!same)
        PyErr_Format(PyExc_NotImplementedError,
                     "%s: %s is %R; supported: None or %s (float32 scales, one per 1x128 of a "
                     "and per 128x128 of b)",
                     function, name, recipe, text);
    return same;
}

constexpr long kRecipe[] = {1, 128, 128}, kRecipeA[] = {1, 128}, kRecipeB[] = {128, 128};

void add_method(py::module_& m, PyMethodDef& method, const char* module_name) {
    const py::str name(module_name);
    PyObject* function = PyCFunction_NewEx(&method, nullptr, name.ptr());
    if (function == nullptr) throw py::error_already_set();
    m.add_object(method.ml_name, py::reinterpret_steal<py::object>(function));
}

PyMethodDef g_attach = {"attach_torch", &attach_torch, METH_O,
                        "attach_torch(parts)\n--\n\nCalled once by deep_gemm_jit.ops."};
PyMethodDef g_finish = {"finish_attaching", &finish_attaching, METH_NOARGS,
                        "finish_attaching()\n--\n\nCalled once by deep_gemm_jit.ops, at the end."};
PyMethodDef g_native = {
    "native_torch", &native_torch, METH_NOARGS,
    "native_torch()\n--\n\nWhat a direct call asks torch's C++ functions, without Python."};

// After a conversion that failed: which argument it was, with what Python or torch said of it as the cause.
// What is not about the value (an interrupt, no memory, a caller's own exception) stays. Returns false.
bool explain(const char* format, const char* function, const char* name, PyObject* value) {
    PyObject* const raised = PyErr_Occurred();
    if (raised != PyExc_TypeError && raised != PyExc_ValueError && raised != PyExc_RuntimeError) return false;
    PyObject *type = nullptr, *cause = nullptr, *trace = nullptr;
    PyErr_Fetch(&type, &cause, &trace);
    PyErr_NormalizeException(&type, &cause, &trace);
    if (trace != nullptr) PyException_SetTraceback(cause, trace);
    Py_DECREF(type);
    Py_XDECREF(trace);
    PyErr_Format(PyExc_TypeError, format, function, name, Py_TYPE(value)->tp_name);
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    PyException_SetCause(value, cause);  // takes the reference
    PyErr_Restore(type, value, trace);
    return false;
}

}  // namespace

bool split_pair(const char* function, PyObject* given, const char* name, Pair& pair) {
    const bool sequence = PyTuple_Check(given) != 0 || PyList_Check(given) != 0;
    if (sequence && PySequence_Fast_GET_SIZE(given) == 2) [[likely]] {
        pair.values = Py_NewRef(PySequence_Fast_GET_ITEM(given, 0));
        pair.scales = Py_NewRef(PySequence_Fast_GET_ITEM(given, 1));
        return true;
    }
    if (sequence)
        PyErr_Format(PyExc_ValueError,
                     "%s: %s has %zd items; it must be a tuple or list of two: (values, scales)", function,
                     name, PySequence_Fast_GET_SIZE(given));
    else
        PyErr_Format(PyExc_TypeError,
                     "%s: %s is a %s; it must be a tuple or list of two: (values, scales), as "
                     "per_token_cast_to_fp8 and per_block_cast_to_fp8 return",
                     function, name, Py_TYPE(given)->tp_name);
    return false;
}

bool check_given_recipes(const char* function, PyObject* recipe, PyObject* recipe_a, PyObject* recipe_b) {
    return (!given(recipe) || check_recipe(function, recipe, "recipe", kRecipe, "(1, 128, 128)")) &&
           (!given(recipe_a) || check_recipe(function, recipe_a, "recipe_a", kRecipeA, "(1, 128)")) &&
           (!given(recipe_b) || check_recipe(function, recipe_b, "recipe_b", kRecipeB, "(128, 128)"));
}

bool read_count(const char* function, const char* name, PyObject* value, std::int64_t& count) {
    count = 0;
    if (!given(value)) return true;
    const bool is_int = PyLong_CheckExact(value) != 0;
    if (!is_int && PyIndex_Check(value) == 0) {
        PyErr_Format(PyExc_TypeError, "%s: %s is a %s; it must be None or an integer", function, name,
                     Py_TYPE(value)->tp_name);
        return false;
    }
    PyObject* integer = is_int ? Py_NewRef(value) : PyNumber_Index(value);
    if (integer == nullptr)  // a tensor of several elements, say
        return explain("%s: %s is a %s that is no integer; it must be None or an integer", function, name,
                       value);
    int overflow = 0;
    const long long found = PyLong_AsLongLongAndOverflow(integer, &overflow);
    Py_DECREF(integer);
    count = overflow > 0 ? std::numeric_limits<std::int64_t>::max() : found;
    return true;
}

bool read_flag(const char* function, const char* name, PyObject* value, bool& flag) {
    if (value == nullptr) return true;
    const int truth = PyObject_IsTrue(value);
    flag = truth > 0;
    return truth >= 0 ||
           explain("%s: %s is a %s that is neither true nor false; pass a bool", function, name, value);
}

void stop_here() noexcept {
    for (;;) ::pause();
}

bool ensure_attached() { return torch_attached() || attach(); }

Hurdle read_operands(const char* function, std::span<const NamedTensor> tensors, PyObject* output) {
    bool to_dispatcher = dispatcher_needed();
    for (const NamedTensor& t : tensors) {
        if (t.object == nullptr) continue;
        DirectRead found = DirectRead::kDispatcher;
        if (!to_dispatcher) [[likely]]
            found = read_directly(t.object, *t.view);
        else if (!is_tensor(t.object)) found = DirectRead::kOther;
        if (found == DirectRead::kRead) [[likely]]
            continue;
        to_dispatcher = true;
        if (found == DirectRead::kOther) {
            PyErr_Format(PyExc_TypeError, "%s: %s is a %s; it must be a torch.Tensor", function, t.name,
                         Py_TYPE(t.object)->tp_name);
            return Hurdle::kError;
        }
        if (found == DirectRead::kTooMany) {
            set_python_error(too_many_dims(function, t.name, *t.view));
            return Hurdle::kError;
        }
    }
    return to_dispatcher || wants_grad(output) ? Hurdle::kDispatcher : Hurdle::kNone;
}

bool read_for_op(const char* function, std::span<const NamedTensor> tensors) {
    for (const NamedTensor& t : tensors) {
        if (t.object == nullptr) continue;
        const ReadResult read = read_tensor(t.object, *t.view);
        if (read == ReadResult::kTooMany) set_python_error(too_many_dims(function, t.name, *t.view));
        // Without data: validation names the tensor that has no memory.
        if (read != ReadResult::kOk && read != ReadResult::kNoData) return false;
    }
    return true;
}

bool refuse_grad(PyObject* output, const char* function, const char* name) {
    if (!wants_grad(output)) [[likely]]
        return true;
    set_python_error(grad_refused(function, name));
    return false;
}

Error too_many_dims(const char* function, const char* name, const TensorView& view) {
    return {ErrorKind::kValue,
            fmt::format("{}: {} has {} dimensions; at most {} are possible. Reshape it with .view()",
                        function, name, view.ndim, TensorView::kMaxDims)};
}

Error grad_refused(const char* function, const char* name) {
    return {
        ErrorKind::kRuntime,
        fmt::format("{}: {} requires grad, but the operation is forward only and writes it in place. Pass "
                    "a tensor that does not require grad, or call under torch.no_grad()",
                    function, name)};
}

void add_public(py::module_& m, PyMethodDef& method) { add_method(m, method, "deep_gemm_jit"); }
void add_internal(py::module_& m, PyMethodDef& method) { add_method(m, method, "deep_gemm_jit._core"); }

void bind_torch(py::module_& m) {
    add_internal(m, g_attach);
    add_internal(m, g_finish);
    add_internal(m, g_native);
    m.def("torch_attached", &torch_attached);
}

}  // namespace dgj::bindings
