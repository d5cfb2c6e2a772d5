"""How far sums of the tensor core are from the exact ones, in units of what it keeps."""

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


def exact(r: cases.Rounding) -> tuple[torch.Tensor, torch.Tensor]:
    """The sums in float64, and for each, over all instructions, powers of two above the largest addends."""
    fp8 = torch.float8_e4m3fn
    a = torch.frombuffer(bytearray(r.a), dtype=torch.uint8).view(fp8).view(r.rows, 128).float().double()
    b = torch.frombuffer(bytearray(r.b), dtype=torch.uint8).view(fp8).view(r.n, 128).float().double()
    total = fragments(r.c, r) if r.c else torch.zeros(r.rows, r.n, dtype=torch.float64)
    scale = torch.zeros_like(total)
    for step in range(r.steps):
        part = slice(32 * step, 32 * step + 32)
        products = a[:, None, part] * b[None, :, part]
        largest = torch.maximum(products.abs().amax(-1), total.abs())
        scale += torch.exp2(torch.floor(torch.log2(largest.clamp_min(2.0**-140))) + 1)
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
    same = float((theirs == ours).double().mean())
    remark = (
        f"{100 * same:.1f} % equal; largest difference {apart:.2f} units (GPU {worst(r, gpu):.2f}, emulator "
        f"{worst(r, emulator):.2f} from the exact sum); a unit: 2^-13 of the largest addend; {BOUND} allowed"
    )
    return apart, remark
