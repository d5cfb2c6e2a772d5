"""The examples run as a reader would run them, and their error figure is small."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
LIMIT = 3e-3
RUNS = {
    "moe_vllm.py": ["", "--experts 3 --topk 2 --tokens 5", "--hidden 384 --intermediate 128", "--tokens 0"],
    "moe_sglang.py": ["", "--experts 3 --topk 2 --tokens 300", "--tokens 0"],
    "moe_transformers.py": ["", "--experts 3 --topk 2 --tokens 5", "--tokens 0"],
    "expert_parallel.py": [
        "--world 2",
        "--world 2 --idle",
        "--world 4 --skew 2",
        "--world 4 --skew 2 --idle",
        "--world 1 --tokens 0",
    ],
    "serve_warmup.py": ["--shapes 64x128,64x128x4 --max-rows 16"],
    "demo.py": [],  # run by `make demo`
    "moe_common.py": [],
}


def test_every_example_is_listed_and_short():
    assert sorted(RUNS) == sorted(path.name for path in EXAMPLES.glob("*.py"))
    for name in RUNS:
        assert len((EXAMPLES / name).read_text().splitlines()) < 150, name


@pytest.mark.parametrize(("name", "options"), [(name, run) for name, runs in RUNS.items() for run in runs])
def test_example(name, options, tmp_path):
    environment = os.environ | {"DGJ_CACHE_DIR": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONSAFEPATH", None)  # users don't set it: an example finds the module beside it
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *options.split()],
        capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    if name == "serve_warmup.py":
        assert "kernels missing from the cache: 0" in done.stdout
        return
    figures = [float(text) for text in re.findall(r"difference (\S+)$", done.stdout, re.M)]
    assert figures and max(figures) < LIMIT, done.stdout
    largest = float(re.search(r"^largest difference from .*?: (\S+)", done.stdout, re.M).group(1))
    assert largest == max(figures)


@pytest.mark.parametrize("world", ["3", "0", "-2"])
def test_processes_that_cannot_share_the_experts_evenly_are_refused(world):
    command = [sys.executable, str(EXAMPLES / "expert_parallel.py"), "--world", world]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 2 and f"--world is {world}" in done.stderr, done.stderr
