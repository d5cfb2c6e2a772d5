"""Sweeps over shapes, layouts and options against float64. Each keeps going after a failure, stays inside a
time budget, and says what it covered; launches are not synchronised one by one, so that a GPU minute goes
far."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import torch

from . import core_api
from .core_api import problem
from .covering import pairwise
from .data import (
    FP8_NAN_BYTE,
    SCALE_LAYOUTS,
    GuardedOutput,
    Operands,
    as_kind,
    random_operands,
    scale_layout,
    with_pitch,
)
from .reference import Reference, diff_tensor
from .rows import DENSE_NK

SMALL_M = range(1, 258)
LARGE_M = (512, 1000, 4096, 8192)
GRID_N = (8, 24, 576, 7176)
GRID_K = (16, 112, 128, 144, 576, 1152, 7184)
GRID_M = (1, 8, 63, 64, 65, 127, 128, 129, 257, 1000)

OPTION_AXES = {
    "shape": [
        (1, 576, 512),
        (33, 2112, 1152),
        (100, 264, 144),
        (129, 1024, 7168),
        (301, 392, 400),
        (1000, 4096, 640),
    ],
    "d_dtype": [torch.bfloat16, torch.float16, torch.float32],
    "c": ["none", "separate", "pitched", "alias"],
    "bias": ["none", "fp32", "d_dtype"],
    "alpha": [None, 0.5, -1.375],
    "d_pitch": [0, 24],
    "a_pitch": [0, 48],
    "b_pitch": [0, 112],
    "sfa": list(SCALE_LAYOUTS),
    "sfb": ["row_major", "mn_major_unaligned", "column_sliced"],
    "b_kind": ["tensor", "parameter", "subclass"],
}


@dataclass
class Outcome:
    name: str
    cases: int = 0
    planned: int = 0
    failures: list[str] = field(default_factory=list)
    worst: float = 0.0  # largest |d - ref| / bound
    seconds: float = 0.0

    @property
    def complete(self) -> bool:
        return self.cases == self.planned

    def as_dict(self) -> dict:
        return {
            "name": self.name,
            "cases": self.cases,
            "planned": self.planned,
            "failed": len(self.failures),
            "first_failures": self.failures[:10],
            "worst_error_over_bound": round(self.worst, 4),
            "seconds": round(self.seconds, 1),
        }


def _diff_over_limit(d: torch.Tensor, exact: torch.Tensor, unquantised: torch.Tensor) -> torch.Tensor:
    """calc_diff against the unquantised product as a part of 1e-3, or of what quantisation alone costs where
    that is more: with 8 columns and one block of K it scatters around 7e-4 and can pass 1e-3."""
    return diff_tensor(d, unquantised) / (1.02 * diff_tensor(exact, unquantised)).clamp(min=1e-3)


class _Recorder:
    """Collects results on the device and reads them in one go."""

    def __init__(self, outcome: Outcome, deadline: float):
        self.outcome, self.deadline = outcome, deadline
        self._labels: list[str] = []
        self._values: list[torch.Tensor] = []

    def late(self) -> bool:
        return time.monotonic() > self.deadline

    def add(self, label: str, bad, worst, broken, diff=None) -> None:
        zero = torch.zeros((), dtype=torch.float64, device=worst.device)
        self._labels.append(label)
        self._values.append(
            torch.stack([bad.double(), worst.double(), broken.double(), zero if diff is None else diff])
        )

    def flush(self) -> None:
        if not self._labels:
            return
        for label, (bad, worst, broken, diff) in zip(
            self._labels, torch.stack(self._values).tolist(), strict=True
        ):
            self.outcome.cases += 1
            self.outcome.worst = max(self.outcome.worst, worst)
            problems = []
            if bad:
                problems.append(f"{int(bad)} elements out of bounds, worst {worst:.3g} times the bound")
            if broken:
                problems.append(f"{int(broken)} bytes outside D written")
            if not diff < 1:
                problems.append(f"calc_diff {diff:.3g} times its limit against the unquantised product")
            if problems:
                self.outcome.failures.append(f"{label}: {'; '.join(problems)}")
        self._labels.clear()
        self._values.clear()


def _attempt(outcome: Outcome, label: str, call) -> bool:
    try:
        call()
        return True
    except Exception as error:  # noqa: BLE001  reported as a failure; the others must still run
        outcome.cases += 1
        outcome.failures.append(f"{label}: {type(error).__name__}: {str(error)[:300]}")
        return False


def _prefix_sweep(record: _Recorder, n: int, k: int, ms, dtype=torch.bfloat16) -> None:
    """Every m of `ms`, largest first, on the first m rows of one A; rows from m on are NaN, values and
    scales."""
    ms = sorted(ms, reverse=True)
    o = random_operands(ms[0], n, k)
    reference = Reference(o.a, o.sfa, o.b, o.sfb)
    unquantised = o.x.float() @ o.w.float().t()
    guard = GuardedOutput(ms[0], n, dtype)
    for m in ms:
        if record.late():
            break
        o.a[m:].view(torch.uint8).fill_(FP8_NAN_BYTE)
        o.sfa[m:].fill_(float("nan"))
        part = Operands(o.a[:m], o.sfa[:m], o.b, o.sfb, o.x, o.w)
        d = guard.take(m)
        label = f"M={m} N={n} K={k} {dtype}"
        if not _attempt(record.outcome, label, lambda part=part, d=d: core_api.gemm(part, d)):
            continue
        bad, worst = reference.check(d)
        diff = _diff_over_limit(d, reference.product[:m], unquantised[:m]) if m * n >= 1024 else None
        record.add(label, bad, worst, guard.broken_bytes(), diff)
    record.flush()


def sweep_rows(deadline: float, nk=DENSE_NK, small=SMALL_M, large=LARGE_M) -> Outcome:
    outcome = Outcome("rows", planned=len(nk) * (len(small) + len(large)))
    start = time.monotonic()
    record = _Recorder(outcome, deadline)
    for n, k in nk:
        _prefix_sweep(record, n, k, small)
        for m in large:
            if not record.late():
                _prefix_sweep(record, n, k, [m])
        torch.cuda.empty_cache()
    outcome.seconds = time.monotonic() - start
    return outcome


def sweep_grid(deadline: float, ns=GRID_N, ks=GRID_K, ms=GRID_M) -> Outcome:
    outcome = Outcome("grid", planned=len(ns) * len(ks) * len(ms))
    start = time.monotonic()
    record = _Recorder(outcome, deadline)
    for n in ns:
        for k in ks:
            if not record.late():
                _prefix_sweep(record, n, k, ms)
    outcome.seconds = time.monotonic() - start
    return outcome


def run_option_case(case: dict, record: _Recorder) -> None:
    m, n, k = case["shape"]
    dtype = case["d_dtype"]
    o = random_operands(m, n, k)
    reference = Reference(o.a, o.sfa, o.b, o.sfb)
    guard = GuardedOutput(m, n, dtype, extra_columns=case["d_pitch"])
    d = guard.take()
    size = float(reference.product.std())
    c = bias = None
    if case["c"] != "none":
        c = (torch.randn(m, n, device="cuda") * size).to(dtype)
        if case["c"] == "pitched":
            c = with_pitch(c, 40, fill_byte=0xFF)
    if case["bias"] != "none":
        bias = torch.randn(n, device="cuda") * size
        bias = bias if case["bias"] == "fp32" else bias.to(dtype)
    before = None if c is None else c.clone()
    given = c
    if case["c"] == "alias":
        d.copy_(c)
        given = d
    laid_out = Operands(
        with_pitch(o.a, case["a_pitch"]) if case["a_pitch"] else o.a,
        scale_layout(o.sfa, case["sfa"]),
        as_kind(with_pitch(o.b, case["b_pitch"]) if case["b_pitch"] else o.b, case["b_kind"]),
        as_kind(scale_layout(o.sfb, case["sfb"]), case["b_kind"]),
        o.x,
        o.w,
    )
    label = " ".join(f"{name}={value}" for name, value in case.items())
    options = {"c": given, "alpha": case["alpha"], "bias": bias}
    if not _attempt(record.outcome, label, lambda: core_api.gemm(laid_out, d, **options)):
        return
    bad, worst = reference.check(d, alpha=case["alpha"], bias=bias, c=before)
    if before is not None and case["c"] != "alias":
        bad = bad + (c != before).sum()
    record.add(label, bad, worst, guard.broken_bytes())


def sweep_options(deadline: float, axes=None, seed: int = 0) -> Outcome:
    cases = pairwise(axes or OPTION_AXES, seed)
    outcome = Outcome("options", planned=len(cases))
    start = time.monotonic()
    record = _Recorder(outcome, deadline)
    for case in cases:
        if record.late():
            break
        run_option_case(case, record)
    record.flush()
    outcome.seconds = time.monotonic() - start
    return outcome


def sweep_repeats(deadline: float, nk=DENSE_NK, ms=(1, 64, 128, 257, 4096), times: int = 8) -> Outcome:
    """The same call gives the same bits, whatever stood in D before."""
    outcome = Outcome("repeats", planned=len(nk) * len(ms))
    start = time.monotonic()
    for n, k in nk:
        for m in ms:
            if time.monotonic() > deadline:
                break
            o = random_operands(m, n, k)
            first = torch.empty(m, n, dtype=torch.bfloat16, device="cuda")
            again = torch.empty_like(first)
            core_api.gemm(o, first)
            changed = torch.zeros((), dtype=torch.int64, device="cuda")
            for _ in range(times):
                again.fill_(float("nan"))
                core_api.gemm(o, again)
                changed += (again.view(torch.int16) != first.view(torch.int16)).sum()
            outcome.cases += 1
            if int(changed):
                outcome.failures.append(
                    f"M={m} N={n} K={k}: {int(changed)} elements differ over {times} repeats"
                )
    outcome.seconds = time.monotonic() - start
    return outcome


def sweep_batch_invariance(deadline: float, nk=DENSE_NK, small=SMALL_M, large=(512, 1000)) -> Outcome:
    """With the mode on, a row's bits are the same at every M and at every place in the batch."""
    ms = [*small, *large]
    outcome = Outcome("batch_invariant", planned=len(nk) * (len(ms) + 1))
    start = time.monotonic()
    with core_api.batch_invariant():
        for n, k in nk:
            o = random_operands(4096, n, k)
            whole = torch.empty(4096, n, dtype=torch.bfloat16, device="cuda")
            core_api.gemm(o, whole)
            changed, done = [], []
            for m in ms:
                if time.monotonic() > deadline:
                    break
                d = torch.full((m, n), float("nan"), dtype=torch.bfloat16, device="cuda")
                core_api.gemm(Operands(o.a[:m], o.sfa[:m], o.b, o.sfb, o.x, o.w), d)
                changed.append((d.view(torch.int16) != whole[:m].view(torch.int16)).sum())
                done.append(m)
            order = torch.randperm(4096, device="cuda")
            moved = Operands(o.a.view(torch.uint8)[order].view(o.a.dtype), o.sfa[order], o.b, o.sfb, o.x, o.w)
            d = torch.empty_like(whole)
            core_api.gemm(moved, d)
            changed.append((d.view(torch.int16) != whole[order].view(torch.int16)).sum())
            done.append("4096, rows permuted")
            for m, count in zip(done, torch.stack(changed).tolist(), strict=True):
                outcome.cases += 1
                if count:
                    outcome.failures.append(f"M={m} N={n} K={k}: {count} elements differ from M=4096")
    outcome.seconds = time.monotonic() - start
    return outcome


