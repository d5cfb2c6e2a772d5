// A program for NVRTC: what emit makes, what compile and cache take.
#pragma once

#include <string>
#include <vector>

namespace dgj {

struct NamedText {
    std::string name;  // as it stands in #include "..."
    std::string text;
};

struct KernelSource {
    std::string text;                // the program: constexpr lines, one include, one extern "C" entry
    std::vector<NamedText> headers;  // every header it reaches, generated ones (ptx/wgmma_n<N>.cuh) included
    std::string entry;               // name of the kernel
    std::string arch;                // "sm_90a"
    std::string warmup;  // flags of `python -m deep_gemm_jit warmup` that compile it; " --casts all"
};

}  // namespace dgj
