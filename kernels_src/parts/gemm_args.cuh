// Run-time arguments of every FP8 GEMM kernel. One definition for the host, which fills it, and for NVRTC.
// The entry is dgj_kernel(const __grid_constant__ TensorMap a, b, d; const __grid_constant__ GemmArgs args).
#pragma once

namespace dgj {

struct GemmArgs {
    const float* sfa;  // scale of A: element (m, kb) at m * sfa_stride_m + kb * sfa_stride_k
    const float* sfb;  // scale of B: element (nb, kb) at nb * sfb_stride_n + kb * sfb_stride_k
    void* d;
    const void* c;     // null: absent; D's dtype
    const void* bias;  // null: absent
    long long sfa_stride_m, sfa_stride_k;
    long long sfb_stride_n, sfb_stride_k;
    long long ldd, ldc;  // row pitch in elements
    unsigned m;
    float alpha;
    unsigned bias_is_f32;  // else bias has D's dtype
    unsigned reserved;     // keeps the size a multiple of 8 on every compiler
};

}  // namespace dgj
