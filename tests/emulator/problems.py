"""Small operands with hostile surroundings, and the float64 result with a bound for each element."""

import mmap
from dataclasses import dataclass

import torch

FP8 = torch.float8_e4m3fn
ROUNDING = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
SMALLEST = {torch.float32: 2.0**-149, torch.bfloat16: 2.0**-133, torch.float16: 2.0**-24}


@dataclass
class Operands:
    a: torch.Tensor
    sfa: torch.Tensor
    b: torch.Tensor
    sfb: torch.Tensor
    d: torch.Tensor
    c: torch.Tensor | None = None
    bias: torch.Tensor | None = None
    alpha: float = 1.0
    guard: torch.Tensor | None = None  # the whole allocation of d
    before: torch.Tensor | None = None

    def as_dict(self) -> dict:
        return {name: getattr(self, name) for name in ("a", "sfa", "b", "sfb", "d", "c", "bias", "alpha")}


def padded(rows: int, cols: int, dtype: torch.dtype, more_rows: int, more_cols: int) -> torch.Tensor:
    """An allocation full of NaN, of which the caller fills a corner."""
    whole = torch.full((rows + more_rows, cols + more_cols), float("nan"), dtype=torch.float32)
    return whole.to(dtype)


def corner(values: torch.Tensor, more_rows: int, more_cols: int) -> torch.Tensor:
    whole = padded(*values.shape, values.dtype, more_rows, more_cols)
    view = whole[: values.shape[0], : values.shape[1]]
    view.copy_(values)
    return view


NO_RESERVE = 0x4000  # mmap.MAP_NORESERVE, which Python names from 3.13 on


def spread(values: torch.Tensor, *pitches: int) -> torch.Tensor:
    """The same values that many elements apart, in memory of which only the pages that they touch exist."""
    strides = (*pitches, 1)
    extent = 1 + sum((n - 1) * stride for n, stride in zip(values.shape, strides, strict=True))
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE
    memory = torch.frombuffer(mmap.mmap(-1, extent * values.element_size(), flags=flags), dtype=values.dtype)
    view = memory.as_strided(values.shape, strides)
    view.copy_(values)
    return view


FAR = 1 << 25  # 200 rows of so many elements end past 2^32 of them
PAST_32_BITS = 1 << 33


def far_apart(o: Operands) -> Operands:
    """Whoever multiplies a row by its pitch in 32 bits goes astray: FAR times 128 and more."""
    o.sfa, o.sfb = spread(o.sfa, FAR + 1), spread(o.sfb, PAST_32_BITS)
    o.d = o.guard = spread(o.d, FAR)
    o.before = o.d.clone()
    if o.c is not None:
        o.c = spread(o.c, FAR + 8)
    return o


def make(
    m, n, k, dtype=torch.bfloat16, *, seed=0, c=False, bias=None, alpha=1.0, scales="rows"
) -> Operands:
    """Values of every magnitude; rows and columns past the operands are NaN, in values and scales.

    scales: how those of A lie: "rows", "columns", or "aligned" columns, which bulk copies can fetch.
    """
    g = torch.Generator().manual_seed(seed)

    def values(rows):
        x = torch.randn(rows, k, generator=g) * 2.0 ** torch.randint(-3, 4, (rows, 1), generator=g)
        return corner(x.to(FP8), 3, 16)

    blocks_n, blocks_k = (n + 127) // 128, (k + 127) // 128
    sfa = torch.rand(m, blocks_k, generator=g) + 0.25
    sfb = torch.rand(blocks_n, blocks_k, generator=g) * 0.5 + 0.125
    if scales == "rows":
        sfa = corner(sfa, 5, 1)
    else:
        sfa = corner(sfa.t().contiguous(), 1, -m % 4 + (4 if scales == "aligned" else 3 - m % 2)).t()
    whole = padded(m, n, dtype, 2, 8)
    o = Operands(values(m), sfa, values(n), corner(sfb, 1, 2), whole[:m, :n], alpha=alpha, guard=whole)
    o.before = whole.clone()
    if c:
        o.c = corner((torch.randn(m, n, generator=g) * 20).to(dtype), 1, 8)
    if bias is not None:
        o.bias = (torch.randn(n, generator=g) * 20).to(bias)
    return o


def check(o: Operands) -> None:
    """Each element of D within what FP32 sums and one rounding allow; nothing beside D was changed."""
    m, k = o.a.shape
    n = o.b.shape[0]
    a, b = o.a.float().double(), o.b.float().double()
    exact = torch.zeros(m, n, dtype=torch.float64)
    magnitude = torch.zeros(m, n, dtype=torch.float64)
    for kb in range((k + 127) // 128):
        part = slice(kb * 128, min(k, kb * 128 + 128))
        rows = o.sfb[:, kb].double().repeat_interleave(128)[:n]
        scale = o.sfa[:, kb].double()[:, None] * rows[None, :]
        exact += (a[:, part] @ b[:, part].t()) * scale
        magnitude += (a[:, part].abs() @ b[:, part].abs().t()) * scale.abs()
    exact, magnitude = exact * o.alpha, magnitude * abs(o.alpha)
    for more in (o.bias, o.c):
        if more is not None:
            exact, magnitude = exact + more.double(), magnitude + more.double().abs()
    steps = 4 + 3 + (k + 127) // 128 + 8  # roundings on the way of one product, split sums included
    dtype = o.d.dtype
    bound = steps * 2.0**-24 * magnitude
    bound = bound + ROUNDING[dtype] * (exact.abs() + bound) * 1.01 + SMALLEST[dtype]
    error = (o.d.double() - exact).abs()
    wrong = ~(error <= bound)
    assert not wrong.any(), (
        f"{int(wrong.sum())} of {wrong.numel()} elements out of bounds, the first at "
        f"{wrong.nonzero()[0].tolist()}: "
        f"{o.d[wrong][0].item()} instead of {exact[wrong][0].item()}"
    )
    o.before[:m, :n] = o.d
    same = torch.equal(o.before.view(torch.uint8), o.guard.view(torch.uint8))
    assert same, "memory beside D was written"
