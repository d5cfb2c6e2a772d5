"""What a result depends on besides the code: card, driver, versions, commit."""

from __future__ import annotations

import datetime
import importlib.metadata
import platform
import subprocess
from pathlib import Path

from . import ROOT


def _output(*command: str) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, cwd=ROOT, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


def commit() -> str | None:
    found = _output("git", "rev-parse", "HEAD")
    if found and _output("git", "status", "--porcelain", "--untracked-files=no"):
        found += "+changes"
    return found


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def describe(commit_flag: str | None = None) -> dict:
    import torch

    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    smi = _output(
        "nvidia-smi", "--query-gpu=driver_version,clocks.max.sm,power.limit", "--format=csv,noheader,nounits"
    )
    driver, clock, power = [part.strip() for part in smi.splitlines()[0].split(",")] if smi else [None] * 3
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "card": properties.name,
        "sms": properties.multi_processor_count,
        "l2_bytes": getattr(properties, "L2_cache_size", None),
        "driver": driver,
        "max_sm_mhz": clock,
        "power_limit_w": power,
        "commit": commit_flag or commit(),
        "versions": {
            "deep_gemm_jit": _version("deep_gemm_jit"),
            "torch": torch.__version__,
            "cuda_of_torch": torch.version.cuda,
            "nvrtc": _version("nvidia-cuda-nvrtc") or _version("nvidia-cuda-nvrtc-cu12"),
            "cublas": _version("nvidia-cublas") or _version("nvidia-cublas-cu12"),
            "python": platform.python_version(),
        },
    }


def slug(card: str) -> str:
    """`NVIDIA H200` -> `h200`, for file names."""
    words = [word for word in card.lower().replace("/", " ").split() if word not in ("nvidia", "gpu")]
    return "-".join(words) or "gpu"


def package_file(module) -> str:
    return str(Path(module.__file__).resolve())
