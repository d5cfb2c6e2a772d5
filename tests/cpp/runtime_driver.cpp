// Scenarios for csrc/runtime on the fake driver (fake_cuda.c) with a fake compiler, one process each:
// runtime_driver <scenario>.
// Exit 0 when every check holds; else the failed checks stand on stderr.
#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "base/error.hpp"
#include "cache/fs.hpp"
#include "cache/kernel_cache.hpp"
#include "cache/seams.hpp"
#include "check_maps.hpp"
#include "emit/emit.hpp"
#include "fake_cubin.hpp"
#include "fake_cuda.h"
#include "parts/gemm_args.cuh"
#include "parts/grouped_args.cuh"
#include "runtime/launch.hpp"
#include "runtime/runtime.hpp"

namespace {

using namespace dgj;

template <class Function>
Function fake_function(const char* name) {
    void* handle = dlopen("libcuda.so.1", RTLD_NOW);
    void* symbol = handle == nullptr ? nullptr : dlsym(handle, name);
    if (symbol == nullptr) {
        std::fprintf(stderr, "libcuda.so.1 is not the fake: LD_LIBRARY_PATH is wrong\n");
        std::exit(2);
    }
    return reinterpret_cast<Function>(symbol);
}

FakeCuda& fake() {
    static FakeCuda& state = *fake_function<FakeState>("fake_cuda_state")();
    return state;
}
int current_device() { return fake_function<FakeGetCurrent>("fake_cuda_get_current")(); }
void set_current_device(int device) { fake_function<FakeSetCurrent>("fake_cuda_set_current")(device); }

void* const kStream = reinterpret_cast<void*>(0x5000);
const void* at(std::uintptr_t address) { return reinterpret_cast<const void*>(address); }

Fp8GemmCall make_call(std::int64_t m, std::int64_t n = 512, std::int64_t k = 256,
                      DType d_dtype = DType::kBF16) {
    Fp8GemmCall c;
    c.m = m, c.n = n, c.k = k, c.d_dtype = d_dtype;
    c.device = {Device::Type::kCuda, 0};
    c.a = at(0x10000000), c.b = at(0x20000000), c.d = const_cast<void*>(at(0x30000000));
    c.sfa = static_cast<const float*>(at(0x40000004)), c.sfb = static_cast<const float*>(at(0x50000004));
    c.lda = k + 64, c.ldb = k, c.ldd = n + 8;
    c.sfa_stride_m = 1, c.sfa_stride_k = m, c.sfb_stride_n = 7, c.sfb_stride_k = 3;
    return c;
}

GemmProblem problem_of(const Fp8GemmCall& c) {
    return {.d_dtype = c.d_dtype,
            .n = static_cast<std::uint32_t>(c.n),
            .k = static_cast<std::uint32_t>(c.k),
            .extras = c.c != nullptr || c.bias != nullptr || c.alpha != 1.0f};
}
KernelPlan plan_of(const Fp8GemmCall& c) { return plan(problem_of(c), c.m, runtime::device_profile(0)); }

GemmArgs last_args() {
    GemmArgs args;
    std::memcpy(&args, fake().last.args, sizeof args);
    return args;
}

// The message of the Error of this kind that `body` throws; "" and a failed check when it does not.
std::string error_of(ErrorKind kind, const std::function<void()>& body) {
    try {
        body();
    } catch (const Error& e) {
        CHECK(e.kind() == kind);
        return e.what();
    }
    CHECK(!"an Error was expected");
    return "";
}
bool has(const std::string& text, const char* part) {
    const bool found = text.find(part) != std::string::npos;
    if (!found) std::fprintf(stderr, "'%s' is not in: %s\n", part, text.c_str());
    return found;
}

void check_launch(const Fp8GemmCall& c, std::uint32_t sms) {
    runtime::fp8_gemm_nt(c, kStream);
    const KernelPlan plan = plan_of(c);
    const KernelShape shape = kernel_shape(plan);
    const FakeLaunch& l = fake().last;
    CHECK(l.grid[0] == grid_blocks(plan, c.m, sms) && l.grid[1] == 1 && l.grid[2] == 1);
    CHECK(l.block[0] == shape.threads && l.block[1] == 1 && l.block[2] == 1);
    CHECK(l.smem == shape.smem_bytes && l.stream == kStream && l.device == 0);
    CHECK(l.cluster == (shape.cluster > 1 ? shape.cluster : 0));
    CHECK(l.pdl == (runtime::get_pdl() ? 1 : 0));
    CHECK(l.attributes == (shape.cluster > 1 ? 1u : 0u) + (runtime::get_pdl() ? 1u : 0u));
    check_map(l.maps[0], c.a, c.m, c.k, c.lda, shape.a_box_rows, DType::kU8);
    check_map(l.maps[1], c.b, c.n, c.k, c.ldb, shape.b_box_rows, DType::kU8);
    if (shape.d_box_rows != 0)
        check_map(l.maps[2], c.d, c.m, c.n, c.ldd * size_of(c.d_dtype), shape.d_box_rows, c.d_dtype);
    else CHECK(l.maps[2].address == 0 && l.maps[2].rank == 0);
    const GemmArgs args = last_args();
    CHECK(args.sfa == c.sfa && args.sfb == c.sfb && args.d == c.d && args.c == c.c && args.bias == c.bias);
    CHECK(args.sfa_stride_m == c.sfa_stride_m && args.sfa_stride_k == c.sfa_stride_k);
    CHECK(args.sfb_stride_n == c.sfb_stride_n && args.sfb_stride_k == c.sfb_stride_k);
    CHECK(args.ldd == c.ldd && args.ldc == c.ldc && args.m == c.m && args.alpha == c.alpha);
    CHECK(args.bias_is_f32 == (c.bias_dtype == DType::kF32 ? 1u : 0u));
}

// The real cache with a compiler that needs no NVRTC; it takes long enough for threads to meet.
void use_fake_compiler() {
    CacheSeams seams;
    seams.fs = &real_fs();
    seams.package_version = "test";
    seams.fingerprint = [] { return std::string("no compiler"); };
    seams.options = [](const std::string& arch) { return std::vector<std::string>{arch}; };
    seams.compile = [](const KernelSource& source, const std::string&) {
        std::this_thread::sleep_for(std::chrono::milliseconds(3));
        return CompileResult{driver::image_with_entry(source.entry, source.text), "", 3};
    };
    set_cache_seams(seams);
}

void compile_mode() {
    const Fp8GemmCall c = make_call(64, 4096, 7168), other = make_call(1, 512, 256);
    runtime::set_compile_mode(1);
    runtime::fp8_gemm_nt(c, kStream);
    CHECK(compile_count() == 1 && fake().loads == 1 && fake().launches == 0 && fake().encodes == 0);
    CHECK(runtime::fp8_gemm_nt_if_warm(c, kStream) && !runtime::fp8_gemm_nt_if_warm(other, kStream));
    const std::int32_t offsets[] = {0, 32, 64};
    MGroupedCall grouped;
    grouped.rows = 64, grouped.n = 512, grouped.k = 256, grouped.groups = 2;
    grouped.form = GroupForm::kOffsets, grouped.index = offsets, grouped.device = c.device;
    runtime::m_grouped_gemm(grouped, kStream);
    CHECK(runtime::m_grouped_gemm_if_warm(grouped, kStream));
    CHECK(compile_count() == 2 && fake().loads == 2 && fake().launches == 0 && fake().encodes == 0);
    runtime::set_compile_mode(0);
    CHECK(runtime::fp8_gemm_nt_if_warm(c, kStream));
    CHECK(compile_count() == 2 && fake().loads == 2 && fake().launches == 1);
    CHECK(has(error_of(ErrorKind::kValue, [] { runtime::set_compile_mode(2); }), "mode is 2"));
    CHECK(runtime::get_compile_mode() == 0);
}

void launch_arguments() {
    CHECK(fake().args_bytes == sizeof(GemmArgs));
    Fp8GemmCall c = make_call(4096, 4096, 7168);
    c.c = at(0x60000000), c.bias = at(0x70000000), c.ldc = 5000, c.bias_dtype = DType::kF32, c.alpha = 0.25f;
    check_launch(c, 132);
    runtime::set_pdl(true);
    check_launch(c, 132);
    runtime::set_num_sms(20);
    check_launch(c, 20);
    CHECK(runtime::get_num_sms(0) == 20);
    runtime::set_num_sms(1000);  // more than there are
    check_launch(c, 132);
    runtime::set_num_sms(0);
    runtime::set_pdl(false);
    // Without alpha, bias and c another kernel, whose D leaves by tensor copies; with one of them the first.
    const auto loads = fake().loads;
    for (int which = 0; which < 4; which++) {
        Fp8GemmCall one = make_call(4096, 4096, 7168);
        if (which == 1) one.alpha = 2;
        if (which == 2) one.bias = at(0x70000000), one.bias_dtype = DType::kBF16;
        if (which == 3) one.c = at(0x60000000), one.ldc = 5000;
        check_launch(one, 132);
        CHECK(fake().loads == loads + 1 && fake().last.maps[2].rank == (which == 0 ? 2u : 0u));
    }
    check_launch(make_call(1, 4096, 7168), 132);
    check_launch(make_call(257, 512, 256, DType::kF16), 132);
    check_launch(make_call(257, 512, 256, DType::kF32), 132);
    CHECK(fake().legacy_lookups == fake().lookups);  // stream 0 means the legacy stream
    CHECK(fake().unaligned_maps == 0);
    CHECK(has(error_of(ErrorKind::kValue, [] { runtime::set_num_sms(-1); }), "num_sms is -1"));
}

void attributes_once() {
    const Fp8GemmCall c = make_call(64);
    for (int i = 0; i < 5; i++) runtime::fp8_gemm_nt(c, kStream);
    CHECK(fake().loads == 1 && fake().attribute_calls == 1 && fake().launches == 5);
    CHECK(fake().smem_attribute == static_cast<int>(kernel_shape(plan_of(c)).smem_bytes));
}

void empty_operands() {
    Fp8GemmCall c = make_call(0);
    runtime::fp8_gemm_nt(c, kStream);
    c = make_call(5, 0);
    runtime::fp8_gemm_nt(c, kStream);
    CHECK(runtime::fp8_gemm_nt_if_warm(c, kStream));
    CHECK(fake().launches == 0 && fake().loads == 0);
    c = make_call(5, 512, 0);
    c.a = c.b = c.sfa = c.sfb = nullptr;
    c.alpha = std::numeric_limits<float>::infinity();
    c.bias = at(0x70000000);
    runtime::fp8_gemm_nt(c, kStream);
    CHECK(fake().launches == 1 && last_args().alpha == 1.0f && last_args().bias == c.bias);
    CHECK(fake().last.maps[0].rank == 0 && fake().last.maps[1].rank == 0);
}

void contexts() {
    Fp8GemmCall c = make_call(64);
    set_current_device(-1);
    runtime::fp8_gemm_nt(c, kStream);
    CHECK(current_device() == -1);
    std::thread([&] {
        runtime::fp8_gemm_nt(c, kStream);
        CHECK(current_device() == -1);
    }).join();
    set_current_device(1);
    runtime::fp8_gemm_nt(c, kStream);
    CHECK(current_device() == 1 && fake().last.device == 0);
    c.device.index = 1;
    runtime::fp8_gemm_nt(c, kStream);
    CHECK(current_device() == 1 && fake().last.device == 1);
    CHECK(fake().retains == 2 && fake().wrong_context == 0);
    const int sets = fake().sets;
    runtime::fp8_gemm_nt(c, kStream);
    CHECK(fake().sets == sets);  // the right one was current already
    set_current_device(0);
    fake().launch_result = CUDA_ERROR_LAUNCH_FAILED;
    const std::string text = error_of(ErrorKind::kRuntime, [&] { runtime::fp8_gemm_nt(c, kStream); });
    CHECK(has(text, "CUDA_ERROR_LAUNCH_FAILED (unspecified launch failure)") && has(text, "device 1"));
    CHECK(current_device() == 0);  // also after a failure
    fake().launch_result = 0;
    runtime::fp8_gemm_nt(c, kStream);
}

void map_reuse() {
    Fp8GemmCall c = make_call(4096, 4096, 512);
    CHECK(kernel_shape(plan_of(c)).d_box_rows != 0);
    const auto encodes = [&](const Fp8GemmCall& call) {
        const int before = fake().encodes;
        runtime::fp8_gemm_nt(call, kStream);
        CHECK(fake().last.maps[0].address == reinterpret_cast<std::uintptr_t>(call.a));
        CHECK(fake().last.maps[0].pitch == static_cast<std::uint64_t>(call.lda));
        CHECK(fake().last.maps[1].address == reinterpret_cast<std::uintptr_t>(call.b));
        CHECK(fake().last.maps[2].address == reinterpret_cast<std::uintptr_t>(call.d));
        return fake().encodes - before;
    };
    CHECK(encodes(c) == 3);
    CHECK(encodes(c) == 0);
    Fp8GemmCall other = c;
    other.a = at(0x11000000), other.d = const_cast<void*>(at(0x31000000));
    CHECK(encodes(other) == 2);                     // B stays
    CHECK(encodes(c) == 0 && encodes(other) == 0);  // both are remembered
    other.b = at(0x21000000);
    CHECK(encodes(other) == 1);
    other.lda += 16;
    CHECK(encodes(other) == 1);
    other.m -= 1;
    CHECK(encodes(other) == 2);
    std::vector<Fp8GemmCall> layers(200, c);  // a model: every layer has its weights
    for (std::size_t i = 0; i < layers.size(); i++) layers[i].b = at(0x100000000 + i * 0x1c00000);
    for (const Fp8GemmCall& layer : layers) encodes(layer);
    int again = 0;
    for (const Fp8GemmCall& layer : layers) again += encodes(layer);
    CHECK(again <= 20);
    other.a = at(0x12000000);
    fake().encode_result = CUDA_ERROR_INVALID_VALUE;
    const std::string text = error_of(ErrorKind::kRuntime, [&] { runtime::fp8_gemm_nt(other, kStream); });
    CHECK(has(text, "cuTensorMapEncodeTiled failed for a") && has(text, "CUDA_ERROR_INVALID_VALUE"));
    fake().encode_result = 0;
    CHECK(encodes(other) == 1);  // the failure left no half-made map behind
}

void warm() {
    const Fp8GemmCall c = make_call(64);
    CHECK(!runtime::fp8_gemm_nt_if_warm(c, kStream));
    CHECK(fake().launches == 0 && compile_count() == 0);
    runtime::fp8_gemm_nt(c, kStream);
    CHECK(runtime::fp8_gemm_nt_if_warm(c, kStream));
    CHECK(fake().launches == 2);
    const Fp8GemmCall collides = make_call(64 + 1024);  // the same slot of the table of m
    CHECK(!runtime::fp8_gemm_nt_if_warm(collides, kStream));
    runtime::fp8_gemm_nt(collides, kStream);
    for (int i = 0; i < 3; i++) {
        CHECK(runtime::fp8_gemm_nt_if_warm(c, kStream));
        CHECK(fake().last.grid[0] == grid_blocks(plan_of(c), c.m, 132));
        CHECK(runtime::fp8_gemm_nt_if_warm(collides, kStream));
        CHECK(fake().last.grid[0] == grid_blocks(plan_of(collides), collides.m, 132));
    }
    runtime::set_batch_invariant(true);  // another problem
    CHECK(!runtime::fp8_gemm_nt_if_warm(c, kStream));
    runtime::set_batch_invariant(false);
    std::thread([&] { CHECK(runtime::fp8_gemm_nt_if_warm(c, kStream)); }).join();
}

void capture_compile() {
    Fp8GemmCall c = make_call(4096);
    c.alpha = 2.0f;
    fake().capturing = kStream;
    const std::string text = error_of(ErrorKind::kJitForbidden, [&] { runtime::fp8_gemm_nt(c, kStream); });
    CHECK(has(text, "before the capture begins") && has(text, "n=512"));
    CHECK(has(text, "warmup --device sm_90a --shape 512x256 --d-dtype bfloat16 --extras`"));
    CHECK(compile_count() == 0 && fake().launches == 0 && fake().loads == 0 && !fake().capture_broken);
    fake().capturing = nullptr;
    runtime::fp8_gemm_nt(c, kStream);
    CHECK(fake().launches == 1);
}

void capture_from_cache() {
    const Fp8GemmCall c = make_call(64);
    get_or_compile(emit(plan_of(c)), "test");
    fake().capturing = kStream;
    fake().driver_version = 12030;
    runtime::fp8_gemm_nt(c, kStream);
    CHECK(fake().loads == 1 && fake().launches == 1 && !fake().capture_broken);
    CHECK(fake_function<FakeCaptureMode>("fake_cuda_capture_mode")() == CU_STREAM_CAPTURE_MODE_GLOBAL);
    const Fp8GemmCall next = make_call(64, 768);
    runtime::load_plan(plan_of(next), 0);  // by a warm-up beside the capture: it is loaded relaxed too
    CHECK(!fake().capture_broken);
    runtime::fp8_gemm_nt(next, kStream);
    CHECK(fake().loads == 2 && fake().launches == 2 && !fake().capture_broken);
}

void capture_old_driver() {  // the version is read once, so this is set first
    fake().driver_version = 12020;
    const Fp8GemmCall c = make_call(64), loaded = make_call(64, 768);
    get_or_compile(emit(plan_of(c)), "test");
    runtime::load_plan(plan_of(loaded), 0);
    fake().capturing = kStream;
    const std::string text = error_of(ErrorKind::kRuntime, [&] { runtime::fp8_gemm_nt(c, kStream); });
    CHECK(has(text, "CUDA 12.2") && has(text, "before the capture begins"));
    CHECK(fake().loads == 1 && !fake().capture_broken);
    runtime::fp8_gemm_nt(loaded, kStream);  // what is loaded can be captured
    CHECK(fake().launches == 1 && !fake().capture_broken);
}

void rejected_image() {
    const std::int64_t rejecting_n[] = {512, 520, 528, 536};
    for (int step = FAKE_STEP_LOAD; step <= FAKE_STEP_ATTRIBUTE; step++) {
        const Fp8GemmCall c = make_call(64, rejecting_n[step - 1]);
        get_or_compile(emit(plan_of(c)), "test");
        const unsigned long compiles = compile_count();
        const int loads = fake().loads;
        fake().rejections = 1, fake().reject_step = step, fake().reject_result = CUDA_ERROR_INVALID_IMAGE;
        runtime::fp8_gemm_nt(c, kStream);
        CHECK(compile_count() == compiles + 1 && fake().loads == loads + 2);
    }
    CHECK(fake().launches == 4 && fake().unloads == 3);  // a load that failed leaves nothing to unload

    const Fp8GemmCall c = make_call(64, 1024);
    get_or_compile(emit(plan_of(c)), "test");
    fake().rejections = 2, fake().reject_step = FAKE_STEP_LOAD,
    fake().reject_result = CUDA_ERROR_NO_BINARY_FOR_GPU;
    const std::string text = error_of(ErrorKind::kRuntime, [&] { runtime::fp8_gemm_nt(c, kStream); });
    CHECK(has(text, "cuLibraryLoadData") && has(text, "CUDA_ERROR_NO_BINARY_FOR_GPU") && has(text, "n=1024"));
    CHECK(fake().rejections == 0 && fake().launches == 4);
    CHECK(find_cached(emit(plan_of(c))) == nullptr);
    runtime::fp8_gemm_nt(c, kStream);  // nothing is poisoned
    CHECK(fake().launches == 5);

    // Any other failure says nothing about the image: no recompile.
    const Fp8GemmCall last = make_call(64, 2048);
    get_or_compile(emit(plan_of(last)), "test");
    const unsigned long compiles = compile_count();
    fake().rejections = 1, fake().reject_result = CUDA_ERROR_OUT_OF_MEMORY;
    CHECK(has(error_of(ErrorKind::kRuntime, [&] { runtime::fp8_gemm_nt(last, kStream); }), "OUT_OF_MEMORY"));
    CHECK(compile_count() == compiles);
}

void threads() {
    constexpr int kThreads = 8, kRounds = 300;
    const std::int64_t sizes[] = {1, 8, 64, 65, 1089, 4096};
    std::atomic<int> ready{0};
    std::vector<std::thread> pool;
    for (int t = 0; t < kThreads; t++)
        pool.emplace_back([&, t] {
            ready++;
            while (ready < kThreads) std::this_thread::yield();
            for (int i = 0; i < kRounds; i++) {
                Fp8GemmCall c = make_call(sizes[(i / 2 + t) % 6], i % 2 ? 512 : 768);
                c.device.index = t % 2;
                runtime::fp8_gemm_nt(c, kStream);
            }
            CHECK(current_device() == -1);
        });
    fake().quiet = 1;
    for (std::thread& thread : pool) thread.join();
    std::vector<KernelPlan> plans;
    for (std::int64_t m : sizes)
        for (std::int64_t n : {512, 768}) {
            const KernelPlan p = plan_of(make_call(m, n));
            if (std::find(plans.begin(), plans.end(), p) == plans.end()) plans.push_back(p);
        }
    CHECK(compile_count() == plans.size());
    CHECK(fake().launches == kThreads * kRounds && fake().wrong_context == 0 && fake().retains == 2);
    CHECK(fake().loads - fake().unloads == static_cast<int>(2 * plans.size()));
}

// Without a device or with the wrong one: NotImplemented, so that callers fall back.
void no_driver() {
    CHECK(runtime::driver_version() == 0);
    const std::string text = error_of(ErrorKind::kNotImplemented,
                                      [] { runtime::fp8_gemm_nt(make_call(64), kStream); });
    CHECK(has(text, "no CUDA driver: libcuda.so.1 cannot be loaded"));
    error_of(ErrorKind::kNotImplemented, [] { runtime::device_profile(0); });
}

void no_device() {
    fake().init_result = CUDA_ERROR_NO_DEVICE;
    CHECK(runtime::driver_version() == 13000);
    for (int i = 0; i < 2; i++) {
        const std::string text = error_of(ErrorKind::kNotImplemented, [] { runtime::device_profile(0); });
        CHECK(has(text, "no CUDA device") && has(text, "CUDA_ERROR_NO_DEVICE"));
    }
}

void broken_driver() {
    fake().init_result = CUDA_ERROR_SYSTEM_NOT_READY;
    CHECK(has(error_of(ErrorKind::kRuntime, [] { runtime::device_profile(0); }),
              "CUDA_ERROR_SYSTEM_NOT_READY"));
}

void old_driver() {
    fake().missing = "cuLibraryLoadData";
    const std::string text = error_of(ErrorKind::kNotImplemented, [] { runtime::device_profile(0); });
    CHECK(has(text, "cuLibraryLoadData of CUDA 12.0"));
}

void other_architecture() {
    fake().major = 8;
    const std::string text = error_of(ErrorKind::kNotImplemented,
                                      [] { runtime::fp8_gemm_nt(make_call(64), kStream); });
    CHECK(has(text, "compute capability 8.0") && fake().retains == 0);
}

void devices() {
    CHECK(runtime::device_profile(0).name == "h200" && runtime::get_num_sms(1) == 132);
    for (int index : {-1, 2, 64, 1000})
        CHECK(has(error_of(ErrorKind::kValue, [&] { runtime::device_profile(index); }),
                  "2 device(s) are visible"));
    Fp8GemmCall c = make_call(64);
    c.device = {};
    error_of(ErrorKind::kValue, [&] { runtime::fp8_gemm_nt(c, kStream); });
    CHECK(profile_for(9, 0, 132, "NVIDIA GH200 480GB").name == "gh200");
    CHECK(profile_for(9, 0, 78, "NVIDIA H20-3e").name == "h20");
    CHECK(profile_for(9, 0, 114, "NVIDIA H100 PCIe").name == "h100-pcie");
    CHECK(profile_for(9, 0, 132, "NVIDIA H800").name == "h100");
    CHECK(profile_for(9, 0, 16, "Graphics Device").name == "h20");
    CHECK(find_profiles("sm_90a").size() == device_profiles().size() &&
          find_profiles("h20").front()->sms == 78);
    CHECK(has(error_of(ErrorKind::kValue, [] { find_profiles("h300"); }), "h100-pcie"));
    error_of(ErrorKind::kNotImplemented, [] { profile_for(10, 0, 148, "NVIDIA B200"); });
}

void batch_invariant_from_environment() {  // the variables are set by the test
    CHECK(runtime::get_batch_invariant());
    runtime::set_batch_invariant(false);
    CHECK(!runtime::get_batch_invariant());
}

void switches_that_are_none() {  // the variables are set by the test
    CHECK(has(error_of(ErrorKind::kValue, [] { runtime::get_check(); }),
              "DGJ_CHECK='maybe'; allowed: 1, true"));
    CHECK(has(error_of(ErrorKind::kValue, [] { runtime::get_batch_invariant(); }),
              "DGJ_BATCH_INVARIANT='2'; allowed: 1, true"));
}

void batch_invariant_off() { CHECK(!runtime::get_batch_invariant()); }

void generic_launch() {
    CHECK(has(error_of(ErrorKind::kValue, [] { runtime::repeat_last_launch_ns(1); }), "call one first"));
    const KernelPlan p = plan_of(make_call(64));
    const runtime::LoadedKernel kernel = runtime::load_kernel(emit(p), "test", 1, 1000);
    CUtensorMap map{};
    GemmArgs args{};
    void* params[] = {&map, &map, &map, &args};
    runtime::launch(kernel, {.grid_x = 6, .grid_y = 2, .threads = 64, .cluster = 2, .smem_bytes = 99},
                    kStream, params, "test");
    const FakeLaunch& l = fake().last;
    CHECK(l.grid[0] == 6 && l.grid[1] == 2 && l.block[0] == 64 && l.smem == 99 && l.cluster == 2 &&
          l.pdl == 0);
    CHECK(l.device == 1 && current_device() == -1 && fake().smem_attribute == 1000);
    fake().launch_result = CUDA_ERROR_INVALID_VALUE;
    const auto fails = [&] { runtime::launch(kernel, {.threads = 2000}, kStream, params, "cast to fp8"); };
    CHECK(has(error_of(ErrorKind::kRuntime, fails), "cast to fp8: cuLaunchKernelEx on device 1"));
}

// Prints nanoseconds: what a warm call adds to the launch of the same kernel, with the same and with new
// pointers.
MGroupedCall make_grouped(GroupForm form) {
    MGroupedCall c;
    c.rows = 640, c.n = 512, c.k = 256, c.groups = 5, c.form = form, c.alignment = 24;
    c.device = {Device::Type::kCuda, 0};
    c.a = at(0x10000000), c.b = at(0x20000000), c.d = const_cast<void*>(at(0x30000000));
    c.sfa = static_cast<const float*>(at(0x40000004)), c.sfb = static_cast<const float*>(at(0x50000004));
    c.index = static_cast<const std::int32_t*>(at(0x60000004));
    c.lda = c.k + 64, c.ldb = c.k + 16, c.ldd = c.n + 8;
    c.b_group = 1000 * c.ldb;
    c.sfa_stride_m = 1, c.sfa_stride_k = c.rows, c.sfb_stride_n = 7, c.sfb_stride_k = 3, c.sfb_group = 99;
    if (form == GroupForm::kCounts)
        c.a_group = 700 * c.lda, c.d_group = 800 * c.ldd, c.sfa_group = 2 * c.rows + 5;
    return c;
}

void fake_grouped_kernel() { fake().args_bytes = sizeof(GroupedArgs), fake().maps = 4; }

void grouped() {
    fake_grouped_kernel();
    set_current_device(0);
    int launches = 0;
    for (const GroupForm form :
         {GroupForm::kIds, GroupForm::kEnds, GroupForm::kOffsets, GroupForm::kCounts}) {
        MGroupedCall c = make_grouped(form);
        c.zero_padding = form == GroupForm::kEnds;
        const bool planes = form == GroupForm::kCounts;
        if (launches == 0) {
            CHECK(!runtime::m_grouped_gemm_if_warm(c, kStream) && fake().launches == 0);
            runtime::m_grouped_gemm(c, kStream);
        } else {  // one kernel serves all forms
            CHECK(runtime::m_grouped_gemm_if_warm(c, kStream));
        }
        CHECK(fake().launches == ++launches && fake().loads == 1);

        GroupedArgs args;
        std::memcpy(&args, fake().last.args, sizeof args);
        CHECK(args.sfa == c.sfa && args.sfb == c.sfb && args.d == c.d && args.index == c.index);
        CHECK(args.sfa_stride_m == 1 && args.sfa_stride_k == c.rows && args.sfa_group == c.sfa_group);
        CHECK(args.sfb_stride_n == 7 && args.sfb_stride_k == 3 && args.sfb_group == 99);
        CHECK(args.ldd == c.ldd && args.d_group == c.d_group && args.rows == 640 && args.groups == 5);
        CHECK(args.form == static_cast<unsigned>(form) && args.alignment == 24);
        CHECK(args.units == (form == GroupForm::kIds ? 27u : 0u));  // 640 rows, the last unit is short
        CHECK(args.zero_padding == (form == GroupForm::kEnds ? 1u : 0u));

        const FakeLaunch& l = fake().last;
        CHECK(l.stream == kStream && l.device == 0 && l.block[0] > 0 && l.grid[0] > 0);
        const FakeMap& b = l.maps[1];
        check_ended_map(l.maps[0], c.a, {640, 256, 320, planes ? 5u : 1u, 700 * 320}, 64, DType::kU8);
        check_ended_map(l.maps[2], c.a, {640, 256, 320, planes ? 5u : 1u, 700 * 320}, 32, DType::kU8);
        check_ended_map(l.maps[3], c.d, {640, 512, 1040, planes ? 5u : 1u, 800 * 1040}, 64, DType::kBF16);
        CHECK(b.address == 0x20000000 && b.dims[0] == 256 && b.dims[1] == 512 && b.dims[2] == 5);
        CHECK(b.pitch == 272 && b.step == 272000);

        const int encodes = fake().encodes;
        CHECK(runtime::m_grouped_gemm_if_warm(c, kStream) && fake().launches == ++launches);
        CHECK(fake().encodes == encodes);  // maps are remembered
    }
    MGroupedCall c = make_grouped(GroupForm::kOffsets);
    const int encodes = fake().encodes;
    c.rows = 639;  // other maps of a, d at the same addresses
    CHECK(runtime::m_grouped_gemm_if_warm(c, kStream) && fake().encodes == encodes + 3);
    c.lda += 16;
    CHECK(runtime::m_grouped_gemm_if_warm(c, kStream) && fake().encodes == encodes + 5);
    check_ended_map(fake().last.maps[2], c.a, {639, 256, 336, 1, 0}, 32, DType::kU8);
    check_ended_map(fake().last.maps[3], c.d, {639, 512, 1040, 1, 0}, 64, DType::kBF16);
    c.rows = 40;  // fewer than a box has
    CHECK(runtime::m_grouped_gemm_if_warm(c, kStream));
    check_ended_map(fake().last.maps[0], c.a, {40, 256, 336, 1, 0}, 64, DType::kU8);
    launches += 3;
    c.rows = 0;
    CHECK(runtime::m_grouped_gemm_if_warm(c, kStream));
    runtime::m_grouped_gemm(c, kStream);
    CHECK(fake().launches == launches && fake().unaligned_maps == 0 && fake().wrong_context == 0);
    fake().capturing = kStream;
    CHECK(runtime::m_grouped_gemm_if_warm(make_grouped(GroupForm::kIds), kStream) && !fake().capture_broken);
    fake().launch_result = CUDA_ERROR_LAUNCH_FAILED;
    const std::string text = error_of(ErrorKind::kRuntime, [] {
        runtime::m_grouped_gemm(make_grouped(GroupForm::kIds), kStream);
    });
    CHECK(has(text, "5 groups, 640 rows") && has(text, "CUDA_ERROR_LAUNCH_FAILED"));
}

void checked_index() {
    std::int32_t counts[] = {0, 7, 3};
    MGroupedCall call;
    call.rows = 7, call.n = 8, call.k = 16, call.groups = 3, call.form = GroupForm::kCounts;
    call.device = {Device::Type::kCuda, 1};
    call.index = counts;
    set_current_device(0);
    runtime::check_index(call, kStream, "f");
    counts[2] = 8;
    const auto check = [&] { runtime::check_index(call, kStream, "f"); };
    CHECK(has(error_of(ErrorKind::kValue, check), "f: masked_m[2] is 8; allowed: 0..7"));
    CHECK(current_device() == 0);
    fake().capturing = kStream;
    check();  // nothing can be read now: the values are those of the replay
    fake().capturing = const_cast<void*>(at(0x6000));
    error_of(ErrorKind::kValue, check);
    CHECK(runtime::get_check());
}

// Of many short stretches the fastest: a busy machine interrupts a long one for sure.
constexpr unsigned kCalls = 2000, kStretches = 300;

template <class Body>
double nanoseconds_a_call(Body&& body) {
    const auto begin = std::chrono::steady_clock::now();
    for (unsigned i = 0; i < kCalls; i++) body();
    return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - begin).count() /
           kCalls;
}

