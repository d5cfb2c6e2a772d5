"""FP8 layers as Hugging Face transformers runs them on Hopper: a linear layer, and experts sorted by id.

    python examples/moe_transformers.py [--tokens 64] [--experts 16] [--topk 4] [--hidden 512]

In a program with transformers, deep_gemm_jit.integrations.transformers.enable() makes its own layers do this.
Works on a Hopper GPU and on the CPU. Needs torch alone.
"""

import argparse

import torch
from moe_common import LIMIT, Experts, difference, route, scatter_rows, silu_and_mul

import deep_gemm_jit as dg


class Fp8Linear(torch.nn.Module):
    """y = x W^T + bias with FP8 operands; y has the dtype of x, BF16 or FP16."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None):
        super().__init__()
        values, scales = dg.per_block_cast_to_fp8(weight)
        self.weight = torch.nn.Parameter(values, requires_grad=False)
        self.weight_scale_inv = torch.nn.Parameter(scales, requires_grad=False)
        self.bias = bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.reshape(-1, x.shape[-1])
        y = x.new_empty(rows.shape[0], self.weight.shape[0])
        weight = self.weight, self.weight_scale_inv
        dg.fp8_gemm_nt(dg.per_token_cast_to_fp8(rows), weight, y, bias=self.bias)
        return y.view(*x.shape[:-1], y.shape[1])  # a size of -1 is no size where there are no rows


class SortedExperts(torch.nn.Module):
    """Choices sorted by expert, padded to the alignment, with an id for each row and -1 on padding."""

    def __init__(self, experts: Experts):
        super().__init__()
        self.experts = experts

    def forward(self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        layer, (tokens, topk) = self.experts, ids.shape
        if tokens == 0:
            return torch.empty_like(x)
        alignment = dg.get_mk_alignment_for_contiguous_layout()
        sorted_ids, order = ids.flatten().sort(stable=True)
        counts = torch.nn.functional.one_hot(sorted_ids, layer.count).sum(0)
        padding = (counts + alignment - 1) // alignment * alignment - counts
        rows = torch.arange(tokens * topk, device=x.device) + (padding.cumsum(0) - padding)[sorted_ids]
        # Without asking the device for the counts: the most rows that padding can make of them.
        most = tokens * topk + min(tokens * topk, layer.count) * (alignment - 1)
        layout = torch.full((most,), -1, dtype=torch.int32, device=x.device)
        layout[rows] = sorted_ids.int()

        q, sf = layer.quantise(x[order // topk])
        a = scatter_rows(q, rows, most)
        sfa = sf.new_empty(most, sf.shape[1])
        sfa[rows] = sf
        gate_up = x.new_empty(most, layer.w13.shape[1])
        dg.m_grouped_fp8_gemm_nt_contiguous((a, sfa), layer.fp8_w13, gate_up, layout)
        d = x.new_empty(most, layer.hidden)
        activated = layer.quantise(silu_and_mul(gate_up))
        dg.m_grouped_fp8_gemm_nt_contiguous(activated, layer.fp8_w2, d, layout)
        chosen = torch.empty_like(d[rows])
        chosen[order] = d[rows]
        return (chosen.view(tokens, topk, layer.hidden) * weights[..., None]).sum(1).to(x.dtype)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, value in dict(tokens=64, experts=16, topk=4, hidden=512, intermediate=256).items():
        parser.add_argument(f"--{name}", type=int, default=value)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    experts = Experts(args.experts, args.hidden, args.intermediate, device)
    layer, worst = SortedExperts(experts), 0.0
    for tokens in (args.tokens, args.tokens // 2, 1):
        x = torch.randn(tokens, args.hidden, dtype=torch.bfloat16, device=device)
        ids, weights = route(tokens, args.experts, args.topk, device)
        error = difference(layer(x, ids, weights), experts.reference(x, ids, weights))
        worst = max(worst, error)
        print(f"{tokens:5} tokens, experts on {device}: difference {error:.1e}", flush=True)
        for dtype in (torch.bfloat16, torch.float16):
            weight, bias = experts.w2[0].to(dtype), torch.randn(args.hidden, dtype=dtype, device=device)
            x = torch.randn(2, tokens, args.intermediate, dtype=dtype, device=device)
            reference = x.double() @ weight.double().T + bias.double()
            error = difference(Fp8Linear(weight, bias)(x), reference)
            worst = max(worst, error)
            print(f"{tokens:5} tokens, linear in {str(dtype)[6:]:8} on {device}: difference {error:.1e}")
    print(f"largest difference from the unquantised layers: {worst:.1e} (allowed {LIMIT:.0e})")
    return 0 if worst < LIMIT else 1


if __name__ == "__main__":
    raise SystemExit(main())
