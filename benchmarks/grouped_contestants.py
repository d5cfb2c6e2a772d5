"""The M-grouped GEMMs of this library and of others, each as a callable over the same operands."""

from __future__ import annotations

from collections.abc import Callable

import torch

from . import core_api
from .data import FP8
from .grouped_data import Grouped, Layout, live_rows
from .reference import calc_diff

ALIGNMENT = 128  # of all cases: the default one, so that nothing but the operation is in a call
TORCH_GROUPED = "torch_grouped_rowwise"


def output(case: Grouped) -> torch.Tensor:
    return torch.zeros(*case.a.shape[:-1], case.weights.b.shape[1], dtype=torch.bfloat16, device="cuda")


def ours(case: Grouped, d: torch.Tensor, **options) -> Callable[[], None]:
    assert case.layout.form not in ("ids", "psum") or case.layout.alignment == ALIGNMENT
    form, lhs, rhs, index = case.layout.form, case.lhs, case.rhs, case.index
    dg = core_api.dg
    if not options:
        return _plain_call(case, d)
    if form == "masked":
        expected = options.pop("expected_m", max(1, case.layout.live // case.layout.groups))
        return lambda: dg.m_grouped_fp8_gemm_nt_masked(lhs, rhs, d, index, expected, **options)
    if form == "offsets":
        return lambda: dg.m_grouped_fp8_gemm_nt_offsets(lhs, rhs, d, index, **options)
    psum = form == "psum"
    return lambda: dg.m_grouped_fp8_gemm_nt_contiguous(lhs, rhs, d, index, use_psum_layout=psum, **options)


def _plain_call(case: Grouped, d: torch.Tensor) -> Callable[[], None]:
    """As users write it: Python's way from **options to arguments takes longer than the function itself."""
    form, lhs, rhs, index = case.layout.form, case.lhs, case.rhs, case.index
    masked = core_api.dg.m_grouped_fp8_gemm_nt_masked
    offsets = core_api.dg.m_grouped_fp8_gemm_nt_offsets
    contiguous = core_api.dg.m_grouped_fp8_gemm_nt_contiguous
    expected = max(1, case.layout.live // case.layout.groups)
    return {
        "masked": lambda: masked(lhs, rhs, d, index, expected),
        "offsets": lambda: offsets(lhs, rhs, d, index),
        "psum": lambda: contiguous(lhs, rhs, d, index, use_psum_layout=True),
        "ids": lambda: contiguous(lhs, rhs, d, index),
    }[form]


def deep_gemm(module, case: Grouped, d: torch.Tensor) -> Callable[[], None]:
    lhs, rhs, index = case.lhs, case.rhs, case.index
    if case.layout.form == "masked":
        expected = max(1, case.layout.live // case.layout.groups)
        return lambda: module.fp8_m_grouped_gemm_nt_masked(lhs, rhs, d, index, expected)
    return lambda: module.m_grouped_fp8_gemm_nt_contiguous(lhs, rhs, d, index)


def torch_grouped(case: Grouped) -> tuple[Callable[[], torch.Tensor], torch.Tensor]:
    """Row-wise scales of 1 on the live rows, packed: its best case. Also those rows' numbers."""
    live = live_rows(case.layout, "cuda").nonzero().flatten()
    a = case.plain[0].view(torch.uint8)[live].view(FP8)
    counts = counts_of(case.layout)
    ends = torch.tensor(counts, device="cuda").cumsum(0).to(torch.int32)
    b, groups, n = case.weights.b, case.layout.groups, case.weights.b.shape[1]
    one_a, one_b = torch.ones(len(live), device="cuda"), torch.ones(groups, n, device="cuda")
    bt = b.transpose(-2, -1)
    return lambda: torch._scaled_grouped_mm(
        a, bt, one_a, one_b, offs=ends, out_dtype=torch.bfloat16, use_fast_accum=True
    ), a


def counts_of(layout: Layout) -> list[int]:
    counts = [0] * layout.groups
    for g, _, count in layout.runs:
        counts[g] += count
    return counts


def try_torch_grouped(case: Grouped, refused: dict, label: str) -> dict:
    try:
        call, a = torch_grouped(case)
        got = call()
        first = next(g for g, count in enumerate(counts_of(case.layout)) if count)
        count = counts_of(case.layout)[first]
        want = a[:count].float() @ case.weights.b[first].float().t()
        diff = calc_diff(got[:count], want)
        if diff < 2e-3:
            return {TORCH_GROUPED: call}
        refused[f"{label}, {TORCH_GROUPED}"] = f"wrong result, calc_diff {diff:.2g}"
    except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
        refused[f"{label}, {TORCH_GROUPED}"] = str(error).strip().splitlines()[0][:200]
    return {}


def try_deep_gemm(module, case: Grouped, right: torch.Tensor, refused: dict, label: str, name: str) -> dict:
    """`right`: our result, which has been checked."""
    d = output(case)
    live = live_rows(case.layout, "cuda")
    try:
        call = deep_gemm(module, case, d)
        call()
        torch.cuda.synchronize()
    except (RuntimeError, ValueError, TypeError, NotImplementedError, AssertionError) as error:
        refused[f"{label}, {name}"] = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        return {}
    diff = calc_diff(*(t.reshape(case.layout.total, -1)[live] for t in (d, right)))
    if diff < 1e-3:
        return {name: call}
    refused[f"{label}, {name}"] = f"wrong result, calc_diff {diff:.2g}"
    return {}
