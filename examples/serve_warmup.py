"""A server's start: every kernel that a model can need, compiled before the first request.

    python examples/serve_warmup.py [--device h200] [--max-rows 8192] [--shapes 2112x7168,4096x7168x32]

A problem is a weight shape and an output type; all_plans lists the few kernels that it can need for any
number of rows. With a Hopper GPU they are loaded too, so that no request waits for a compiler. Without one
they are compiled for the device named and put into the cache on disk, as when a container image is built.
Needs no torch. DGJ_JIT=forbid afterwards makes a forgotten kernel an error and not a pause.
"""

import argparse

import deep_gemm_jit as dg

# DeepSeek-V3: N x K of linear layers under tensor parallelism 8, N x K x experts under expert parallelism 8.
SHAPES = "2112x7168,3072x1536,4096x512,7168x2048,4608x7168,7168x2304,512x7168,7168x256"
SHAPES += ",4096x7168x32,7168x2048x32"


def problem_of(n: int, k: int, experts: int | None = None) -> dg.GemmProblem:
    """One problem serves ids, psum, masked rows and offsets: how rows are assigned is no part of a kernel."""
    if experts is None:
        return dg.GemmProblem(n=n, k=k)
    return dg.GemmProblem(n=n, k=k, layout="m_grouped", groups=experts)


def gpu_profile() -> str | None:
    """The profile of CUDA device 0, None where there is none that kernels exist for."""
    try:
        return dg._core.device_profile_name(0)
    except NotImplementedError:
        return None


def show(step: dg.WarmupStep) -> None:
    print(f"\r{step.done}/{step.total} kernels, the last {step.origin}", end="", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="h200", help="profile to compile for where there is no GPU")
    parser.add_argument("--max-rows", type=int, default=8192, help="most tokens in a batch")
    parser.add_argument("--shapes", default=SHAPES, help="NxK or NxKxEXPERTS, separated by commas")
    args = parser.parse_args()
    problems = [problem_of(*map(int, shape.split("x"))) for shape in args.shapes.split(",")]
    gpu = gpu_profile()
    print(f"{len(problems)} weight shapes, up to {args.max_rows} rows on {gpu or args.device}")
    print(f"kernel cache: {dg._core.cache_root() or 'memory only'}")
    report = dg.warmup(problems, gpu or args.device, args.max_rows, progress=show, load=gpu is not None)
    print(f"\n{report}")

    # What a restart of the server finds.
    if dg._core.cache_root():
        dg._core.forget_memory_cache()
    missing = dg.plan_report(problems, gpu or args.device, args.max_rows).missing
    print(f"kernels missing from the cache: {len(missing)}")
    return 1 if missing else 0


if __name__ == "__main__":
    raise SystemExit(main())
