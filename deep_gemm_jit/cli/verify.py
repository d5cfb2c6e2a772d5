"""Accuracy of this installation: every operation on one device, compared with float64 element by element."""

import argparse
import json
import math
from collections.abc import Callable
from dataclasses import asdict

import deep_gemm_jit as dg
from deep_gemm_jit.cli.accuracy import (
    BLOCK,
    GUARD,
    GUARD_ROWS,
    PRODUCT_UNIT,
    SUM_UNIT,
    UNITS,
    Check,
    judged,
    random_values,
    widened,
)
from deep_gemm_jit.cli.text import table, write
from deep_gemm_jit.cli.verify_grouped import grouped_gemms

_SHAPES = (
    *((1, 576, 7168), (7, 2112, 528), (64, 264, 640), (129, 1024, 1536), (300, 520, 2064)),
    (520, 2056, 528),  # takes a kernel for many rows on every device, the others those for few
)
# e4m3 has 3 bits behind the point: half a unit of the last place, or of the smallest number there is.
_E4M3_RELATIVE, _E4M3_ABSOLUTE = 2.0**-4, 2.0**-10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", help='"cpu" or "cuda:0"; default: a GPU that has kernels, else the CPU')
    parser.add_argument("--json", action="store_true", help="as one JSON object; null: an infinite error")


def run(args: argparse.Namespace) -> int:
    import torch

    device = _device(torch, args.device)
    checks = [*_quantisation(torch, device), *_gemms(torch, device), *grouped_gemms(torch, device)]
    checks.append(_compiles())
    right = all(check.ok for check in checks)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    if args.json:
        rows = [asdict(c) | {"worst": c.worst if math.isfinite(c.worst) else None} for c in checks]
        values = {"device": str(device), "name": name, "ok": right, "checks": rows}
        write(json.dumps(values, indent=2, allow_nan=False))
    else:
        rows = [("ok" if c.ok else "WRONG", f"{c.worst:.3f}", f"{c.name}  {c.note}".rstrip()) for c in checks]
        write(f"device  {device} ({name})", *table(("", "error", "check"), rows))
        write("error: the largest of all elements, as a part of what the format's arithmetic allows")
    return 0 if right else 1


def _device(torch, asked: str | None):
    if asked is None:
        usable = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
        return torch.device("cuda" if usable else "cpu")
    try:
        device = torch.device(asked)
    except RuntimeError as error:
        raise ValueError(f"verify: --device is '{asked}'; allowed are 'cpu' and 'cuda:<index>'") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise NotImplementedError(f"verify: --device is '{asked}', but torch sees no CUDA device")
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"verify: --device is '{asked}'; allowed are 'cpu' and 'cuda:<index>'")
    return device


def _quantisation(torch, device) -> list[Check]:
    checks = []
    casts: tuple[tuple[str, Callable, int], ...] = (
        ("per_token_cast_to_fp8", dg.per_token_cast_to_fp8, 1),
        ("per_block_cast_to_fp8", dg.per_block_cast_to_fp8, BLOCK),
    )
    for name, cast, rows_per_scale in casts:
        for rows, columns in ((5, 136), (200, 1536)):
            x = random_values(torch, device, rows, columns, rows)
            q, scales = cast(x)
            exact, back = x.double(), widened(torch, q, scales, rows_per_scale)
            ones = widened(torch, torch.ones_like(q), scales, rows_per_scale)
            # The scale's own rounding, in FP32, can push an element over a tie.
            bound = (exact.abs() * _E4M3_RELATIVE + ones * _E4M3_ABSOLUTE) * (1 + 2.0**-20)
            checks.append(judged(torch, f"{name} {rows}x{columns}", (back - exact).abs(), bound))
    return checks


def _gemms(torch, device) -> list[Check]:
    checks = []
    for index, (m, n, k) in enumerate(_SHAPES):
        a = dg.per_token_cast_to_fp8(random_values(torch, device, m, k, 2 * index))
        b = dg.per_block_cast_to_fp8(random_values(torch, device, n, k, 2 * index + 1))
        left, right = widened(torch, *a, 1), widened(torch, *b, BLOCK)
        product, magnitude = left @ right.t(), left.abs() @ right.abs().t()
        for dtype in UNITS:
            for plain in (True, False):
                checks.append(_gemm(torch, device, a, b, product, magnitude, dtype, plain))
    return checks


def _gemm(torch, device, a, b, product, magnitude, dtype: str, plain: bool) -> Check:
    """One call, twice: D starts as NaN, has rows of others around it, and must come out the same again."""
    m, n = product.shape
    kind = getattr(torch, dtype)
    alpha = None if plain else 0.75
    bias = None if plain else torch.linspace(-2, 2, n, device=device)
    c = None if plain else random_values(torch, device, m, n, m + n).to(kind)
    exact, allowed = product, magnitude * PRODUCT_UNIT
    if not plain:
        exact = exact * alpha + bias.double() + c.double()
        allowed = allowed * alpha + (bias.double().abs() + c.double().abs()) * SUM_UNIT
    results = []
    for _ in range(2):
        whole = torch.full((m + 2 * GUARD_ROWS, n), GUARD, dtype=kind, device=device)
        d = whole[GUARD_ROWS : GUARD_ROWS + m]
        d.fill_(float("nan"))
        dg.fp8_gemm_nt(a, b, d, c, alpha=alpha, bias=bias)
        results.append(d.clone())
        intact = (whole[:GUARD_ROWS] == GUARD).all() and (whole[GUARD_ROWS + m :] == GUARD).all()
    extras = "" if plain else " alpha bias c"
    name = f"fp8_gemm_nt {m}x{n}x{a[0].shape[1]} {dtype}{extras}"
    check = judged(torch, name, (results[0].double() - exact).abs(), allowed + exact.abs() * UNITS[dtype])
    if not torch.equal(*results):
        check.ok, check.note = False, "a second call gave other bits"
    if not intact:
        check.ok, check.note = False, "rows outside of D were written"
    return check


def _compiles() -> Check:
    """A kernel for the GPU, compiled or found; no GPU is needed for that."""
    name = "compile n=576 k=512 for h200"
    try:
        kernel = dg.compile(dg.plan(dg.GemmProblem(n=576, k=512), 64, "h200"))
    except (dg.CompileError, dg.JitForbiddenError) as error:
        return Check(name, 0.0, False, str(error).splitlines()[0])
    spills = kernel.report.spill_stores + kernel.report.spill_loads
    note = f"{kernel.origin}, {kernel.milliseconds:.0f} ms, {spills} bytes spilt"
    return Check(name, 0.0, spills == 0, note)
