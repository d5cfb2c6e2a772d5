"""Plan, compile and run FP8 GEMMs on this machine, and compare each with float64.

    python examples/demo.py [--device h200]

With a supported GPU the kernels run there. Without one they are planned and compiled all the same (for the
device named), and the CPU implementation computes the result.
"""

import argparse
import os
import time

import torch

import deep_gemm_jit as dg

# m, n, k: decode and prefill sizes of weights that common models have, small enough for a CPU to check.
SHAPES = [(1, 576, 7168), (8, 2112, 1024), (64, 4096, 512), (130, 1536, 1536), (1024, 4096, 1024)]


def find_gpu() -> str | None:
    """Return the profile of the current GPU, None where none can run our kernels."""
    if not torch.cuda.is_available():
        return None
    try:
        return dg._core.device_profile_name(torch.cuda.current_device())
    except NotImplementedError:
        return None


def dequantised(values: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    return dg.cast_back_from_fp8(values, scales).double()


def largest_error(d: torch.Tensor, a: tuple, b: tuple) -> float:
    """Return max |d - ref| / sum |a||b| against float64 on the dequantised operands."""
    left, right = dequantised(*a), dequantised(*b)
    return ((d.double() - left @ right.T).abs() / (left.abs() @ right.abs().T)).max().item()


def timed(function) -> float:
    start = time.perf_counter()
    function()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return (time.perf_counter() - start) * 1e3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="h200", help="profile to plan for where there is no GPU")
    args = parser.parse_args()
    gpu = find_gpu()
    profile, device = gpu or args.device, "cuda" if gpu else "cpu"
    nvrtc = dg._core.nvrtc_identity()
    compiler = f"NVRTC {nvrtc['major']}.{nvrtc['minor']}"
    print(f"deep_gemm_jit {dg.__version__}, {compiler}, torch {torch.__version__}")
    print(f"planned for {profile}; computed on {'the GPU' if gpu else 'the CPU: there is no supported GPU'}")
    print(f"kernel cache: {dg._core.cache_root() or 'memory only'}\n")
    heads = f"{'compile ms':>10} {'second call':>14} {'run ms':>8} {'error':>8}"
    print(f"{'m':>4} {'n':>5} {'k':>5}  {'plan':58} {heads}")

    generator = torch.Generator().manual_seed(0)
    worst = 0.0
    for m, n, k in SHAPES:
        x = torch.randn(m, k, generator=generator).to(device, torch.bfloat16)
        w = torch.randn(n, k, generator=generator).to(device, torch.bfloat16)
        a, b = dg.per_token_cast_to_fp8(x), dg.per_block_cast_to_fp8(w)
        d = torch.empty(m, n, dtype=torch.bfloat16, device=device)

        plan = dg.plan(dg.GemmProblem(n=n, k=k), m, profile)
        source = dg.emit(plan)
        fresh = dg._core.compile_uncached(source)  # the compiler itself, whatever the cache holds
        dg.compile(plan)
        if os.access(dg._core.cache_root(), os.W_OK):
            dg._core.forget_memory_cache()  # as a new process would see it
        again = dg.compile(plan)

        dg.fp8_gemm_nt(a, b, d)
        run_ms = timed(lambda a=a, b=b, d=d: dg.fp8_gemm_nt(a, b, d))
        error = largest_error(d, a, b)
        worst = max(worst, error)
        line = str(plan).split("| ")[-1]
        print(
            f"{m:4} {n:5} {k:5}  {line:58} {fresh['milliseconds']:10.0f} "
            f"{again.origin:>6} {again.milliseconds:4.1f} ms {run_ms:8.3f} {error:8.1e}"
        )
        spills = fresh["report"]["spill_stores"] + fresh["report"]["spill_loads"]
        if again.origin == "compiled" or spills:
            print(f"     unexpected: second compile came from {again.origin}, {spills} bytes of spills")
            return 1

    print(f"\nlargest error, as a part of sum |a||b|: {worst:.1e} (bfloat16 rounding allows {2**-8:.1e})")
    return 0 if worst < 2**-8 else 1


if __name__ == "__main__":
    raise SystemExit(main())
