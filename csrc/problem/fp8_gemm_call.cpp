// fp8_gemm_nt: see call_checks.hpp for how checks are shaped.
#include "problem/fp8_gemm_call.hpp"

#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "base/error.hpp"
#include "problem/call_checks.hpp"

namespace dgj {
namespace {

using namespace checks;

DGJ_COLD [[noreturn]] void bad_addend_dtype(const Arg& arg, DType d, bool or_float32) {
    fail(ErrorKind::kType, "{}: {} has dtype {}; allowed: {}, the dtype of d{}. Convert it with .to()",
         arg.function, arg.name, name_of(arg.t.dtype), name_of(d), or_float32 ? ", or float32" : "");
}

}  // namespace

float alpha_in_float32(double alpha, const char* function) {
    if (std::isfinite(alpha) && std::abs(alpha) > std::numeric_limits<float>::max()) [[unlikely]]
        fail(ErrorKind::kValue,
             "{}: alpha is {:.6g} or more in magnitude; it is applied in float32, which ends at {:.6g}. "
             "Pass a smaller one, or scale the operands",
             function, std::abs(alpha), std::numeric_limits<float>::max());
    return static_cast<float>(alpha);
}

Fp8GemmCall validate_fp8_gemm(const Fp8GemmArgs& args, const char* function) {
    const Arg a{function, "a[0]", args.a}, sfa{function, "a[1]", args.sfa};
    const Arg b{function, "b[0]", args.b}, sfb{function, "b[1]", args.sfb};
    const Arg d{function, "d", args.d}, c{function, "c", args.c}, bias{function, "bias", args.bias};
    const bool has_c = args.c.ndim >= 0, has_bias = args.bias.ndim >= 0;

    check_operand(a, sfa);
    check_operand(b, sfb);
    const DType d_dtype = args.d.dtype;
    check_d_dtype(d);
    if (has_c && args.c.dtype != d_dtype) [[unlikely]]
        bad_addend_dtype(c, d_dtype, false);
    if (has_bias && args.bias.dtype != d_dtype && args.bias.dtype != DType::kF32) [[unlikely]] {
        bad_addend_dtype(bias, d_dtype, true);
    }

    const Device device = args.a.device;
    check_device(sfa, device);
    check_device(b, device);
    check_device(sfb, device);
    check_device(d, device);
    if (has_c) check_device(c, device);
    if (has_bias) check_device(bias, device);
    if (device.type == Device::Type::kOther) [[unlikely]]
        bad_device(a);

    check_rank(a, 2);
    check_rank(b, 2);
    check_rank(d, 2);
    const std::int64_t m = args.a.shape[0], n = args.b.shape[0], k = args.a.shape[1];
    if (args.b.shape[1] != k) [[unlikely]]
        bad_shape(b, "[N, K]", {n, k});
    check_extents(a, k, b, n);
    if (m > kMaxExtent) [[unlikely]]
        bad_rows(a, m);
    if (args.d.shape[0] != m || args.d.shape[1] != n) [[unlikely]]
        bad_shape(d, "[M, N]", {m, n});
    const std::int64_t k_blocks = ceil_div(k, kScaleBlock), n_blocks = ceil_div(n, kScaleBlock);
    if (args.sfa.ndim != 2 || args.sfa.shape[0] != m || args.sfa.shape[1] != k_blocks) [[unlikely]] {
        bad_scale_shape(sfa, "[M, ceil(K/128)]", m, k, {m, k_blocks});
    }
    if (args.sfb.ndim != 2 || args.sfb.shape[0] != n_blocks || args.sfb.shape[1] != k_blocks) [[unlikely]] {
        bad_scale_shape(sfb, "[ceil(N/128), ceil(K/128)]", n, k, {n_blocks, k_blocks});
    }
    if (has_c) {
        check_rank(c, 2);
        if (args.c.shape[0] != m || args.c.shape[1] != n) [[unlikely]]
            bad_shape(c, "[M, N]", {m, n});
    }
    if (has_bias) {
        check_rank(bias, 1);
        if (args.bias.shape[0] != n) [[unlikely]]
            bad_shape(bias, "[N]", {n});
    }

    Fp8GemmCall call;
    call.m = m;
    call.n = n;
    call.k = k;
    call.d_dtype = d_dtype;
    call.bias_dtype = has_bias ? args.bias.dtype : DType::kUnknown;
    call.device = device;
    call.alpha = args.alpha;
    if (m == 0 || n == 0) return call;

    const int d_size = size_of(d_dtype);
    call.d = args.d.data;
    call.ldd = check_matrix(d, 0, true);
    const Rows d_rows = rows_of(call.d, m, call.ldd, n, d_size);

    if (has_c) {
        call.c = args.c.data;
        call.ldc = check_matrix(c);
        if (call.c != call.d || call.ldc != call.ldd)
            check_apart(c, rows_of(call.c, m, call.ldc, n, d_size), d_rows);
    }
    if (has_bias) {
        const int size = size_of(args.bias.dtype);
        call.bias = args.bias.data;
        if (call.bias == nullptr || args.bias.stride[0] != 1 ||
            (address(call.bias) & static_cast<unsigned>(size - 1)) != 0) [[unlikely]]
            bad_vector_memory(bias, size, "stride 1");
        check_apart(bias, rows_of(call.bias, 1, 0, n, size), d_rows);
    }
    if (k == 0) return call;  // the operands and their scales have no elements

    call.a = args.a.data;
    call.b = args.b.data;
    call.lda = check_matrix(a);
    call.ldb = check_matrix(b);
    check_apart(a, rows_of(call.a, m, call.lda, k, 1), d_rows);
    check_apart(b, rows_of(call.b, n, call.ldb, k, 1), d_rows);

    call.sfa = static_cast<const float*>(args.sfa.data);
    const ScaleStrides of_a = check_scales_of_a(sfa, 0, m, k_blocks);
    call.sfa_stride_m = of_a.row;
    call.sfa_stride_k = of_a.block;
    check_apart(sfa,
                of_a.row == 1 ? rows_of(call.sfa, k_blocks, of_a.block, m, sizeof(float))
                              : rows_of(call.sfa, m, of_a.row, k_blocks, sizeof(float)),
                d_rows);

    call.sfb = static_cast<const float*>(args.sfb.data);
    const ScaleStrides of_b = check_scales_of_b(sfb, 0, n_blocks, k_blocks);
    call.sfb_stride_n = of_b.row;
    call.sfb_stride_k = of_b.block;
    const std::int64_t sfb_span = (n_blocks - 1) * of_b.row + (k_blocks - 1) * of_b.block + 1;
    check_apart(sfb, rows_of(call.sfb, 1, 0, sfb_span, sizeof(float)), d_rows);
    return call;
}

}  // namespace dgj
