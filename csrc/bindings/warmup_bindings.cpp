// What warming up needs beside the planner: quantisation kernels as plans, compiles ahead of need, scopes
// without compiles, and the tuning table.
#include <pybind11/operators.h>
#include <pybind11/stl.h>

#include "bindings/bindings.hpp"
#include "cache/kernel_cache.hpp"
#include "emit/emit_cast.hpp"
#include "plan/tuning.hpp"
#include "runtime/runtime.hpp"

namespace dgj::bindings {
namespace {

using Release = py::call_guard<py::gil_scoped_release>;

const char* scale_name(CastScale scale) {
    switch (scale) {
        case CastScale::kF32: return "float32";
        case CastScale::kUe8m0F32: return "ue8m0";
        case CastScale::kUe8m0Packed: return "ue8m0_packed";
    }
    return "unknown";
}

// What a warm-up reports of a kernel; the image stays where it is.
py::object outcome(const std::shared_ptr<const CachedKernel>& kernel) {
    if (kernel == nullptr) return py::none();
    const char* origin = kernel->origin == CachedKernel::Origin::kCompiled ? "compiled"
                         : kernel->origin == CachedKernel::Origin::kDisk   ? "disk"
                                                                           : "memory";
    return py::make_tuple(origin, kernel->milliseconds);
}

void bind_cast_plan(py::module_& m) {
    py::class_<CastPlan>(m, "CastPlan", "Every compile-time decision about a quantisation kernel; immutable.")
        .def_property_readonly(
            "x_dtype", [](const CastPlan& p) { return name_of(p.x_dtype); }, "dtype of what is quantised")
        .def_property_readonly(
            "gran_rows", [](const CastPlan& p) { return p.gran_rows; }, "rows that share a scale")
        .def_property_readonly(
            "gran_k", [](const CastPlan& p) { return p.gran_k; }, "columns that share a scale")
        .def_property_readonly(
            "scale", [](const CastPlan& p) { return scale_name(p.scale); }, "float32, ue8m0 or ue8m0_packed")
        .def(py::self == py::self)
        .def("__hash__", [](const CastPlan& p) { return index_of(p); })
        .def("__str__", [](const CastPlan& p) { return to_string(p); })
        .def("__repr__", [](const CastPlan& p) { return "<CastPlan " + to_string(p) + ">"; });
    m.def("all_cast_plans", &all_cast_plans);
    m.def("emit", [](const CastPlan& plan) { return emit(plan); }, py::arg("plan"));
}

}  // namespace

void bind_warmup(py::module_& m) {
    bind_cast_plan(m);
    m.def(
        "compile_ahead",
        [](const KernelSource& source, const std::string& line) {
            std::shared_ptr<const CachedKernel> kernel;
            {
                const py::gil_scoped_release release;
                kernel = compile_ahead(source, line);
            }
            return outcome(kernel);
        },
        py::arg("source"), py::arg("plan_line"));
    m.def(
        "is_cached", [](const KernelSource& source) { return find_cached(source) != nullptr; },
        py::arg("source"), Release());
    m.def("load_plan", py::overload_cast<const KernelPlan&, int>(&runtime::load_plan), py::arg("plan"),
          py::arg("device"), Release());
    m.def("load_plan", py::overload_cast<const CastPlan&, int>(&runtime::load_plan), py::arg("plan"),
          py::arg("device"), Release());
    m.def("begin_zero_jit", &begin_zero_jit);
    m.def("end_zero_jit", &end_zero_jit);
    m.def("forget_tuning", &forget_tuning);
    m.def("problem_line", [](const GemmProblem& problem) { return to_string(problem); }, py::arg("problem"));
    m.attr("TUNING_FORMAT") = kTuningFormat;
}

}  // namespace dgj::bindings
