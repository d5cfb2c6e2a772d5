"""A MoE layer as SGLang runs it: ids and a small alignment ("compact"), or masked buffers ("standard").

    python examples/moe_sglang.py [--tokens 64] [--experts 16] [--topk 4] [--hidden 512] [--intermediate 256]

Works on a Hopper GPU and on the CPU. Needs torch alone.
"""

import argparse
from contextlib import contextmanager

import torch
from moe_common import LIMIT, Experts, difference, rank_in_expert, route, scatter_rows, silu_and_mul

import deep_gemm_jit as dg


@contextmanager
def alignment_scope(alignment: int):
    """The promise that groups start at multiples of alignment, for the GEMMs inside."""
    previous = dg.get_mk_alignment_for_contiguous_layout()
    dg.set_mk_alignment_for_contiguous_layout(alignment)
    try:
        yield
    finally:
        dg.set_mk_alignment_for_contiguous_layout(previous)


class SglangMoe:
    def __init__(self, experts: Experts):
        self.experts = experts

    def compact(self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """x: [tokens, hidden] BF16. ids (-1: of another rank), weights: [tokens, topk]."""
        layer, (tokens, topk) = self.experts, ids.shape
        if tokens == 0:
            return torch.empty_like(x)
        choices = tokens * topk
        rows_of_a_group = -(-choices // layer.count)
        # 128 rows a group would be mostly padding when few tokens meet many experts.
        alignment = dg.get_theoretical_mk_alignment_for_contiguous_layout(rows_of_a_group)
        used = min(choices, layer.count)
        all_rows = alignment * (used + (choices - used) // alignment)

        flat = ids.flatten()
        local = flat >= 0
        rank, counts = rank_in_expert(flat.where(local, layer.count), layer.count + 1)
        padded = (counts[:-1] + alignment - 1) // alignment * alignment
        starts = padded.cumsum(0) - padded
        # Choices of other ranks go to one row more than the GEMM sees.
        rows = (starts[flat.clamp(min=0)] + rank).where(local, all_rows)
        m_indices = torch.full((all_rows + 1,), -1, dtype=torch.int32, device=x.device)
        m_indices[rows] = flat.int()

        q, sf = layer.quantise(x)
        token = torch.arange(choices, device=x.device) // topk
        a = scatter_rows(q.view(torch.uint8)[token], rows, all_rows + 1)[:-1]
        sfa = sf.new_empty(all_rows + 1, sf.shape[1])
        sfa[rows] = sf[token]
        sfa, m_indices = sfa[:-1], m_indices[:-1]

        with alignment_scope(alignment):
            gate_up = x.new_empty(all_rows, layer.w13.shape[1])
            scales = dg.get_mn_major_tma_aligned_tensor(sfa)
            dg.m_grouped_fp8_gemm_nt_contiguous((a, scales), layer.fp8_w13, gate_up, m_indices)
            q, sf = layer.quantise(silu_and_mul(gate_up))
            d = x.new_empty(all_rows, layer.hidden)
            scales = dg.get_mn_major_tma_aligned_tensor(sf)
            dg.m_grouped_fp8_gemm_nt_contiguous((q, scales), layer.fp8_w2, d, m_indices)
        return self.combine(d, rows.where(local, 0), local, weights).to(x.dtype)

    def masked(self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """The same with room for every token in each expert's buffer."""
        layer, (tokens, topk) = self.experts, ids.shape
        most = (tokens // 256 + 1) * 256
        flat = ids.flatten()
        local = flat >= 0
        rank, counts = rank_in_expert(flat.where(local, layer.count), layer.count + 1)
        rows = (flat * most + rank).where(local, layer.count * most)
        masked_m = counts[:-1].int()

        q, sf = layer.quantise(x)
        token = torch.arange(tokens * topk, device=x.device) // topk
        a = scatter_rows(q.view(torch.uint8)[token], rows, layer.count * most + 1)[:-1]
        sfa = sf.new_empty(layer.count * most + 1, sf.shape[1])
        sfa[rows] = sf[token]
        sfa = dg.get_mn_major_tma_aligned_tensor(sfa[:-1].view(layer.count, most, -1))

        expected_m = max(1, -(-tokens * topk // layer.count))
        gate_up = x.new_empty(layer.count, most, layer.w13.shape[1])
        a = a.view(layer.count, most, -1)
        dg.fp8_m_grouped_gemm_nt_masked((a, sfa), layer.fp8_w13, gate_up, masked_m, expected_m)
        q, sf = layer.quantise(silu_and_mul(gate_up).flatten(0, 1))
        scales = dg.get_mn_major_tma_aligned_tensor(sf.view(layer.count, most, -1))
        d = x.new_empty(layer.count, most, layer.hidden)
        activated = q.view(layer.count, most, -1), scales
        dg.fp8_m_grouped_gemm_nt_masked(activated, layer.fp8_w2, d, masked_m, expected_m)
        return self.combine(d.flatten(0, 1), rows.where(local, 0), local, weights).to(x.dtype)

    def combine(self, d: torch.Tensor, rows: torch.Tensor, local: torch.Tensor, weights: torch.Tensor):
        # Row 0 stands in for choices of other ranks; it may hold NaN, so 0 times it is no way.
        chosen = torch.where(local[:, None], d[rows], 0).view(*weights.shape, self.experts.hidden)
        return (chosen * weights[..., None]).sum(1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, value in dict(tokens=64, experts=16, topk=4, hidden=512, intermediate=256).items():
        parser.add_argument(f"--{name}", type=int, default=value)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    experts = Experts(args.experts, args.hidden, args.intermediate, device)
    layer, worst = SglangMoe(experts), 0.0
    for turn, tokens in enumerate((args.tokens, args.tokens // 2, 1)):
        x = torch.randn(tokens, args.hidden, dtype=torch.bfloat16, device=device)
        ids, weights = route(tokens, args.experts, args.topk, device, skew=0.1 * turn)
        ids = ids.where(ids != 1, -1)  # as if expert 1 lived on another rank
        for name, run in {"compact": layer.compact, "masked": layer.masked}.items():
            error = difference(run(x, ids, weights), experts.reference(x, ids, weights))
            worst = max(worst, error)
            print(f"{tokens:5} tokens, {name:8} on {device}: difference {error:.1e}", flush=True)
    print(f"largest difference from the unquantised layer: {worst:.1e} (allowed {LIMIT:.0e})")
    return 0 if worst < LIMIT else 1


if __name__ == "__main__":
    raise SystemExit(main())
