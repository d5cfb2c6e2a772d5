"""What this machine offers (env [--json]), and why a shape gets its plan (explain M N K).

Neither imports torch, needs a GPU or compiles anything.
"""

import argparse
import json
import platform
import sys
from importlib import metadata

import deep_gemm_jit as dg
from deep_gemm_jit import _core


def environment() -> dict:
    """Return versions, NVRTC, driver, cache folder and environment variables, as plain data."""
    try:
        torch_version = metadata.version("torch")
    except metadata.PackageNotFoundError:
        torch_version = None
    try:
        nvrtc = _core.nvrtc_identity()
    except dg.CompileError as error:
        nvrtc = {"error": str(error)}
    driver = _core.driver_version()
    return {
        "deep_gemm_jit": dg.__version__,
        "kernels_digest": _core.embedded_digest(),
        "python": platform.python_version(),
        "torch": torch_version,
        "driver_cuda_version": f"{driver // 1000}.{driver % 1000 // 10}" if driver else None,
        "nvrtc": nvrtc,
        "cache_root": _core.cache_root(),
        "profiles": [row["name"] for row in _core.device_profiles()],
        "variables": _core.env_table(),
    }


def environment_text(values: dict) -> str:
    nvrtc = values["nvrtc"]
    driver = f"CUDA {values['driver_cuda_version']}" if values["driver_cuda_version"] else "none"
    lines = [
        f"deep_gemm_jit  {values['deep_gemm_jit']} (kernels {values['kernels_digest'][:12]})",
        f"python         {values['python']}",
        f"torch          {values['torch'] or 'not installed'} (metadata only, not imported)",
        f"driver         {driver}",
    ]
    if "error" in nvrtc:
        lines.append(f"nvrtc          {nvrtc['error']}")
    else:
        lines.append(f"nvrtc          {nvrtc['major']}.{nvrtc['minor']} {nvrtc['path']}")
        lines.append(f"               found by: {nvrtc['found_by']}")
    lines.append(f"cache          {values['cache_root'] or 'off: kernels live in memory only'}")
    lines.append(f"profiles       {', '.join(values['profiles'])}")
    lines.append("variables")
    for row in values["variables"]:
        value = "(not set)" if row["value"] is None else repr(row["value"])
        lines.append(f"  {row['name']:22} {value:12} {row['meaning']}")
    return "\n".join(lines)


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


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m deep_gemm_jit", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    env = commands.add_parser("env", help="versions, NVRTC, driver, cache folder, environment variables")
    env.add_argument("--json", action="store_true", help="as one JSON object")
    explain = commands.add_parser("explain", help="the plan for a shape, and what else was considered")
    for name, meaning in (("m", "rows of A and D"), ("n", "rows of B"), ("k", "inner extent")):
        explain.add_argument(name, type=int, metavar=name.upper(), help=meaning)
    explain.add_argument("--device", default="h200", help="device profile (default: %(default)s)")
    explain.add_argument("--d-dtype", default="bfloat16", help="dtype of D (default: %(default)s)")
    explain.add_argument("--batch-invariant", action="store_true")
    explain.add_argument("--top", type=int, default=5, help="candidates shown (default: %(default)s)")
    explain.add_argument("--source", action="store_true", help="show the kernel's source too")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    args = parse(arguments)
    try:
        if args.command == "explain":
            text = explanation(args)
        else:
            values = environment()
            text = json.dumps(values, indent=2) if args.json else environment_text(values)
    except (ValueError, NotImplementedError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.write(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
