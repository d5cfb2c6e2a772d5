from collections.abc import Sequence

import torch

from deep_gemm_jit._core import CastPlan as CastPlan
from deep_gemm_jit._core import CompileError as CompileError
from deep_gemm_jit._core import GemmProblem as GemmProblem
from deep_gemm_jit._core import JitForbiddenError as JitForbiddenError
from deep_gemm_jit._core import KernelPlan as KernelPlan
from deep_gemm_jit._core import KernelSource as KernelSource
from deep_gemm_jit.ahead import PlanReport as PlanReport
from deep_gemm_jit.ahead import WarmupReport as WarmupReport
from deep_gemm_jit.ahead import WarmupStep as WarmupStep
from deep_gemm_jit.ahead import plan_report as plan_report
from deep_gemm_jit.ahead import warmup as warmup
from deep_gemm_jit.ahead import zero_jit as zero_jit
from deep_gemm_jit.dropin import install_as_deep_gemm as install_as_deep_gemm
from deep_gemm_jit.dropin import uninstall_as_deep_gemm as uninstall_as_deep_gemm
from deep_gemm_jit.kernels import Candidate as Candidate
from deep_gemm_jit.kernels import CompiledKernel as CompiledKernel
from deep_gemm_jit.kernels import CompileReport as CompileReport
from deep_gemm_jit.kernels import all_plans as all_plans
from deep_gemm_jit.kernels import candidates as candidates
from deep_gemm_jit.kernels import compile as compile
from deep_gemm_jit.kernels import emit as emit
from deep_gemm_jit.kernels import load as load
from deep_gemm_jit.kernels import plan as plan
from deep_gemm_jit.layouts import align as align
from deep_gemm_jit.layouts import ceil_div as ceil_div
from deep_gemm_jit.layouts import (
    get_mn_major_tma_aligned_packed_ue8m0_tensor as get_mn_major_tma_aligned_packed_ue8m0_tensor,
)
from deep_gemm_jit.layouts import get_mn_major_tma_aligned_tensor as get_mn_major_tma_aligned_tensor
from deep_gemm_jit.layouts import get_tma_aligned_size as get_tma_aligned_size
from deep_gemm_jit.layouts import transform_sf_into_required_layout as transform_sf_into_required_layout
from deep_gemm_jit.quant import cast_back_from_fp8 as cast_back_from_fp8
from deep_gemm_jit.quant import ceil_to_ue8m0 as ceil_to_ue8m0
from deep_gemm_jit.quant import pack_ue8m0_to_int as pack_ue8m0_to_int
from deep_gemm_jit.quant import per_block_cast_to_fp8 as per_block_cast_to_fp8
from deep_gemm_jit.quant import per_channel_cast_to_fp8 as per_channel_cast_to_fp8
from deep_gemm_jit.quant import per_token_cast_to_fp8 as per_token_cast_to_fp8
from deep_gemm_jit.quant import unpack_ue8m0_from_int as unpack_ue8m0_from_int
from deep_gemm_jit.settings import get_batch_invariant as get_batch_invariant
from deep_gemm_jit.settings import get_compile_mode as get_compile_mode
from deep_gemm_jit.settings import get_deterministic_algorithms as get_deterministic_algorithms
from deep_gemm_jit.settings import (
    get_mk_alignment_for_contiguous_layout as get_mk_alignment_for_contiguous_layout,
)
from deep_gemm_jit.settings import get_num_sms as get_num_sms
from deep_gemm_jit.settings import get_pdl as get_pdl
from deep_gemm_jit.settings import (
    get_theoretical_mk_alignment_for_contiguous_layout as get_theoretical_mk_alignment_for_contiguous_layout,
)
from deep_gemm_jit.settings import set_batch_invariant as set_batch_invariant
from deep_gemm_jit.settings import set_compile_mode as set_compile_mode
from deep_gemm_jit.settings import (
    set_mk_alignment_for_contiguous_layout as set_mk_alignment_for_contiguous_layout,
)
from deep_gemm_jit.settings import set_num_sms as set_num_sms
from deep_gemm_jit.settings import set_pdl as set_pdl
from deep_gemm_jit.settings import use_deterministic_algorithms as use_deterministic_algorithms
from deep_gemm_jit.tuning import TunedRow as TunedRow
from deep_gemm_jit.tuning import tune as tune

__version__: str
__all__: list[str]

_Operand = tuple[torch.Tensor, torch.Tensor] | list[torch.Tensor]

