// Source in, cubin out: memory, then disk, then the compiler. One compile per key over threads and processes.
//
// Readers can rely on this: what is returned was compiled from exactly this source, for this architecture,
// and passed image_problem() and, from disk, the checksum; a cache failure is logged once and never becomes a
// failure here; the second call of a key in a process touches neither disk nor compiler. docs/cache.md lists
// every promise.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "base/kernel_source.hpp"
#include "base/sha256.hpp"
#include "cache/key.hpp"

namespace dgj {

struct CachedKernel {
    CacheKey key{};
    std::vector<std::byte> cubin;
    std::string meta;  // JSON: arch, NVRTC, options, kernel name, plan, time, compile log and milliseconds
    enum class Origin { kMemory, kDisk, kCompiled } origin = Origin::kMemory;
    double milliseconds = 0;  // what this call took: read + verify, or compile
};

// The key that `source` has with the NVRTC of this process. Throws Error(kCompile) when there is no NVRTC.
CacheKey cache_key(const KernelSource& source);

// `plan_line` is stored in the entry's meta and in log lines. Throws Error(kCompile | kJitForbidden).
std::shared_ptr<const CachedKernel> get_or_compile(const KernelSource& source, const std::string& plan_line);

// The same ahead of need: nullptr within a moment when another process is compiling it, and a compile is
// logged as information, not as a warning.
std::shared_ptr<const CachedKernel> compile_ahead(const KernelSource& source, const std::string& plan_line);

// Between the two every compile throws Error(kJitForbidden), in all threads, as DGJ_JIT=forbid has it. Scopes
// may overlap.
void begin_zero_jit();
void end_zero_jit();

// nullptr when neither memory nor disk has it; never compiles.
std::shared_ptr<const CachedKernel> find_cached(const KernelSource& source);

std::string cache_root();                   // the writable root, which need not exist yet; "": there is none
void drop_from_cache(const CacheKey& key);  // after the driver rejected the image; the next call compiles
void forget_memory_cache();                 // tests: as a fresh process would see it
unsigned long compile_count();              // compiles in this process so far

}  // namespace dgj
