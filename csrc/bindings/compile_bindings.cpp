// Compile, NVRTC identity and the kernel cache. The GIL is given back wherever a file, a lock or the compiler
// is waited for.
#include <pybind11/stl.h>

#include "bindings/bindings.hpp"
#include "cache/kernel_cache.hpp"
#include "compile/nvrtc.hpp"
#include "emit/emit.hpp"
#include "emit/emit_cast.hpp"
#include "runtime/runtime.hpp"

namespace dgj::bindings {
namespace {

using Release = py::call_guard<py::gil_scoped_release>;
using Kernel = std::shared_ptr<const CachedKernel>;

const char* origin_name(CachedKernel::Origin origin) {
    switch (origin) {
        case CachedKernel::Origin::kMemory: return "memory";
        case CachedKernel::Origin::kDisk: return "disk";
        case CachedKernel::Origin::kCompiled: return "compiled";
    }
    return "unknown";
}

py::bytes to_bytes(const std::vector<std::byte>& data) {
    return py::bytes(reinterpret_cast<const char*>(data.data()), data.size());
}

py::dict report_dict(const std::string& log) {
    const CompileReport r = parse_compile_log(log);
    py::dict d;
    d["registers"] = r.registers;
    d["spill_stores"] = r.spill_stores;
    d["spill_loads"] = r.spill_loads;
    d["stack_bytes"] = r.stack_bytes;
    d["advisories"] = r.advisories;
    return d;
}

py::dict kernel_dict(const CachedKernel& kernel) {
    py::dict d;
    d["cubin"] = to_bytes(kernel.cubin);
    d["key"] = to_hex(kernel.key);
    d["meta"] = py::bytes(kernel.meta);  // as found: no look-up reads it, and it may be anything
    d["origin"] = origin_name(kernel.origin);
    d["milliseconds"] = kernel.milliseconds;
    return d;
}

Kernel without_gil(const KernelSource& source, const std::string& plan_line) {
    const py::gil_scoped_release release;
    return get_or_compile(source, plan_line);
}

CacheKey key_from_hex(const std::string& hex) {
    CacheKey key{};
    const auto digit = [&](char c) {
        const std::string_view digits = "0123456789abcdef";
        const auto at = digits.find(c);
        if (at == digits.npos)
            fail(ErrorKind::kValue, "drop_from_cache: '{}' is no cache key (64 hex digits)", hex);
        return static_cast<unsigned>(at);
    };
    if (hex.size() != 2 * key.size()) digit('?');
    for (std::size_t i = 0; i < key.size(); ++i)
        key[i] = static_cast<unsigned char>(digit(hex[2 * i]) << 4 | digit(hex[2 * i + 1]));
    return key;
}

py::dict identity_dict() {
    NvrtcIdentity id;
    {
        const py::gil_scoped_release release;
        id = nvrtc_identity();
    }
    py::dict d;
    d["path"] = path_to(id.path);
    d["builtins"] = path_to(id.builtins);
    d["found_by"] = id.found_by;
    d["major"] = id.major;
    d["minor"] = id.minor;
    d["fingerprint"] = id.fingerprint;
    return d;
}

// Past the cache: what the compiler itself says, log included.
py::dict compile_uncached(const KernelSource& source) {
    CompileResult r;
    {
        const py::gil_scoped_release release;
        r = nvrtc_compile(source);
    }
    py::dict d;
    d["cubin"] = to_bytes(r.cubin);
    d["log"] = r.log;
    d["report"] = report_dict(r.log);
    d["milliseconds"] = r.milliseconds;
    return d;
}

// Every quantisation kernel there is: pairs of plan line and source.
std::vector<std::pair<std::string, KernelSource>> cast_sources() {
    std::vector<std::pair<std::string, KernelSource>> all;
    for (const CastPlan& plan : all_cast_plans()) all.emplace_back(to_string(plan), emit(plan));
    return all;
}

}  // namespace

void bind_compile(py::module_& m) {
    set_driver_version_source(&runtime::driver_version);

    m.def("set_search_paths", &set_search_paths, py::arg("site_packages"));
    m.def("nvrtc_identity", &identity_dict);
    m.def("nvrtc_options", &nvrtc_options, py::arg("arch"));
    m.def("compile_uncached", &compile_uncached, py::arg("source"));
    m.def("parse_compile_log", &report_dict, py::arg("log"));

    m.def(
        "get_or_compile",
        [](const KernelSource& s, const std::string& line) { return kernel_dict(*without_gil(s, line)); },
        py::arg("source"), py::arg("plan_line"));
    m.def(
        "find_cached",
        [](const KernelSource& source) -> py::object {
            Kernel kernel;
            {
                const py::gil_scoped_release release;
                kernel = find_cached(source);
            }
            if (kernel == nullptr) return py::none();
            return kernel_dict(*kernel);
        },
        py::arg("source"));
    m.def(
        "cache_key", [](const KernelSource& source) { return to_hex(cache_key(source)); }, py::arg("source"),
        Release());
    m.def("cast_sources", &cast_sources);
    m.def("cache_root", [] {
        std::string root;
        {
            const py::gil_scoped_release release;
            root = cache_root();
        }
        return path_to(root);
    });
    m.def(
        "drop_from_cache", [](const std::string& hex) { drop_from_cache(key_from_hex(hex)); }, py::arg("key"),
        Release());
    m.def("forget_memory_cache", &forget_memory_cache, Release());
    m.def("compile_count", &compile_count, Release());
}

}  // namespace dgj::bindings
