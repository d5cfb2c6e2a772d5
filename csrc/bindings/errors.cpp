// One C++ exception type becomes one Python exception type per cause.
#include <exception>
#include <new>

#include "bindings/bindings.hpp"

namespace dgj::bindings {
namespace {

// Owned by the module for the life of the process: raw-API code needs them without a lookup.
PyObject* g_compile_error = nullptr;
PyObject* g_jit_forbidden_error = nullptr;

PyObject* python_type(ErrorKind kind) {
    switch (kind) {
        case ErrorKind::kValue: return PyExc_ValueError;
        case ErrorKind::kType: return PyExc_TypeError;
        case ErrorKind::kNotImplemented: return PyExc_NotImplementedError;
        case ErrorKind::kCompile: return g_compile_error;
        case ErrorKind::kJitForbidden: return g_jit_forbidden_error;
        case ErrorKind::kRuntime: return PyExc_RuntimeError;
    }
    return PyExc_RuntimeError;
}

void set_exception(PyObject* type, const char* what) noexcept {
    PyObject* text = new_text(what);
    if (text != nullptr) PyErr_SetObject(type, text);
    Py_XDECREF(text);
}

PyObject* new_exception(const char* name, const char* doc) {
    PyObject* type = PyErr_NewExceptionWithDoc(name, doc, PyExc_RuntimeError, nullptr);
    if (type == nullptr) throw py::error_already_set();
    return type;
}

}  // namespace

PyObject* new_text(std::string_view text) noexcept {
    return PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "backslashreplace");
}

py::str path_to(std::string_view path) {
    PyObject* text = PyUnicode_DecodeFSDefaultAndSize(path.data(), static_cast<Py_ssize_t>(path.size()));
    if (text == nullptr) throw py::error_already_set();
    return py::reinterpret_steal<py::str>(text);
}

std::string path_from(const py::str& path) {
    PyObject* encoded = PyUnicode_EncodeFSDefault(path.ptr());
    if (encoded == nullptr) throw py::error_already_set();
    return py::reinterpret_steal<py::bytes>(encoded);
}

void set_python_error(const Error& error) noexcept { set_exception(python_type(error.kind()), error.what()); }

void set_python_error_from_current_exception() noexcept {
    try {
        throw;
    } catch (const Error& error) {
        set_python_error(error);
    } catch (py::error_already_set& error) {
        error.restore();
    } catch (const std::bad_alloc&) {
        PyErr_NoMemory();
    } catch (const std::exception& error) {
        set_exception(PyExc_RuntimeError, error.what());
    } catch (...) {
        PyErr_SetString(PyExc_RuntimeError, "deep_gemm_jit: unknown C++ exception");
    }
}

void bind_errors(py::module_& m) {
    g_compile_error = new_exception(
        "deep_gemm_jit.CompileError",
        "A kernel could not be compiled: NVRTC is missing or too old, or it rejected the source.\n\n"
        "The message carries the places tried, or the log, architecture, options and where the source was "
        "saved.");
    g_jit_forbidden_error = new_exception(
        "deep_gemm_jit.JitForbiddenError",
        "A compile was needed where none is allowed: DGJ_JIT=forbid is set, or a CUDA graph is being "
        "captured.\n\n"
        "Compile the plans first, for instance with deep_gemm_jit.compile or one call before the capture.");
    m.attr("CompileError") = py::handle(g_compile_error);
    m.attr("JitForbiddenError") = py::handle(g_jit_forbidden_error);
    py::register_local_exception_translator([](std::exception_ptr pointer) {
        try {
            if (pointer) std::rethrow_exception(pointer);
        } catch (const Error& error) {
            set_python_error(error);
        }
    });
}

}  // namespace dgj::bindings
