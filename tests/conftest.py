"""Every test sees the installed package: a run that would import the folder beside it stops at once."""

import importlib.util
import sysconfig
from pathlib import Path

import pytest


def pytest_configure(config: pytest.Config) -> None:
    spec = importlib.util.find_spec("deep_gemm_jit")
    if spec is None or spec.origin is None:
        raise pytest.UsageError("deep_gemm_jit is not installed in this environment; run `make env`")
    origin = Path(spec.origin).resolve()
    installed_in = {Path(sysconfig.get_path(name)).resolve() for name in ("purelib", "platlib")}
    if not installed_in & set(origin.parents):
        raise pytest.UsageError(f"deep_gemm_jit comes from {origin}, not from site-packages; run `make test`")
