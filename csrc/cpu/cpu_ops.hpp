// The same operations on CPU tensors: the arithmetic of the GPU kernels, threaded, with bits that do not
// depend on the machine.
#pragma once

#include <cstdint>

#include "problem/fp8_gemm_call.hpp"
#include "problem/m_grouped_call.hpp"

namespace dgj::cpu {

void fp8_gemm_nt(const Fp8GemmCall& call);
void m_grouped_gemm(const MGroupedCall& call);

// Quantisation. x: bf16 | fp16 | fp32 [rows, cols] with any row stride, last stride 1. q: e4m3 [rows, cols],
// row stride ldq. scale of (row, block): sf[row * sf_stride_row + block * sf_stride_block], fp32, block =
// ceil(cols / gran_k) of them. scale = max(amax, 1e-4) / 448 (with use_ue8m0 rounded up to a power of two); q
// = saturate(x * (1 / scale)).
struct CastCall {
    const void* x = nullptr;
    DType x_dtype = DType::kBF16;
    std::int64_t rows = 0, cols = 0, ldx = 0, ldq = 0;
    void* q = nullptr;
    float* sf = nullptr;
    std::int64_t sf_stride_row = 0, sf_stride_block = 0;
    std::int64_t gran_rows = 1;  // 1: per token; gran_k: per block (sf rows = ceil(rows / gran_rows))
    std::int64_t gran_k = 128;
    bool use_ue8m0 = false;
    // sf points to int32 words: the biased exponent of (row, block) is byte block % 4, 0 the lowest, of word
    // row * sf_stride_row + (block / 4) * sf_stride_block; bytes past the last block are 0.
    // Needs use_ue8m0 and gran_rows == 1.
    bool packed_ue8m0 = false;
};
void cast_to_fp8(const CastCall& call);

}  // namespace dgj::cpu
