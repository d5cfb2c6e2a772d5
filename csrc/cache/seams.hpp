// What the cache works with. The defaults are the real things; tests put counters, failures and delays in
// their place.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "cache/fs.hpp"
#include "compile/nvrtc.hpp"

namespace dgj {

struct CacheSeams {
    Fs* fs = nullptr;
    std::string package_version;
    std::function<std::string()> fingerprint;  // of the compiler; throws Error(kCompile) when there is none
    std::function<std::vector<std::string>(const std::string& arch)> options;
    std::function<CompileResult(const KernelSource&, const std::string& failed_folder)> compile;
    // After that a waiter compiles for itself: the holder may be stopped. Three times a long compile (2 s) on
    // a machine that compiles three or four per core at once; a holder that died frees its lock immediately.
    std::chrono::milliseconds lock_wait{20'000};
};

CacheSeams default_seams();

// Starts the cache of this process anew with these. Not while other threads use it.
void set_cache_seams(CacheSeams seams);

}  // namespace dgj
