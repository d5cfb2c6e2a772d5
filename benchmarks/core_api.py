"""The library under test, and the hooks of `_core` that only measuring needs. Nothing else here touches
`_core`."""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import torch

import deep_gemm_jit as dg
from deep_gemm_jit import _core


def problem(n: int, k: int, d_dtype=torch.bfloat16, batch_invariant: bool = False, *, extras: bool = False):
    return _core.GemmProblem(n=n, k=k, d_dtype=d_dtype, batch_invariant=batch_invariant, extras=extras)


def grouped_problem(n: int, k: int, d_dtype=torch.bfloat16):
    """Its kernel serves every number of groups, with and without batch invariance."""
    return _core.GemmProblem(n=n, k=k, d_dtype=d_dtype, layout="m_grouped")


def profile_name() -> str:
    return _core.device_profile_name(torch.cuda.current_device())


def chosen_plan(asked, m: int):
    return _core.plan(asked, m, profile_name())


def all_plans(asked, max_rows: int | None = None) -> list:
    return _core.all_plans(asked, profile_name(), max_rows)


def candidates(asked, m: int) -> list[tuple]:
    """(plan, predicted microseconds, why), best first."""
    found = _core.candidates(asked, m, profile_name())
    return [(row["plan"], row["predicted_us"], row["why"]) for row in found]


def compile_plan(plan) -> dict:
    """Finds or compiles it; the GIL is free meanwhile. Has `origin` (memory, disk, compiled) and
    `milliseconds`."""
    return _core.get_or_compile(_core.emit(plan), str(plan))


def load_plan(plan) -> None:
    _core.load_plan(plan, torch.cuda.current_device())


def compile_ahead(problems: Iterable, max_rows: int | None = None, plans: Iterable = ()) -> int:
    """Compiles every plan of the problems on all cores; returns their number."""
    wanted = {str(plan): plan for plan in plans}
    for asked in problems:
        wanted.update((str(plan), plan) for plan in all_plans(asked, max_rows))
    with ThreadPoolExecutor(max(2, os.cpu_count() or 2)) as pool:
        list(pool.map(compile_plan, wanted.values()))
    return len(wanted)


def gemm(operands, d, **options) -> None:
    dg.fp8_gemm_nt((operands.a, operands.sfa), (operands.b, operands.sfb), d, **options)


def grouped(case, d, **options) -> None:
    """The operation of the case's form; the alignment is set as the case wants it."""
    form = case.layout.form
    if form == "masked":
        expected = options.pop("expected_m", max(1, case.layout.live // case.layout.groups))
        dg.m_grouped_fp8_gemm_nt_masked(case.lhs, case.rhs, d, case.index, expected, **options)
    elif form == "offsets":
        dg.m_grouped_fp8_gemm_nt_offsets(case.lhs, case.rhs, d, case.index, **options)
    else:
        with alignment(case.layout.alignment):
            dg.m_grouped_fp8_gemm_nt_contiguous(
                case.lhs, case.rhs, d, case.index, use_psum_layout=form == "psum", **options
            )


def grouped_op(case, d) -> None:
    """The same through torch's dispatcher."""
    ops, form = torch.ops.deep_gemm_jit, case.layout.form
    arguments = (*case.lhs, *case.rhs, d, case.index)
    if form == "masked":
        ops.m_grouped_fp8_gemm_nt_masked(*arguments)
    elif form == "offsets":
        ops.m_grouped_fp8_gemm_nt_offsets(*arguments)
    else:
        with alignment(case.layout.alignment):
            ops.m_grouped_fp8_gemm_nt_contiguous(*arguments, form == "psum")


def launch_with_plan(plan, operands, d, *, c=None, bias=None, alpha: float = 1.0) -> None:
    """Runs this plan, whether or not the planner would choose it."""
    _core.launch_with_plan(plan, operands.a, operands.sfa, operands.b, operands.sfb, d, c, bias, alpha)


def bare_launch_us(operands, d, count: int) -> float:
    """Microseconds a driver launch of the kernel that this call runs: arguments prepared once, nothing else
    done."""
    return bare_us(lambda: gemm(operands, d), count)


def bare_us(call, count: int) -> float:
    call()
    return _core.repeat_last_launch_ns(count) / 1e3


def torch_op():
    return torch.ops.deep_gemm_jit.fp8_gemm_nt.default


def native_torch() -> list[str]:
    """What a direct call asks C++ functions of torch; the rest it asks through Python."""
    return list(_core.native_torch())


def set_num_sms(count: int) -> None:
    _core.set_num_sms(count)


@contextmanager
def batch_invariant(on: bool = True):
    before = _core.get_batch_invariant()
    _core.set_batch_invariant(on)
    try:
        yield
    finally:
        _core.set_batch_invariant(before)


@contextmanager
def pdl(on: bool = True):
    before = _core.get_pdl()
    _core.set_pdl(on)
    try:
        yield
    finally:
        _core.set_pdl(before)


@contextmanager
def alignment(rows: int):
    before = dg.get_mk_alignment_for_contiguous_layout()
    dg.set_mk_alignment_for_contiguous_layout(rows)
    try:
        yield
    finally:
        dg.set_mk_alignment_for_contiguous_layout(before)
