"""The other libraries, each as a callable over the same operands. None gets a flag that its users would not
set."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from .data import Operands
from .reference import calc_diff

CUBLASLT_TENSORWISE = "cublaslt_tensorwise"
CUBLASLT_BLOCKWISE = "cublaslt_1x128_128x128"
TORCH_ROWWISE = "torch_rowwise"
TORCH_BF16 = "torch_bf16"
DEEP_GEMM = "deep_gemm"


class PeerError(RuntimeError):
    pass


def load_deep_gemm(folder: str | Path):
    """Imports `deep_gemm` from a folder that contains it; refuses one that is this library by another
    name."""
    folder = Path(folder).resolve()
    if not (folder / "deep_gemm" / "__init__.py").is_file():
        raise PeerError(f"--peer: {folder} holds no package deep_gemm; give the folder that contains it")
    if "deep_gemm" in sys.modules:
        raise PeerError("--peer: a module deep_gemm is loaded already, so what would be measured is unclear")
    sys.path.insert(0, str(folder))
    try:
        module = importlib.import_module("deep_gemm")
    finally:
        sys.path.remove(str(folder))
    check_foreign(module, folder)
    return module


def check_foreign(module, folder: Path) -> None:
    file = Path(module.__file__).resolve()
    if folder not in file.parents:
        raise PeerError(f"--peer: deep_gemm was imported from {file}, which is outside {folder}")
    import deep_gemm_jit

    own = Path(deep_gemm_jit.__file__).resolve().parent
    function = getattr(module, "fp8_gemm_nt", None)
    if function is None:
        raise PeerError(f"--peer: {file} has no fp8_gemm_nt")
    origin = getattr(function, "__module__", None) or ""
    if (
        own in file.parents
        or origin.split(".")[0] == "deep_gemm_jit"
        or function is deep_gemm_jit.fp8_gemm_nt
    ):
        raise PeerError(
            f"--peer: {file} resolves into deep_gemm_jit, so the library would be compared with itself"
        )


def describe(module) -> dict:
    return {"version": getattr(module, "__version__", None), "file": str(Path(module.__file__).resolve())}


def deep_gemm_dense(module, o: Operands, d: torch.Tensor) -> Callable[[], None]:
    lhs, rhs = (o.a, o.sfa), (o.b, o.sfb)
    return lambda: module.fp8_gemm_nt(lhs, rhs, d)


def torch_dense(o: Operands, d: torch.Tensor) -> dict[str, Callable[[], object]]:
    """cuBLASLt and CUTLASS through torch. `o.sfa` is MN-major; the block-scaled form wants strides (1, M)."""
    m, n, _ = o.shape
    one = torch.ones((), device=d.device)
    row_a, row_b = torch.ones(m, 1, device=d.device), torch.ones(1, n, device=d.device)
    bt, sfbt, wt = o.b.t(), o.sfb.t(), o.w.t()
    x, out = o.x, d

    def scaled(scale_a, scale_b, fast):
        return lambda: torch._scaled_mm(
            o.a, bt, scale_a, scale_b, out_dtype=out.dtype, use_fast_accum=fast, out=out
        )

    return {
        CUBLASLT_TENSORWISE: scaled(one, one, True),
        CUBLASLT_BLOCKWISE: scaled(o.sfa, sfbt, False),
        TORCH_ROWWISE: scaled(row_a, row_b, True),
        TORCH_BF16: lambda: torch.mm(x, wt, out=out),
    }


def usable(
    contestants: dict[str, Callable], d: torch.Tensor, scaled: torch.Tensor, plain: torch.Tensor
) -> tuple[dict, dict]:
    """Splits into those that run and are right, and {name: why not}. `scaled` is the product with block
    scales, `plain` the one without: tensor-wise and row-wise scales of 1 give that."""
    good, refused = {}, {}
    for name, call in contestants.items():
        d.fill_(float("nan"))
        try:
            call()
            torch.cuda.synchronize()
        except (RuntimeError, ValueError, TypeError, NotImplementedError, AssertionError) as error:
            refused[name] = (
                str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
            )
            continue
        want = plain if name in (CUBLASLT_TENSORWISE, TORCH_ROWWISE) else scaled
        diff = calc_diff(d, want)
        if diff < 2e-3:
            good[name] = call
        else:
            refused[name] = f"wrong result, calc_diff {diff:.2g}"
    return good, refused


def compile_deep_gemm(module, rows, part: int, parts: int) -> int:
    """First calls of every `parts`-th row: several processes fill the peer's kernel cache together."""
    from .data import mn_major, random_operands

    mine = list(rows)[part::parts]
    for row in mine:
        o = random_operands(row.m, row.n, row.k)
        o.sfa = mn_major(o.sfa)
        d = torch.empty(row.m, row.n, dtype=torch.bfloat16, device="cuda")
        deep_gemm_dense(module, o, d)()
        torch.cuda.synchronize()
    return len(mine)
