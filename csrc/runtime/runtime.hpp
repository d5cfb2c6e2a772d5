// GPU side: driver through dlopen, devices, launch. No torch, no Python.
#pragma once

#include <cstdint>

#include "cpu/cpu_ops.hpp"
#include "emit/emit_cast.hpp"
#include "plan/plan.hpp"
#include "problem/fp8_gemm_call.hpp"
#include "problem/m_grouped_call.hpp"

namespace dgj::runtime {

using StreamHandle = void*;  // CUstream

// Settings that DeepGEMM keeps as process globals. Atomics, read once a call.
void set_num_sms(int n);  // 0: all of the device; a device with fewer uses all it has
int get_num_sms(int device);
void set_pdl(bool on);
bool get_pdl();
void set_compile_mode(int mode);  // 1: GEMMs on a GPU compile and load what they need and do not launch
int get_compile_mode();
void set_mk_alignment(std::int64_t rows);  // 1..128: where groups start in the contiguous layouts
int get_mk_alignment();
void set_batch_invariant(bool on);
bool get_batch_invariant();  // first use reads DGJ_BATCH_INVARIANT and VLLM_BATCH_INVARIANT

bool get_check();  // first use reads DGJ_CHECK
// Copies `groups` to the host, which waits for the stream, and refuses values that are out of range. While
// the stream is captured it does nothing: a graph's values are not there yet.
void check_index(const MGroupedCall& call, StreamHandle stream, const char* function);

int driver_version();  // 13000 for CUDA 13.0; 0 when there is no driver
const DeviceProfile& device_profile(int device);

// Plans, compiles and loads what is missing, which may take a second: callers release the GIL.
void fp8_gemm_nt(const Fp8GemmCall& call, StreamHandle stream);
// With this plan instead of the planner's choice: tests and tuning.
void fp8_gemm_nt_with_plan(const Fp8GemmCall& call, KernelPlan plan, StreamHandle stream);

// The same when everything is loaded already: true when the call is done. False: nothing was done, use
// fp8_gemm_nt. Never compiles, loads, logs or waits for a thread that does, so the GIL may be held. `call` is
// one for a CUDA device.
bool fp8_gemm_nt_if_warm(const Fp8GemmCall& call, StreamHandle stream);

// The same two for M-grouped calls.
void m_grouped_gemm(const MGroupedCall& call, StreamHandle stream);
bool m_grouped_gemm_if_warm(const MGroupedCall& call, StreamHandle stream);

void cast_to_fp8(const cpu::CastCall& call, Device device, StreamHandle stream);

// Compiles (or finds) and loads a plan into the primary context of `device`, without launching.
void load_plan(const KernelPlan& plan, int device);
void load_plan(const CastPlan& plan, int device);

// For benchmarks: nanoseconds a launch when the last GEMM of this thread is launched again, `times` times in
// a row with the same arguments and nothing else (keep `times` below the driver's queue of about a thousand,
// and its tensors alive).
double repeat_last_launch_ns(unsigned times);
// Nanoseconds of the cheapest driver call, the context query that every launch of ours makes.
double null_call_ns(unsigned times);

}  // namespace dgj::runtime
