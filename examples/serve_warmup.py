"""A server's start: every kernel that a model can need, compiled before the first request.

    python examples/serve_warmup.py [--device h200] [--max-rows 8192] [--shapes 2112x7168,4096x7168x32]

A problem is a weight shape and an output type; all_plans lists the few kernels that it can need for any
number of rows. With a Hopper GPU they are loaded too, so that no request waits for a compiler. Without one
they are compiled for the device named and put into the cache on disk, as when a container image is built.
Needs no torch. DGJ_JIT=forbid afterwards makes a forgotten kernel an error and not a pause.
"""

import argparse
import time
from concurrent.futures import ThreadPoolExecutor, as_completed

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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="h200", help="profile to compile for where there is no GPU")
    parser.add_argument("--max-rows", type=int, default=8192, help="most tokens in a batch")
    parser.add_argument("--shapes", default=SHAPES, help="NxK or NxKxEXPERTS, separated by commas")
    parser.add_argument("--threads", type=int, default=8)
    args = parser.parse_args()
    problems = [problem_of(*map(int, shape.split("x"))) for shape in args.shapes.split(",")]
    gpu = gpu_profile()
    profile = gpu or args.device
    every = [plan for problem in problems for plan in dg.all_plans(problem, profile, args.max_rows)]
    plans = list(dict.fromkeys(every))
    print(f"{len(problems)} weight shapes, up to {args.max_rows} rows on {profile}: {len(plans)} kernels")
    print(f"kernel cache: {dg._core.cache_root() or 'memory only'}")

    begin, origins = time.perf_counter(), {"compiled": 0, "disk": 0, "memory": 0}
    with ThreadPoolExecutor(args.threads) as pool:
        running = [pool.submit(dg.compile, plan) for plan in plans]
        for done, future in enumerate(as_completed(running), 1):
            origins[future.result().origin] += 1
            seconds = time.perf_counter() - begin
            print(f"\r{done}/{len(plans)} kernels, {seconds:.1f} s", end="", flush=True)
    print("".join(f", {count} from {origin}" for origin, count in origins.items() if count))
    if gpu:
        loaded = dg.warmup(problems, max_rows=args.max_rows, threads=args.threads)
        print(f"{loaded} kernels loaded on the GPU after {time.perf_counter() - begin:.1f} s")

    # What a restart of the server pays.
    begin = time.perf_counter()
    if dg._core.cache_root():
        dg._core.forget_memory_cache()
    again = [dg.compile(plan).origin for plan in plans]
    print(f"a second start finds all of them in {time.perf_counter() - begin:.2f} s")
    missing = again.count("compiled")
    print(f"kernels missing from the cache: {missing}")
    return 1 if missing else 0


if __name__ == "__main__":
    raise SystemExit(main())
