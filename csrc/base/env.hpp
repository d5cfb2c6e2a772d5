// Every environment variable that the library reads, in one table (README.md has the same table; a test
// compares them). Variables are read at first use, never at import, and never on the warm path.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace dgj {

struct EnvVar {
    const char* name;
    const char* meaning;
};

namespace env {
inline constexpr EnvVar kNvrtc{"DGJ_NVRTC", "path of the libnvrtc to use; wins over every other place"};
inline constexpr EnvVar kCacheDir{"DGJ_CACHE_DIR",
                                  "folder of the kernel cache, then folders that are only read: "
                                  "primary:seed:seed or :seed; empty turns the disk cache off"};
inline constexpr EnvVar kCacheMaxSize{"DGJ_CACHE_MAX_SIZE",
                                      "bound of the kernel cache, as 512M or 2G; default 1G, 0: no bound"};
inline constexpr EnvVar kDgCacheDir{"DG_JIT_CACHE_DIR",
                                    "DeepGEMM's name; its subfolder deep_gemm_jit is used"};
inline constexpr EnvVar kXdgCacheHome{"XDG_CACHE_HOME", "parent of the default cache folder"};
inline constexpr EnvVar kHome{"HOME", "its .cache/deep_gemm_jit is the last choice for the cache"};
inline constexpr EnvVar kJit{"DGJ_JIT", "'forbid': a compile raises instead of running"};
inline constexpr EnvVar kTuning{"DGJ_TUNING", "JSON table of measured plans, made by deep_gemm_jit.tune"};
inline constexpr EnvVar kSaveSource{"DGJ_SAVE_SOURCE",
                                    "folder where the source of every compiled kernel is written"};
inline constexpr EnvVar kCudaHome{"CUDA_HOME", "a CUDA toolkit where NVRTC is looked for"};
inline constexpr EnvVar kCudaPath{"CUDA_PATH", "another name of CUDA_HOME"};
inline constexpr EnvVar kCondaPrefix{"CONDA_PREFIX", "a conda environment where NVRTC is looked for"};
inline constexpr EnvVar kBatchInvariant{"DGJ_BATCH_INVARIANT",
                                        "1: a row's bits do not depend on the other rows"};
inline constexpr EnvVar kVllmBatchInvariant{"VLLM_BATCH_INVARIANT", "vLLM's name of DGJ_BATCH_INVARIANT"};
inline constexpr EnvVar kBackend{"DGJ_BACKEND",
                                 "1 or moe: this package becomes the deep_gemm of vLLM and SGLang"};
inline constexpr EnvVar kCheck{"DGJ_CHECK",
                               "1: group ids, ends, offsets and counts on a GPU are checked before a launch, "
                               "which waits for them"};
inline constexpr EnvVar kNumThreads{"DGJ_NUM_THREADS",
                                    "threads of the CPU implementation; default: all cores"};

std::span<const EnvVar* const> table();

// The value, or nullopt when the variable is not set. An empty value counts as set.
std::optional<std::string> get(const EnvVar& variable);

// "1", "true", "yes", "on": true; "0", "false", "no", "off", "": false; in any case, spaces around them left
// out. Anything else: nullopt.
std::optional<bool> parse_flag(std::string_view text);

// Not set is false. Throws Error(kValue) for what is no flag.
bool flag(const EnvVar& variable);

// A flag of programs that read it as Python's int(value) != 0. What is no integer is false, with a warning.
bool integer_flag(const EnvVar& variable);
}  // namespace env

}  // namespace dgj