def sweep_families(deadline: float, nk=DENSE_NK, ms=(1, 40, 128, 200)) -> Outcome:
    """Every plan that the batch-invariant mode can choose gives the same bits at any M, whatever its
    family."""
    outcome = Outcome("families", planned=0)
    start = time.monotonic()
    for n, k in nk:
        plans = core_api.all_plans(problem(n, k, batch_invariant=True))
        outcome.planned += len(plans) * len(ms)
        for m in ms:
            o = random_operands(m, n, k)
            reference = Reference(o.a, o.sfa, o.b, o.sfb)
            first = None
            for plan in plans:
                if time.monotonic() > deadline:
                    break
                d = torch.full((m, n), float("nan"), dtype=torch.bfloat16, device="cuda")
                label = f"M={m} N={n} K={k} {plan}"
                if not _attempt(
                    outcome, label, lambda plan=plan, d=d, o=o: core_api.launch_with_plan(plan, o, d)
                ):
                    continue
                outcome.cases += 1
                bad, worst = reference.check(d)
                outcome.worst = max(outcome.worst, float(worst))
                first = d if first is None else first
                differ = int((d.view(torch.int16) != first.view(torch.int16)).sum())
                if int(bad) or differ:
                    outcome.failures.append(
                        f"{label}: {int(bad)} out of bounds, {differ} differ from {plans[0]}"
                    )
    outcome.seconds = time.monotonic() - start
    return outcome


