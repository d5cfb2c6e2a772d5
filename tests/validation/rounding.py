"""How far sums of the tensor core are from the exact ones, in units of what it keeps.

It bounds sums that are cut, and compares the emulator with a GPU that does not give the same bits."""

import torch
from validation import cases

# Addends are cut to 13 bits below the largest one's exponent (docs/notes/numerics.md): 32 products and the
# sum so far, an instruction.
UNIT = 2.0**-13
BOUND = 33


def fragments(data: bytes, r: cases.Rounding) -> torch.Tensor:
    """[rows, n] from the words of each thread (PTX ISA, "Register Fragments": accumulator D)."""
    d = torch.frombuffer(bytearray(data), dtype=torch.float32).view(r.rows // 64, 4, 8, 4, r.n // 8, 2, 2)
    # block, warp, lane / 4, lane % 4, column / 8, row / 8 of 16, column % 2
    return d.permute(0, 1, 5, 2, 4, 3, 6).reshape(r.rows, r.n).double()


def operands(r: cases.Rounding) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A [rows, 128], B [n, 128] and what the sums start with [rows, n]."""
    fp8 = torch.float8_e4m3fn
    a = torch.frombuffer(bytearray(r.a), dtype=torch.uint8).view(fp8).view(r.rows, 128).float().double()
    b = torch.frombuffer(bytearray(r.b), dtype=torch.uint8).view(fp8).view(r.n, 128).float().double()
    return a, b, fragments(r.c, r) if r.c else torch.zeros(r.rows, r.n, dtype=torch.float64)


def exponent(v: torch.Tensor) -> torch.Tensor:
    """floor(log2 |v|); of zero, less than any other."""
    return torch.where(v == 0, -1000, torch.frexp(v).exponent - 1)


def exact(r: cases.Rounding) -> tuple[torch.Tensor, torch.Tensor]:
    """The sums in float64, and for each, over all instructions, powers of two above the largest addends."""
    a, b, total = operands(r)
    scale = torch.zeros_like(total)
    for step in range(r.steps):
        part = slice(32 * step, 32 * step + 32)
        products = a[:, None, part] * b[None, :, part]
        largest = torch.maximum(products.abs().amax(-1), total.abs())
        scale += torch.exp2(exponent(largest).clamp_min(-140).double() + 1)
        total = total + products.sum(-1)
    return total, scale


def worst(r: cases.Rounding, out: bytes) -> float:
    """The largest error, in units of UNIT times what `exact` gives as second."""
    total, scale = exact(r)
    return float(((fragments(out, r) - total).abs() / (scale * UNIT)).max())


def compare(r: cases.Rounding, gpu: bytes, emulator: bytes) -> tuple[float, str]:
    """The largest difference between both in units, and what else there is to say."""
    total, scale = exact(r)
    theirs, ours = fragments(gpu, r), fragments(emulator, r)
    apart = float(((theirs - ours).abs() / (scale * UNIT)).max())
    share = float((theirs == ours).double().mean())
    remark = (
        f"{apart:.2f} units apart at most (of {BOUND} an instruction), equal {100 * share:.1f} %; from the "
        f"exact sum: GPU {worst(r, gpu):.2f}, emulator {worst(r, emulator):.2f}"
    )
    return apart, remark
