"""The product in float64 on the dequantised operands, and what a result may differ from it per element.

    |d - ref| <= u |ref| + 2^-11 |alpha| sum_k |a_k b_k| + 2^-22 (|bias| + |c|)

u is the unit of the output format with some room for FP32 sums: 2^-8 BF16, 2^-11 FP16, 2^-22 FP32. The second
term is the tensor core's: FP8 products are added with about 14 bits. NaN never passes.
"""

from __future__ import annotations

import torch

from .data import BLOCK

OUTPUT_UNIT = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11, torch.float32: 2.0**-22}
PRODUCT_UNIT = 2.0**-11
SUM_UNIT = 2.0**-22


def dequantise_rows(q: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    wide = scale.double().repeat_interleave(BLOCK, dim=1)[:, : q.shape[1]]
    return q.to(torch.float32).double() * wide


def dequantise_blocks(q: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    tall = scale.double().repeat_interleave(BLOCK, dim=0)[: q.shape[0]]
    return q.to(torch.float32).double() * tall.repeat_interleave(BLOCK, dim=1)[:, : q.shape[1]]


class Reference:
    """ref and sum |a b| of A [M, K] and B [N, K]; rows can be taken as a prefix, so one serves every smaller
    M."""

    def __init__(self, a, sfa, b, sfb):
        a64, b64 = dequantise_rows(a, sfa), dequantise_blocks(b, sfb)
        self.product = a64 @ b64.t()
        self.magnitude = a64.abs_() @ b64.abs_().t()

    def expected(self, rows=None, *, alpha=None, bias=None, c=None) -> torch.Tensor:
        ref = self.product if rows is None else self.product[:rows]
        if alpha is not None:
            ref = ref * alpha
        if bias is not None:
            ref = ref + bias.double()
        if c is not None:
            ref = ref + c.double()
        return ref

    def bound(self, ref: torch.Tensor, dtype: torch.dtype, *, alpha=None, bias=None, c=None) -> torch.Tensor:
        bound = self.magnitude[: ref.shape[0]] * (PRODUCT_UNIT * (1.0 if alpha is None else abs(alpha)))
        bound += ref.abs() * OUTPUT_UNIT[dtype]
        for addend in (bias, c):
            if addend is not None:
                bound = bound + addend.double().abs() * SUM_UNIT
        return bound

    def check(self, d: torch.Tensor, *, alpha=None, bias=None, c=None) -> tuple[torch.Tensor, torch.Tensor]:
        """(elements out of bounds, worst |d - ref| / bound), both as tensors on the device: nothing
        synchronises here."""
        ref = self.expected(d.shape[0], alpha=alpha, bias=bias, c=c)
        bound = self.bound(ref, d.dtype, alpha=alpha, bias=bias, c=c)
        error = (d.double() - ref).abs_()
        bad = (~(error <= bound)).sum()
        worst = (
            (error / bound.clamp_min(1e-300)).nan_to_num(nan=float("inf")).amax()
            if d.numel()
            else bad.double()
        )
        return bad, worst


def diff_tensor(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """1 - 2<x, y> / (<x, x> + <y, y>): 0 for equal tensors, blind to a single wrong row. Stays on the
    device."""
    x, y = x.double(), y.double()
    return 1 - 2 * (x * y).sum() / ((x * x).sum() + (y * y).sum())


def calc_diff(x: torch.Tensor, y: torch.Tensor) -> float:
    return diff_tensor(x, y).item()
