"""Calls that go all the way to a launch without a GPU: the fake driver of tests/cpp/fake_cuda.c, and CPU
tensors that say they are on CUDA device 0 (tests/cpp/claim_cuda.c)."""

import ctypes
import importlib
import importlib.metadata
import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

SOURCES = Path(__file__).resolve().parent / "cpp"
STREAM = 0x5000


def cuda_include() -> str:
    places = [Path(sysconfig.get_path("purelib")) / "nvidia" / "cu13" / "include"]
    try:
        wheel = importlib.metadata.distribution("nvidia-cuda-runtime")
        places.insert(0, Path(str(wheel.locate_file("nvidia/cu13/include"))))
    except importlib.metadata.PackageNotFoundError:
        pass
    places += [
        Path(os.environ[name]) / "include" for name in ("CUDA_HOME", "CUDA_PATH") if name in os.environ
    ]
    places.append(Path("/usr/local/cuda/include"))
    found = next((place for place in places if (place / "cuda.h").is_file()), None)
    return str(found) if found else pytest.skip("no cuda.h in this environment")


def _build(source: str, library: Path, *flags: str) -> None:
    compiler = shutil.which(os.environ.get("CC", "gcc")) or pytest.skip("no C compiler")
    common = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    subprocess.run([compiler, *common, *flags, str(SOURCES / source), "-o", str(library)], check=True)


def build_driver(folder: Path) -> None:
    """libcuda.so.1 in `folder`, for LD_LIBRARY_PATH."""
    _build("fake_cuda.c", folder / "libcuda.so.1", f"-isystem{cuda_include()}")


def build_claim(folder: Path, *flags: str) -> None:
    _build("claim_cuda.c", folder / "libclaim.so", f"-isystem{sysconfig.get_path('include')}", *flags)


class FakeMap(ctypes.Structure):
    _fields_ = [
        ("address", ctypes.c_uint64), ("dims", ctypes.c_uint64 * 4), ("pitches", ctypes.c_uint64 * 3),
        ("rest", ctypes.c_uint32 * 8),
    ]  # fmt: skip


class FakeLaunch(ctypes.Structure):
    _fields_ = [
        ("shape", ctypes.c_uint32 * 10), ("stream", ctypes.c_void_p), ("device", ctypes.c_int),
        ("maps", FakeMap * 4), ("args", ctypes.c_uint64 * 16),
    ]  # fmt: skip


class FakeCuda(ctypes.Structure):  # as in tests/cpp/fake_cuda.h
    _fields_ = [
        *((name, ctypes.c_int) for name in (
            "driver_version", "device_count", "major", "minor", "sms", "smem_optin", "args_bytes", "maps",
            "init_result", "launch_result", "encode_result", "rejections", "reject_step", "reject_result",
        )),
        ("missing", ctypes.c_char_p), ("capturing", ctypes.c_void_p),
        *((name, ctypes.c_int) for name in (
            "quiet", "retains", "sets", "loads", "unloads", "encodes", "launches", "attribute_calls",
            "smem_attribute", "capture_broken", "wrong_context", "unaligned_maps", "legacy_lookups",
            "lookups",
        )),
        ("last", FakeLaunch),
    ]  # fmt: skip


def attach(folder: Path, hide: tuple[str, ...] = ()) -> tuple[FakeCuda, ctypes.PyDLL]:
    """The fake driver's state and the claiming library. The process was started with `folder` in
    LD_LIBRARY_PATH and has not imported deep_gemm_jit yet. `hide`: native functions that torch shall lack."""
    importlib.import_module("deep_gemm_jit")  # before torch, so that nothing is registered yet
    import torch

    from deep_gemm_jit import _core, ops

    assert not _core.torch_attached()

    library = ctypes.PyDLL(str(folder / "libclaim.so"))
    library.claim_table.restype, library.claim_table.argtypes = ctypes.py_object, [ctypes.py_object]
    library.claim_function.restype, library.claim_function.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    torch.Tensor.__dlpack_c_exchange_api__ = library.claim_table(torch.Tensor.__dlpack_c_exchange_api__)
    find = ops._native_functions

    def claiming() -> dict:
        found = {name: address for name, address in find().items() if name not in hide}
        described = {name: library.claim_function(found[name]) for name in found if "describe" in name}
        return found | described

    ops._native_functions = claiming
    ops.register()
    driver = ctypes.CDLL("libcuda.so.1")
    driver.fake_cuda_state.restype = ctypes.POINTER(FakeCuda)
    driver.fake_cuda_set_current(0)
    return driver.fake_cuda_state().contents, library
