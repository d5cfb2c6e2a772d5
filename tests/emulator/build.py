"""Compiles the emulator's runtime (once) and emitted kernels for the host; both are kept by their digest."""

import concurrent.futures
import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
BUILD = HERE.parents[1] / "build" / "emulator"
# -ffp-contract=off: the kernels' arithmetic has one fixed rounding.
FLAGS = ["-std=c++20", "-fPIC", "-ffp-contract=off", "-fvisibility=hidden", f"-I{HERE}"]
RUNTIME_FLAGS = [*FLAGS, "-O2", "-ftree-vectorize", "-fvisibility=default", "-Wall", "-Wextra"]
KERNEL_FLAGS = [*FLAGS, "-O1", "-Wno-attributes", "-w"]


@functools.cache
def compiler() -> str:
    found = shutil.which(os.environ.get("CXX", "g++"))
    if found is None:
        pytest.skip("no C++ compiler")
    return found


@functools.cache
def machine_flags() -> tuple[str, ...]:
    """A fused multiply-add is one instruction where the processor has it, else a call of the C library."""
    try:
        flags = Path("/proc/cpuinfo").read_text().split()
    except OSError:
        flags = []
    return ("-mfma", "-mavx2") if "fma" in flags and "avx2" in flags else ()


def digest(parts: Iterable[str | bytes]) -> str:
    hashed = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        hashed.update(len(data).to_bytes(8, "little") + data)
    return hashed.hexdigest()[:20]


def compile_to(target: Path, arguments: list[str]) -> Path:
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_suffix(f".{os.getpid()}.tmp")
        done = subprocess.run(
            [compiler(), *machine_flags(), *arguments, "-o", str(temporary)], capture_output=True, text=True
        )
        if done.returncode != 0:
            raise AssertionError(f"{' '.join(arguments)}\n{done.stderr[-6000:]}")
        temporary.rename(target)
    return target


@functools.cache
def emulator_text() -> str:
    """Digest of everything that a compiled kernel depends on beside its own text."""
    headers = [HERE / "runtime" / name for name in ("api.hpp", "entry.hpp", "half.hpp")]
    headers += sorted((HERE / "ptx").glob("*.cuh"))
    return digest([compiler(), *machine_flags(), *KERNEL_FLAGS, *(path.read_bytes() for path in headers)])


@functools.cache
def runtime() -> ctypes.CDLL:
    headers = sorted((HERE / "runtime").glob("*.hpp"))
    common = digest([compiler(), *machine_flags(), *RUNTIME_FLAGS, *(path.read_bytes() for path in headers)])

    def compile_one(source: Path) -> Path:
        target = BUILD / "runtime" / f"{source.stem}.{digest([common, source.read_bytes()])}.o"
        return compile_to(target, [*RUNTIME_FLAGS, "-c", str(source)])

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(compile_one, sorted((HERE / "runtime").glob("*.cpp"))))
    library = BUILD / "runtime" / f"emulator.{digest(path.name for path in objects)}.so"
    compile_to(library, ["-shared", *map(str, objects)])
    loaded = ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    loaded.dgj_emulator_run.restype = ctypes.c_int
    return loaded


def compile_kernel(text: str, headers: dict[str, str], entry: str) -> Path:
    """A library with `dgj_emulated_entry` from this very text and these headers; ptx/ alone is replaced."""
    own = {name: body for name, body in sorted(headers.items()) if not name.startswith("ptx/")}
    products = [name for name in headers if name.startswith(("ptx/wgmma_n", "ptx/sums_n"))]
    key = digest([emulator_text(), text, entry, *products, *(part for item in own.items() for part in item)])
    target = BUILD / "kernels" / f"{key}.so"
    if target.exists():
        return target
    folder = BUILD / "kernels" / key
    files = {
        **own,
        **{name: '#pragma once\n#include "ptx/wgmma.cuh"\n' for name in products},
        "kernel.cuh": text,
        "entry.cpp": f'#include "kernel.cuh"\n#include "runtime/entry.hpp"\nDGJ_EMULATED_ENTRY({entry})\n',
    }
    for name, body in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(body)
    return compile_to(target, [*KERNEL_FLAGS, f"-I{folder}", "-shared", str(folder / "entry.cpp")])


@functools.cache
def load_kernel(library: Path) -> ctypes.c_void_p:
    runtime()
    loaded = ctypes.CDLL(str(library), mode=ctypes.RTLD_LOCAL)
    return ctypes.cast(loaded.dgj_emulated_entry, ctypes.c_void_p)
