"""What the first call of a shape waits for: compile or read from disk, driver load. Each case is a fresh
process.

    python -m benchmarks.compile_time measure FOLDER N K M     prints a JSON object; FOLDER is the cache

A first run against an empty folder compiles; a second one finds the entry on disk.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

from . import ROOT
from .rows import dense_rows

# A fresh interpreter finds `benchmarks` here and deep_gemm_jit in its environment, in isolated and safe-path
# modes too.
LAUNCHER = (
    f"import runpy, sys; sys.path.append({str(ROOT)!r}); "
    "runpy.run_module('benchmarks.compile_time', run_name='__main__')"
)


def measure_here(n: int, k: int, m: int) -> dict:
    """In this process: milliseconds of compiling (or finding) the plan, of loading it, of the first two
    calls."""
    import torch

    from . import core_api
    from .data import random_operands

    o = random_operands(m, n, k)
    d = torch.empty(m, n, dtype=torch.bfloat16, device="cuda")
    plan = core_api.chosen_plan(core_api.problem(n, k), m)
    torch.cuda.synchronize()
    start = time.perf_counter()
    kernel = core_api.compile_plan(plan)
    compiled = time.perf_counter()
    core_api.load_plan(plan)
    loaded = time.perf_counter()
    core_api.gemm(o, d)
    first = time.perf_counter()
    core_api.gemm(o, d)
    second = time.perf_counter()
    torch.cuda.synchronize()
    return {
        "plan": str(plan),
        "origin": kernel["origin"],
        "own_ms": round(kernel["milliseconds"], 3),
        "compile_or_read_ms": round((compiled - start) * 1e3, 3),
        "load_ms": round((loaded - compiled) * 1e3, 3),
        "first_call_ms": round((first - loaded) * 1e3, 3),
        "second_call_ms": round((second - first) * 1e3, 3),
    }


def _child(folder: str, n: int, k: int, m: int) -> dict:
    command = [sys.executable, "-c", LAUNCHER, "measure", folder, str(n), str(k), str(m)]
    environment = dict(os.environ, DGJ_CACHE_DIR=folder)
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT, timeout=120)
    if done.returncode != 0:
        return {"error": (done.stderr.strip().splitlines() or ["no output"])[-1][:300]}
    return json.loads(done.stdout.strip().splitlines()[-1])


def run(rows=None, parallel: int = 1) -> dict:
    """Cold and then from disk, a process for each. One at a time by default, as a user would see it."""
    rows = rows or [row for row in dense_rows() if row.m in (1, 4096)]
    with tempfile.TemporaryDirectory(prefix="dgj-compile-") as folder, ThreadPoolExecutor(parallel) as pool:
        cold = list(pool.map(lambda row: _child(folder, row.n, row.k, row.m), rows))
        disk = list(pool.map(lambda row: _child(folder, row.n, row.k, row.m), rows))
    cases = [
        {"shape": [row.m, row.n, row.k], "cold": c, "disk": w}
        for row, c, w in zip(rows, cold, disk, strict=True)
    ]
    return {"cases": cases, "summary": summary(cases)}


def summary(cases: list[dict]) -> dict:
    out = {}
    for name, part, key in (
        ("compile_ms", "cold", "own_ms"),
        ("read_ms", "disk", "own_ms"),
        ("load_ms", "disk", "load_ms"),
    ):
        values = [case[part][key] for case in cases if key in case[part]]
        if values:
            out[name] = {"median": round(statistics.median(values), 3), "max": max(values)}
    out["errors"] = sum("error" in case[part] for case in cases for part in ("cold", "disk"))
    return out


if __name__ == "__main__":
    if len(sys.argv) != 6 or sys.argv[1] != "measure":
        sys.exit(__doc__)
    sys.stdout.write(json.dumps(measure_here(*(int(value) for value in sys.argv[3:6]))) + "\n")
