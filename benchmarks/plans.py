"""Times every candidate plan of a row and shows where the planner's choice stands: how tiles are tuned.

A candidate is timed only if its result is right. All candidates of all rows are compiled first, on all cores.
Beside them stands the M-grouped kernel with one group of all rows, whose last round of tiles is cut in parts.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from os import cpu_count

import torch

from . import core_api
from .core_api import problem
from .data import mn_major, random_operands
from .reference import Reference
from .rows import Row
from .timing import Flush, burst


def _compile_all(plans: list) -> dict[str, str]:
    """{plan: why it does not compile}"""

    def attempt(plan):
        try:
            core_api.compile_plan(plan)
        except Exception as error:  # noqa: BLE001  that one does not compile is a finding
            return str(plan), f"{type(error).__name__}: {str(error)[:200]}"
        return None

    unique = {str(plan): plan for plan in plans}
    with ThreadPoolExecutor(max(2, cpu_count() or 2)) as pool:
        return dict(found for found in pool.map(attempt, unique.values()) if found)


ONE_GROUP = "the M-grouped kernel, one group"


def one_group(o, d: torch.Tensor):
    offsets = torch.tensor([0, d.shape[0]], dtype=torch.int32, device=d.device)
    lhs, rhs = (o.a, o.sfa), (o.b[None], o.sfb[None])
    return lambda: core_api.dg.m_grouped_fp8_gemm_nt_offsets(lhs, rhs, d, offsets)


def sweep_row(
    row: Row, found: list, broken: dict[str, str], flush: Flush, *, repeats: int, pause_s: float
) -> dict:
    o = random_operands(row.m, row.n, row.k)
    o.sfa = mn_major(o.sfa)
    reference = Reference(o.a, o.sfa, o.b, o.sfb)
    d = torch.empty(row.m, row.n, dtype=torch.bfloat16, device="cuda")
    calls, predicted, wrong = {}, {}, dict()
    for plan, us, _ in found:
        name = str(plan)
        if name in broken:
            wrong[name] = broken[name]
            continue
        d.fill_(float("nan"))
        try:
            core_api.launch_with_plan(plan, o, d)
            bad, worst = reference.check(d)
            if int(bad):
                wrong[name] = f"{int(bad)} elements out of bounds, worst {float(worst):.3g}"
                continue
        except Exception as error:  # noqa: BLE001  as above
            wrong[name] = f"{type(error).__name__}: {str(error)[:200]}"
            continue
        calls[name] = lambda plan=plan: core_api.launch_with_plan(plan, o, d)
        predicted[name] = us
    d.fill_(float("nan"))
    grouped = one_group(o, d)
    grouped()
    if not int(reference.check(d)[0]):
        calls[ONE_GROUP] = grouped
    times = burst(calls, flush, repeats=repeats, pause_s=pause_s) if calls else {}
    one_group_us = times.pop(ONE_GROUP, {}).get("us")
    ranked = sorted(((result["us"], name) for name, result in times.items()))
    choice = str(core_api.chosen_plan(problem(row.n, row.k), row.m))
    chosen_us = times.get(choice, {}).get("us")
    return {
        "shape": [row.m, row.n, row.k],
        "floor_us": round(row.floor_us, 2),
        "choice": choice,
        "choice_us": chosen_us,
        "best": ranked[0][1] if ranked else None,
        "best_us": ranked[0][0] if ranked else None,
        "one_group_us": one_group_us,
        "candidates": [
            {"plan": name, "us": us, "predicted_us": round(predicted[name], 2)} for us, name in ranked
        ],
        "refused": wrong,
    }


def run(
    rows: list[Row],
    *,
    seconds: float,
    limit: int | None = None,
    repeats: int = 7,
    pause_s: float = 0.0005,
    say=lambda text: None,
) -> dict:
    deadline = time.monotonic() + seconds
    found = {row: core_api.candidates(problem(row.n, row.k), row.m)[:limit] for row in rows}
    plans = [plan for candidates in found.values() for plan, _, _ in candidates]
    start = time.monotonic()
    broken = _compile_all(plans)
    count = len({str(plan) for plan in plans})
    say(f"compiled {count} candidates in {time.monotonic() - start:.1f} s, {len(broken)} refused")
    flush = Flush()
    results = []
    for row in rows:
        if time.monotonic() > deadline:
            say(f"time is up after {len(results)} of {len(rows)} rows")
            break
        result = sweep_row(row, found[row], broken, flush, repeats=repeats, pause_s=pause_s)
        results.append(result)
        say(line(row, result))
        torch.cuda.empty_cache()
    return {"rows": results, "complete": len(results) == len(rows)}


def line(row: Row, result: dict, top: int = 4) -> str:
    def us(value):
        return "   -  " if value is None else f"{value:6.1f}"

    times = "  ".join(f"{key} {us(result[key + '_us'])}" for key in ("floor", "best", "choice", "one_group"))
    counts = f"{len(result['candidates'])} timed, {len(result['refused'])} refused"
    text = [f"{row.label:>22}  {times}  ({counts})"]
    for candidate in result["candidates"][:top]:
        text.append(
            f"      {us(candidate['us'])}  model {us(candidate['predicted_us'])}  {candidate['plan']}"
        )
    text.append(f"      choice: {result['choice']}")
    for name, why in list(result["refused"].items())[:2]:
        text.append(f"      refused {name}: {why}")
    return "\n".join(text)
