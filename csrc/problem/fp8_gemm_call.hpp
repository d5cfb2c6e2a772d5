// One call of fp8_gemm_nt: D[m, n] = round(alpha * sum_k A[m, k] B[n, k] + bias[n] + c[m, n]), after
// validation. Shared by the CPU and the GPU implementation, so both refuse the same arguments with the same
// words.
#pragma once

#include <cstdint>

#include "problem/problem.hpp"
#include "problem/types.hpp"

namespace dgj {

struct Fp8GemmArgs {              // as given; c and bias have data == nullptr and ndim == -1 when absent
    TensorView a;                 // e4m3 [M, K]
    TensorView sfa;               // fp32 [M, ceil(K/128)]
    TensorView b;                 // e4m3 [N, K]
    TensorView sfb;               // fp32 [ceil(N/128), ceil(K/128)]
    TensorView d;                 // bf16 | fp16 | fp32 [M, N]
    TensorView c{.ndim = -1};     // D's dtype and shape, any row stride
    TensorView bias{.ndim = -1};  // [N], fp32 or D's dtype
    float alpha = 1.0f;
};

struct Fp8GemmCall {  // strides in elements; every size-1 dimension's stride replaced by a legal one
    std::int64_t m = 0, n = 0, k = 0;
    DType d_dtype = DType::kBF16, bias_dtype = DType::kUnknown;
    Device device;
    const void* a = nullptr;
    const void* b = nullptr;
    const float* sfa = nullptr;
    const float* sfb = nullptr;
    void* d = nullptr;
    const void* c = nullptr;     // nullptr: absent
    const void* bias = nullptr;  // nullptr: absent
    std::int64_t lda = 0, ldb = 0, ldd = 0, ldc = 0;
    std::int64_t sfa_stride_m = 0, sfa_stride_k = 0;  // element (m, kb) at m * stride_m + kb * stride_k
    std::int64_t sfb_stride_n = 0, sfb_stride_k = 0;
    float alpha = 1.0f;
};

// alpha as the kernels apply it. Throws Error where float32 holds no such finite number.
float alpha_in_float32(double alpha, const char* function);

// Throws Error with the argument's name, value, what is allowed and the remedy. `function` is the public
// name.
Fp8GemmCall validate_fp8_gemm(const Fp8GemmArgs& args, const char* function = "fp8_gemm_nt");

}  // namespace dgj
