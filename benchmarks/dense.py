"""Speed of the dense rows beside every peer, alternating in one process."""

from __future__ import annotations

import time

import torch

from . import core_api, peers
from .data import mn_major, random_operands
from .reference import Reference
from .report import OURS
from .rows import Row
from .timing import Flush, burst, sustained

SUSTAINED_FROM_M = 1024  # below, a kernel is shorter than its launch and events would time the host


def measure_row(row: Row, flush: Flush, peer, *, repeats: int, sustain_s: float) -> tuple[dict, dict]:
    """(result, {contestant: why it was left out})"""
    o = random_operands(row.m, row.n, row.k)
    o.sfa = mn_major(o.sfa)
    d = torch.empty(row.m, row.n, dtype=torch.bfloat16, device="cuda")
    reference = Reference(o.a, o.sfa, o.b, o.sfb)
    scaled = reference.product.float()

    d.fill_(float("nan"))
    core_api.gemm(o, d)
    bad, worst = reference.check(d)
    del reference

    result = {
        "shape": [row.m, row.n, row.k],
        "floor_us": round(row.floor_us, 2),
        "plan": str(core_api.chosen_plan(core_api.problem(row.n, row.k), row.m)),
        "out_of_bounds": int(bad),
        "worst_error_over_bound": round(float(worst), 4),
    }
    others = peers.torch_dense(o, d)
    if peer is not None:
        others = {peers.DEEP_GEMM: peers.deep_gemm_dense(peer, o, d), **others}
    plain = o.a.float() @ o.b.float().t()
    others, refused = peers.usable(others, d, scaled, plain)
    del scaled, plain
    contestants = {OURS: lambda: core_api.gemm(o, d), **others}
    result["burst"] = burst(contestants, flush, repeats=repeats)
    if row.m >= SUSTAINED_FROM_M and sustain_s > 0:
        result["sustained"] = sustained(contestants, seconds=sustain_s)
    return result, {f"{row.label}, {name}": why for name, why in refused.items()}


def run(
    rows: list[Row], peer, *, seconds: float, repeats: int = 20, sustain_s: float = 0.3, say=lambda text: None
) -> dict:
    deadline = time.monotonic() + seconds
    flush = Flush()
    results, refused = [], {}
    for row in rows:
        if time.monotonic() > deadline:
            say(f"time is up after {len(results)} of {len(rows)} rows")
            break
        try:
            result, left_out = measure_row(row, flush, peer, repeats=repeats, sustain_s=sustain_s)
        except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
            refused[row.label] = f"{type(error).__name__}: {str(error)[:300]}"
            say(f"{row.label}: {refused[row.label]}")
            continue
        results.append(result)
        refused.update(left_out)
        shown = "  ".join(f"{name} {found['us']:.1f}" for name, found in result["burst"].items())
        say(f"{row.label:>22}  floor {row.floor_us:.1f}  {shown}  wrong {result['out_of_bounds']}")
        torch.cuda.empty_cache()
    return {"rows": results, "refused": refused, "complete": len(results) == len(rows)}
