"""Inputs: fresh random operands, quantised here in plain torch so that the library's own casts are not
trusted, in every layout that callers pass; and outputs whose every byte is known before the call."""

from __future__ import annotations

from dataclasses import dataclass

import torch

FP8 = torch.float8_e4m3fn
FP8_MAX = 448.0
BLOCK = 128
GUARD_BYTE = 0xA5
FP8_NAN_BYTE = 0x7F


def ceil_div(x: int, y: int) -> int:
    return -(-x // y)


def quantise_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """e4m3 [M, K] and an fp32 scale per 1x128, row-major."""
    m, k = x.shape
    blocks = ceil_div(k, BLOCK)
    padded = torch.zeros(m, blocks * BLOCK, dtype=torch.float32, device=x.device)
    padded[:, :k] = x
    view = padded.view(m, blocks, BLOCK)
    scale = view.abs().amax(dim=2).clamp(1e-4) / FP8_MAX
    q = (view * (1.0 / scale).unsqueeze(2)).clamp(-FP8_MAX, FP8_MAX).to(FP8)
    return q.view(m, blocks * BLOCK)[:, :k].contiguous(), scale


def quantise_blocks(w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """e4m3 [N, K] and an fp32 scale per 128x128, row-major."""
    n, k = w.shape
    n_blocks, k_blocks = ceil_div(n, BLOCK), ceil_div(k, BLOCK)
    padded = torch.zeros(n_blocks * BLOCK, k_blocks * BLOCK, dtype=torch.float32, device=w.device)
    padded[:n, :k] = w
    view = padded.view(n_blocks, BLOCK, k_blocks, BLOCK)
    scale = view.abs().amax(dim=(1, 3)).clamp(1e-4) / FP8_MAX
    q = (view * (1.0 / scale)[:, None, :, None]).clamp(-FP8_MAX, FP8_MAX).to(FP8)
    return q.view(n_blocks * BLOCK, -1)[:n, :k].contiguous(), scale


def random_rows(m: int, k: int, device="cuda") -> torch.Tensor:
    """Blocks whose sizes differ by orders of magnitude, so that a scale from a wrong row or block shows."""
    spread = torch.exp2(torch.randint(-3, 4, (m, ceil_div(k, BLOCK)), device=device).float())
    return torch.randn(m, k, device=device) * spread.repeat_interleave(BLOCK, dim=1)[:, :k]


@dataclass
class Operands:
    a: torch.Tensor
    sfa: torch.Tensor
    b: torch.Tensor
    sfb: torch.Tensor
    x: torch.Tensor  # what a and b were quantised from
    w: torch.Tensor

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.a.shape[0], self.b.shape[0], self.a.shape[1]


def random_operands(m: int, n: int, k: int, device="cuda") -> Operands:
    x, w = random_rows(m, k, device), random_rows(n, k, device) * 0.1
    a, sfa = quantise_rows(x)
    b, sfb = quantise_blocks(w)
    return Operands(a, sfa, b, sfb, x.bfloat16(), w.bfloat16())


def with_pitch(t: torch.Tensor, extra: int, fill_byte: int = FP8_NAN_BYTE) -> torch.Tensor:
    """The same values with `extra` elements after each row; they hold NaN where the type has one."""
    rows, columns = t.shape
    buffer = torch.empty(rows, columns + extra, dtype=t.dtype, device=t.device)
    buffer.view(torch.uint8).fill_(fill_byte)
    buffer[:, :columns] = t
    return buffer[:, :columns]


def mn_major(scale: torch.Tensor, align: int = 4) -> torch.Tensor:
    """Strides (1, pitch) with the pitch rounded up to `align` elements; the padding is NaN."""
    rows, columns = scale.shape
    pitch = ceil_div(rows, align) * align
    buffer = torch.full((columns, pitch), float("nan"), dtype=scale.dtype, device=scale.device)
    buffer[:, :rows] = scale.t()
    return buffer.t()[:rows]


def scale_layout(scale: torch.Tensor, name: str) -> torch.Tensor:
    if name == "row_major":
        return scale.contiguous()
    if name == "mn_major_aligned":
        return mn_major(scale)
    if name == "mn_major_unaligned":  # (1, M) whatever M is, at a base that is 4-byte aligned only
        rows, columns = scale.shape
        flat = torch.full((rows * columns + 1,), float("nan"), dtype=scale.dtype, device=scale.device)
        view = flat[1:].view(columns, rows).t()
        view.copy_(scale)
        return view
    if name == "column_sliced":  # a window of a wider row-major matrix
        rows, columns = scale.shape
        wide = torch.full((rows, columns + 3), float("nan"), dtype=scale.dtype, device=scale.device)
        wide[:, 1 : 1 + columns] = scale
        return wide[:, 1 : 1 + columns]
    raise ValueError(f"unknown scale layout {name!r}")


SCALE_LAYOUTS = ("row_major", "mn_major_aligned", "mn_major_unaligned", "column_sliced")


class GuardedOutput:
    """Room for an [M, N] output inside a buffer of guard bytes. `take(m)` hands out its first m rows,
    poisoned with NaN; all else, rows from m on and the columns of the pitch included, must still be guard
    bytes afterwards."""

    def __init__(
        self,
        m: int,
        n: int,
        dtype: torch.dtype,
        *,
        extra_columns: int = 0,
        device="cuda",
        guard_rows: int = 8,
    ):
        size = torch.empty((), dtype=dtype).element_size()
        pitch = n + extra_columns
        if pitch * size % 16:
            raise ValueError(f"row pitch of {pitch} elements is no multiple of 16 bytes")
        self.raw = torch.empty((m + 2 * guard_rows) * pitch * size, dtype=torch.uint8, device=device)
        whole = self.raw.view(dtype).view(m + 2 * guard_rows, pitch)
        self._rows = whole[guard_rows : guard_rows + m, :n]
        self.view = self._rows

    def take(self, m: int | None = None) -> torch.Tensor:
        self.raw.fill_(GUARD_BYTE)
        self.view = self._rows if m is None else self._rows[:m]
        self.view.fill_(float("nan"))
        return self.view

    def broken_bytes(self) -> torch.Tensor:
        """Number of guard bytes that changed, as a device tensor. Clears the output: read its values
        before."""
        self.view.view(torch.uint8).fill_(GUARD_BYTE)
        return (self.raw != GUARD_BYTE).sum()


class WeightParameter(torch.nn.Parameter):
    """What frameworks hold weights in: a Parameter subclass whose own __torch_function__ changes nothing."""

    def __new__(cls, data):
        return super().__new__(cls, data, requires_grad=False)

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return super().__torch_function__(func, types, args, kwargs or {})


def as_kind(t: torch.Tensor, kind: str) -> torch.Tensor:
    if kind == "tensor":
        return t
    if kind == "parameter":
        return torch.nn.Parameter(t, requires_grad=False)
    if kind == "subclass":
        return WeightParameter(t)
    raise ValueError(f"unknown operand kind {kind!r}")
