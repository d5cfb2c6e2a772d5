"""FP8 matrix multiplication for PyTorch: kernels are compiled for a shape when it is first called.

What a reader can rely on:
- importing this package imports no torch, opens no CUDA library, reads no environment and makes no file;
- plan, all_plans, candidates, emit, compile and warmup need neither a GPU nor torch;
- operators (torch.ops.deep_gemm_jit) are registered at once when torch is imported already, else at first
  use or by torch.compile;
- nothing prints: the logger "deep_gemm_jit" gets every message.
"""

import importlib
import logging
import os
import sys

from deep_gemm_jit import _core
from deep_gemm_jit._core import (
    CastPlan,
    CompileError,
    GemmProblem,
    JitForbiddenError,
    KernelPlan,
    KernelSource,
    __version__,
    fp8_gemm_nt,
    m_grouped_fp8_gemm_nt_contiguous,
    m_grouped_fp8_gemm_nt_masked,
    m_grouped_fp8_gemm_nt_offsets,
)
from deep_gemm_jit.ahead import PlanReport, WarmupReport, WarmupStep, plan_report, warmup, zero_jit
from deep_gemm_jit.kernels import (
    Candidate,
    CompiledKernel,
    CompileReport,
    all_plans,
    candidates,
    compile,  # noqa: A004  the fourth step of plan, emit, compile, load
    emit,
    load,
    plan,
)
from deep_gemm_jit.settings import (
    get_batch_invariant,
    get_compile_mode,
    get_deterministic_algorithms,
    get_mk_alignment_for_contiguous_layout,
    get_num_sms,
    get_pdl,
    get_theoretical_mk_alignment_for_contiguous_layout,
    set_batch_invariant,
    set_compile_mode,
    set_mk_alignment_for_contiguous_layout,
    set_num_sms,
    set_pdl,
    use_deterministic_algorithms,
)
from deep_gemm_jit.watch import when_dynamo_is_imported

fp8_m_grouped_gemm_nt_masked = m_grouped_fp8_gemm_nt_masked  # SGLang's spelling

# Modules that need torch, or that only some callers need: imported when a name of theirs is first asked for.
_LAZY = {
    "TunedRow": "tuning",
    "align": "layouts",
    "cast_back_from_fp8": "quant",
    "ceil_div": "layouts",
    "ceil_to_ue8m0": "quant",
    "get_mn_major_tma_aligned_packed_ue8m0_tensor": "layouts",
    "get_mn_major_tma_aligned_tensor": "layouts",
    "get_tma_aligned_size": "layouts",
    "install_as_deep_gemm": "dropin",
    "pack_ue8m0_to_int": "quant",
    "per_block_cast_to_fp8": "quant",
    "per_channel_cast_to_fp8": "quant",
    "per_token_cast_to_fp8": "quant",
    "transform_sf_into_required_layout": "layouts",
    "tune": "tuning",
    "uninstall_as_deep_gemm": "dropin",
    "unpack_ue8m0_from_int": "quant",
}
_LAZY_MODULES = ("dropin", "integrations", "layouts", "ops", "quant", "testing", "utils")

__all__ = [
    "Candidate",
    "CastPlan",
    "CompileError",
    "CompileReport",
    "CompiledKernel",
    "GemmProblem",
    "JitForbiddenError",
    "KernelPlan",
    "KernelSource",
    "PlanReport",
    "TunedRow",
    "WarmupReport",
    "WarmupStep",
    "__version__",
    "align",
    "all_plans",
    "candidates",
    "cast_back_from_fp8",
    "ceil_div",
    "ceil_to_ue8m0",
    "compile",
    "emit",
    "fp8_gemm_nt",
    "fp8_m_grouped_gemm_nt_masked",
    "get_batch_invariant",
    "get_compile_mode",
    "get_deterministic_algorithms",
    "get_mk_alignment_for_contiguous_layout",
    "get_mn_major_tma_aligned_packed_ue8m0_tensor",
    "get_mn_major_tma_aligned_tensor",
    "get_num_sms",
    "get_pdl",
    "get_theoretical_mk_alignment_for_contiguous_layout",
    "get_tma_aligned_size",
    "install_as_deep_gemm",
    "load",
    "m_grouped_fp8_gemm_nt_contiguous",
    "m_grouped_fp8_gemm_nt_masked",
    "m_grouped_fp8_gemm_nt_offsets",
    "pack_ue8m0_to_int",
    "per_block_cast_to_fp8",
    "per_channel_cast_to_fp8",
    "per_token_cast_to_fp8",
    "plan",
    "plan_report",
    "set_batch_invariant",
    "set_compile_mode",
    "set_mk_alignment_for_contiguous_layout",
    "set_num_sms",
    "set_pdl",
    "transform_sf_into_required_layout",
    "tune",
    "uninstall_as_deep_gemm",
    "unpack_ue8m0_from_int",
    "use_deterministic_algorithms",
    "warmup",
    "zero_jit",
]


def __getattr__(name: str):
    module = _LAZY.get(name, name if name in _LAZY_MODULES else None)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    loaded = importlib.import_module(f"{__name__}.{module}")
    if name == module:
        return loaded
    value = globals()[name] = getattr(loaded, name)
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__) | set(_LAZY_MODULES))


logging.getLogger(__name__).addHandler(logging.NullHandler())
# Absolute folders only: a library must never be looked for in the current one.
_core.set_search_paths([path for path in sys.path if os.path.isabs(path)])


def _register() -> None:
    # A torch that is still being imported (and so lacks its library module) is left alone until first use.
    if hasattr(sys.modules.get("torch"), "library"):
        importlib.import_module("deep_gemm_jit.ops").register()


_register()
# torch.compile looks into a function before it calls it: the first call would be too late.
when_dynamo_is_imported(_register)
