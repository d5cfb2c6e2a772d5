#include "cache/memory.hpp"

namespace dgj {
namespace {

using Kernel = KernelMemory::Kernel;

Kernel as_found_in_memory(const Kernel& kernel) {
    auto stored = std::make_shared<CachedKernel>(*kernel);
    stored->origin = CachedKernel::Origin::kMemory;
    stored->milliseconds = 0;
    return stored;
}

}  // namespace

Kernel KernelMemory::find(const CacheKey& key) {
    const std::lock_guard guard(mutex_);
    const auto known = kernels_.find(key);
    return known != kernels_.end() ? known->second : nullptr;
}

Kernel KernelMemory::get(const CacheKey& key, const std::function<Kernel()>& look_up) {
    std::shared_ptr<Flight> flight;
    {
        std::unique_lock lock(mutex_);
        while (flight == nullptr) {
            if (const auto known = kernels_.find(key); known != kernels_.end()) return known->second;
            const auto [at, first] = flights_.try_emplace(key);
            if (first) {
                flight = at->second = std::make_shared<Flight>();
                break;
            }
            const std::shared_ptr<Flight> other = at->second;
            other->landed.wait(lock, [&] { return other->done; });
            if (other->error) std::rethrow_exception(other->error);
            if (other->kernel) return other->kernel;
            // It found nothing and did not want to wait. This thread looks for itself.
        }
    }
    Kernel kernel, stored;
    std::exception_ptr error;
    try {
        kernel = look_up();
        if (kernel) stored = as_found_in_memory(kernel);
    } catch (...) {
        error = std::current_exception();
    }
    {
        const std::lock_guard guard(mutex_);
        flights_.erase(key);
        flight->error = error;
        flight->kernel = stored;
        flight->done = true;
        if (stored) kernels_.emplace(key, stored);
    }
    flight->landed.notify_all();
    if (error) std::rethrow_exception(error);
    return kernel;
}

void KernelMemory::put(const CacheKey& key, const Kernel& kernel) {
    Kernel stored = as_found_in_memory(kernel);
    const std::lock_guard guard(mutex_);
    kernels_.emplace(key, std::move(stored));
}

void KernelMemory::erase(const CacheKey& key) {
    const std::lock_guard guard(mutex_);
    kernels_.erase(key);
}

void KernelMemory::clear() {
    const std::lock_guard guard(mutex_);
    kernels_.clear();
}

void KernelMemory::after_fork_in_child() {
    flights_.clear();
    mutex_.unlock();
}

}  // namespace dgj
