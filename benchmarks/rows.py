"""The shapes that are measured, and the least time that the hardware allows each. Pure data, no torch."""

from __future__ import annotations

from dataclasses import dataclass

# (N, K) of the linear layers of DeepSeek-V3: attention down and up projections, output, dense MLP.
DENSE_NK = ((2112, 7168), (24576, 1536), (32768, 512), (7168, 16384), (4096, 7168), (7168, 2048))
DENSE_M = (1, 64, 128, 4096)  # one token, a decode batch, the edge between families, prefill

# Measured on an H200: what a kernel that only streams tiles reaches with a cold L2, and the best FP8 rate of
# any library.
LAUNCH_US = 2.2
BYTES_PER_US = 4.45e6
FLOPS_PER_US = 1570e6


@dataclass(frozen=True)
class Row:
    m: int
    n: int
    k: int

    @property
    def label(self) -> str:
        return f"{self.m} x {self.n} x {self.k}"

    @property
    def flops(self) -> int:
        return 2 * self.m * self.n * self.k

    @property
    def bytes(self) -> int:
        """Every operand, scale and result moved once; BF16 out."""
        k_blocks, n_blocks = -(-self.k // 128), -(-self.n // 128)
        return self.m * self.k + self.n * self.k + 2 * self.m * self.n + 4 * k_blocks * (self.m + n_blocks)

    @property
    def floor_us(self) -> float:
        return max(LAUNCH_US + self.bytes / BYTES_PER_US, self.flops / FLOPS_PER_US)


def dense_rows() -> list[Row]:
    return [Row(m, n, k) for m in DENSE_M for n, k in DENSE_NK]


def parse_row(text: str) -> Row:
    """`64,2112,7168` or `64x2112x7168`."""
    parts = [int(part) for part in text.replace("x", ",").split(",")]
    if len(parts) != 3 or min(parts) < 1:
        raise ValueError(f"a row is M,N,K with positive numbers, got {text!r}")
    return Row(*parts)
