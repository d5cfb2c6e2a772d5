// The library's own threads: no OpenMP, whose runtime may not survive a fork and may meet torch's.
#pragma once

#include <cstddef>
#include <cstdint>

namespace dgj::cpu {

using TaskFunction = void (*)(const void* context, std::int64_t task);

int num_threads();  // DGJ_NUM_THREADS, else the cores this process may use; the caller counts as one

// Calls run(context, task) for every task in [0, tasks), in any order, on at most num_threads() threads, and
// returns when all are done. The first exception is thrown again here. If another thread is inside, the
// caller works alone. A forked child starts its own threads at its first call.
void parallel_for_raw(std::int64_t tasks, TaskFunction run, const void* context);

template <class F>
void parallel_for(std::int64_t tasks, const F& f) {
    parallel_for_raw(
        tasks, [](const void* context, std::int64_t task) { (*static_cast<const F*>(context))(task); }, &f);
}

// At least `floats` floats of this thread's own memory, 64-byte aligned, valid until its next call.
float* scratch(std::size_t floats);

}  // namespace dgj::cpu
