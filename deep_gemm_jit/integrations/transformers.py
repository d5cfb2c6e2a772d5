"""Adapter for Hugging Face transformers, read from version 5.24.

transformers loads DeepGEMM as a kernel from its hub into a private record, behind a gate that demands the
`kernels` package and an nvcc on disk. enable() fills that record with this package and replaces the gate.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NoReturn

import deep_gemm_jit

__all__ = ["disable", "enable"]

# Fields of the record -> our functions.
_OURS = {
    "fp8_fp4_matmul": "fp8_gemm_nt",
    "grouped_fp8_fp4_matmul_nt": "m_grouped_fp8_gemm_nt_contiguous",
    "per_token_cast_to_fp8": "per_token_cast_to_fp8",
    "transform_sf_into_required_layout": "transform_sf_into_required_layout",
}
# Fields whose arithmetic does not exist here. transformers demands them all, whatever a model uses.
_ABSENT = (
    "fp8_fp4_mega_moe",
    "get_symm_buffer_for_mega_moe",
    "grouped_bf16_matmul_nn",
    "grouped_bf16_matmul_nt",
    "grouped_fp8_fp4_matmul_nn",
    "transform_weights_for_mega_moe",
)
_saved: list[tuple[Any, str, Any]] = []


def enable() -> None:
    """Make this package the DeepGEMM of transformers in this process; does nothing the second time.

    FP8 linear layers then use it by themselves on Hopper, FP8 experts with experts_implementation="deepgemm".
    Experts in BF16, with transposed weights or as Mega MoE raise NotImplementedError.
    Raises ImportError without transformers, RuntimeError for a version that has another record or gate.
    """
    if _saved:
        return
    import torch
    from transformers.integrations import deepgemm, finegrained_fp8

    gates = [(module, "is_deepgemm_loadable") for module in (deepgemm, finegrained_fp8)]
    known = {*_OURS, *_ABSENT, "m_alignment"}
    record_type = getattr(deepgemm, "DeepGEMM", None)
    fields = dataclasses.fields(record_type) if dataclasses.is_dataclass(record_type) else ()
    strange = known ^ {field.name for field in fields}
    strange |= {name for module, name in [*gates, (deepgemm, "_DEEPGEMM")] if not hasattr(module, name)}
    if strange:  # before anything is replaced
        import transformers

        raise RuntimeError(
            f"enable: transformers {transformers.__version__} loads DeepGEMM in another way than this "
            f"adapter knows ({', '.join(sorted(strange))}); it was written for 5.24"
        )
    record = record_type(
        **{field: getattr(deep_gemm_jit, name) for field, name in _OURS.items()},
        **{field: _missing(field) for field in _ABSENT},
        m_alignment=deep_gemm_jit.get_mk_alignment_for_contiguous_layout(),
    )
    gate = torch._dynamo.assume_constant_result(_is_loadable)
    _replace(deepgemm, "_DEEPGEMM", record)
    for module, name in gates:
        _replace(module, name, gate)


def disable() -> None:
    """Undo enable()."""
    while _saved:
        setattr(*_saved.pop())


def _replace(module: Any, name: str, value: Any) -> None:
    _saved.append((module, name, getattr(module, name)))
    setattr(module, name, value)


def _missing(field: str) -> Callable[..., NoReturn]:
    def raise_error(*_args: Any, **_kwargs: Any) -> NoReturn:
        raise NotImplementedError(
            f"deep_gemm_jit has no {field}; choose another implementation with "
            "model.set_experts_implementation('grouped_mm')"
        )

    return raise_error


def _is_loadable(raise_error: bool = False) -> bool:
    """Whether the current CUDA device has kernels of ours."""
    import torch

    reason = "no CUDA device is available"
    if torch.cuda.is_available():
        try:
            deep_gemm_jit._core.device_profile_name(torch.cuda.current_device())
            return True
        except NotImplementedError as error:
            reason = str(error)
    if raise_error:
        raise ImportError(f"deep_gemm_jit has no kernels for this machine: {reason}")
    return False