def fp8_gemm_nt(
    a: _Operand,
    b: _Operand,
    d: torch.Tensor,
    c: torch.Tensor | None = None,
    recipe: Sequence[int] | None = None,
    recipe_a: Sequence[int] | None = None,
    recipe_b: Sequence[int] | None = None,
    compiled_dims: str = "nk",
    disable_ue8m0_cast: bool = False,
    alpha: float | None = None,
    epilogue: None = None,
    *,
    bias: torch.Tensor | None = None,
) -> None:
    """D = alpha * (A @ B.T) + bias + C with FP8 operands and block scales, in FP32 and rounded once.

    a: (float8_e4m3fn [M, K], float32 [M, ceil(K/128)]).
    b: (float8_e4m3fn [N, K], float32 [ceil(N/128), ceil(K/128)]).
    d: bfloat16, float16 or float32 [M, N], written in place. c: d's dtype and shape, or d itself.
    bias: [N], float32 or d's dtype. All on one device, CUDA (Hopper) or CPU. Other parameters, strides,
    alignments: help(fp8_gemm_nt).

    Raises TypeError, ValueError, NotImplementedError (a recipe, device or architecture without kernels),
    CompileError, JitForbiddenError, RuntimeError (driver).
    """

def m_grouped_fp8_gemm_nt_contiguous(
    a: _Operand,
    b: _Operand,
    d: torch.Tensor,
    grouped_layout: torch.Tensor | None = None,
    recipe: Sequence[int] | None = None,
    recipe_a: Sequence[int] | None = None,
    recipe_b: Sequence[int] | None = None,
    compiled_dims: str = "nk",
    disable_ue8m0_cast: bool = False,
    use_psum_layout: bool = False,
    ensure_zero_padding: bool | None = None,
    expected_m_for_psum_layout: int | None = None,
    epilogue: None = None,
    *,
    b_is_constant: bool = False,
    m_indices: torch.Tensor | None = None,
) -> None:
    """D[r] = A[r] @ B[g].T for the group g of each row r; groups start at multiples of the alignment.

    a: (float8_e4m3fn [M, K], float32 [M, ceil(K/128)]).
    b: (float8_e4m3fn [G, N, K], float32 [G, ceil(N/128), ceil(K/128)]).
    d: bfloat16, float16 or float32 [M, N], written in place: rows of a group, and the others with zeros if
    ensure_zero_padding is True. grouped_layout, or m_indices: int32 [M], the group of each row or -1; with
    use_psum_layout int32 [G], where each group ends. All on one device, CUDA (Hopper) or CPU. Other
    parameters, strides, what values are allowed: help(m_grouped_fp8_gemm_nt_contiguous).

    Raises TypeError, ValueError, NotImplementedError (a recipe, device or architecture without kernels),
    CompileError, JitForbiddenError, RuntimeError (driver).
    """

def m_grouped_fp8_gemm_nt_masked(
    a: _Operand,
    b: _Operand,
    d: torch.Tensor,
    masked_m: torch.Tensor,
    expected_m: int | None,
    recipe: Sequence[int] | None = None,
    recipe_a: Sequence[int] | None = None,
    recipe_b: Sequence[int] | None = None,
    compiled_dims: str = "nk",
    disable_ue8m0_cast: bool = False,
    epilogue: None = None,
    *,
    b_is_constant: bool = False,
) -> None:
    """D[g, :m] = A[g, :m] @ B[g].T with m = masked_m[g], for every group g.

    a: (float8_e4m3fn [G, max_m, K], float32 [G, max_m, ceil(K/128)]).
    b: (float8_e4m3fn [G, N, K], float32 [G, ceil(N/128), ceil(K/128)]).
    d: bfloat16, float16 or float32 [G, max_m, N], its first masked_m[g] rows written in place.
    masked_m: int32 [G]. expected_m: the rows of a usual group, a hint. Errors and everything else: as
    m_grouped_fp8_gemm_nt_contiguous.
    """

fp8_m_grouped_gemm_nt_masked = m_grouped_fp8_gemm_nt_masked

def m_grouped_fp8_gemm_nt_offsets(
    a: _Operand,
    b: _Operand,
    d: torch.Tensor,
    offsets: torch.Tensor,
    recipe: Sequence[int] | None = None,
    recipe_a: Sequence[int] | None = None,
    recipe_b: Sequence[int] | None = None,
    compiled_dims: str = "nk",
    disable_ue8m0_cast: bool = False,
    epilogue: None = None,
    *,
    b_is_constant: bool = False,
) -> None:
    """D[r] = A[r] @ B[g].T for offsets[g] <= r < offsets[g + 1]: groups start at any row.

    a: (float8_e4m3fn [M, K], float32 [M, ceil(K/128)]).
    b: (float8_e4m3fn [G, N, K], float32 [G, ceil(N/128), ceil(K/128)]).
    d: bfloat16, float16 or float32 [M, N], rows offsets[0] to offsets[G] written in place.
    offsets: int32 [G + 1], not decreasing, in 0..M. Errors and everything else: as
    m_grouped_fp8_gemm_nt_contiguous.
    """
