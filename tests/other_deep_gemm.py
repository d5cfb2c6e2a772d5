"""Processes in which this package stands beside another deep_gemm, a small fake."""

import os
import subprocess
import sys
from pathlib import Path

PREAMBLE = "import sys, os, logging, importlib.util\nimport deep_gemm_jit as dg\n"

# What another deep_gemm looks like: modules that import each other by name, settings, names that we lack.
OTHER = {
    "deep_gemm/__init__.py": """
from deep_gemm.utils import layout
from . import legacy
calls = []
def fp8_gemm_nt(*args, **kwargs): calls.append("gemm")
def fp8_einsum(*args): return "their einsum"
def set_num_sms(n): calls.append(("num_sms", n))
def set_pdl(on): raise RuntimeError("no PDL there")
def set_mk_alignment_for_contiguous_layout(n): calls.append(("alignment", n))
def get_num_sms(): return 132
__version__ = "9.9"
""",
    "deep_gemm/utils/__init__.py": "from deep_gemm.utils.layout import *\ndef rank(): return 'theirs'\n",
    "deep_gemm/utils/layout.py": """
def get_mn_major_tma_aligned_tensor(x): return "their layout"
def only_theirs(): return "their helper"
""",
    "deep_gemm/utils/dist.py": "def init_dist(): return 'their dist'\n",
    "deep_gemm/testing/__init__.py": "",
    "deep_gemm/testing/numeric.py": "def calc_diff(x, y): return 'their difference'\n",
    "deep_gemm/legacy/__init__.py": "from deep_gemm.legacy.kernels import old\n",
    "deep_gemm/legacy/kernels.py": "def old(): return 'their legacy'\n",
}


def run(code: str, path: Path | None = None, **variables: str) -> str:
    ours = ("DGJ_", "VLLM_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    environment |= {"PYTHONPATH": str(path or "")} | variables
    done = subprocess.run(
        [sys.executable, "-P", "-c", PREAMBLE + code], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr
