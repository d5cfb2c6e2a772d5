"""What the checks of `verify` share: a result, data, float64 values and how far from them is right."""

from dataclasses import dataclass

BLOCK = 128
# |d - exact| <= unit |exact| + 2^-11 |alpha| sum |a b| + 2^-22 (|bias| + |c|): rounding of D, with room for
# FP32 sums, and the tensor core, which adds FP8 products with about 14 bits.
UNITS = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float32": 2.0**-22}
PRODUCT_UNIT, SUM_UNIT = 2.0**-11, 2.0**-22
GUARD = 7.0  # around D
GUARD_ROWS = 3


@dataclass
class Check:
    """worst: the largest error over what is allowed for that element; at most 1 is right."""

    name: str
    worst: float
    ok: bool
    note: str = ""


def judged(torch, name: str, error, bound, note: str = "") -> Check:
    """NaN and infinity are wrong whatever the bound is."""
    ratio = error / bound.clamp_min(1e-300)
    worst = ratio.nan_to_num(nan=float("inf")).amax().item()
    return Check(name, worst, worst <= 1, note)


def random_values(torch, device, rows: int, columns: int, seed: int):
    """Values over several powers of two, so that scales differ from block to block."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(rows, columns, generator=generator)
    values *= torch.exp2(torch.randint(-3, 4, (rows, 1), generator=generator).float())
    return values.to(torch.bfloat16).to(device)


def widened(torch, values, scales, rows_per_scale: int):
    """FP8 values times their scales, in float64."""
    rows, columns = values.shape
    wide = scales.double().repeat_interleave(rows_per_scale, 0).repeat_interleave(BLOCK, 1)
    return values.to(torch.float32).double() * wide[:rows, :columns]
