"""Why a shape gets its plan; nothing is compiled, torch is not imported."""

import argparse
import sys

import deep_gemm_jit as dg


def add_arguments(parser: argparse.ArgumentParser) -> None:
    for name, meaning in (("m", "rows of A and D"), ("n", "rows of B"), ("k", "inner extent")):
        parser.add_argument(name, type=int, metavar=name.upper(), help=meaning)
    parser.add_argument("--device", default="h200", help="device profile (default: %(default)s)")
    parser.add_argument("--d-dtype", default="bfloat16", help="dtype of D (default: %(default)s)")
    parser.add_argument("--batch-invariant", action="store_true")
    parser.add_argument("--top", type=int, default=5, help="candidates shown (default: %(default)s)")
    parser.add_argument("--source", action="store_true", help="show the kernel's source too")


def run(args: argparse.Namespace) -> int:
    sys.stdout.write(explanation(args) + "\n")
    return 0


def explanation(args: argparse.Namespace) -> str:
    problem = dg.GemmProblem(
        n=args.n, k=args.k, d_dtype=args.d_dtype, batch_invariant=args.batch_invariant
    )
    chosen = dg.plan(problem, args.m, args.device)
    shape = chosen.shape
    lines = [
        f"problem   {problem!r}, m={args.m}, device {args.device}",
        f"plan      {chosen}",
        f"kernel    {shape['threads']} threads, {shape['smem_bytes']} bytes of shared memory, "
        f"clusters of {shape['cluster']}",
        "",
        "considered, best first (predicted us, plan, how the time comes about):",
    ]
    for row in dg.candidates(problem, args.m, args.device)[: args.top]:
        lines.append(f"  {row.predicted_us:9.2f}  {str(row.plan).split('| ')[-1]}")
        lines.append(f"             {row.why}")
    every = dg.all_plans(problem, args.device)
    lines += ["", f"all plans of this problem, any m ({len(every)}):"]
    lines += [f"  {str(other).split('| ')[-1]}" for other in every]
    if args.source:
        lines += ["", dg.emit(chosen).text]
    return "\n".join(lines)
