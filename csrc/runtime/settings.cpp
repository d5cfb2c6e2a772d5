// DeepGEMM's process-wide settings, and one of ours. Atomics: each call reads them once.
#include <algorithm>
#include <atomic>

#include "base/env.hpp"
#include "base/error.hpp"
#include "runtime/device.hpp"
#include "runtime/runtime.hpp"

namespace dgj::runtime {
namespace {

std::atomic<int> g_num_sms{0};
std::atomic<bool> g_pdl{false};
std::atomic<int> g_compile_mode{0};
std::atomic<int> g_mk_alignment{128};
// -1: the environment has not been asked yet
std::atomic<int> g_batch_invariant{-1};
std::atomic<int> g_check{-1};

// A setter that comes between wins: only the unasked state is replaced.
bool ask_once(std::atomic<int>& setting, bool (*ask)()) {
    const int known = setting.load(std::memory_order_relaxed);
    if (known >= 0) [[likely]]
        return known != 0;
    int unasked = -1;
    const int asked = ask() ? 1 : 0;
    return setting.compare_exchange_strong(unasked, asked) ? asked != 0 : unasked != 0;
}

bool batch_invariant_from_env() {
    if (env::get(env::kBatchInvariant)) return env::flag(env::kBatchInvariant);
    return env::integer_flag(env::kVllmBatchInvariant);
}

}  // namespace

void set_num_sms(int n) {
    if (n < 0)
        fail(ErrorKind::kValue, "set_num_sms: num_sms is {}, must be positive, or 0 for all of the device",
             n);
    g_num_sms.store(n, std::memory_order_relaxed);
}

int get_num_sms(int device) { return static_cast<int>(usable_sms(device_state(device))); }

std::uint32_t usable_sms(const DeviceState& device) {
    const auto set = static_cast<std::uint32_t>(g_num_sms.load(std::memory_order_relaxed));
    return set == 0 ? device.sms : std::min(set, device.sms);
}

void set_pdl(bool on) { g_pdl.store(on, std::memory_order_relaxed); }
bool get_pdl() { return g_pdl.load(std::memory_order_relaxed); }

void set_compile_mode(int mode) {
    if (mode != 0 && mode != 1)
        fail(ErrorKind::kValue,
             "set_compile_mode: mode is {}; allowed are 0 (launch) and 1 (compile and load, do not launch)",
             mode);
    g_compile_mode.store(mode, std::memory_order_relaxed);
}

int get_compile_mode() { return g_compile_mode.load(std::memory_order_relaxed); }
void set_mk_alignment(std::int64_t rows) {
    if (rows < 1 || rows > 128)
        fail(ErrorKind::kValue,
             "set_mk_alignment_for_contiguous_layout: the alignment is {}; allowed: 1..128 rows", rows);
    g_mk_alignment.store(static_cast<int>(rows), std::memory_order_relaxed);
}
int get_mk_alignment() { return g_mk_alignment.load(std::memory_order_relaxed); }

void set_batch_invariant(bool on) { g_batch_invariant.store(on ? 1 : 0, std::memory_order_relaxed); }

bool get_batch_invariant() { return ask_once(g_batch_invariant, batch_invariant_from_env); }

bool get_check() {
    return ask_once(g_check, [] { return env::flag(env::kCheck); });
}

}  // namespace dgj::runtime
