// What a thread keeps from call to call: its latest launch, whole, so that a benchmark can repeat it exactly,
// and the state of each operation.
#pragma once

#include <array>
#include <memory>

#include "runtime/launch.hpp"
#include "runtime/tensor_map.hpp"

namespace dgj::runtime {

alignas(64) inline constexpr CUtensorMap kNoMap{};  // for an operand that the kernel does not read

struct LaunchPlan;

struct LastLaunch {
    std::array<void*, 5> params;  // as many as the kernel has
    LaunchConfig config;
    const LoadedKernel* kernel = nullptr;  // what config and params launch; null while they are changed

    // Launches the plan with `params`. Errors name the operation, its rows and groups. Throws
    // Error(kRuntime).
    void launch(const LaunchPlan& lp, std::uint32_t grid, StreamHandle stream, const char* what,
                std::int64_t rows, std::int64_t groups = 1);
};
LastLaunch& last_launch();  // this thread's

// The thread's State. Its owner frees it at the thread's end; the plain pointer is what is fast to read.
template <class State>
State& thread_local_state() {
    static constinit thread_local State* state = nullptr;
    if (state != nullptr) [[likely]]
        return *state;
    thread_local std::unique_ptr<State> owner;
    owner = std::make_unique<State>();
    return *(state = owner.get());
}

}  // namespace dgj::runtime
