// NVRTC is found at run time, loaded with dlopen, and driven without its header.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "base/kernel_source.hpp"

namespace dgj {

struct NvrtcIdentity {  // read from file headers, without loading the library (a cache hit never opens NVRTC)
    std::string path;   // not part of the cache key
    std::string builtins;      // path of libnvrtc-builtins, opened before it; not part of the cache key
    std::string found_by;      // the row of the table in nvrtc_find.cpp, for people
    int major = 0, minor = 0;  // from the SONAME / file name of libnvrtc-builtins
    std::string fingerprint;  // version + build-id of libnvrtc-builtins + size of libnvrtc: part of the cache
                              // key
};

// What the search can not know by itself. Both only store; nothing is read or opened before the first use of
// NVRTC. Folders of installed Python packages, in the order of the import path. Later calls count until NVRTC
// was found.
void set_search_paths(std::vector<std::string> site_packages);
// Called at the search: 13000 for CUDA 13.0, 0 when there is no driver; a candidate of a newer major is
// skipped.
void set_driver_version_source(int (*driver_version)());

// Finds NVRTC (>= 12.3) by the table in nvrtc_find.cpp, once; throws Error(kCompile) that lists every place
// tried.
const NvrtcIdentity& nvrtc_identity();

struct CompileResult {
    std::vector<std::byte> cubin;
    std::string log;
    double milliseconds = 0;
};

// The options that reach the code, in order; part of the cache key. They do not depend on the NVRTC found.
std::vector<std::string> nvrtc_options(const std::string& arch);

// Compiles in the calling thread (callers release the GIL). Throws Error(kCompile) with log, arch, options
// and where the source was saved: DGJ_SAVE_SOURCE, else `failed_folder` if not empty, else a private
// temporary folder. Never returns an empty or non-CUDA image.
CompileResult nvrtc_compile(const KernelSource& source, const std::string& failed_folder = "");

struct CompileReport {                                       // parsed from the log (--ptxas-options=-v)
    int registers = 0;                                       // the largest of all functions
    int spill_stores = 0, spill_loads = 0, stack_bytes = 0;  // bytes, sums over all functions
    std::vector<std::string> advisories;                     // lines with C75xx
};
CompileReport parse_compile_log(const std::string& log);

}  // namespace dgj
