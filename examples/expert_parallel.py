"""Experts spread over processes: tokens travel with all-to-all, grouped FP8 GEMMs run where the experts are.

    python examples/expert_parallel.py [--world 2] [--tokens 48] [--skew 0.3] [--idle]

It starts its processes itself: NCCL on GPUs where each process can have one, else gloo on the CPU. Needs
torch alone. FP8 travels as bytes: gloo knows no FP8, and bytes are bytes to NCCL.
"""

import argparse
import socket

import torch
import torch.distributed as dist
from moe_common import LIMIT, Experts, difference, rank_in_expert, route, scatter_rows, silu_and_mul

import deep_gemm_jit as dg

EXPERTS, TOPK, HIDDEN, INTERMEDIATE = 16, 4, 512, 256


def exchange(rows: torch.Tensor, sent: list[int], received: list[int]) -> torch.Tensor:
    """Send sent[r] rows to each rank r, in order; return what arrived, ordered by sender."""
    out = rows.new_empty(sum(received), *rows.shape[1:])
    dist.all_to_all_single(out.view(torch.uint8), rows.contiguous().view(torch.uint8), received, sent)
    return out


class ExpertParallelMoe:
    """Experts of one rank: `experts` holds the local ones, expert e lives on rank e // experts.count."""

    def __init__(self, experts: Experts):
        self.experts, self.world = experts, dist.get_world_size()

    def __call__(self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        layer, topk = self.experts, ids.shape[1]
        flat = ids.flatten()
        order = flat.argsort(stable=True)  # by expert, and so by rank
        sent_to = torch.bincount(flat // layer.count, minlength=self.world)
        received_from = torch.empty_like(sent_to)
        dist.all_to_all_single(received_from, sent_to)
        sent, received = sent_to.tolist(), received_from.tolist()

        q, sf = layer.quantise(x)
        token = order // topk
        a = exchange(q.view(torch.uint8)[token], sent, received).view(q.dtype)
        sfa = exchange(sf[token], sent, received)
        expert = exchange((flat[order] % layer.count)[:, None], sent, received)[:, 0]
        out = exchange(self.run_local(a, sfa, expert), received, sent)

        chosen = torch.empty_like(out)
        chosen[order] = out
        return (chosen.view(-1, topk, layer.hidden) * weights[..., None]).sum(1).to(x.dtype)

    def run_local(self, a: torch.Tensor, sfa: torch.Tensor, expert: torch.Tensor) -> torch.Tensor:
        """Both GEMMs for rows that came from everywhere, in the order in which they came."""
        layer, alignment = self.experts, dg.get_mk_alignment_for_contiguous_layout()
        rank, counts = rank_in_expert(expert, layer.count)
        padded = (counts + alignment - 1) // alignment * alignment
        starts, total = padded.cumsum(0) - padded, int(padded.sum())
        rows, ends = starts[expert] + rank, (starts + counts).int()
        # No early return for an idle rank: a GEMM with no rows is legal.
        grouped = scatter_rows(a, rows, total)
        scales = sfa.new_empty(total, sfa.shape[1])
        scales[rows] = sfa
        options = dict(dtype=torch.bfloat16, device=a.device)
        gate_up = torch.empty(total, layer.w13.shape[1], **options)
        dg.m_grouped_fp8_gemm_nt_contiguous(
            (grouped, scales), layer.fp8_w13, gate_up, ends, use_psum_layout=True
        )
        d = torch.empty(total, layer.hidden, **options)
        activated = layer.quantise(silu_and_mul(gate_up))
        dg.m_grouped_fp8_gemm_nt_contiguous(activated, layer.fp8_w2, d, ends, use_psum_layout=True)
        return d[rows]


def worker(rank: int, args: argparse.Namespace, port: int, errors) -> None:
    cuda = torch.cuda.device_count() >= args.world
    device = f"cuda:{rank}" if cuda else "cpu"
    if cuda:
        torch.cuda.set_device(rank)
    else:
        torch.set_num_threads(1)
    address = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("nccl" if cuda else "gloo", address, rank=rank, world_size=args.world)
    torch.manual_seed(0)
    whole = Experts(EXPERTS, HIDDEN, INTERMEDIATE, device)  # the same everywhere: for the reference
    count = EXPERTS // args.world
    torch.manual_seed(rank + 1)
    tokens = 0 if args.idle and rank == args.world - 1 else args.tokens + 5 * rank
    x = torch.randn(tokens, HIDDEN, dtype=torch.bfloat16, device=device)
    ids, weights = route(tokens, EXPERTS, TOPK, device, args.skew)
    out = ExpertParallelMoe(whole.shard(rank * count, count))(x, ids, weights)
    errors[rank] = difference(out, whole.reference(x, ids, weights))
    dist.destroy_process_group()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--world", type=int, default=2, help="processes; divides 16")
    parser.add_argument("--tokens", type=int, default=48, help="tokens of rank 0; each next rank has 5 more")
    parser.add_argument("--skew", type=float, default=0.3, help="how much the first experts are preferred")
    parser.add_argument("--idle", action="store_true", help="the last rank has no tokens")
    args = parser.parse_args()
    if args.world < 1 or EXPERTS % args.world:
        parser.error(f"--world is {args.world}; it must divide the {EXPERTS} experts")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    errors = torch.full((args.world,), float("nan")).share_memory_()
    torch.multiprocessing.spawn(worker, (args, port, errors), nprocs=args.world)
    for rank, error in enumerate(errors.tolist()):
        print(f"rank {rank}: difference {error:.1e}")
    worst = errors.max().item()
    print(f"largest difference from the unquantised layer: {worst:.1e} (allowed {LIMIT:.0e})")
    return 0 if worst < LIMIT else 1


if __name__ == "__main__":
    raise SystemExit(main())
