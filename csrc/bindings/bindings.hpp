// What the files of bindings/ share. This is the only folder that sees Python.
#pragma once

#include <pybind11/pybind11.h>

#include <string>
#include <string_view>

#include "base/error.hpp"
#include "bindings/made_objects.hpp"

namespace dgj::bindings {

namespace py = pybind11;

void bind_errors(py::module_& m);
void bind_log(py::module_& m);
void bind_plan(py::module_& m);
void bind_compile(py::module_& m);
void bind_warmup(py::module_& m);
void bind_cache(py::module_& m);
void bind_settings(py::module_& m);
void bind_torch(py::module_& m);
void bind_gemm_ops(py::module_& m);
void bind_grouped_ops(py::module_& m);
void bind_native_ops(py::module_& m);
void bind_cast_ops(py::module_& m);

// A new str, or nullptr with an exception set. Bytes that are no UTF-8 (from a path, a variable, a file)
// appear as \xff: they must not hide what a message says.
PyObject* new_text(std::string_view text) noexcept;

// A path as Python has it (os.fsdecode, os.fsencode): its bytes survive also where they are no UTF-8. A
// path_from that fails throws what Python says.
py::str path_to(std::string_view path);
std::string path_from(const py::str& path);

// Sets the Python exception that stands for `error`; for code that talks to the raw C API.
void set_python_error(const Error& error) noexcept;
// The same for whatever is being handled; call it inside a catch block.
void set_python_error_from_current_exception() noexcept;

}  // namespace dgj::bindings
