// The look-up, in steps:
//   1. memory
//   2. another thread is at this key: wait for its result
//   3. disk, exactly this key
//   4. seeds, or everywhere when compiling is forbidden: the same kernel from another NVRTC
//   5. take the key's lock (bounded wait), look on disk again
//   6. compile, check the image, publish
// Nothing is logged and no file is touched while the mutex is held: a log sink may need Python's lock, and a
// fork needs the mutex.

#include "cache/kernel_cache.hpp"

#include <fmt/format.h>
#include <pthread.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <ctime>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <set>

#include "base/env.hpp"
#include "base/error.hpp"
#include "base/log.hpp"
#include "base/version.hpp"
#include "cache/disk.hpp"
#include "cache/json.hpp"
#include "cache/lock.hpp"
#include "cache/seams.hpp"
#include "compile/elf.hpp"

namespace dgj {
namespace {

using Clock = std::chrono::steady_clock;
using Kernel = std::shared_ptr<const CachedKernel>;

// How long a compile ahead of need waits for another process that is at the same kernel: there is other work.
constexpr std::chrono::milliseconds kAheadWait{50};

double milliseconds_since(Clock::time_point start) {
    return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

struct Flight {  // one look-up that threads share; each has its own condition, which a forked child just
                 // abandons
    std::condition_variable landed;
    bool done = false;
    Kernel kernel;
    std::exception_ptr error;
};

struct State {
    std::mutex mutex;
    std::map<CacheKey, Kernel> memory;
    std::map<CacheKey, std::shared_ptr<Flight>> flights;
    std::set<CacheKey> rejected;  // by the driver: neither disk nor seeds are asked again in this process
    std::set<std::string> said;   // warnings given
    std::optional<CacheSeams> seams;
    std::shared_ptr<DiskStore> disk;
    std::atomic<unsigned long> compiles{0};
    std::atomic<int> zero_jit_scopes{0};
};

State& state() {
    static State& instance = []() -> State& {
        State& leaked = *std::make_unique<State>().release();  // outlives every static destructor and thread
        // The child has none of the threads that were at work, so it must not wait for them.
        pthread_atfork([] { state().mutex.lock(); }, [] { state().mutex.unlock(); },
                       [] {
                           state().flights.clear();
                           state().mutex.unlock();
                       });
        return leaked;
    }();
    return instance;
}

CacheSeams& seams() {
    State& s = state();
    const std::lock_guard guard(s.mutex);
    if (!s.seams) s.seams = default_seams();
    return *s.seams;
}

void warn_once(const std::string& topic, const std::string& line) {
    State& s = state();
    {
        const std::lock_guard guard(s.mutex);
        if (!s.said.insert(topic).second) return;
    }
    log(LogLevel::kWarning, line);
}

// Opened outside of the mutex; of two threads that do it at once the second one's store is dropped.
std::shared_ptr<DiskStore> disk() {
    State& s = state();
    {
        const std::lock_guard guard(s.mutex);
        if (s.disk) return s.disk;
    }
    auto opened = std::make_shared<DiskStore>(*seams().fs, open_roots(*seams().fs));
    for (const std::string& warning : opened->roots().warnings) warn_once(warning, warning);
    const std::lock_guard guard(s.mutex);
    if (!s.disk) s.disk = std::move(opened);
    return s.disk;
}

// Who forbids to compile; "" when nobody does.
std::string who_forbids() {
    if (state().zero_jit_scopes > 0) return "a zero_jit scope is active";
    const std::string value = env::get(env::kJit).value_or("");
    if (value == "forbid") return "DGJ_JIT=forbid";
    if (value.empty() || value == "allow") return "";
    fail(ErrorKind::kValue, "DGJ_JIT is '{}'; allowed are 'allow' (the default) and 'forbid'", value);
}

struct Request {
    const KernelSource& source;
    const std::string& plan_line;
    CacheKey key{};
    bool ahead = false;  // of need: nobody waits for it
    std::string fingerprint;
    std::exception_ptr no_compiler;  // why there is no NVRTC; the disk may still have the kernel
};

Request make_request(const KernelSource& source, const std::string& plan_line) {
    Request request{.source = source,
                    .plan_line = plan_line,
                    .key = {},
                    .ahead = false,
                    .fingerprint = "",
                    .no_compiler = nullptr};
    const CacheSeams& with = seams();
    try {
        request.fingerprint = with.fingerprint();
    } catch (const Error&) {
        request.no_compiler = std::current_exception();
    }
    request.key = make_key(source, with.options(source.arch), request.fingerprint, with.package_version);
    return request;
}

Kernel from_disk(const Request& request, DiskResult found, Clock::time_point start) {
    if (!found.problem.empty()) {
        warn_once("unreadable",
                  fmt::format("a cache entry is not used: {}; further ones are not reported", found.problem));
    }
    if (!found.entry) return nullptr;
    // The checksum speaks for the bytes, this for the publisher.
    const std::string problem = image_problem(found.entry->image, request.source.entry);
    if (!problem.empty()) {
        warn_once("unreadable", fmt::format("the cache entry {} is not used: its image is no kernel: {}",
                                            found.where, problem));
        return nullptr;
    }
    auto kernel = std::make_shared<CachedKernel>();
    kernel->key = request.key;
    kernel->cubin = std::move(found.entry->image);
    kernel->meta = std::move(found.entry->meta);
    kernel->origin = CachedKernel::Origin::kDisk;
    kernel->milliseconds = milliseconds_since(start);
    return kernel;
}

Kernel look_on_disk(const Request& request, DiskStore& store, bool any_compiler_in_primary) {
    const Clock::time_point start = Clock::now();
    if (!request.no_compiler) {
        if (Kernel kernel = from_disk(request, store.read(request.key, true), start)) return kernel;
    }
    DiskResult other = store.read_same_kernel(request.key, any_compiler_in_primary);
    const std::string where = other.where;
    Kernel kernel = from_disk(request, std::move(other), start);
    if (kernel) {
        warn_once("other compiler",
                  fmt::format("{} was compiled by another NVRTC and is used all the same; further ones "
                              "are not reported",
                              where));
    }
    return kernel;
}

std::string describe(const Request& request, const CompileResult& result) {
    const CompileReport report = parse_compile_log(result.log);
    JsonObject meta;
    meta.add("key", to_hex(request.key));
    meta.add("package", seams().package_version);
    meta.add("nvrtc", request.fingerprint);
    meta.add("arch", request.source.arch);
    meta.add("options", seams().options(request.source.arch));
    meta.add("kernel", request.source.entry);
    meta.add("plan", request.plan_line);
    meta.add("created", static_cast<std::int64_t>(std::time(nullptr)));
    meta.add("compile_ms", result.milliseconds);
    meta.add("registers", std::int64_t{report.registers});
    meta.add("spill_stores", std::int64_t{report.spill_stores});
    meta.add("spill_loads", std::int64_t{report.spill_loads});
    meta.add("stack_bytes", std::int64_t{report.stack_bytes});
    meta.add("advisories", report.advisories);
    meta.add("log", result.log);
    return meta.finish();
}

Kernel compile_and_publish(const Request& request, DiskStore& store) {
    const std::string& root = store.roots().primary;
    std::optional<KeyLock> lock;
    if (!root.empty()) {
        lock.emplace(*seams().fs, version_folder(root), request.key,
                     request.ahead ? kAheadWait : seams().lock_wait);
        if (lock->outcome() == KeyLock::Outcome::kTimedOut) {
            if (request.ahead) return nullptr;
            log(LogLevel::kInfo,
                fmt::format("another process holds the lock of {} for too long; compiling it here as well",
                            request.plan_line));
        }
        const Clock::time_point start = Clock::now();
        bool rejected = false;
        {
            const std::lock_guard guard(state().mutex);
            rejected = state().rejected.contains(request.key);
        }
        if (!rejected) {
            if (Kernel kernel = from_disk(request, store.read(request.key, false), start)) return kernel;
        }
    }
    ++state().compiles;
    CompileResult result = seams().compile(request.source, root.empty() ? "" : root + "/failed");
    const std::string problem = image_problem(result.cubin, request.source.entry);
    if (!problem.empty()) {
        fail(ErrorKind::kCompile, "the compiler returned an unusable image for {} ({}): {}; log:\n{}",
             request.plan_line, request.source.arch, problem, result.log);
    }
    auto kernel = std::make_shared<CachedKernel>();
    kernel->key = request.key;
    kernel->meta = describe(request, result);
    kernel->cubin = std::move(result.cubin);
    kernel->origin = CachedKernel::Origin::kCompiled;
    kernel->milliseconds = result.milliseconds;
    const std::string unpublished = store.publish(request.key, kernel->meta, kernel->cubin);
    lock.reset();
    if (!unpublished.empty()) {
        warn_once("unpublished",
                  fmt::format("compiled kernels are kept in memory only: {}; set DGJ_CACHE_DIR to a writable "
                              "folder with space. Further ones are not reported",
                              unpublished));
    }
    log(request.ahead ? LogLevel::kInfo : LogLevel::kWarning,
        fmt::format("compiled {} for {} in {:.0f} ms", request.plan_line, request.source.arch,
                    kernel->milliseconds));
    return kernel;
}

Kernel look_up(const Request& request, bool may_compile) {
    const std::shared_ptr<DiskStore> store = disk();
    const std::string forbidden = who_forbids();
    bool rejected = false;
    {
        const std::lock_guard guard(state().mutex);
        rejected = state().rejected.contains(request.key);
    }
    if (!rejected) {
        if (Kernel kernel = look_on_disk(request, *store, !forbidden.empty())) return kernel;
    }
    if (!may_compile) return nullptr;
    if (!forbidden.empty()) {
        fail(ErrorKind::kJitForbidden,
             "nothing may be compiled now ({}), and the cache has no kernel for {} ({}, key {}). Compile it "
             "beforehand with `python -m deep_gemm_jit warmup --device {}{}`",
             forbidden, request.plan_line, request.source.arch, to_hex(request.key), request.source.arch,
             request.source.warmup);
    }
    if (request.no_compiler) std::rethrow_exception(request.no_compiler);
    return compile_and_publish(request, *store);
}

Kernel memory_copy(const Kernel& kernel) {
    auto stored = std::make_shared<CachedKernel>(*kernel);
    stored->origin = CachedKernel::Origin::kMemory;
    stored->milliseconds = 0;
    return stored;
}

Kernel in_memory(const CacheKey& key) {
    State& s = state();
    const std::lock_guard guard(s.mutex);
    const auto known = s.memory.find(key);
    return known != s.memory.end() ? known->second : nullptr;
}

}  // namespace

CacheSeams default_seams() {
    CacheSeams out;
    out.fs = &real_fs();
    out.package_version = kPackageVersion;
    out.fingerprint = [] { return nvrtc_identity().fingerprint; };
    out.options = nvrtc_options;
    out.compile = nvrtc_compile;
    return out;
}

void set_cache_seams(CacheSeams replacement) {
    State& s = state();
    const std::lock_guard guard(s.mutex);
    s.memory.clear();
    s.rejected.clear();
    s.said.clear();
    s.disk.reset();
    s.compiles = 0;
    s.seams = std::move(replacement);
}

CacheKey cache_key(const KernelSource& source) {
    const CacheSeams& with = seams();
    return make_key(source, with.options(source.arch), with.fingerprint(), with.package_version);
}

Kernel get_or_compile(const KernelSource& source, const std::string& plan_line) {
    const Request request = make_request(source, plan_line);
    State& s = state();
    std::shared_ptr<Flight> flight;
    {
        std::unique_lock lock(s.mutex);
        if (const auto known = s.memory.find(request.key); known != s.memory.end()) return known->second;
        const auto [at, first] = s.flights.try_emplace(request.key);
        if (!first) {
            flight = at->second;
            flight->landed.wait(lock, [&] { return flight->done; });
            if (flight->error) std::rethrow_exception(flight->error);
            return flight->kernel;
        }
        flight = at->second = std::make_shared<Flight>();
    }
    Kernel kernel, stored;
    std::exception_ptr error;
    try {
        kernel = look_up(request, true);
        stored = memory_copy(kernel);
    } catch (...) {
        error = std::current_exception();
    }
    {
        const std::lock_guard guard(s.mutex);
        s.flights.erase(request.key);
        flight->error = error;
        flight->kernel = stored;
        flight->done = true;
        if (stored) s.memory.emplace(request.key, stored);
    }
    flight->landed.notify_all();
    if (error) std::rethrow_exception(error);
    return kernel;
}

Kernel compile_ahead(const KernelSource& source, const std::string& plan_line) {
    Request request = make_request(source, plan_line);
    request.ahead = true;
    if (Kernel known = in_memory(request.key)) return known;
    Kernel kernel = look_up(request, true);
    if (!kernel) return nullptr;
    Kernel stored = memory_copy(kernel);
    const std::lock_guard guard(state().mutex);
    state().memory.emplace(request.key, std::move(stored));
    return kernel;
}

void begin_zero_jit() { ++state().zero_jit_scopes; }
void end_zero_jit() { --state().zero_jit_scopes; }

Kernel find_cached(const KernelSource& source) {
    const Request request = make_request(source, "");
    if (Kernel known = in_memory(request.key)) return known;
    Kernel kernel = look_up(request, false);
    if (!kernel) return nullptr;
    Kernel stored = memory_copy(kernel);
    const std::lock_guard guard(state().mutex);
    state().memory.emplace(request.key, std::move(stored));
    return kernel;
}

std::string cache_root() { return disk()->roots().primary; }

void drop_from_cache(const CacheKey& key) {
    disk()->remove(key);
    State& s = state();
    const std::lock_guard guard(s.mutex);
    s.memory.erase(key);
    s.rejected.insert(key);
}

void forget_memory_cache() {
    State& s = state();
    const std::lock_guard guard(s.mutex);
    s.memory.clear();
    s.rejected.clear();
    s.said.clear();
    s.disk.reset();
}

unsigned long compile_count() { return state().compiles; }

}  // namespace dgj
