// What every call asks of torch, put to C++ functions of torch's own libraries: a Python call costs ten times
// what the answer does. ops.py finds the functions by their symbols and hands over their addresses. One that
// this torch does not export, or that contradicts Python when torch is attached, stays nullptr; the caller
// then asks through Python or the exchange table.
#pragma once

#include <Python.h>

#include <cstddef>
#include <cstdint>

#include "bindings/dlpack_abi.hpp"

namespace dgj::bindings {

// An at::Tensor where it lies in the Python object: one pointer, never null, to the tensor's implementation.
using NativeTensor = const void* const*;

struct NativeTorch {
    std::int64_t (*dispatch_depth)() = nullptr;  // active torch-dispatch modes
    std::int64_t (*function_depth)() = nullptr;  // active torch-function modes
    // The shared_ptr to what torch.jit.trace writes; its first word is null outside of a trace.
    const void* const* (*tracing_state)() = nullptr;
    bool (*grad_enabled)() = nullptr;

    bool (*is_neg)(NativeTensor) = nullptr;
    bool (*requires_grad)(const void* implementation) = nullptr;
    // One of the two, depending on the version of torch. May throw.
    void (*describe)(NativeTensor, dlpack::Tensor*) = nullptr;
    void (*describe_as)(NativeTensor, dlpack::Tensor*, bool read_only) = nullptr;
    std::size_t tensor_at = 0;  // bytes from the start of a Python tensor

    bool describes() const { return describe != nullptr || describe_as != nullptr; }
    void describe_tensor(NativeTensor tensor, dlpack::Tensor* out) const {
        if (describe != nullptr) describe(tensor, out);
        else describe_as(tensor, out, false);
    }
    // `object` must be a tensor, and one of the functions of tensors be there.
    NativeTensor tensor(PyObject* object) const {
        return reinterpret_cast<NativeTensor>(reinterpret_cast<const char*>(object) + tensor_at);
    }
};

// What Python says at the same moment.
struct PythonAnswers {
    bool dispatch_mode, function_mode, tracing, grad_enabled;
};

// addresses: dict, name of a member above -> address, or None.
// samples: sequence of (tensor, its _cdata, is_neg, requires_grad): without samples no function of tensors is
// used. False with a Python error set when they are something else.
bool find_native_torch(PyObject* addresses, PyObject* samples, const PythonAnswers& python,
                       int (*exchange_describe)(void*, dlpack::Tensor*), NativeTorch& out);

// The names of the members that are there, as a new tuple.
PyObject* names_of(const NativeTorch& native);

}  // namespace dgj::bindings
