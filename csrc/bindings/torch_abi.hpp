// The part of torch's stable C interface (torch >= 2.10) through which operators are implemented without
// Python. Declared here so that no header of torch is needed at build and nothing links torch; ops.py finds
// the functions by their names.
#pragma once

#include <bit>
#include <cstdint>
#include <new>

namespace dgj::bindings::torch_abi {

// StableIValue. A tensor: the address of an at::Tensor, which whoever is given the value deletes. An optional
// of something: 0, or the address of a Value, which is deleted likewise. Else the number itself, in the low
// bytes.
using Value = std::uint64_t;

// An operator's implementation: inputs lie on the stack, in the order of its schema; outputs replace them.
// Exceptions pass to the caller of the operator.
using Kernel = void (*)(Value* stack, std::uint64_t inputs, std::uint64_t outputs);

// The version whose values are described here: torch is told, and keeps to it in newer versions.
inline constexpr std::uint64_t kVersion = 2ULL << 56 | 10ULL << 48;
constexpr std::uint64_t major_of(std::uint64_t version) { return version >> 56; }

// Functions return 0 for success.
struct Functions {
    std::uint64_t (*abi_version)() = nullptr;
    std::int32_t (*init_impl)(const char* library, const char* dispatch_key, const char* file,
                              std::uint32_t line, void** handle) = nullptr;
    std::int32_t (*implement)(void* library, const char* name, Kernel kernel,
                              std::uint64_t version) = nullptr;
    std::int32_t (*delete_library)(void* library) = nullptr;
    std::int32_t (*delete_tensor)(void* tensor) = nullptr;
};

inline bool flag(Value value) { return (value & 0xff) != 0; }
inline std::int64_t integer(Value value) { return static_cast<std::int64_t>(value); }
inline double number(Value value) { return std::bit_cast<double>(value); }

inline void* tensor(Value value) { return reinterpret_cast<void*>(value); }
inline void* optional_tensor(Value value) {
    auto* inner = reinterpret_cast<Value*>(value);
    if (inner == nullptr) return nullptr;
    void* found = tensor(*inner);
    ::operator delete(inner);
    return found;
}

}  // namespace dgj::bindings::torch_abi