void cost() {
    set_current_device(0);
    fake().quiet = 1;
    Fp8GemmCall c = make_call(64, 4096, 7168);
    runtime::fp8_gemm_nt(c, kStream);
    double warm = 1e9, fresh = 1e9, bare = 1e9;
    std::uint64_t calls = 0;
    for (unsigned stretch = 0; stretch < kStretches; stretch++) {
        warm = std::min(warm, nanoseconds_a_call([&] { runtime::fp8_gemm_nt_if_warm(c, kStream); }));
        bare = std::min(bare, runtime::repeat_last_launch_ns(kCalls));
        fresh = std::min(fresh, nanoseconds_a_call([&] {
                             calls++;
                             c.a = at(0x10000000 + calls * 512),
                             c.d = const_cast<void*>(at(0x90000000 + calls * 512));
                             runtime::fp8_gemm_nt_if_warm(c, kStream);
                         }));
    }
    CHECK(runtime::null_call_ns(1000) < 1e6);
    std::printf("%.1f %.1f\n", warm - bare, fresh - bare);
}

void grouped_cost() {
    fake_grouped_kernel();
    set_current_device(0);
    fake().quiet = 1;
    MGroupedCall c = make_grouped(GroupForm::kCounts);
    c.groups = 256;
    runtime::m_grouped_gemm(c, kStream);
    double warm = 1e9, bare = 1e9;
    for (unsigned stretch = 0; stretch < kStretches; stretch++) {
        warm = std::min(warm, nanoseconds_a_call([&] { runtime::m_grouped_gemm_if_warm(c, kStream); }));
        bare = std::min(bare, runtime::repeat_last_launch_ns(kCalls));
    }
    std::printf("%.1f\n", warm - bare);
}

