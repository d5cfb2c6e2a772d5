"""A large model from an empty cache, as a server would start: how many kernels, how long, and each once."""

import json
import os
import subprocess
import sys
import time

import pytest
from model_configs import DEEPSEEK_V3

import deep_gemm_jit as dg
from deep_gemm_jit.models import model_gemms

pytestmark = pytest.mark.long

# The limit is 60 s on two CPUs that do nothing else: 120 s of CPU time, which other work does not change.
MOST_CPU_SECONDS = 120
MOST_SECONDS_WHEN_WARM = 1.0


def start(folder, *more: str) -> subprocess.Popen:
    (folder / "config.json").write_text(json.dumps(DEEPSEEK_V3))
    command = [sys.executable, "-m", "deep_gemm_jit", "warmup", "--device", "h200", "--ep", "8"]
    command += ["--model-config", str(folder / "config.json"), "--max-tokens", "8192", *more]
    environment = os.environ | {"DGJ_CACHE_DIR": str(folder / "cache")}
    return subprocess.Popen(
        command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )


def finish(process: subprocess.Popen) -> int:
    """How many kernels it compiled."""
    out, _ = process.communicate(timeout=800)
    assert process.returncode == 0 and "are ready: " in out, out
    return int(out.split("are ready: ")[1].split()[0])


def test_deepseek_v3_by_eight_processes_then_from_the_cache(tmp_path):
    gemms = model_gemms(DEEPSEEK_V3, ep=8, max_tokens=8192)
    report = dg.plan_report([g.problem for g in gemms], "h200", [g.max_rows for g in gemms])
    before = os.times()
    compiled = [finish(process) for process in [start(tmp_path) for _ in range(8)]]
    after = os.times()
    assert sum(compiled) == len(report) <= 150, "each kernel is compiled once"
    used = (after.children_user + after.children_system) - (before.children_user + before.children_system)
    assert used < MOST_CPU_SECONDS

    seconds = []
    for _ in range(3):
        started = time.perf_counter()
        assert finish(start(tmp_path)) == 0
        seconds.append(time.perf_counter() - started)
    # The quickest of three: the machine may be at something else too.
    assert min(seconds) < MOST_SECONDS_WHEN_WARM, seconds
