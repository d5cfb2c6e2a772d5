// Process-wide settings, the environment table and what the driver says of itself.
#include <pybind11/stl.h>

#include <algorithm>
#include <cstdint>
#include <limits>

#include "base/env.hpp"
#include "base/version.hpp"
#include "bindings/bindings.hpp"
#include "runtime/runtime.hpp"

namespace dgj::bindings {
namespace {

using Release = py::call_guard<py::gil_scoped_release>;

// What does not fit becomes the nearest that does: the range is checked where it is known.
std::int64_t integer(const py::object& value) {
    const auto index = py::reinterpret_steal<py::object>(PyNumber_Index(value.ptr()));
    if (!index) throw py::error_already_set();
    int overflow = 0;
    const long long found = PyLong_AsLongLongAndOverflow(index.ptr(), &overflow);
    if (overflow == 0) return found;
    return overflow > 0 ? std::numeric_limits<std::int64_t>::max() : std::numeric_limits<std::int64_t>::min();
}

py::list env_table() {
    py::list list;
    for (const EnvVar* variable : env::table()) {
        const auto value = env::get(*variable);
        py::dict d;
        d["name"] = variable->name;
        d["meaning"] = variable->meaning;
        d["value"] = value ? py::reinterpret_steal<py::object>(new_text(*value)) : py::object(py::none());
        list.append(d);
    }
    return list;
}

}  // namespace

void bind_settings(py::module_& m) {
    m.attr("__version__") = kPackageVersion;
    m.def("env_table", &env_table);
    m.def("parse_flag", &env::parse_flag, py::arg("text"));
    m.def(
        "set_num_sms",
        [](const py::object& sms) {
            const auto smallest = std::numeric_limits<int>::min(), largest = std::numeric_limits<int>::max();
            runtime::set_num_sms(static_cast<int>(std::clamp<std::int64_t>(integer(sms), smallest, largest)));
        },
        py::arg("num_sms"));
    m.def("get_num_sms", &runtime::get_num_sms, py::arg("device"), Release());
    m.def("set_pdl", &runtime::set_pdl, py::arg("enabled"));
    m.def("get_pdl", &runtime::get_pdl);
    m.def("set_compile_mode", &runtime::set_compile_mode, py::arg("mode"));
    m.def("get_compile_mode", &runtime::get_compile_mode);
    m.def(
        "set_mk_alignment", [](const py::object& rows) { runtime::set_mk_alignment(integer(rows)); },
        py::arg("rows"));
    m.def("get_mk_alignment", &runtime::get_mk_alignment);
    m.def("set_batch_invariant", &runtime::set_batch_invariant, py::arg("enabled"));
    m.def("get_batch_invariant", &runtime::get_batch_invariant);
    m.def("driver_version", &runtime::driver_version, Release());
    m.def(
        "device_profile_name", [](int device) { return std::string(runtime::device_profile(device).name); },
        py::arg("device"), Release());
    m.def("repeat_last_launch_ns", &runtime::repeat_last_launch_ns, py::arg("times"));
    m.def("null_call_ns", &runtime::null_call_ns, py::arg("times"));
}

}  // namespace dgj::bindings
