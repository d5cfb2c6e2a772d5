"""Runs a micro-kernel on the emulator."""

import ctypes

from emulator import build, launch
from validation import cases

from deep_gemm_jit import _core


class ProbeArgs(ctypes.Structure):  # kernels/common.cuh
    _fields_ = [("data", ctypes.c_uint64), ("out", ctypes.c_uint64), ("at", ctypes.c_int32 * 12)]


class Memory:
    """Bytes at an address that is a multiple of 256, as the driver gives."""

    def __init__(self, content: bytes):
        self.bytes = len(content)
        self.room = ctypes.create_string_buffer(self.bytes + 256)
        self.address = -(-ctypes.addressof(self.room) // 256) * 256
        ctypes.memmove(self.address, content, self.bytes)

    def buffer(self, writable: bool) -> launch.Buffer:
        return launch.Buffer(self.address, self.bytes, writable, 0)

    def content(self) -> bytes:
        return ctypes.string_at(self.address, self.bytes)


def run(case: cases.Case, seed: int = 0, patch=None) -> bytes:
    """The output's bytes after the kernel. patch: of the headers, before they are compiled."""
    headers = cases.header_closure(case.text, dict(case.headers), _core.embedded_file)
    if patch is not None:
        headers = patch(headers)
    entry = build.load_kernel(build.compile_kernel(case.text, headers, "dgj_kernel"))
    memory = {"data": Memory(case.data), "x": Memory(case.x), "y": Memory(case.y), "out": Memory(case.out)}
    maps = []
    for spec in case.maps:
        if spec is None:
            maps.append(launch.Map())
            continue
        address = memory[spec.buffer].address + spec.offset
        maps.append(launch.make_map(address, spec.extents, spec.pitches, spec.box, spec.kind, spec.swizzle))
    args = ProbeArgs(memory["data"].address, memory["out"].address, (ctypes.c_int32 * 12)(*case.at))
    launch.run(
        entry,
        [*maps, args],
        [m.buffer(name == "out") for name, m in memory.items()],
        blocks=case.blocks,
        threads=case.threads,
        cluster=case.cluster,
        shared_bytes=case.shared_bytes,
        seed=seed,
        what=f"validation case {case.name!r}",
        cut_sums=True,
    )
    return memory["out"].content()


def outcome(case: cases.Case, seed: int = 0) -> bytes | str:
    """The output's bytes, or the fault."""
    try:
        return run(case, seed)
    except launch.EmulatorFault as fault:
        return str(fault)
