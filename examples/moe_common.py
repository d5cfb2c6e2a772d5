"""What the MoE examples share: weights, routing, places of rows, activation, the unquantised reference."""

import copy

import torch

import deep_gemm_jit as dg


class Experts:
    """Weights of a gated MoE layer, in BF16 and quantised with a scale for each 128x128.

    w13: [experts, 2 * intermediate, hidden], gate above up. w2: [experts, hidden, intermediate].
    """

    def __init__(self, experts: int, hidden: int, intermediate: int, device: str, use_ue8m0: bool = False):
        self.count, self.hidden, self.use_ue8m0 = experts, hidden, use_ue8m0
        shapes = (experts, 2 * intermediate, hidden), (experts, hidden, intermediate)
        self.w13, self.w2 = (
            (torch.randn(shape, device=device) * shape[-1] ** -0.5).bfloat16() for shape in shapes
        )
        self.fp8_w13, self.fp8_w2 = self.quantise_weight(self.w13), self.quantise_weight(self.w2)

    def shard(self, first: int, count: int) -> "Experts":
        """Experts first .. first + count of this layer, as views."""
        part = copy.copy(self)
        own, part.count = slice(first, first + count), count
        part.w13, part.w2 = self.w13[own], self.w2[own]
        part.fp8_w13, part.fp8_w2 = (
            (values[own], scales[own]) for values, scales in (self.fp8_w13, self.fp8_w2)
        )
        return part

    def quantise_weight(self, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        parts = [dg.per_block_cast_to_fp8(part, self.use_ue8m0) for part in w]
        values = torch.stack([q.view(torch.uint8) for q, _ in parts]).view(torch.float8_e4m3fn)
        return values, torch.stack([sf for _, sf in parts])

    def quantise(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return dg.per_token_cast_to_fp8(x, self.use_ue8m0)

    def reference(self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """The layer without quantisation, in float64. An id of -1 adds nothing."""
        out = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
        for expert in range(self.count):
            token, choice = (ids == expert).nonzero(as_tuple=True)
            hidden = silu_and_mul(x[token].double() @ self.w13[expert].double().T)
            rows = hidden @ self.w2[expert].double().T
            out.index_add_(0, token, rows * weights[token, choice, None].double())
        return out


def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    gate, up = x.chunk(2, dim=-1)
    return torch.nn.functional.silu(gate) * up


def route(tokens: int, experts: int, topk: int, device: str, skew: float = 0.0):
    """Random routing: (ids int64, weights float32), both [tokens, topk]; skew prefers the first experts."""
    logits = torch.rand(tokens, experts, device=device) - skew * torch.arange(experts, device=device)
    weights, ids = logits.softmax(-1).topk(topk)
    return ids, weights / weights.sum(-1, keepdim=True)


def rank_in_expert(ids: torch.Tensor, experts: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (rank, counts): the place of each choice among those of its expert, and rows of each expert.

    ids: int64 [choices]. Nothing depends on values on the host, so a CUDA graph can hold it.
    """
    chosen = torch.nn.functional.one_hot(ids, experts)
    before = chosen.cumsum(0) - chosen
    return (before * chosen).sum(-1), chosen.sum(0)


def scatter_rows(values: torch.Tensor, rows: torch.Tensor, count: int) -> torch.Tensor:
    """Return FP8 [count, width] whose `rows` are `values` (FP8 or their bytes); the others are not written.

    The buffer is one of bytes from the start: torch.compile's code cannot store bytes into an FP8 one.
    """
    out = torch.empty(count, values.shape[1], dtype=torch.uint8, device=values.device)
    out[rows] = values.view(torch.uint8)
    return out.view(torch.float8_e4m3fn)


def difference(out: torch.Tensor, reference: torch.Tensor) -> float:
    """1 - cosine-like similarity to the unquantised layer; two FP8 GEMMs give about 2e-3."""
    return dg.testing.calc_diff(out, reference).item()


LIMIT = 3e-3
