// What the functions on the hot path share: arguments, tensors, the way through the dispatcher. They use the
// raw C API: what pybind11 adds to a call would be half of what a launch may cost.
//
// Each operation has a public function, which runs at once where the dispatcher has nothing to do and calls
// the torch op otherwise. Behind the torch op, for CPU and CUDA, stands a kernel that torch calls natively
// (native_ops.hpp), or a function run_... that it calls through Python.
#pragma once

#include <Python.h>

#include <cstdint>
#include <span>

#include "bindings/bindings.hpp"
#include "bindings/torch_bridge.hpp"
#include "problem/types.hpp"

namespace dgj::bindings {

inline bool given(PyObject* value) { return value != nullptr && value != Py_None; }
inline PyObject* or_none(PyObject* value) { return value == nullptr ? Py_None : value; }

template <class Tensor>
struct Named {
    const char* name;
    Tensor object;  // nullptr: absent
    TensorView* view;
};
using NamedTensor = Named<PyObject*>;

// The two items of an operand. It owns them: a list can lose its items while Python code runs, in this thread
// (__index__ of an argument, __torch_function__) or in another one. What is an argument itself needs no
// owner: the caller of a function keeps its arguments until it returns.
struct Pair {
    PyObject *values = nullptr, *scales = nullptr;
    Pair() = default;
    ~Pair() {
        Py_XDECREF(values);
        Py_XDECREF(scales);
    }
    Pair(const Pair&) = delete;
    Pair& operator=(const Pair&) = delete;
};

// ---- arguments; false: a Python error is set ----------------------------------------------------

bool split_pair(const char* function, PyObject* given, const char* name, Pair& pair);
bool check_given_recipes(const char* function, PyObject* recipe, PyObject* recipe_a, PyObject* recipe_b);
inline bool check_recipes(const char* function, PyObject* recipe, PyObject* recipe_a, PyObject* recipe_b) {
    const bool none = !given(recipe) && !given(recipe_a) && !given(recipe_b);
    return none || check_given_recipes(function, recipe, recipe_a, recipe_b);
}
// None is 0; what exceeds 64 bits becomes the largest.
bool read_count(const char* function, const char* name, PyObject* value, std::int64_t& count);
// By Python's truth; absent: stays.
bool read_flag(const char* function, const char* name, PyObject* value, bool& flag);

// ---- tensors ------------------------------------------------------------------------------------

// Torch's parts are there after it: the first call imports deep_gemm_jit.ops, which registers the ops.
bool ensure_attached();

// What keeps a call from running at once.
enum class Hurdle { kNone, kDispatcher, kError };
Hurdle read_operands(const char* function, std::span<const NamedTensor> tensors, PyObject* output);

// Behind the torch op, where no hurdle is left.
bool read_for_op(const char* function, std::span<const NamedTensor> tensors);
bool refuse_grad(PyObject* output, const char* function, const char* name);
Error too_many_dims(const char* function, const char* name, const TensorView& view);
Error grad_refused(const char* function, const char* name);
// The result of a call that writes `output`; nullptr: it failed.
inline PyObject* written(PyObject* result, PyObject* output) {
    if (result != nullptr) [[likely]]
        mark_written(output);
    return result;
}

// Not PyGILState_Check, which says yes to everybody once a subinterpreter has been made.
inline bool holds_gil() {
#if PY_VERSION_HEX >= 0x030D0000
    return PyThreadState_GetUnchecked() != nullptr;
#elif PY_VERSION_HEX >= 0x030C0000
    return _PyThreadState_UncheckedGet() != nullptr;
#else  // whose thread state that is, it does not say
    const PyThreadState* current = _PyThreadState_UncheckedGet();
    return current != nullptr && current == PyGILState_GetThisThreadState();
#endif
}

[[noreturn]] void stop_here() noexcept;  // for as long as the process lasts

// For work that takes long; the caller may hold the GIL or not.
class WithoutGil {
public:
    WithoutGil() : held_(holds_gil() ? PyEval_SaveThread() : nullptr) {}
    ~WithoutGil() {
        if (held_ == nullptr) return;
        try {
            PyEval_RestoreThread(held_);
        } catch (...) {  // The interpreter is gone and Python (< 3.14) ends this thread: no way out of here
            stop_here();
        }
    }
    WithoutGil(const WithoutGil&) = delete;
    WithoutGil& operator=(const WithoutGil&) = delete;

private:
    PyThreadState* held_;
};

// ---- method tables ------------------------------------------------------------------------------

template <class Function>
PyCFunction as_c_function(Function* function) {
    return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

// A method whose module is the package itself, or _core. The definition has to live as long as the process.
void add_public(py::module_& m, PyMethodDef& method);
void add_internal(py::module_& m, PyMethodDef& method);

}  // namespace dgj::bindings
