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
NEXT = "    locate_tiles();\n"
WAIT = "    ptx::barrier_wait(o.full + 8 * rings.tiles.stage, rings.tiles.phase);\n" + NEXT


def without_wait(text, headers):
    body = headers["parts/multiply.cuh"]
    assert body.count(WAIT) == 1
    return text, {**headers, "parts/multiply.cuh": body.replace(WAIT, NEXT)}


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
    assert re.search(r"at \w+\.cuh:\d+", text) and "kernel: n=136 k=1168" in text
    line = re.search(r"replay: DGJ_EMULATOR_SEED=(\d+)", text)
    assert line is not None
    monkeypatch.setenv("DGJ_EMULATOR_SEED", line.group(1))
    assert launch.seeds((0, 1, 2)) == (7,)
    with pytest.raises(launch.EmulatorFault) as second:
        run(*launch.seeds((0, 1, 2)), without_wait)
    assert str(second.value) == text


def test_a_deadlock_lists_every_waiting_thread():
    wait = "ptx::barrier_wait(smem.empty + 8 * ring.stage, ring.phase ^ 1);"

    def never_free(text, headers):
        body = headers["sm90/fp8_gemm.cuh"]
        assert body.count(wait) == 1
        return text, {**headers, "sm90/fp8_gemm.cuh": body.replace(wait, wait.replace(" ^ 1", ""))}

    with pytest.raises(launch.EmulatorFault, match="deadlock") as fault:
        run(3, never_free)
    waits = r"mbarrier \d+: phase \d+, \d+ of \d+ arrivals and -?\d+ bytes are missing"
    line = rf"block 0 warps ([\d,-]+) lanes ([\d,-]+): \w+\.cuh:\d+ waits for {waits}"
    found = re.findall(line, str(fault.value))

    def listed(ranges: str) -> set[int]:
        ends = [[int(i) for i in part.split("-")] for part in ranges.split(",")]
        return {i for part in ends for i in range(part[0], part[-1] + 1)}

    waiting = {(warp, lane) for warps, lanes in found for warp in listed(warps) for lane in listed(lanes)}
    consumers = {(warp, lane) for warp in range(8) for lane in range(32)}
    surely = consumers | {(8, 0)} | {(warp, lane) for warp in (10, 11) for lane in range(32)}  # and senders
    # The warp of the scales may be ahead.
    assert surely <= waiting <= surely | {(9, lane) for lane in range(32)}


def test_wrong_results_print_what_replays_them(tmp_path):
    (tmp_path / "spoil.py").write_text(
        "from emulator import problems\ndef check(o):\n    assert not o, 'spoilt'\nproblems.check = check\n"
    )
    test = f"{HERE / 'test_smoke.py'}::test_one_kernel_of_each_kind_of_cluster[multicast]"
    done = subprocess.run(
        [sys.executable, "-P", "-m", "pytest", test, "-q", "-p", "no:cacheprovider", "-p", "spoil"],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{HERE.parent}", "DGJ_EMULATOR_SEED": "5"},
        capture_output=True,
        text=True,
    )
    assert "spoilt" in done.stdout, done.stdout[-4000:]
    assert re.search(r"replay: DGJ_EMULATOR_SEED=5 pytest '.*\[multicast\]'", done.stdout)


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
