// Torch operators implemented without Python: torch's dispatcher calls the kernel itself, with its tensors,
// where a Python implementation would have it take the GIL and make a Python object of every argument. A
// torch that lacks the means gets the Python implementation, run_<name>, which does the same.
#pragma once

#include <array>
#include <cstddef>
#include <span>

#include "bindings/bindings.hpp"
#include "bindings/op_support.hpp"
#include "bindings/torch_abi.hpp"

namespace dgj::bindings {

// The operator `name` of this library gets `kernel` for CPU and CUDA tensors when torch is attached. Names
// live as long as the process.
void add_native_operator(const char* name, torch_abi::Kernel kernel);

void delete_tensor(void* tensor) noexcept;

// The tensors of a call, kRequired and then kOptional ones, in the order of the schema.
template <std::size_t kRequired, std::size_t kOptional = 0>
class TensorArguments {
public:
    explicit TensorArguments(const torch_abi::Value* stack) noexcept {
        for (std::size_t i = 0; i < tensors_.size(); ++i)
            tensors_[i] = i < kRequired ? torch_abi::tensor(stack[i]) : torch_abi::optional_tensor(stack[i]);
    }
    ~TensorArguments() {
        for (void* tensor : tensors_)
            if (tensor != nullptr) delete_tensor(tensor);
    }
    TensorArguments(const TensorArguments&) = delete;
    TensorArguments& operator=(const TensorArguments&) = delete;

    NativeTensor operator[](std::size_t i) const { return static_cast<NativeTensor>(tensors_[i]); }

private:
    std::array<void*, kRequired + kOptional> tensors_;
};

// Throws what torch's Python bindings turn into the Python exception that stands for `error`.
[[noreturn]] void throw_to_torch(const Error& error);

// Throws Error where a tensor cannot be taken.
void read_native(const char* function, std::span<const Named<NativeTensor>> tensors);

// What every kernel does around its `compute`, which reads the views of `tensors` and writes `output`.
template <class Compute>
void run_native(const char* function, std::span<const Named<NativeTensor>> tensors, NativeTensor output,
                Compute&& compute) {
    try {
        if (wants_grad(output)) [[unlikely]]
            throw grad_refused(function, "d");
        read_native(function, tensors);
        compute();
        mark_written(output);
    } catch (const Error& error) {
        throw_to_torch(error);
    }
}

}  // namespace dgj::bindings
