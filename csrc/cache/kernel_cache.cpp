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
#include <ctime>
#include <exception>
#include <memory>
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
#include "cache/memory.hpp"
#include "cache/publish.hpp"
#include "cache/seams.hpp"
#include "compile/elf.hpp"

namespace dgj {
namespace {

using Clock = std::chrono::steady_clock;
using Kernel = std::shared_ptr<const CachedKernel>;

// How long a compile ahead of need waits for another process that is at the same kernel: there is other work.
constexpr std::chrono::milliseconds kAheadWait{50};

struct Disk {
    Disk(Fs& fs, const Roots& roots, std::uint64_t max_size)
        : store(fs, roots), publisher(fs, roots.primary, max_size) {}
    DiskStore store;
    Publisher publisher;
};

double milliseconds_since(Clock::time_point start) {
    return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

struct State {
    std::mutex mutex;
    KernelMemory memory;
    std::set<CacheKey> rejected;  // by the driver: neither disk nor seeds are asked again in this process
    std::set<std::string> said;   // warnings given
    std::optional<CacheSeams> seams;
    std::shared_ptr<Disk> disk;
    std::atomic<unsigned long> compiles{0};
    std::atomic<int> zero_jit_scopes{0};
};

State& state() {
    static State& instance = []() -> State& {
        State& leaked = *std::make_unique<State>().release();  // outlives every static destructor and thread
        pthread_atfork([] { state().memory.before_fork(), state().mutex.lock(); },
                       [] { state().mutex.unlock(), state().memory.after_fork_in_parent(); },
                       [] { state().mutex.unlock(), state().memory.after_fork_in_child(); });
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

std::uint64_t max_size() {
    const std::string text = env::get(env::kCacheMaxSize).value_or("");
    if (text.empty()) return kDefaultMaxSize;
    if (const auto size = parse_size(text)) return *size;
    warn_once("max size", fmt::format("DGJ_CACHE_MAX_SIZE is '{}', which is no size such as 512M or 2G; the "
                                      "default of {} bytes is used",
                                      text, kDefaultMaxSize));
    return kDefaultMaxSize;
}

// Opened outside of the mutex; of two threads that do it at once the second one's is dropped.
std::shared_ptr<Disk> disk() {
    State& s = state();
    {
        const std::lock_guard guard(s.mutex);
        if (s.disk) return s.disk;
    }
    Fs& fs = *seams().fs;
    auto opened = std::make_shared<Disk>(fs, open_roots(fs), max_size());
    for (const std::string& warning : opened->store.roots().warnings) warn_once(warning, warning);
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

bool was_rejected(const CacheKey& key) {
    const std::lock_guard guard(state().mutex);
    return state().rejected.contains(key);
}

// Another process may have compiled it while this one waited for the lock.
Kernel look_again(const Request& request, DiskStore& store) {
    const Clock::time_point start = Clock::now();
    return was_rejected(request.key) ? nullptr : from_disk(request, store.read(request.key, false), start);
}

Kernel compile(const Request& request, const std::string& failed_folder) {
    ++state().compiles;
    CompileResult result = seams().compile(request.source, failed_folder);
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
    return kernel;
}

Kernel compile_and_publish(const Request& request, Disk& on) {
    const std::string& root = on.store.roots().primary;
    std::string unpublished = root.empty() ? on.store.roots().unwritable : on.publisher.prepare();
    const bool writes = !root.empty() && unpublished.empty();
    std::optional<KeyLock> lock;
    if (writes) {
        lock.emplace(*seams().fs, version_folder(root), request.key,
                     request.ahead ? kAheadWait : seams().lock_wait);
        if (lock->outcome() == KeyLock::Outcome::kTimedOut) {
            if (request.ahead) return nullptr;
            log(LogLevel::kInfo,
                fmt::format("another process holds the lock of {} for too long; compiling it here as well",
                            request.plan_line));
        }
        if (Kernel kernel = look_again(request, on.store)) return kernel;
    }
    Kernel kernel = compile(request, writes ? root + "/failed" : "");
    if (writes) {
        Published published = on.publisher.publish(request.key, kernel->meta, kernel->cubin);
        unpublished = std::move(published.problem);
        if (!published.notice.empty()) warn_once("bound", published.notice);
    }
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
    const std::shared_ptr<Disk> on = disk();
    const std::string forbidden = who_forbids();
    if (!was_rejected(request.key)) {
        if (Kernel kernel = look_on_disk(request, on->store, !forbidden.empty())) return kernel;
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
    return compile_and_publish(request, *on);
}

void forget_locked(State& s) {
    s.rejected.clear();
    s.said.clear();
    s.disk.reset();
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
    s.memory.clear();
    const std::lock_guard guard(s.mutex);
    forget_locked(s);
    s.compiles = 0;
    s.seams = std::move(replacement);
}

CacheKey cache_key(const KernelSource& source) {
    const CacheSeams& with = seams();
    return make_key(source, with.options(source.arch), with.fingerprint(), with.package_version);
}

Kernel get_or_compile(const KernelSource& source, const std::string& plan_line) {
    const Request request = make_request(source, plan_line);
    return state().memory.get(request.key, [&] { return look_up(request, true); });
}

Kernel compile_ahead(const KernelSource& source, const std::string& plan_line) {
    Request request = make_request(source, plan_line);
    request.ahead = true;
    return state().memory.get(request.key, [&] { return look_up(request, true); });
}

void begin_zero_jit() { ++state().zero_jit_scopes; }
void end_zero_jit() { --state().zero_jit_scopes; }

Kernel find_cached(const KernelSource& source) {
    const Request request = make_request(source, "");
    KernelMemory& memory = state().memory;
    if (Kernel known = memory.find(request.key)) return known;
    Kernel kernel = look_up(request, false);
    if (kernel) memory.put(request.key, kernel);
    return kernel;
}

std::string cache_root() { return disk()->store.roots().primary; }

void drop_from_cache(const CacheKey& key) {
    disk()->store.remove(key);
    State& s = state();
    s.memory.erase(key);
    const std::lock_guard guard(s.mutex);
    s.rejected.insert(key);
}

void forget_memory_cache() {
    State& s = state();
    s.memory.clear();
    const std::lock_guard guard(s.mutex);
    forget_locked(s);
}

unsigned long compile_count() { return state().compiles; }

}  // namespace dgj
