"""The shortest proof that an installation works without a GPU; runs under every supported Python."""

import subprocess
import sys

import pytest
import torch

import deep_gemm_jit as dg
from deep_gemm_jit import _core

pytestmark = pytest.mark.smoke
ELF_MAGIC = b"\x7fELF"


def dequantised(values: torch.Tensor, scales: torch.Tensor, rows_per_scale: int) -> torch.Tensor:
    """float64 values: the scale of element (r, k) stands at (r // rows_per_scale, k // 128)."""
    rows, columns = values.shape
    wide = scales.double().repeat_interleave(rows_per_scale, 0).repeat_interleave(128, 1)
    return values.to(torch.float32).double() * wide[:rows, :columns]


@pytest.mark.parametrize(("m", "n", "k"), [(1, 8, 16), (5, 136, 144), (64, 256, 512)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_gemm_on_the_cpu_against_float64(m, n, k, dtype):
    generator = torch.Generator().manual_seed(m * 1000 + n + k)
    x = torch.randn(m, k, generator=generator).to(torch.bfloat16)
    w = torch.randn(n, k, generator=generator).to(torch.bfloat16)
    a, b = dg.per_token_cast_to_fp8(x), dg.per_block_cast_to_fp8(w)
    d = torch.full((m, n), float("nan"), dtype=dtype)
    dg.fp8_gemm_nt(a, b, d)

    left, right = dequantised(*a, 1), dequantised(*b, 128)
    wanted = left @ right.T
    rounding = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11, torch.float32: 2.0**-22}[dtype]
    bound = rounding * wanted.abs() + 2.0**-11 * (left.abs() @ right.abs().T)
    assert ((d.double() - wanted).abs() <= bound).all()


def test_a_plan_compiles_without_a_gpu():
    problem = _core.GemmProblem(n=576, k=512)
    plan = _core.plan(problem, 64, "h200")
    kernel = _core.compile_uncached(_core.emit(plan))
    assert bytes(kernel["cubin"][:4]) == ELF_MAGIC
    assert kernel["report"]["spill_stores"] == 0 and kernel["report"]["spill_loads"] == 0


def test_a_fresh_process_imports_the_package_without_torch():
    code = "import sys, deep_gemm_jit; assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
