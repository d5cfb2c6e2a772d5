"""A failure says how to see it again; a seed gives the same run each time; other compilers give the same."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from emulator import launch, plans, problems

from deep_gemm_jit import _core

HERE = Path(__file__).resolve().parent
WAIT = "ptx::barrier_wait(smem.full + 8 * stage, rings.tiles.phase);"


def without_wait(text, headers):
    body = headers["sm90/fp8_gemm.cuh"]
    assert body.count(WAIT) == 1
    return text, {**headers, "sm90/fp8_gemm.cuh": body.replace(WAIT, "")}


def run(seed: int, patch=None):
    m, n, k = 130, 136, 1168
    plan = plans.find(_core.GemmProblem(n=n, k=k), m, family="gemm", tile_cols=64)
    o = problems.make(m, n, k, torch.bfloat16)
    return launch.run_gemm(plan, **o.as_dict(), sms=1, seed=seed, patch=patch), o.d


@pytest.mark.smoke
def test_a_failure_prints_what_replays_it(monkeypatch):
    with pytest.raises(launch.EmulatorFault) as first:
        run(7, without_wait)
    text = str(first.value)
    assert re.search(r"at fp8_gemm\.cuh:\d+", text) and "kernel: n=136 k=1168" in text
    line = re.search(r"replay: DGJ_EMULATOR_SEED=(\d+)", text)
    assert line is not None
    monkeypatch.setenv("DGJ_EMULATOR_SEED", line.group(1))
    assert launch.seeds((0, 1, 2)) == (7,)
    with pytest.raises(launch.EmulatorFault) as second:
        run(*launch.seeds((0, 1, 2)), without_wait)
    assert str(second.value) == text


@pytest.mark.parametrize("seed", [0, 1, 2, 3, 4])
def test_a_seed_gives_the_same_run(seed):
    (first, d), (second, again) = run(seed), run(seed)
    assert (first.switches, first.operations) == (second.switches, second.operations)
    assert torch.equal(d.contiguous().view(torch.uint8), again.contiguous().view(torch.uint8))


def test_seeds_give_different_runs():
    switches = {run(seed)[0].switches for seed in range(8)}
    assert len(switches) > 4


def test_the_smoke_set_passes_with_clang():
    if os.environ.get("CXX", "").endswith("clang++"):
        pytest.skip("this run uses it already")
    if shutil.which("clang++") is None:
        pytest.skip("clang++ is not installed")
    done = subprocess.run(
        [sys.executable, "-P", "-m", "pytest", str(HERE), "-m", "smoke", "-q", "-p", "no:cacheprovider"],
        env={**os.environ, "CXX": "clang++"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-4000:]
