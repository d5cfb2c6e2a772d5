#include "bindings/torch_bridge.hpp"

#include <array>
#include <bit>
#include <string_view>

#include "bindings/dlpack_abi.hpp"
#include "bindings/module_flags.hpp"
#include "bindings/native_torch.hpp"

namespace dgj::bindings {
namespace {

// Objects of torch, by the key under which ops.py passes them. Owned for the life of the process.
struct TorchParts {
    PyObject* tensor_type = nullptr;
    PyObject* parameter_type = nullptr;
    PyObject* disabled_dispatch = nullptr;  // the __torch_dispatch__ of a class that has none
    PyObject* disabled_function = nullptr;  // the same for __torch_function__
    PyObject* dispatch_depth = nullptr;     // () -> int, active torch-dispatch modes
    PyObject* function_depth = nullptr;     // () -> int, active torch-function modes
    PyObject* is_tracing = nullptr;         // () -> bool, torch.jit.trace
    PyObject* grad_enabled = nullptr;       // () -> bool
    PyObject* profiler_globals = nullptr;   // dict with _is_profiler_enabled
    PyObject* compiler_globals = nullptr;   // dict with _is_compiling_flag
    PyObject* is_neg = nullptr;             // (tensor) -> bool
    PyObject* increment_version = nullptr;  // (tensor) -> None
    PyObject* exchange_capsule = nullptr;   // torch.Tensor.__dlpack_c_exchange_api__
    PyObject* describe = nullptr;           // (tensor) -> ints, where there is no exchange table
    PyObject* stream_of = nullptr;          // (device index) -> int, the same
    PyObject* fp8_gemm_nt = nullptr;        // the torch ops
    PyObject* m_grouped_contiguous = nullptr;
    PyObject* m_grouped_masked = nullptr;
    PyObject* m_grouped_offsets = nullptr;
};

struct PartName {
    const char* key;
    PyObject* TorchParts::* member;
    bool optional;  // None: this torch lacks it, so every call goes to the dispatcher
};
constexpr std::array<PartName, 19> kParts = {{
    {"tensor_type", &TorchParts::tensor_type, false},
    {"parameter_type", &TorchParts::parameter_type, false},
    {"disabled_dispatch", &TorchParts::disabled_dispatch, true},
    {"disabled_function", &TorchParts::disabled_function, true},
    {"dispatch_depth", &TorchParts::dispatch_depth, true},
    {"function_depth", &TorchParts::function_depth, true},
    {"is_tracing", &TorchParts::is_tracing, true},
    {"grad_enabled", &TorchParts::grad_enabled, false},
    {"profiler_globals", &TorchParts::profiler_globals, true},
    {"compiler_globals", &TorchParts::compiler_globals, true},
    {"is_neg", &TorchParts::is_neg, true},
    {"increment_version", &TorchParts::increment_version, false},
    {"exchange_capsule", &TorchParts::exchange_capsule, true},
    {"describe", &TorchParts::describe, false},
    {"stream_of", &TorchParts::stream_of, false},
    {"fp8_gemm_nt", &TorchParts::fp8_gemm_nt, false},
    {"m_grouped_fp8_gemm_nt_contiguous", &TorchParts::m_grouped_contiguous, false},
    {"m_grouped_fp8_gemm_nt_masked", &TorchParts::m_grouped_masked, false},
    {"m_grouped_fp8_gemm_nt_offsets", &TorchParts::m_grouped_offsets, false},
}};

TorchParts g_torch;
bool g_attached = false;
bool g_can_skip_dispatcher = false;  // every probe and the exchange table are there
const dlpack::ExchangeApi* g_api = nullptr;
NativeTorch g_native;  // what is nullptr in it is asked through g_torch or g_api

PyObject* g_requires_grad_key = nullptr;
PyObject* g_no_types = nullptr;  // ()

const dlpack::ExchangeApi* find_api(PyObject* capsule) {
    if (capsule == nullptr || !PyCapsule_IsValid(capsule, dlpack::kCapsuleName)) return nullptr;
    auto* header = static_cast<const dlpack::ApiHeader*>(PyCapsule_GetPointer(capsule, dlpack::kCapsuleName));
    while (header != nullptr && header->major != dlpack::kMajor) header = header->older;
    const auto* api = reinterpret_cast<const dlpack::ExchangeApi*>(header);
    const bool usable = api != nullptr && api->tensor_from_object != nullptr &&
                        api->current_work_stream != nullptr;
    return usable ? api : nullptr;
}

// ---- types --------------------------------------------------------------------------------------

enum class TensorKind : std::uint8_t {
    kPlain,      // torch.Tensor or torch.nn.Parameter itself: torch runs none of its hooks
    kParameter,  // a subclass of Parameter that leaves __torch_dispatch__ alone (weights of serving
                 // frameworks)
    kSubclass,   // any other subclass: the dispatcher decides
    kOther,      // no tensor at all
};

// The kind of a type is decided once and remembered.
struct KnownType {
    PyTypeObject* type = nullptr;  // owned, so that the address cannot come to mean another type
    TensorKind kind = TensorKind::kOther;
    bool has_function_hook = false;  // its __torch_function__ is Python code
};
std::array<KnownType, 32> g_types;  // by address; a collision just decides again

bool attribute_is(PyTypeObject* type, const char* name, PyObject* expected) {
    PyObject* value = PyObject_GetAttrString(reinterpret_cast<PyObject*>(type), name);
    if (value == nullptr) PyErr_Clear();
    const bool same = value != nullptr && value == expected;
    Py_XDECREF(value);
    return same;
}

inline KnownType& slot_of(PyTypeObject* type) {
    return g_types[(reinterpret_cast<std::uintptr_t>(type) >> 5) % g_types.size()];
}

[[gnu::noinline]] KnownType decide_type(PyTypeObject* type) {
    KnownType found;
    if (PyType_IsSubtype(type, reinterpret_cast<PyTypeObject*>(g_torch.tensor_type)) == 0) {
        found.kind = TensorKind::kOther;
    } else if (reinterpret_cast<PyObject*>(type) == g_torch.tensor_type ||
               reinterpret_cast<PyObject*>(type) == g_torch.parameter_type) {
        found.kind = TensorKind::kPlain;
    } else if (PyType_IsSubtype(type, reinterpret_cast<PyTypeObject*>(g_torch.parameter_type)) != 0 &&
               attribute_is(type, "__torch_dispatch__", g_torch.disabled_dispatch)) {
        found.kind = TensorKind::kParameter;
        found.has_function_hook = !attribute_is(type, "__torch_function__", g_torch.disabled_function);
    } else {
        found.kind = TensorKind::kSubclass;
    }
    Py_INCREF(type);
    found.type = type;
    KnownType& slot = slot_of(type);
    PyTypeObject* old = slot.type;
    slot = found;
    Py_XDECREF(old);  // may run Python code, which may use the slot for another type
    return found;
}

inline TensorKind kind_of(PyObject* object) {
    PyTypeObject* type = Py_TYPE(object);
    if (reinterpret_cast<PyObject*>(type) == g_torch.tensor_type) return TensorKind::kPlain;
    const KnownType& slot = slot_of(type);
    return slot.type == type ? slot.kind : decide_type(type).kind;
}

bool has_function_hook(PyTypeObject* type) {
    const KnownType& slot = slot_of(type);
    return slot.type == type ? slot.has_function_hook : decide_type(type).has_function_hook;
}

// ---- probes -------------------------------------------------------------------------------------

// A probe that fails answers "yes": the dispatcher then says what is wrong.
bool is_true(PyObject* result) {
    if (result == Py_False)
        return false;  // Py_False and Py_True need no count here: both are immortal or still held
    if (result == nullptr) PyErr_Clear();
    return true;
}

bool call_is_true(PyObject* probe) {
    PyObject* result = PyObject_CallNoArgs(probe);
    const bool yes = is_true(result);
    Py_XDECREF(result);
    return yes;
}

bool call_is_nonzero(PyObject* probe) {
    PyObject* result = PyObject_CallNoArgs(probe);
    if (result == nullptr) {
        PyErr_Clear();
        return true;
    }
    const bool nonzero = PyLong_AsLong(result) != 0;
    Py_DECREF(result);
    return nonzero;
}

bool dispatch_mode_active() {
    if (g_native.dispatch_depth != nullptr) [[likely]]
        return g_native.dispatch_depth() != 0;
    return call_is_nonzero(g_torch.dispatch_depth);
}

bool function_mode_active() {
    if (g_native.function_depth != nullptr) [[likely]]
        return g_native.function_depth() != 0;
    return call_is_nonzero(g_torch.function_depth);
}

bool tracing() {
    if (g_native.tracing_state != nullptr) [[likely]]
        return *g_native.tracing_state() != nullptr;
    return call_is_true(g_torch.is_tracing);
}

bool grad_enabled() {
    if (g_native.grad_enabled != nullptr) [[likely]]
        return g_native.grad_enabled();
    return call_is_true(g_torch.grad_enabled);
}

// ---- lazily negated views -----------------------------------------------------------------------

// A call for each tensor of each launch: nothing may be remembered. A weak reference would forbid
// torch.utils.swap_tensors (load_state_dict, .to()), and .data can be assigned a negated view later.
PyObject* ask_is_neg(PyObject* tensor, bool past_hook) {
    if (!past_hook) return PyObject_CallOneArg(g_torch.is_neg, tensor);
    // Hooks cost microseconds and may do anything.
    PyObject* args = PyTuple_Pack(1, tensor);
    if (args == nullptr) return nullptr;
    PyObject* const call[] = {g_torch.is_neg, g_no_types, args};
    PyObject* result = PyObject_Vectorcall(g_torch.disabled_function, call, 3, nullptr);
    Py_DECREF(args);
    return result;
}

// A view whose memory holds the negated values. Only for kPlain and kParameter; no __torch_function__ runs.
bool is_lazy_negation(PyObject* tensor) {
    if (g_native.is_neg != nullptr) [[likely]]
        return g_native.is_neg(g_native.tensor(tensor));
    const bool plain = reinterpret_cast<PyObject*>(Py_TYPE(tensor)) == g_torch.tensor_type;
    PyObject* result = ask_is_neg(tensor, !plain && has_function_hook(Py_TYPE(tensor)));
    const bool yes = is_true(result);
    Py_XDECREF(result);
    return yes;
}

// ---- reading ------------------------------------------------------------------------------------

constexpr std::uint32_t word_of(std::uint8_t code, std::uint32_t bits, std::uint32_t lanes = 1) {
    return code | bits << 8 | lanes << 16;
}

DType dtype_of(const dlpack::DataType& t) {
    switch (std::bit_cast<std::uint32_t>(t)) {
        case word_of(dlpack::kFloat8E4M3Fn, 8): return DType::kE4M3;
        case word_of(dlpack::kFloat, 32): return DType::kF32;
        case word_of(dlpack::kBfloat, 16): return DType::kBF16;
        case word_of(dlpack::kFloat, 16): return DType::kF16;
        case word_of(dlpack::kInt, 32): return DType::kI32;
        case word_of(dlpack::kFloat8E5M2, 8): return DType::kE5M2;
        case word_of(dlpack::kFloat8E8M0, 8): return DType::kE8M0;
        case word_of(dlpack::kFloat, 64): return DType::kF64;
        case word_of(dlpack::kInt, 8): return DType::kI8;
        case word_of(dlpack::kInt, 64): return DType::kI64;
        case word_of(dlpack::kUInt, 8): return DType::kU8;
        case word_of(dlpack::kFloat4E2M1Fn, 4, 2): return DType::kF4x2;
        case word_of(dlpack::kBool, 8): return DType::kBool;
        case word_of(dlpack::kInt, 16): return DType::kI16;
        case word_of(dlpack::kUInt, 16): return DType::kU16;
        case word_of(dlpack::kUInt, 32): return DType::kU32;
        case word_of(dlpack::kUInt, 64): return DType::kU64;
        case word_of(dlpack::kComplex, 32): return DType::kComplex32;
        case word_of(dlpack::kComplex, 64): return DType::kComplex64;
        case word_of(dlpack::kComplex, 128): return DType::kComplex128;
        case word_of(dlpack::kFloat8E4M3Fnuz, 8): return DType::kE4M3Fnuz;
        case word_of(dlpack::kFloat8E5M2Fnuz, 8): return DType::kE5M2Fnuz;
        default: return DType::kUnknown;
    }
}

Device device_of(const dlpack::Device& d) {
    switch (d.type) {
        case dlpack::kCpu:
        case dlpack::kCudaHost: return {Device::Type::kCpu, 0};
        case dlpack::kCuda: return {Device::Type::kCuda, d.id};
        default: return {Device::Type::kOther, d.id};
    }
}

bool has_elements(const TensorView& view) {
    for (int i = 0; i < view.ndim; ++i)
        if (view.shape[static_cast<std::size_t>(i)] == 0) return false;
    return true;
}

ReadResult finish(const TensorView& view) {
    return view.data == nullptr && has_elements(view) ? ReadResult::kNoData : ReadResult::kOk;
}

// The exchange table's function ends in the native one, after a conversion that costs five times as much.
bool describe_natively(PyObject* tensor, dlpack::Tensor& t) {
    if (!g_native.describes()) return false;
    try {
        g_native.describe_tensor(g_native.tensor(tensor), &t);
        return true;
    } catch (...) {
        return false;  // the table fails too, and sets the Python error
    }
}

// Without a loop: each tensor of each call passes here.
inline void copy_extents(const std::int64_t* from, int count,
                         std::array<std::int64_t, TensorView::kMaxDims>& to) {
    static_assert(TensorView::kMaxDims == 4);
    switch (count) {
        case 4: to[3] = from[3]; [[fallthrough]];
        case 3: to[2] = from[2]; [[fallthrough]];
        case 2: to[1] = from[1]; [[fallthrough]];
        case 1: to[0] = from[0]; [[fallthrough]];
        default: break;
    }
}

[[gnu::cold, gnu::noinline]] void fill_row_major(TensorView& view) {
    std::int64_t stride = 1;
    for (auto i = static_cast<std::size_t>(view.ndim); i-- > 0; stride *= view.shape[i])
        view.stride[i] = stride;
}

inline ReadResult view_of(const dlpack::Tensor& t, TensorView& view) {
    view.ndim = t.ndim;
    view.dtype = dtype_of(t.dtype);
    view.device = device_of(t.device);
    if (t.ndim > TensorView::kMaxDims) [[unlikely]]
        return ReadResult::kTooMany;
    view.data = static_cast<char*>(t.data) + t.byte_offset;
    copy_extents(t.shape, t.ndim, view.shape);
    if (t.strides != nullptr) [[likely]]
        copy_extents(t.strides, t.ndim, view.stride);
    else fill_row_major(view);
    return finish(view);
}

// describe() returns (data_ptr, dtype code, device type, device index, ndim, *shape, *strides); the codes are
// our enums.
[[gnu::cold, gnu::noinline]] ReadResult read_through_python(PyObject* tensor, TensorView& view) {
    PyObject* ints = PyObject_CallOneArg(g_torch.describe, tensor);
    if (ints == nullptr) return ReadResult::kFailed;
    const auto at = [&](Py_ssize_t i) { return PyLong_AsLongLong(PyTuple_GET_ITEM(ints, i)); };
    view.data = PyLong_AsVoidPtr(PyTuple_GET_ITEM(ints, 0));
    view.dtype = static_cast<DType>(at(1));
    view.device = {static_cast<Device::Type>(at(2)), static_cast<int>(at(3))};
    view.ndim = static_cast<int>(at(4));
    const bool too_many = view.ndim > TensorView::kMaxDims;
    for (int i = 0; i < view.ndim && !too_many; ++i) {
        view.shape[static_cast<std::size_t>(i)] = at(5 + i);
        view.stride[static_cast<std::size_t>(i)] = at(5 + view.ndim + i);
    }
    Py_DECREF(ints);
    if (PyErr_Occurred() != nullptr) return ReadResult::kFailed;
    return too_many ? ReadResult::kTooMany : finish(view);
}

// is_tensor: `object` is known to be one, which the native function has to rely on.
inline ReadResult read_object(PyObject* object, bool is_tensor, TensorView& view) {
    if (g_api == nullptr) [[unlikely]]
        return read_through_python(object, view);
    dlpack::Tensor t;
    if (!(is_tensor && describe_natively(object, t)) && g_api->tensor_from_object(object, &t) != 0)
        return ReadResult::kFailed;
    return view_of(t, view);
}

bool attach_native(PyObject* parts) {
    PyObject* addresses = PyDict_GetItemString(parts, "native");  // borrowed
    PyObject* samples = PyDict_GetItemString(parts, "samples");
    if (addresses == nullptr || samples == nullptr) {
        PyErr_SetString(PyExc_ValueError, "attach_torch: 'native' or 'samples' is missing");
        return false;
    }
    const PythonAnswers python{call_is_nonzero(g_torch.dispatch_depth),
                               call_is_nonzero(g_torch.function_depth), call_is_true(g_torch.is_tracing),
                               call_is_true(g_torch.grad_enabled)};
    return find_native_torch(addresses, samples, python, g_api->tensor_from_object, g_native);
}

}  // namespace

bool torch_attached() { return g_attached; }

PyObject* attach_torch(PyObject* /*module*/, PyObject* parts) {
    if (g_attached) Py_RETURN_NONE;
    if (PyDict_Check(parts) == 0) return PyErr_Format(PyExc_TypeError, "attach_torch: parts must be a dict");
    TorchParts found;
    bool complete = true;
    for (const PartName& part : kParts) {
        PyObject* value = PyDict_GetItemString(parts, part.key);  // borrowed
        if (value == nullptr || (value == Py_None && !part.optional))
            return PyErr_Format(PyExc_ValueError, "attach_torch: '%s' is missing", part.key);
        if (value == Py_None) complete = false;
        else found.*part.member = Py_NewRef(value);
    }
    g_requires_grad_key = PyUnicode_InternFromString("requires_grad");
    g_no_types = PyTuple_New(0);
    if (g_requires_grad_key == nullptr || g_no_types == nullptr ||
        !attach_module_flags(found.profiler_globals, found.compiler_globals))
        return nullptr;
    g_torch = found;
    g_api = find_api(found.exchange_capsule);
    g_can_skip_dispatcher = complete && g_api != nullptr;
    if (g_can_skip_dispatcher && !attach_native(parts)) return nullptr;
    Py_RETURN_NONE;
}

PyObject* finish_attaching(PyObject* /*module*/, PyObject* /*unused*/) {
    g_attached = g_torch.tensor_type != nullptr;
    Py_RETURN_NONE;
}

bool dispatcher_needed() {
    return !g_can_skip_dispatcher || dispatch_mode_active() || function_mode_active() || tracing() ||
           module_flag_is_set();
}

bool wants_grad(PyObject* tensor) {
    if (g_native.requires_grad != nullptr && kind_of(tensor) != TensorKind::kOther) [[likely]]
        return g_native.requires_grad(*g_native.tensor(tensor)) && grad_enabled();
    PyObject* value = PyObject_GetAttr(tensor, g_requires_grad_key);
    const bool requires_grad = is_true(value);
    Py_XDECREF(value);
    return requires_grad && grad_enabled();
}

void mark_written(PyObject* tensor) {
    if (g_native.version_counter != nullptr && g_native.bump_version != nullptr) [[likely]]
        return mark_written(g_native.tensor(tensor));
    PyObject* result = PyObject_CallOneArg(g_torch.increment_version, tensor);
    if (result == nullptr) PyErr_Clear();
    Py_XDECREF(result);
}

bool is_tensor(PyObject* object) { return kind_of(object) != TensorKind::kOther; }

ReadResult read_tensor(PyObject* tensor, TensorView& view) {
    return read_object(tensor, is_tensor(tensor), view);
}

DirectRead read_directly(PyObject* object, TensorView& view) {
    const TensorKind kind = kind_of(object);
    if (kind == TensorKind::kOther) [[unlikely]]
        return DirectRead::kOther;
    if (kind == TensorKind::kSubclass) [[unlikely]]
        return DirectRead::kDispatcher;
    const ReadResult read = read_object(object, true, view);
    if (read != ReadResult::kOk) [[unlikely]] {
        if (read == ReadResult::kTooMany) return DirectRead::kTooMany;
        if (read == ReadResult::kFailed) PyErr_Clear();
        return DirectRead::kDispatcher;
    }
    // torch negates lazily what is the imaginary part of something, never e4m3 or an integer: those are not
    // worth a call.
    const bool may_be_negated = view.dtype != DType::kE4M3 && view.dtype != DType::kI32;
    return may_be_negated && is_lazy_negation(object) ? DirectRead::kDispatcher : DirectRead::kRead;
}

bool reads_natively() {
    return g_api != nullptr && g_native.describes() && g_native.requires_grad != nullptr &&
           g_native.grad_enabled != nullptr && g_native.version_counter != nullptr &&
           g_native.bump_version != nullptr;
}

bool wants_grad(NativeTensor tensor) { return g_native.requires_grad(*tensor) && g_native.grad_enabled(); }

void mark_written(NativeTensor tensor) {
    if (*g_native.version_counter(tensor) != nullptr) g_native.bump_version(tensor);  // then it cannot throw
}

ReadResult read_tensor(NativeTensor tensor, TensorView& view) {
    dlpack::Tensor t;
    g_native.describe_tensor(tensor, &t);
    return view_of(t, view);
}

bool current_stream(const Device& device, void** stream) {
    if (g_api != nullptr) return g_api->current_work_stream(dlpack::kCuda, device.index, stream) == 0;
    PyObject* value = PyObject_CallFunction(g_torch.stream_of, "i", device.index);
    if (value == nullptr) return false;
    *stream = PyLong_AsVoidPtr(value);
    Py_DECREF(value);
    return PyErr_Occurred() == nullptr;
}

PyObject* native_torch(PyObject* /*module*/, PyObject* /*unused*/) { return names_of(g_native); }

PyObject* torch_op(TorchOp op) {
    switch (op) {
        case TorchOp::kMGroupedContiguous: return g_torch.m_grouped_contiguous;
        case TorchOp::kMGroupedMasked: return g_torch.m_grouped_masked;
        case TorchOp::kMGroupedOffsets: return g_torch.m_grouped_offsets;
        default: return g_torch.fp8_gemm_nt;
    }
}

}  // namespace dgj::bindings
