// Log lines go to the Python logger "deep_gemm_jit". Any thread may log, with or without the GIL.
#include "base/log.hpp"
#include "bindings/bindings.hpp"

namespace dgj::bindings {
namespace {

PyObject* g_log_method = nullptr;  // bound method Logger.log, owned for the life of the process

bool finalizing() {
#if PY_VERSION_HEX >= 0x030D0000
    return Py_IsFinalizing() != 0;
#else
    return _Py_IsFinalizing() != 0;
#endif
}

void python_sink(LogLevel level, const std::string& line) {
    // Taking the GIL while the interpreter shuts down would end or hang the thread: the line is lost instead.
    if (Py_IsInitialized() == 0 || finalizing()) return;
    PyGILState_STATE gil = PyGILState_Ensure();
    {
        py::error_scope keep_current_error;
        // "%s" as the format: a percent sign in a path must not be read as a directive.
        PyObject* text = new_text(line);
        PyObject* result = text == nullptr ? nullptr
                                           : PyObject_CallFunction(g_log_method, "isO",
                                                                   static_cast<int>(level), "%s", text);
        if (result == nullptr) PyErr_WriteUnraisable(g_log_method);
        Py_XDECREF(result);
        Py_XDECREF(text);
    }
    PyGILState_Release(gil);
}

}  // namespace

void bind_log(py::module_& m) {
    py::object logger = py::module_::import("logging").attr("getLogger")("deep_gemm_jit");
    g_log_method = py::object(logger.attr("log")).release().ptr();
    set_log_sink(&python_sink);
    m.def(
        "log", [](int level, const std::string& line) { log(static_cast<LogLevel>(level), line); },
        py::arg("level"), py::arg("line"),
        "Sends one line through the log sink, as the library's own C++ code does.");
}

}  // namespace dgj::bindings
