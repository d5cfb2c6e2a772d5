// GemmProblem and KernelPlan as immutable Python objects; plan, all_plans, candidates, emit. No GPU, no
// torch, no compiler.
#include <pybind11/operators.h>
#include <pybind11/stl.h>

#include <array>
#include <functional>
#include <string_view>
#include <type_traits>
#include <unordered_set>

#include "bindings/bindings.hpp"
#include "emit/emit.hpp"
#include "plan/plan.hpp"

namespace dgj::bindings {
namespace {

struct DTypeName {
    std::string_view given;
    DType dtype;
};
constexpr std::array<DTypeName, 8> kDTypeNames = {{
    {"bfloat16", DType::kBF16},
    {"float16", DType::kF16},
    {"float32", DType::kF32},
    {"bf16", DType::kBF16},
    {"fp16", DType::kF16},
    {"fp32", DType::kF32},
    {"half", DType::kF16},
    {"float", DType::kF32},
}};

// A name ("bfloat16"), or anything that prints as one ("torch.bfloat16"), so that a torch dtype works without
// torch here.
DType dtype_from(const py::handle& value) {
    const std::string text = py::str(value);
    std::string_view name = text;
    if (name.starts_with("torch.")) name.remove_prefix(6);
    for (const DTypeName& row : kDTypeNames)
        if (row.given == name) return row.dtype;
    fail(ErrorKind::kValue, "GemmProblem: d_dtype is '{}'; allowed: bfloat16, float16, float32", text);
}

template <class Enum>
struct EnumName {
    const char* name;
    Enum value;
};
constexpr std::array<EnumName<GroupLayout>, 2> kLayouts = {
    {{"dense", GroupLayout::kDense}, {"m_grouped", GroupLayout::kMGrouped}}};
constexpr std::array<EnumName<ScaleRecipe>, 1> kRecipes = {{{"block128", ScaleRecipe::kBlock128}}};
constexpr std::array<EnumName<Family>, 3> kFamilies = {
    {{"gemm", Family::kGemm}, {"gemm_swap_ab", Family::kGemmSwapAB}, {"gemm_grouped", Family::kGemmGrouped}}};

template <class Table, class Enum>
const char* name_in(const Table& table, Enum value) {
    for (const auto& row : table)
        if (row.value == value) return row.name;
    return "unknown";
}

template <class Table>
auto value_in(const Table& table, const std::string& name, const char* field, ErrorKind kind) {
    std::string known;
    for (const auto& row : table) {
        if (name == row.name) return row.value;
        known += known.empty() ? row.name : std::string(", ") + row.name;
    }
    fail(kind, "{} is '{}'; supported: {}", field, name, known);
}

struct PlanField {
    const char* name;
    std::uint32_t KernelPlan::* member;
    const char* doc;
};
constexpr std::array<PlanField, 11> kPlanFields = {{
    {"warpgroups", &KernelPlan::warpgroups, "consumer warpgroups"},
    {"waves", &KernelPlan::waves, "64-row WGMMA tiles per warpgroup"},
    {"tile_rows", &KernelPlan::tile_rows, "rows of the 64-row operand in a tile"},
    {"tile_cols", &KernelPlan::tile_cols, "N of WGMMA: columns of D (gemm) or tokens (gemm_swap_ab)"},
    {"stage_blocks", &KernelPlan::stage_blocks, "K blocks of 128 that one stage holds"},
    {"stages", &KernelPlan::stages, "stages of the shared-memory ring"},
    {"cluster_rows", &KernelPlan::cluster_rows, "CTAs of a cluster along tile rows"},
    {"cluster_cols", &KernelPlan::cluster_cols, "CTAs of a cluster along tile columns"},
    {"split_k", &KernelPlan::split_k, "CTAs of a cluster along K"},
    {"reuse_ring", &KernelPlan::reuse_ring, "1: the sums of a tile take the memory of the ring"},
    {"raster", &KernelPlan::raster, "tiles of the row dimension walked together for L2"},
}};

// ---- fields -------------------------------------------------------------------------------------

// A field as a Value, without conversions; what is none is an error that names `function` and `name`.
template <class Value>
Value field_as(const py::handle& value, const char* function, const char* name) {
    constexpr bool kNumber = std::is_same_v<Value, std::int64_t> || std::is_same_v<Value, std::uint32_t>;
    constexpr const char* kAllowed = kNumber                           ? "an integer of 64 bits, 0 or larger"
                                     : std::is_same_v<Value, bool>     ? "True or False"
                                     : std::is_same_v<Value, py::dict> ? "a dict"
                                                                       : "a string";
    bool right = true;
    if constexpr (kNumber) right = PyBool_Check(value.ptr()) == 0;
    else if constexpr (std::is_same_v<Value, std::string>) right = PyUnicode_Check(value.ptr()) != 0;
    py::detail::make_caster<Value> caster;
    if (right && caster.load(value, false)) return py::detail::cast_op<Value>(std::move(caster));
    if (PyErr_Occurred() != nullptr) PyErr_Clear();
    const bool number = kNumber && right && PyLong_Check(value.ptr()) != 0;  // one that does not fit
    fail(number ? ErrorKind::kValue : ErrorKind::kType, "{}: {} is {}; it must be {}", function, name,
         std::string(py::repr(value)), kAllowed);
}

std::uint32_t extent(std::int64_t value, const char* name) {
    if (value < 0 || value > INT32_MAX)
        fail(ErrorKind::kValue, "{} is {}; allowed: 0..{}", name, value, INT32_MAX);
    return static_cast<std::uint32_t>(value);
}

struct ProblemFields {
    py::object n, k, d_dtype, batch_invariant, layout, recipe, groups, extras;
};

GemmProblem problem_from(const ProblemFields& fields, const char* function) {
    const auto number = [&](const py::object& value, const char* name) {
        const std::string field = std::string("GemmProblem: ") + name;
        return extent(field_as<std::int64_t>(value, function, name), field.c_str());
    };
    const auto text = [&](const py::object& value, const char* name) {
        return field_as<std::string>(value, function, name);
    };
    GemmProblem p;
    p.n = number(fields.n, "n");
    p.k = number(fields.k, "k");
    p.groups = number(fields.groups, "groups");
    p.d_dtype = dtype_from(fields.d_dtype);
    p.batch_invariant = field_as<bool>(fields.batch_invariant, function, "batch_invariant");
    p.layout = value_in(kLayouts, text(fields.layout, "layout"), "GemmProblem: layout",
                        ErrorKind::kNotImplemented);
    p.recipe = value_in(kRecipes, text(fields.recipe, "recipe"), "GemmProblem: recipe",
                        ErrorKind::kNotImplemented);
    p.extras = field_as<bool>(fields.extras, function, "extras");
    validate(p);
    if (p.d_dtype == DType::kF32) p.extras = false;  // one problem, as launches have it, and one in tables
    return p;
}

GemmProblem make_problem(const py::object& n, const py::object& k, const py::object& d_dtype,
                         const py::object& batch_invariant, const py::object& layout,
                         const py::object& recipe, const py::object& groups, const py::object& extras) {
    return problem_from({n, k, d_dtype, batch_invariant, layout, recipe, groups, extras}, "GemmProblem");
}

py::dict to_dict(const GemmProblem& p) {
    py::dict d;
    d["n"] = p.n;
    d["k"] = p.k;
    d["d_dtype"] = name_of(p.d_dtype);
    d["batch_invariant"] = p.batch_invariant;
    d["layout"] = name_in(kLayouts, p.layout);
    d["recipe"] = name_in(kRecipes, p.recipe);
    d["groups"] = p.groups;
    d["extras"] = p.extras;
    return d;
}

py::object take(py::dict& d, const char* key, const char* function) {
    if (!d.contains(key)) fail(ErrorKind::kValue, "{}: the key '{}' is missing", function, key);
    return d.attr("pop")(key);
}

// A copy, to take the fields from.
py::dict fields_of(const py::object& values, const char* function) {
    return field_as<py::dict>(values, function, "values").attr("copy")();
}

void refuse_rest(const py::dict& d, const char* function) {
    if (d.empty()) return;
    fail(ErrorKind::kValue, "{}: unknown keys {}", function,
         std::string(py::str(py::list(d.attr("keys")()))));
}

GemmProblem problem_from_dict(const py::object& values) {
    const char* function = "GemmProblem.from_dict";
    py::dict d = fields_of(values, function);
    const auto field = [&](const char* key) { return take(d, key, function); };
    if (!d.contains("extras")) d["extras"] = false;  // written before there was such a field
    const ProblemFields fields{field("n"),      field("k"),      field("d_dtype"), field("batch_invariant"),
                               field("layout"), field("recipe"), field("groups"),  field("extras")};
    const GemmProblem p = problem_from(fields, function);
    refuse_rest(d, function);
    return p;
}

py::dict to_dict(const KernelPlan& plan) {
    py::dict d;
    d["problem"] = to_dict(plan.problem);
    d["family"] = name_in(kFamilies, plan.family);
    for (const PlanField& field : kPlanFields) d[field.name] = plan.*field.member;
    return d;
}

KernelPlan plan_from_dict(const py::object& values) {
    const char* function = "KernelPlan.from_dict";
    py::dict d = fields_of(values, function);
    KernelPlan plan;
    plan.problem = problem_from_dict(field_as<py::dict>(take(d, "problem", function), function, "problem"));
    plan.family = value_in(kFamilies, field_as<std::string>(take(d, "family", function), function, "family"),
                           "KernelPlan: family", ErrorKind::kValue);
    for (const PlanField& field : kPlanFields)
        plan.*field.member = field_as<std::uint32_t>(take(d, field.name, function), function, field.name);
    refuse_rest(d, function);
    validate(plan);
    return plan;
}

std::size_t hash_text(const std::string& text) { return std::hash<std::string>{}(text); }

// The one profile that a plan is made for.
const DeviceProfile& one_profile(const std::string& device) {
    const auto profiles = find_profiles(device);
    if (profiles.size() == 1) return *profiles.front();
    std::string names;
    for (const DeviceProfile* p : profiles) names += (names.empty() ? "" : ", ") + std::string(p->name);
    fail(ErrorKind::kValue,
         "device is '{}', an architecture with several profiles; a plan is for one of them: {}", device,
         names);
}

std::int64_t at_least_one(const py::object& value, const char* function, const char* name) {
    const auto number = field_as<std::int64_t>(value, function, name);
    if (number < 1) fail(ErrorKind::kValue, "{}: {} is {}; it must be at least 1", function, name, number);
    return number;
}

KernelPlan plan_for(const GemmProblem& problem, const py::object& m, const std::string& device) {
    return plan(problem, at_least_one(m, "plan", "m"), one_profile(device));
}

std::vector<KernelPlan> all_plans_for(const GemmProblem& problem, const std::string& device,
                                      const py::object& max_rows) {
    std::optional<std::int64_t> most;
    if (!max_rows.is_none()) most = at_least_one(max_rows, "all_plans", "max_rows");
    std::vector<KernelPlan> all;
    for (const DeviceProfile* profile : find_profiles(device))
        for (const KernelPlan& p : all_plans(problem, *profile, most))
            if (std::find(all.begin(), all.end(), p) == all.end()) all.push_back(p);
    return all;
}

py::list candidates_for(const GemmProblem& problem, const py::object& m, const std::string& device) {
    const std::int64_t rows = at_least_one(m, "candidates", "m");
    py::list list;
    for (const Candidate& c : candidates(problem, rows, one_profile(device))) {
        py::dict d;
        d["plan"] = c.plan;
        d["predicted_us"] = c.predicted_us;
        d["why"] = c.why;
        list.append(d);
    }
    return list;
}

py::dict shape_dict(const KernelPlan& plan) {
    const KernelShape s = kernel_shape(plan);
    py::dict d;
    d["threads"] = s.threads;
    d["smem_bytes"] = s.smem_bytes;
    d["cluster"] = s.cluster;
    d["a_box_rows"] = s.a_box_rows;
    d["b_box_rows"] = s.b_box_rows;
    d["d_box_rows"] = s.d_box_rows;
    d["few_box_rows"] = s.few_box_rows;
    return d;
}

py::list profiles_list() {
    py::list list;
    for (const DeviceProfile& p : device_profiles()) {
        py::dict d;
        d["name"] = std::string(p.name);
        d["arch"] = std::string(p.arch);
        d["sms"] = p.sms;
        d["dram_tb_s"] = p.dram_tb_s;
        d["l2_tb_s"] = p.l2_tb_s;
        d["fp8_tflops"] = p.fp8_tflops;
        d["smem_bytes"] = p.smem_bytes;
        list.append(d);
    }
    return list;
}

void bind_problem(py::module_& m) {
    py::class_<GemmProblem>(m, "GemmProblem",
                            "What is asked of an FP8 GEMM, without the number of rows; immutable.")
        .def(py::init(&make_problem), py::kw_only(), py::arg("n"), py::arg("k"),
             py::arg("d_dtype") = "bfloat16", py::arg("batch_invariant") = false, py::arg("layout") = "dense",
             py::arg("recipe") = "block128", py::arg("groups") = 1, py::arg("extras") = false)
        .def_property_readonly(
            "n", [](const GemmProblem& p) { return p.n; }, "rows of B, columns of D")
        .def_property_readonly(
            "k", [](const GemmProblem& p) { return p.k; }, "inner extent")
        .def_property_readonly(
            "d_dtype", [](const GemmProblem& p) { return name_of(p.d_dtype); }, "name of D's dtype")
        .def_property_readonly(
            "batch_invariant", [](const GemmProblem& p) { return p.batch_invariant; },
            "a row's bits depend on its own row only")
        .def_property_readonly("layout", [](const GemmProblem& p) { return name_in(kLayouts, p.layout); })
        .def_property_readonly("recipe", [](const GemmProblem& p) { return name_in(kRecipes, p.recipe); })
        .def_property_readonly("groups", [](const GemmProblem& p) { return p.groups; })
        .def_property_readonly(
            "extras", [](const GemmProblem& p) { return p.extras; }, "calls with alpha, bias or c")
        .def(
            "to_dict", [](const GemmProblem& p) { return to_dict(p); },
            "Plain data; from_dict makes it again.")
        .def_static("from_dict", &problem_from_dict, py::arg("values"))
        .def(py::pickle([](const GemmProblem& p) { return to_dict(p); },
                        [](const py::dict& state) { return problem_from_dict(state); }))
        .def(py::self == py::self)
        .def("__hash__", [](const GemmProblem& p) { return hash_text(to_string(p)); })
        .def("__repr__", [](const GemmProblem& p) { return "<GemmProblem " + to_string(p) + ">"; });
}

void bind_kernel_plan(py::module_& m) {
    py::class_<KernelPlan> c(m, "KernelPlan", "Every compile-time decision about a kernel; immutable.");
    c.def_property_readonly("problem", [](const KernelPlan& p) { return p.problem; })
        .def_property_readonly("family", [](const KernelPlan& p) { return name_in(kFamilies, p.family); })
        .def_property_readonly("shape", &shape_dict,
                               "Threads, shared memory, cluster and tensor-map boxes: a dict.")
        .def(
            "grid_blocks",
            [](const KernelPlan& p, const py::object& m, const py::object& num_sms) {
                const std::int64_t sms = at_least_one(num_sms, "grid_blocks", "num_sms");
                return grid_blocks(p, at_least_one(m, "grid_blocks", "m"),
                                   extent(sms, "grid_blocks: num_sms"));
            },
            py::arg("m"), py::arg("num_sms"), "Blocks of the grid for m rows on at most num_sms SMs.")
        .def(
            "to_dict", [](const KernelPlan& p) { return to_dict(p); },
            "Plain data; from_dict makes it again.")
        .def_static("from_dict", &plan_from_dict, py::arg("values"))
        .def(py::pickle([](const KernelPlan& p) { return to_dict(p); },
                        [](const py::dict& state) { return plan_from_dict(state); }))
        .def(py::self == py::self)
        .def("__hash__", [](const KernelPlan& p) { return hash_text(to_string(p)); })
        .def("__str__", [](const KernelPlan& p) { return to_string(p); })
        .def("__repr__", [](const KernelPlan& p) { return "<KernelPlan " + to_string(p) + ">"; });
    for (const PlanField& field : kPlanFields) {
        const auto member = field.member;
        c.def_property_readonly(field.name, [member](const KernelPlan& p) { return p.*member; }, field.doc);
    }
}

void bind_source(py::module_& m) {
    py::class_<KernelSource>(m, "KernelSource",
                             "A program for NVRTC with every header that it reaches; immutable.")
        .def_property_readonly(
            "text", [](const KernelSource& s) { return s.text; }, "the program")
        .def_property_readonly(
            "entry", [](const KernelSource& s) { return s.entry; }, "name of the kernel")
        .def_property_readonly(
            "arch", [](const KernelSource& s) { return s.arch; }, "what it is compiled for")
        .def_property_readonly(
            "headers",
            [](const KernelSource& s) {
                py::dict d;
                for (const NamedText& h : s.headers) d[py::str(h.name)] = h.text;
                return d;
            },
            "text by include name")
        .def("__repr__", [](const KernelSource& s) {
            return "<KernelSource " + s.entry + " " + s.arch + ", " + std::to_string(s.headers.size()) +
                   " headers>";
        });
    m.def(
        "make_source",
        [](std::string text, const py::dict& headers, std::string entry, std::string arch) {
            KernelSource s;
            s.text = std::move(text);
            s.entry = std::move(entry);
            s.arch = std::move(arch);
            for (auto [name, body] : headers) s.headers.push_back({py::str(name), py::str(body)});
            return s;
        },
        py::arg("text"), py::arg("headers"), py::arg("entry"), py::arg("arch"),
        "A KernelSource of any text: for experiments with the compiler and the cache.");
}

}  // namespace

void bind_plan(py::module_& m) {
    bind_problem(m);
    bind_kernel_plan(m);
    bind_source(m);
    m.def("plan", &plan_for, py::arg("problem"), py::arg("m"), py::arg("device"));
    m.def("all_plans", &all_plans_for, py::arg("problem"), py::arg("device"),
          py::arg("max_rows") = py::none());
    m.def("candidates", &candidates_for, py::arg("problem"), py::arg("m"), py::arg("device"));
    m.def("emit", py::overload_cast<const KernelPlan&>(&emit), py::arg("plan"));
    m.def("device_profiles", &profiles_list);
    m.def("embedded_file", &embedded_file, py::arg("path"));
    m.def("embedded_file_names", &embedded_file_names);
    m.def("embedded_digest", &embedded_digest);
}

}  // namespace dgj::bindings
