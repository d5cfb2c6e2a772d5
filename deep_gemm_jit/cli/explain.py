"""Why a shape gets its plan; nothing is compiled, torch is not imported."""

import argparse
import sys

import deep_gemm_jit as dg
from deep_gemm_jit import _core

LAYOUTS = ("dense", "m_grouped")
D_DTYPES = ("bfloat16", "float16", "float32")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_shape_arguments(parser, "rows of A and D; M-grouped: of all groups together, masked: G * max_m")
    parser.add_argument(
        "--arch",
        "--device",
        dest="device",
        default="h200",
        help="device profile, or an architecture: all of its profiles (default: %(default)s)",
    )
    parser.add_argument("--top", type=int, default=5, help="candidates shown (default: %(default)s)")
    parser.add_argument("--source", action="store_true", help="show the kernel's source too")


def add_shape_arguments(parser: argparse.ArgumentParser, meaning_of_m: str) -> None:
    """M N K and what else makes a problem; problem_of reads them."""
    for name, meaning in (("m", meaning_of_m), ("n", "rows of B, of each group"), ("k", "inner extent")):
        parser.add_argument(name, type=int, metavar=name.upper(), help=meaning)
    add_problem_arguments(parser, "calls with alpha, bias or c")
    parser.add_argument("--groups", type=int, help="groups of an M-grouped problem")


def add_problem_arguments(parser: argparse.ArgumentParser, meaning_of_extras: str) -> None:
    parser.add_argument("--layout", choices=LAYOUTS, help="default: m_grouped with groups, else dense")
    parser.add_argument("--d-dtype", choices=D_DTYPES, default="bfloat16", help="of D (default: %(default)s)")
    parser.add_argument(
        "--batch-invariant", action="store_true", help="rows whose bits depend on no other row"
    )
    parser.add_argument("--extras", action="store_true", help=meaning_of_extras)


def problem_of(args: argparse.Namespace) -> dg.GemmProblem:
    return dg.GemmProblem(
        n=args.n,
        k=args.k,
        d_dtype=args.d_dtype,
        batch_invariant=args.batch_invariant,
        layout=args.layout or ("dense" if args.groups is None else "m_grouped"),
        groups=1 if args.groups is None else args.groups,
        extras=args.extras,
    )


def run(args: argparse.Namespace) -> int:
    if args.top < 1:
        raise ValueError(f"--top is {args.top}; it must be at least 1")
    problem = problem_of(args)
    names = [row["name"] for row in _core.device_profiles() if args.device in (row["name"], row["arch"])]
    parts = [explanation(problem, args.m, name, args) for name in names or [args.device]]
    sys.stdout.write("\n\n".join(parts) + "\n")
    return 0


def explanation(problem: dg.GemmProblem, m: int, device: str, args: argparse.Namespace) -> str:
    chosen = dg.plan(problem, m, device)
    shape = chosen.shape
    considered = dg.candidates(problem, m, device)
    best = considered[0].predicted_us
    own = next(row for row in considered if row.plan == chosen)
    every = dg.all_plans(problem, device)
    lines = [
        f"problem   {_core.problem_line(problem)}, m={m}, device {device}",
        f"plan      {chosen}",
        f"kernel    {shape['threads']} threads, {shape['smem_bytes']} bytes of shared memory, "
        f"clusters of {shape['cluster']}",
        f"time      {own.predicted_us:.2f} us predicted: {own.why}",
        f"why       {_reason(own, best, len(every))}",
        "",
        f"considered, best first, {min(args.top, len(considered))} of {len(considered)} "
        "(predicted us, plan, how the time comes about; * chosen):",
    ]
    for row in considered[: args.top]:
        mark = "*" if row.plan == chosen else " "
        lines.append(f"{mark} {row.predicted_us:9.2f}  {_short(row.plan)}")
        lines.append(f"             {row.why}")
    lines += ["", f"all plans of this problem, any m ({len(every)}; * chosen):"]
    lines += [f"{'*' if other == chosen else ' '} {_short(other)}" for other in every]
    if args.source:
        lines += ["", dg.emit(chosen).text]
    return "\n".join(lines)


def _short(plan: dg.KernelPlan) -> str:
    return str(plan).split("| ")[-1]


def _reason(own: dg.Candidate, best: float, count: int) -> str:
    if own.predicted_us <= best:
        return "predicted to be the fastest"
    over = (own.predicted_us / best - 1) * 100
    return (
        f"the fastest of the {count} plans that serve every m, {over:.1f} % over the best candidate; or "
        "measured to be faster, where a tuning table has this m"
    )
