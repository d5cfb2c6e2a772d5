#include "bindings/native_torch.hpp"

#include <algorithm>
#include <cstring>

namespace dgj::bindings {
namespace {

struct Sample {
    PyObject* tensor;
    std::uintptr_t implementation;
    bool is_neg, requires_grad;
};

bool read_sample(PyObject* item, Sample& out) {
    unsigned long long implementation = 0;
    int is_neg = 0, requires_grad = 0;
    if (PyArg_ParseTuple(item, "OKpp", &out.tensor, &implementation, &is_neg, &requires_grad) == 0)
        return false;
    out.implementation = static_cast<std::uintptr_t>(implementation);
    out.is_neg = is_neg != 0;
    out.requires_grad = requires_grad != 0;
    return true;
}

std::uintptr_t word_at(PyObject* object, std::size_t offset) {
    std::uintptr_t word;
    std::memcpy(&word, reinterpret_cast<const char*>(object) + offset, sizeof word);
    return word;
}

// The one place of a Python tensor that holds the address of its implementation; 0: there is none, or two.
std::size_t find_tensor_at(PyObject* samples) {
    std::size_t found = 0;
    for (std::size_t at = sizeof(PyObject);; at += sizeof(void*)) {
        bool inside = PyTuple_GET_SIZE(samples) != 0, here = true;
        for (Py_ssize_t i = 0; inside && i < PyTuple_GET_SIZE(samples); ++i) {
            Sample s{};
            if (!read_sample(PyTuple_GET_ITEM(samples, i), s)) return 0;
            inside = at + sizeof(void*) <= static_cast<std::size_t>(Py_TYPE(s.tensor)->tp_basicsize);
            here = here && inside && word_at(s.tensor, at) == s.implementation;
        }
        if (!inside) return found;
        if (here && found != 0) return 0;
        if (here) found = at;
    }
}

bool same(const dlpack::Tensor& a, const dlpack::Tensor& b) {
    const auto row_major = [](const dlpack::Tensor& t) { return t.strides == nullptr; };
    if (a.data != b.data || a.device.type != b.device.type || a.device.id != b.device.id ||
        a.ndim != b.ndim || std::memcmp(&a.dtype, &b.dtype, sizeof a.dtype) != 0 ||
        a.byte_offset != b.byte_offset || row_major(a) != row_major(b))
        return false;
    return std::equal(a.shape, a.shape + a.ndim, b.shape) &&
           (row_major(a) || std::equal(a.strides, a.strides + a.ndim, b.strides));
}

bool describes_like(const NativeTorch& native, int (*exchange_describe)(void*, dlpack::Tensor*),
                    PyObject* tensor) {
    dlpack::Tensor expected{}, found{};
    if (exchange_describe == nullptr || exchange_describe(tensor, &expected) != 0) {
        PyErr_Clear();
        return false;
    }
    try {
        native.describe_tensor(native.tensor(tensor), &found);
    } catch (...) {
        return false;
    }
    return same(expected, found);
}

// Each function as the dictionary names it.
template <class Native, class Use>
void for_each_function(Native& native, Use&& use) {
    use("dispatch_depth", native.dispatch_depth);
    use("function_depth", native.function_depth);
    use("tracing_state", native.tracing_state);
    use("grad_enabled", native.grad_enabled);
    use("is_neg", native.is_neg);
    use("requires_grad", native.requires_grad);
    use("describe", native.describe);
    use("describe_as", native.describe_as);
}

void drop_functions_of_tensors(NativeTorch& native) {
    native.is_neg = nullptr;
    native.requires_grad = nullptr;
    native.describe = nullptr;
    native.describe_as = nullptr;
}

void drop_what_contradicts(NativeTorch& n, const PythonAnswers& python) {
    if (n.dispatch_depth != nullptr && (n.dispatch_depth() != 0) != python.dispatch_mode)
        n.dispatch_depth = nullptr;
    if (n.function_depth != nullptr && (n.function_depth() != 0) != python.function_mode)
        n.function_depth = nullptr;
    if (n.tracing_state != nullptr && (*n.tracing_state() != nullptr) != python.tracing)
        n.tracing_state = nullptr;
    if (n.grad_enabled != nullptr && n.grad_enabled() != python.grad_enabled) n.grad_enabled = nullptr;
}

}  // namespace

bool find_native_torch(PyObject* addresses, PyObject* samples, const PythonAnswers& python,
                       int (*exchange_describe)(void*, dlpack::Tensor*), NativeTorch& out) {
    NativeTorch n;
    if (PyDict_Check(addresses) == 0 || PyTuple_Check(samples) == 0) {
        PyErr_SetString(PyExc_TypeError, "attach_torch: native must be a dict, samples a tuple");
        return false;
    }
    for_each_function(n, [&](const char* name, auto& function) {
        PyObject* address = PyDict_GetItemString(addresses, name);  // borrowed
        if (address == nullptr || address == Py_None) return;
        function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(PyLong_AsVoidPtr(address));
    });
    if (PyErr_Occurred() != nullptr) return false;
    drop_what_contradicts(n, python);

    n.tensor_at = find_tensor_at(samples);
    if (PyErr_Occurred() != nullptr) return false;
    if (n.tensor_at == 0) drop_functions_of_tensors(n);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(samples) && n.tensor_at != 0; ++i) {
        Sample s{};
        if (!read_sample(PyTuple_GET_ITEM(samples, i), s)) return false;
        const NativeTensor tensor = n.tensor(s.tensor);
        if (n.is_neg != nullptr && n.is_neg(tensor) != s.is_neg) n.is_neg = nullptr;
        if (n.requires_grad != nullptr && n.requires_grad(*tensor) != s.requires_grad)
            n.requires_grad = nullptr;
        if (n.describes() && !describes_like(n, exchange_describe, s.tensor))
            n.describe = nullptr, n.describe_as = nullptr;
    }
    out = n;
    return true;
}

PyObject* names_of(const NativeTorch& native) {
    PyObject* names = PyList_New(0);
    for_each_function(native, [&](const char* name, auto function) {
        if (names == nullptr || function == nullptr) return;
        PyObject* text = PyUnicode_FromString(name);
        if (text == nullptr || PyList_Append(names, text) != 0) Py_CLEAR(names);
        Py_XDECREF(text);
    });
    if (names == nullptr) return nullptr;
    PyObject* tuple = PyList_AsTuple(names);
    Py_DECREF(names);
    return tuple;
}

}  // namespace dgj::bindings
