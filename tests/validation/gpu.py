"""Runs compiled micro-kernels on a GPU through the driver alone. A process of its own: a kernel that never
ends is killed with it. Reads jobs from the file argv[1] (pickle: a list of (name, Case, cubin)); prints one
line for each when it is done."""

import ctypes
import pickle
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

SWIZZLE = {0: 0, 32: 1, 64: 2, 128: 3}  # CUtensorMapSwizzle
U64, U32, I32, PTR = ctypes.c_uint64, ctypes.c_uint32, ctypes.c_int, ctypes.c_void_p


class ProbeArgs(ctypes.Structure):  # kernels/common.cuh
    _fields_ = [("data", U64), ("out", U64), ("at", ctypes.c_int32 * 12)]


class Attribute(ctypes.Structure):  # CUlaunchAttribute
    _fields_ = [("id", I32), ("pad", ctypes.c_char * 4), ("value", U32 * 16)]


class LaunchConfig(ctypes.Structure):  # CUlaunchConfig
    _fields_ = [
        *((name, U32) for name in ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "shared")),
        ("stream", PTR),
        ("attributes", ctypes.POINTER(Attribute)),
        ("attribute_count", U32),
    ]


class Driver:
    def __init__(self):
        self.library = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", U32(0))
        device, context = I32(), PTR()
        self.call("cuDeviceGet", ctypes.byref(device), I32(0))
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)
        name, version = ctypes.create_string_buffer(100), I32()
        self.call("cuDeviceGetName", name, I32(100), device)
        self.call("cuDriverGetVersion", ctypes.byref(version))
        self.name = (
            f"{name.value.decode()}, driver for CUDA {version.value // 1000}.{version.value % 1000 // 10}"
        )

    def call(self, function: str, *arguments) -> None:
        result = getattr(self.library, function)(*arguments)
        if result != 0:
            raise RuntimeError(f"{function} gave error {result}")

    def memory(self, content: bytes) -> U64:
        address = U64()
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(len(content)))
        self.call("cuMemcpyHtoD_v2", address, content, ctypes.c_size_t(len(content)))
        return address

    def function(self, cubin: bytes, shared_bytes: int) -> PTR:
        module, function = PTR(), PTR()
        self.call("cuModuleLoadData", ctypes.byref(module), cubin)
        self.call("cuModuleGetFunction", ctypes.byref(function), module, b"dgj_kernel")
        self.call("cuFuncSetAttribute", function, I32(8), I32(shared_bytes))  # dynamic shared memory
        return function

    def tensor_map(self, spec, address: int):
        room = ctypes.create_string_buffer(128 + 64)
        made = -(-ctypes.addressof(room) // 64) * 64
        rank = len(spec.extents)
        self.call(
            "cuTensorMapEncodeTiled",
            PTR(made),
            I32(spec.kind),
            U32(rank),
            PTR(address + spec.offset),
            (U64 * rank)(*spec.extents),
            (U64 * rank)(*spec.pitches),
            (U32 * rank)(*spec.box),
            (U32 * rank)(*(1,) * rank),
            I32(0),
            I32(SWIZZLE[spec.swizzle]),
            I32(0),
            I32(0),
        )
        return room, made

    def run(self, case, cubin: bytes) -> bytes:
        memory = {n: self.memory(getattr(case, n)) for n in ("data", "x", "y", "out")}
        empty = ctypes.create_string_buffer(128)
        maps = [
            self.tensor_map(s, memory[s.buffer].value) if s else (empty, ctypes.addressof(empty))
            for s in case.maps
        ]
        args = ProbeArgs(memory["data"].value, memory["out"].value, (ctypes.c_int32 * 12)(*case.at))
        parameters = (PTR * 3)(maps[0][1], maps[1][1], ctypes.addressof(args))
        cluster = Attribute(4, b"", (U32 * 16)(case.cluster, 1, 1))
        config = LaunchConfig(
            case.blocks, 1, 1, case.threads, 1, 1, case.shared_bytes, None, ctypes.pointer(cluster), 1
        )
        function = self.function(cubin, case.shared_bytes)
        self.call("cuLaunchKernelEx", ctypes.byref(config), function, parameters, None)
        self.call("cuCtxSynchronize")
        out = ctypes.create_string_buffer(len(case.out))
        self.call("cuMemcpyDtoH_v2", out, memory["out"], ctypes.c_size_t(len(case.out)))
        for address in memory.values():
            self.call("cuMemFree_v2", address)
        return out.raw


def main() -> None:
    jobs = pickle.loads(Path(sys.argv[1]).read_bytes())
    driver = Driver()
    print("device", driver.name, flush=True)
    for name, case, cubin in jobs:
        print("start", name, flush=True)
        out = driver.run(case, cubin)
        print("done", out.hex(), flush=True)


if __name__ == "__main__":
    main()
