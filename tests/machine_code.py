"""Reads compiled kernels as machine code."""

import subprocess
import sysconfig
from pathlib import Path


def disassembly(cubin: bytes, folder: Path) -> str:
    found = sorted(Path(sysconfig.get_path("purelib")).glob("nvidia/**/bin/nvdisasm"))
    assert found, "nvidia-cuda-nvdisasm is not installed"
    (folder / "kernel.cubin").write_bytes(cubin)
    done = subprocess.run([found[-1], "-c", folder / "kernel.cubin"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout
