"""How long the kernel of a shape takes on this GPU, and what its other plans would take."""

import argparse
import sys

import deep_gemm_jit as dg
from deep_gemm_jit import _core
from deep_gemm_jit.ahead import compile_kernels
from deep_gemm_jit.cli.explain import add_shape_arguments, problem_of
from deep_gemm_jit.settings import current_device


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_shape_arguments(parser, "rows of A and D")
    parser.add_argument(
        "--all", action="store_true", help="every plan of the problem, not the chosen one alone"
    )


def run(args: argparse.Namespace) -> int:
    problem = problem_of(args)
    if _core.driver_version() == 0:
        raise RuntimeError("there is no CUDA driver on this machine")
    from deep_gemm_jit.timing import GpuTimer

    timer = GpuTimer(problem, args.m)
    device = _core.device_profile_name(current_device())
    chosen = dg.plan(problem, args.m, device)
    plans = [chosen, *(plan for plan in dg.all_plans(problem, device) if args.all and plan != chosen)]
    compile_kernels(plans)
    lines = [
        f"{_core.problem_line(problem)}, m={args.m}, {device}; the chosen plan first, each from a cold L2"
    ]
    times = timer(plans, args.m)
    lines += [table_row(problem, args.m, plan, us) for plan, us in zip(plans, times, strict=True)]
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


def table_row(problem: dg.GemmProblem, m: int, plan: dg.KernelPlan, us: float) -> str:
    operations = 2 * m * problem.n * problem.k
    d_bytes = {"float32": 4}.get(problem.d_dtype, 2)
    moved = (m + problem.n) * problem.k + d_bytes * m * problem.n
    rates = f"{operations / us / 1e6:7.0f} TFLOPS {moved / us / 1e6:6.2f} TB/s"
    return f"{us:9.2f} us {rates}  {str(plan).split('| ')[-1]}"
