from collections.abc import Sequence

import torch

from deep_gemm_jit._core import CompileError as CompileError
from deep_gemm_jit._core import GemmProblem as GemmProblem
from deep_gemm_jit._core import JitForbiddenError as JitForbiddenError
from deep_gemm_jit._core import KernelPlan as KernelPlan
from deep_gemm_jit._core import KernelSource as KernelSource
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
from deep_gemm_jit.kernels import warmup as warmup
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
from deep_gemm_jit.settings import get_num_sms as get_num_sms
from deep_gemm_jit.settings import get_pdl as get_pdl
from deep_gemm_jit.settings import set_batch_invariant as set_batch_invariant
from deep_gemm_jit.settings import set_compile_mode as set_compile_mode
from deep_gemm_jit.settings import set_num_sms as set_num_sms
from deep_gemm_jit.settings import set_pdl as set_pdl
from deep_gemm_jit.settings import use_deterministic_algorithms as use_deterministic_algorithms

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
