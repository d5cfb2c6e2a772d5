#include "cpu/pool.hpp"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

#include "base/env.hpp"
#include "base/error.hpp"

namespace dgj::cpu {
namespace {

struct Job {
    Job(TaskFunction run_, const void* context_, std::int64_t tasks_)
        : run(run_), context(context_), tasks(tasks_) {}

    const TaskFunction run;
    const void* const context;
    const std::int64_t tasks;
    std::atomic<std::int64_t> next{0};
    std::mutex error_mutex;
    std::exception_ptr error;

    void work() {
        for (std::int64_t task; (task = next.fetch_add(1, std::memory_order_relaxed)) < tasks;) {
            try {
                run(context, task);
            } catch (...) {
                next.store(tasks, std::memory_order_relaxed);
                const std::lock_guard lock(error_mutex);
                if (!error) error = std::current_exception();
            }
        }
    }
};

int read_num_threads() {
    const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
    const auto text = env::get(env::kNumThreads);
    if (!text || text->empty()) return cores;
    int value = 0;
    const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
    if (error != std::errc{} || end != text->data() + text->size() || value < 1 || value > 4096) {
        fail(ErrorKind::kValue, "{}='{}'; allowed: an integer in 1..4096, or unset for all cores",
             env::kNumThreads.name, *text);
    }
    return value;
}

class Pool {
public:
    explicit Pool(int threads) : wanted_(threads) {}

    int threads() const { return wanted_; }

    void run(Job& job) {
        if (busy_.test_and_set(std::memory_order_acquire)) return job.work();
        start_threads();
        const auto helpers = std::min<std::int64_t>(static_cast<std::int64_t>(threads_.size()),
                                                    job.tasks - 1);
        {
            const std::lock_guard lock(mutex_);
            job_ = &job;
            seats_ = helpers;
        }
        for (std::int64_t i = 0; i < helpers; ++i) wake_.notify_one();
        job.work();
        {
            // A thread that wakes only now finds no seat and goes back to sleep: nobody waits for it.
            std::unique_lock lock(mutex_);
            seats_ = 0;
            done_.wait(lock, [&] { return running_ == 0; });
        }
        busy_.clear(std::memory_order_release);
    }

private:
    // Threads start in the first caller that wins busy_, never in the constructor: a pool that loses the race
    // to be published has none to join.
    void start_threads() {
        if (started_) return;
        started_ = true;
        sigset_t all, before;  // signals are for the program's own threads
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        try {
            threads_.reserve(static_cast<std::size_t>(wanted_));
            while (static_cast<int>(threads_.size()) + 1 < wanted_)
                threads_.emplace_back([this] { serve(); });
        } catch (const std::exception&) {
            // Out of threads or memory: those that exist do the work, at worst the caller alone.
        }
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
    }

    void serve() {
        std::unique_lock lock(mutex_);
        for (;;) {
            wake_.wait(lock, [&] { return seats_ > 0; });
            --seats_;
            ++running_;
            Job& job = *job_;
            lock.unlock();
            job.work();
            lock.lock();
            if (--running_ == 0) done_.notify_one();
        }
    }

    const int wanted_;
    bool started_ = false;
    std::atomic_flag busy_;
    std::mutex mutex_;
    std::condition_variable wake_, done_;
    Job* job_ = nullptr;
    std::int64_t seats_ = 0;    // helpers that the job still takes
    std::int64_t running_ = 0;  // helpers at work
    std::vector<std::thread> threads_;
};

// Never destroyed: its threads sleep until the process ends, and a forked child must not touch its parent's
// mutexes.
std::atomic<Pool*> g_pool{nullptr};

// A child has one thread. It forgets the parent's pool, whatever state that was in, and makes its own when
// needed.
[[maybe_unused]] const int g_at_fork = pthread_atfork(nullptr, nullptr, [] { g_pool.store(nullptr); });

Pool& pool() {
    Pool* current = g_pool.load(std::memory_order_acquire);
    if (current != nullptr) return *current;
    auto fresh = std::make_unique<Pool>(read_num_threads());
    if (g_pool.compare_exchange_strong(current, fresh.get(), std::memory_order_acq_rel))
        return *fresh.release();
    return *current;
}

struct AlignedDelete {
    void operator()(float* p) const { ::operator delete[](p, std::align_val_t{64}); }
};

}  // namespace

int num_threads() { return pool().threads(); }

void parallel_for_raw(std::int64_t tasks, TaskFunction run, const void* context) {
    if (tasks <= 0) return;
    Job job(run, context, tasks);
    if (tasks == 1) {
        job.work();
    } else {
        pool().run(job);
    }
    if (job.error) std::rethrow_exception(job.error);
}

float* scratch(std::size_t floats) {
    thread_local std::unique_ptr<float[], AlignedDelete> memory;
    thread_local std::size_t size = 0;
    if (size < floats) {
        memory.reset();
        size = 0;
        memory.reset(static_cast<float*>(::operator new[](floats * sizeof(float), std::align_val_t{64})));
        size = floats;
    }
    return memory.get();
}

}  // namespace dgj::cpu
