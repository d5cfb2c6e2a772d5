"""The M-grouped shapes that are measured, and the least time that the hardware allows each. Pure data, no
torch."""

from __future__ import annotations

from dataclasses import dataclass

from .rows import BYTES_PER_US, FLOPS_PER_US, LAUNCH_US

# (N, K) of the experts' two GEMMs: DeepSeek-V4-Pro, DeepSeek-V3, Qwen3-30B.
EXPERT_NK = ((6144, 7168), (7168, 3072), (4096, 7168), (7168, 2048), (1536, 2048), (2048, 768))
CONTIGUOUS = ((4, 8192), (8, 4096), (32, 256), (32, 100))  # groups, rows of each at the mean
MASKED = ((32, 192), (6, 1024), (32, 20), (6, 20), (32, 1))
MASKED_MORE = ((128, 8, 1536, 2048), (128, 8, 2048, 768))
DEEPSEEK_V3 = ((4096, 7168), (7168, 2048))
TOP_K = 8


@dataclass(frozen=True)
class GroupedRow:
    groups: int
    rows: int  # of a group, at the mean
    n: int
    k: int
    name: str = ""

    @property
    def label(self) -> str:
        shape = f"{self.groups} x {self.rows} x {self.n} x {self.k}"
        return f"{self.name} {shape}" if self.name else shape


def floor_us(counts: list[int], n: int, k: int) -> float:
    """Every live row, and the matrices and scales of every live group, moved once; BF16 out."""
    live, experts = sum(counts), sum(count > 0 for count in counts)
    k_blocks, n_blocks = -(-k // 128), -(-n // 128)
    moved = live * (k + 2 * n + 4 * k_blocks) + experts * (n * k + 4 * n_blocks * k_blocks)
    return max(LAUNCH_US + moved / BYTES_PER_US, 2 * live * n * k / FLOPS_PER_US)


def contiguous_rows() -> list[GroupedRow]:
    return [GroupedRow(groups, rows, n, k) for groups, rows in CONTIGUOUS for n, k in EXPERT_NK]


def masked_rows() -> list[GroupedRow]:
    found = [GroupedRow(groups, rows, n, k) for groups, rows in MASKED for n, k in EXPERT_NK]
    return found + [GroupedRow(*row) for row in MASKED_MORE]


# name: hidden size, intermediate size, experts, experts of a token
MODELS = {
    "DeepSeek-V3": (7168, 2048, 256, 8),
    "Kimi-K2": (7168, 2048, 384, 8),
    "Qwen3-235B": (4096, 1536, 128, 8),
    "Qwen3-30B": (2048, 768, 128, 8),
    "GLM-4.5": (5120, 1536, 160, 8),
    "MiniMax-M2": (3072, 1536, 256, 8),
    "gpt-oss-120b": (2880, 2880, 128, 4),
    "DeepSeek-V4-Flash": (4096, 2048, 256, 6),
    "DeepSeek-V4-Pro": (7168, 3072, 384, 6),
}
PARALLEL = 8  # ranks: experts divided among them (EP), or every expert's intermediate size (TP)
TENSOR_PARALLEL = ("Qwen3-235B", "Qwen3-30B", "GLM-4.5", "MiniMax-M2")  # 192 and 96 of a rank: no 128s
MOE_TOKENS = (256, 4096)  # of all ranks: a decode step, a prefill


def moe_rows() -> list[GroupedRow]:
    found = []
    for model, (hidden, inter, experts, top_k) in MODELS.items():
        for tokens in MOE_TOKENS:
            rows = max(1, tokens * top_k // experts)
            local = experts // PARALLEL
            found.append(GroupedRow(local, rows, 2 * inter, hidden, f"{model} EP8 up"))
            found.append(GroupedRow(local, rows, hidden, inter, f"{model} EP8 down"))
            if model in TENSOR_PARALLEL:
                shard, few = inter // PARALLEL, max(1, rows // PARALLEL)  # a rank has its own tokens only
                found.append(GroupedRow(experts, few, 2 * shard, hidden, f"{model} TP8 up"))
                found.append(GroupedRow(experts, few, hidden, shard, f"{model} TP8 down"))
    return found