SWEEPS = {
    "rows": sweep_rows,
    "grid": sweep_grid,
    "options": sweep_options,
    "repeats": sweep_repeats,
    "batch_invariant": sweep_batch_invariance,
    "families": sweep_families,
}


def problems_of(names) -> list:
    """What the named sweeps compile, so that it can be compiled ahead on all cores."""
    found = []
    if {"rows", "repeats"} & set(names):
        found += [problem(n, k) for n, k in DENSE_NK]
    if {"batch_invariant", "families"} & set(names):
        found += [problem(n, k, batch_invariant=True) for n, k in DENSE_NK]
    if "families" in names:
        found += [problem(n, k, batch_invariant=True, extras=True) for n, k in DENSE_NK]
    if "grid" in names:
        found += [problem(n, k) for n in GRID_N for k in GRID_K]
    if "options" in names:
        found += [
            problem(n, k, dtype, extras=extras)
            for _, n, k in OPTION_AXES["shape"]
            for dtype in OPTION_AXES["d_dtype"]
            for extras in (False, True)
        ]
    return found


def run(names, seconds: float) -> list[Outcome]:
    """The named sweeps in order, sharing `seconds`."""
    deadline = time.monotonic() + seconds
    outcomes = []
    for name in names:
        outcomes.append(SWEEPS[name](deadline))
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    return outcomes
