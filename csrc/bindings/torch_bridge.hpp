// What the fast path needs of torch, without a torch header: how to tell that a call may skip the dispatcher,
// and how to read a tensor. deep_gemm_jit/ops.py hands over the Python objects once, when torch is there;
// until then nothing is set.
#pragma once

#include <Python.h>

#include <cstdint>

#include "bindings/native_torch.hpp"
#include "problem/types.hpp"

namespace dgj::bindings {

bool torch_attached();
// METH_O; see the table in torch_bridge.cpp for `parts`. Everything below may be asked after it.
PyObject* attach_torch(PyObject* module, PyObject* parts);
// METH_NOARGS. Calls may run from now on: the torch ops have their implementations.
PyObject* finish_attaching(PyObject* module, PyObject* unused);
// METH_NOARGS: the names of what torch's own libraries are asked, see native_torch.hpp.
PyObject* native_torch(PyObject* module, PyObject* unused);

// True when something that only the dispatcher serves may be active: a dispatch or function mode, tracing,
// compiling, a profiler; or when this torch lacks a way to tell. A functorch transform is not asked for: it
// matters only to the tensors that it wraps, and those cannot be read (read_tensor says kFailed or kNoData).
bool dispatcher_needed();

// d is written behind autograd's back, which is an error where autograd would have to follow it.
bool wants_grad(PyObject* tensor);  // grad mode is on and the tensor requires grad

// Autograd is told that the tensor was written, as torch's own operations do: what saved it for backward then
// refuses it.
void mark_written(PyObject* tensor);

enum class ReadResult {
    kOk,
    kFailed,   // torch could not describe it (no memory of its own, a wrapper): a Python error is set
    kNoData,   // it has elements but no memory; no error is set
    kTooMany,  // more dimensions than any operation takes; the view has ndim and nothing else
};
ReadResult read_tensor(PyObject* tensor, TensorView& view);

// The same for an argument of a direct call, of any type.
enum class DirectRead {
    kRead,        // the view has it
    kDispatcher,  // a tensor that only torch's dispatcher serves; no error is set
    kTooMany,     // as above
    kOther,       // no tensor at all
};
DirectRead read_directly(PyObject* object, TensorView& view);
bool is_tensor(PyObject* object);

// The same for a tensor that torch's C++ code hands over, without the GIL; only where reads_natively().
// read_tensor throws what torch throws where it could not describe the tensor.
bool reads_natively();
bool wants_grad(NativeTensor tensor);
void mark_written(NativeTensor tensor);
ReadResult read_tensor(NativeTensor tensor, TensorView& view);

// The current stream of torch on that device. False with a Python error set, never for the device of a
// tensor: the GIL is not needed then.
bool current_stream(const Device& device, void** stream);

// torch.ops.deep_gemm_jit.<name>: what serves a call that needs the dispatcher.
enum class TorchOp { kFp8GemmNt, kMGroupedContiguous, kMGroupedMasked, kMGroupedOffsets };
PyObject* torch_op(TorchOp op);

}  // namespace dgj::bindings
