"""The distribution deep-gemm-jit-shim, built from its folder and installed into a folder of its own."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def shim(tmp_path_factory) -> Path:
    target = tmp_path_factory.mktemp("shim")
    source = tmp_path_factory.mktemp("source") / "deep_gemm"
    # A copy: a build leaves files beside its sources.
    shutil.copytree(ROOT / "python/deep_gemm", source, ignore=shutil.ignore_patterns("build", "*.egg-info"))
    options = ["--no-deps", "--no-build-isolation", "--quiet", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "install", *options, "--target", str(target), str(source)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return target
