// One exception type crosses the boundary to Python; its kind says which Python exception it becomes.
#pragma once

#include <fmt/format.h>

#include <exception>
#include <string>
#include <utility>

namespace dgj {

enum class ErrorKind {
    kValue,           // ValueError: an argument has a value that is not allowed
    kType,            // TypeError: an argument has the wrong type, dtype or device mix
    kNotImplemented,  // NotImplementedError: recipe, device or architecture not supported; callers fall back
                      // on it
    kCompile,         // deep_gemm_jit.CompileError: NVRTC missing, or it rejected the source
    kJitForbidden,    // deep_gemm_jit.JitForbiddenError: a compile was needed where none is allowed
    kRuntime,         // RuntimeError: the driver refused
};

class Error : public std::exception {
public:
    Error(ErrorKind kind, std::string message) : kind_(kind), message_(std::move(message)) {}
    const char* what() const noexcept override { return message_.c_str(); }
    ErrorKind kind() const noexcept { return kind_; }

private:
    ErrorKind kind_;
    std::string message_;
};

template <class... Args>
[[noreturn]] void fail(ErrorKind kind, fmt::format_string<Args...> format, Args&&... args) {
    throw Error(kind, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace dgj
