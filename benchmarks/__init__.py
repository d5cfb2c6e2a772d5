"""Correctness and speed of every kernel, beside other libraries; `python -m benchmarks --help` lists the
commands.

Run from a checkout against the *installed* package: when the folder beside this one holds no built extension,
it is taken off the module path, so that `import deep_gemm_jit` finds the installation.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def _prefer_installed_package() -> None:
    if any((ROOT / "deep_gemm_jit").glob("_core*.so")):
        return
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != ROOT]


if "deep_gemm_jit" not in sys.modules:
    _prefer_installed_package()
