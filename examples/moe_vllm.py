"""A MoE layer as vLLM runs it: contiguous rows with psum at any batch size, masked in a CUDA graph.

    python examples/moe_vllm.py [--tokens 64] [--experts 16] [--topk 4] [--hidden 512] [--intermediate 256]

Works on a Hopper GPU and on the CPU. Needs torch alone.
"""

import argparse

import torch
from moe_common import LIMIT, Experts, difference, rank_in_expert, route, scatter_rows, silu_and_mul

import deep_gemm_jit as dg


class VllmMoe:
    def __init__(self, experts: Experts, max_tokens: int):
        self.experts = experts
        self.max_tokens = max_tokens  # rows of each expert in the masked layout

    def contiguous(self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """x: [tokens, hidden] BF16. ids, weights: [tokens, topk]. Returns [tokens, hidden]."""
        layer, (tokens, topk) = self.experts, ids.shape
        if tokens == 0:
            return torch.empty_like(x)
        alignment = dg.get_theoretical_mk_alignment_for_contiguous_layout(tokens * topk, layer.count)
        # The counts stay on the device, so this is the most rows that padding can make of them.
        rows_at_most = tokens * topk + min(tokens * topk, layer.count) * (alignment - 1)
        rows_at_most = dg.align(rows_at_most, alignment)

        flat = ids.flatten()
        rank, counts = rank_in_expert(flat, layer.count)
        padded = (counts + alignment - 1) // alignment * alignment
        starts = padded.cumsum(0) - padded
        ends = (starts + counts).int()  # the psum layout: where the real rows of each expert end
        rows = starts[flat] + rank

        q, sf = layer.quantise(x)
        token = torch.arange(tokens * topk, device=x.device) // topk
        # Rows in gaps are never written, here and below: no valid row sees what they hold.
        a = scatter_rows(q.view(torch.uint8)[token], rows, rows_at_most)
        sfa = sf.new_empty(rows_at_most, sf.shape[1])
        sfa[rows] = sf[token]

        previous = dg.get_mk_alignment_for_contiguous_layout()
        dg.set_mk_alignment_for_contiguous_layout(alignment)
        try:
            gate_up = x.new_empty(rows_at_most, layer.w13.shape[1])
            dg.m_grouped_fp8_gemm_nt_contiguous((a, sfa), layer.fp8_w13, gate_up, ends, use_psum_layout=True)
            activated = layer.quantise(silu_and_mul(gate_up))
            d = x.new_empty(rows_at_most, layer.hidden)
            dg.m_grouped_fp8_gemm_nt_contiguous(activated, layer.fp8_w2, d, ends, use_psum_layout=True)
        finally:
            dg.set_mk_alignment_for_contiguous_layout(previous)
        return (d[rows].view(tokens, topk, layer.hidden) * weights[..., None]).sum(1).to(x.dtype)

    def masked(self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """The same with a fixed number of rows for each expert: shapes do not depend on the routing."""
        layer, (tokens, topk), most = self.experts, ids.shape, self.max_tokens
        flat = ids.flatten()
        rank, counts = rank_in_expert(flat, layer.count)
        rows, counts = flat * most + rank, counts.int()
        q, sf = layer.quantise(x)
        token = torch.arange(tokens * topk, device=x.device) // topk
        a = scatter_rows(q.view(torch.uint8)[token], rows, layer.count * most)
        sfa = sf.new_empty(layer.count * most, sf.shape[1])
        sfa[rows] = sf[token]
        a, sfa = a.view(layer.count, most, -1), sfa.view(layer.count, most, -1)

        expected_m = max(1, tokens * topk // layer.count)
        gate_up = x.new_empty(layer.count, most, layer.w13.shape[1])
        dg.m_grouped_fp8_gemm_nt_masked((a, sfa), layer.fp8_w13, gate_up, counts, expected_m)
        q, sf = layer.quantise(silu_and_mul(gate_up).flatten(0, 1))
        activated = q.view(layer.count, most, -1), sf.view(layer.count, most, -1)
        d = x.new_empty(layer.count, most, layer.hidden)
        dg.m_grouped_fp8_gemm_nt_masked(activated, layer.fp8_w2, d, counts, expected_m)
        chosen = d.flatten(0, 1)[rows].view(tokens, topk, layer.hidden)
        return (chosen * weights[..., None]).sum(1).to(x.dtype)


class Graph:
    """The masked layer, captured once; a replay may have other tokens and another routing."""

    def __init__(self, layer: VllmMoe, *inputs: torch.Tensor):
        self.inputs = [tensor.clone() for tensor in inputs]
        layer.masked(*self.inputs)  # compiles and loads the kernels, which a capture cannot
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.out = layer.masked(*self.inputs)

    def __call__(self, *inputs: torch.Tensor) -> torch.Tensor:
        for own, given in zip(self.inputs, inputs, strict=True):
            own.copy_(given)
        self.graph.replay()
        return self.out


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, value in dict(tokens=64, experts=16, topk=4, hidden=512, intermediate=256).items():
        parser.add_argument(f"--{name}", type=int, default=value)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    experts = Experts(args.experts, args.hidden, args.intermediate, device, use_ue8m0=True)
    layer, worst = VllmMoe(experts, max(1, args.tokens)), 0.0
    ways = {"contiguous": layer.contiguous, "masked": layer.masked}
    for turn, tokens in enumerate((args.tokens, args.tokens // 2, 1)):
        x = torch.randn(tokens, args.hidden, dtype=torch.bfloat16, device=device)
        ids, weights = route(tokens, args.experts, args.topk, device, skew=0.1 * turn)
        if device == "cuda":
            ways["masked, CUDA graph"] = Graph(layer, torch.zeros_like(x), ids.flip(0), weights)
        for name, run in ways.items():
            error = difference(run(x, ids, weights), experts.reference(x, ids, weights))
            worst = max(worst, error)
            print(f"{tokens:5} tokens, {name:18} on {device}: difference {error:.1e}", flush=True)
    print(f"largest difference from the unquantised layer: {worst:.1e} (allowed {LIMIT:.0e})")
    return 0 if worst < LIMIT else 1


if __name__ == "__main__":
    raise SystemExit(main())
