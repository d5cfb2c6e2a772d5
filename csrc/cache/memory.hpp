// The kernels of this process, and the look-ups in progress, which threads share.
#pragma once

#include <condition_variable>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>

#include "cache/kernel_cache.hpp"

namespace dgj {

class KernelMemory {
public:
    using Kernel = std::shared_ptr<const CachedKernel>;

    // nullptr when it is not there.
    Kernel find(const CacheKey& key);

    // The kernel, or what `look_up` returns or throws. For one key it runs in one thread at a time; threads
    // that ask meanwhile get its result or its exception, and look for themselves where it returned nullptr.
    // No mutex is held while it runs.
    Kernel get(const CacheKey& key, const std::function<Kernel()>& look_up);

    void put(const CacheKey& key, const Kernel& kernel);
    void erase(const CacheKey& key);
    void clear();

    // Around a fork. The child has none of the threads that were at work, so it must not wait for them.
    void before_fork() { mutex_.lock(); }
    void after_fork_in_parent() { mutex_.unlock(); }
    void after_fork_in_child();

private:
    struct Flight {  // each has its own condition, which a forked child just abandons
        std::condition_variable landed;
        bool done = false;
        Kernel kernel;
        std::exception_ptr error;
    };

    std::mutex mutex_;
    std::map<CacheKey, Kernel> kernels_;
    std::map<CacheKey, std::shared_ptr<Flight>> flights_;
};

}  // namespace dgj