const struct {
    const char* name;
    void (*run)();
} kScenarios[] = {
    {"launch_arguments", launch_arguments},
    {"attributes_once", attributes_once},
    {"empty_operands", empty_operands},
    {"contexts", contexts},
    {"map_reuse", map_reuse},
    {"warm", warm},
    {"capture_compile", capture_compile},
    {"capture_from_cache", capture_from_cache},
    {"capture_old_driver", capture_old_driver},
    {"compile_mode", compile_mode},
    {"rejected_image", rejected_image},
    {"threads", threads},
    {"no_driver", no_driver},
    {"no_device", no_device},
    {"broken_driver", broken_driver},
    {"old_driver", old_driver},
    {"other_architecture", other_architecture},
    {"devices", devices},
    {"batch_invariant_from_environment", batch_invariant_from_environment},
    {"batch_invariant_off", batch_invariant_off},
    {"switches_that_are_none", switches_that_are_none},
    {"generic_launch", generic_launch},
    {"checked_index", checked_index},
    {"grouped", grouped},
    {"cost", cost},
    {"grouped_cost", grouped_cost},
};

}  // namespace

int main(int argc, char** argv) {
    for (const auto& scenario : kScenarios) {
        if (argc != 2 || std::string(scenario.name) != argv[1]) continue;
        try {
            use_fake_compiler();
            scenario.run();
        } catch (const std::exception& e) {
            std::fprintf(stderr, "unexpected exception: %s\n", e.what());
            return 1;
        }
        return g_failures == 0 ? 0 : 1;
    }
    std::fprintf(stderr, "usage: runtime_driver SCENARIO\n");
    return 2;
}
