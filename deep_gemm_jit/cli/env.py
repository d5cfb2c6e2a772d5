"""What this machine offers; nothing is compiled, torch is not imported."""

import argparse
import json
import platform
import sys
from importlib import metadata

import deep_gemm_jit as dg
from deep_gemm_jit import _core
from deep_gemm_jit.cli import store


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="as one JSON object")


def run(args: argparse.Namespace) -> int:
    values = environment()
    text = json.dumps(values, indent=2) if args.json else environment_text(values)
    sys.stdout.write(text + "\n")
    return 0


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
        "cache_seeds": [path for path, writable in store.roots()["roots"] if not writable],
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
    lines.append(f"cache          {values['cache_root'] or 'none: what is compiled lives in memory only'}")
    lines += [f"seed           {path}" for path in values["cache_seeds"]]
    lines.append(f"profiles       {', '.join(values['profiles'])}")
    lines.append("variables")
    for row in values["variables"]:
        value = "(not set)" if row["value"] is None else repr(row["value"])
        lines.append(f"  {row['name']:22} {value:12} {row['meaning']}")
    return "\n".join(lines)
