// What the commands `python -m deep_gemm_jit cache ...` need: the roots, their files, and ways to remove
// them.
#include <pybind11/stl.h>

#include "bindings/bindings.hpp"
#include "cache/evict.hpp"
#include "cache/inspect.hpp"
#include "cache/key.hpp"
#include "cache/sweep.hpp"
#include "compile/elf.hpp"

namespace dgj::bindings {
namespace {

using Release = py::call_guard<py::gil_scoped_release>;

py::object text_of(std::string_view text) {
    PyObject* object = new_text(text);
    if (object == nullptr) throw py::error_already_set();
    return py::reinterpret_steal<py::object>(object);
}

// What work(root) finds below a root, without the GIL.
template <class Work>
auto below(const py::str& root, Work work) {
    const std::string path = path_from(root);
    const py::gil_scoped_release release;
    return work(path);
}

py::dict roots_dict() {
    CacheState state;
    {
        const py::gil_scoped_release release;
        state = inspect_roots();
    }
    py::list roots;
    for (const Root& root : state.roots.read) roots.append(py::make_tuple(path_to(root.path), root.writable));
    py::dict d;
    d["roots"] = roots;
    py::list warnings;
    for (const std::string& warning : state.roots.warnings) warnings.append(text_of(warning));
    d["primary"] = path_to(state.roots.primary);
    d["unwritable"] = text_of(state.roots.unwritable);
    d["warnings"] = warnings;
    d["max_size"] = state.max_size;
    d["schema"] = std::string("v") + kCacheSchema;
    return d;
}

std::uint64_t size_from(const std::string& text) {
    if (const auto size = parse_size(text)) return *size;
    fail(ErrorKind::kValue, "parse_size: '{}' is no size; allowed are numbers of bytes and 512K, 512M, 2G",
         text);
}

py::dict report_dict(const EntryFile& file, bool writable) {
    EntryReport report;
    {
        const py::gil_scoped_release release;
        report = inspect_entry(file, writable);
    }
    py::dict d;
    d["problem"] = text_of(report.problem);
    d["key"] = report.key;
    d["meta"] = py::bytes(report.meta);
    d["image"] = py::bytes(reinterpret_cast<const char*>(report.image.data()), report.image.size());
    return d;
}

}  // namespace

void bind_cache(py::module_& m) {
    py::class_<EntryFile>(m, "CacheFile")
        .def_property_readonly("path", [](const EntryFile& f) { return path_to(f.path); })
        .def_property_readonly("size",
                               [](const EntryFile& f) { return static_cast<std::int64_t>(f.seen.st_size); })
        .def_property_readonly(
            "used", [](const EntryFile& f) { return static_cast<double>(changed_ns(f.seen)) * 1e-9; })
        .def_property_readonly("is_entry", &is_entry);

    m.def("cache_roots", &roots_dict);
    m.def(
        "cache_files",
        [](const py::str& root) {
            return below(root, [](const std::string& path) { return list_entries(real_fs(), path); });
        },
        py::arg("root"));
    m.def(
        "cache_unfinished", [](const py::str& root) { return below(root, &list_unfinished); },
        py::arg("root"));
    m.def("cache_inspect", &report_dict, py::arg("file"), py::arg("writable"));
    m.def(
        "cache_remove", [](const EntryFile& file) { return remove_unchanged(real_fs(), file); },
        py::arg("file"), Release());
    m.def(
        "cache_evict",
        [](const py::str& root, std::uint64_t keep) {
            const Evicted done = below(root, [keep](const std::string& path) {
                return evict(real_fs(), path, keep);
            });
            return std::make_pair(done.entries, done.bytes);
        },
        py::arg("root"), py::arg("keep"));
    m.def(
        "cache_sweep",
        [](const py::str& root) {
            return below(root, [](const std::string& path) { return sweep(real_fs(), path); });
        },
        py::arg("root"));
    m.def("parse_size", &size_from, py::arg("text"));
    m.def(
        "image_problem",
        [](std::string_view image, const std::string& entry) {
            return image_problem(std::as_bytes(std::span(image)), entry);
        },
        py::arg("image"), py::arg("entry"));
}

}  // namespace dgj::bindings
