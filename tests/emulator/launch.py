"""Runs a plan's kernel on the emulator, as fp8_gemm_nt runs it on a GPU: tensor maps, arguments, grid."""

import ctypes
import os
import re
from dataclasses import dataclass

import torch
from emulator import build, plans


class EmulatorFault(AssertionError):
    """The kernel broke a rule, or waits for ever; the text says which, where, and how to see it again."""


class Map(ctypes.Structure):
    _fields_ = [("words", ctypes.c_uint64 * 16)]


class GemmArgs(ctypes.Structure):  # kernels_src/parts/gemm_args.cuh
    _fields_ = [
        *((name, ctypes.c_uint64) for name in ("sfa", "sfb", "d", "c", "bias")),
        *((name, ctypes.c_int64) for name in ("sfa_m", "sfa_k", "sfb_n", "sfb_k", "ldd", "ldc")),
        ("m", ctypes.c_uint32),
        ("alpha", ctypes.c_float),
        ("bias_is_f32", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
    ]


class CastArgs(ctypes.Structure):  # kernels_src/cast/cast_args.cuh
    _fields_ = [
        *((name, ctypes.c_uint64) for name in ("x", "q", "sf")),
        *((name, ctypes.c_int64) for name in ("ldx", "ldq", "sf_stride_row", "sf_stride_block")),
        *((name, ctypes.c_uint32) for name in ("rows", "cols", "divisor", "multiplier", "shift")),
        *((name, ctypes.c_uint32) for name in ("vector", "tiles")),
    ]


class Buffer(ctypes.Structure):
    _fields_ = [
        ("begin", ctypes.c_uint64),
        ("bytes", ctypes.c_uint64),
        ("writable", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
    ]


POISON = (0xFFFFFFFF,)  # a NaN in every format, an index of nobody
latest = ""  # the kernel that ran last, and what shows it again


@dataclass
class Statistics:
    switches: int
    operations: int


def seeds(default: tuple[int, ...]) -> tuple[int, ...]:
    """0: asynchronous work at once. 1: as late as it can be. Others: drawn. DGJ_EMULATOR_SEED replays one."""
    given = os.environ.get("DGJ_EMULATOR_SEED")
    return (int(given),) if given else default


# Numbers of CUtensorMapDataType.
MAP_TYPES = {torch.float16: 6, torch.float32: 7, torch.bfloat16: 9}


def make_map(address: int, extents, pitches, box, kind: int, swizzle: int) -> Map:
    """As cuTensorMapEncodeTiled: innermost first, pitches in bytes, `kind` a CUtensorMapDataType."""
    made, rank = Map(), len(extents)
    refused = build.runtime().dgj_emulator_encode_map(
        ctypes.byref(made),
        ctypes.c_uint64(address),
        ctypes.c_uint32(rank),
        (ctypes.c_uint64 * rank)(*extents),
        (ctypes.c_uint64 * rank)(*pitches),
        (ctypes.c_uint32 * rank)(*box),
        ctypes.c_uint32(kind),
        ctypes.c_uint32(swizzle),
    )
    if refused:
        raise ValueError(f"the driver would refuse a map of {extents}, {pitches}, {box}, swizzle {swizzle}")
    return made


def encode_map(tensor: torch.Tensor | None, inner: int, box_rows: int) -> Map:
    """As csrc/runtime/tensor_map.cpp; a tensor without elements has no map, and nothing looks at it."""
    if tensor is None or inner == 0 or tensor.shape[0] == 0:
        return Map()
    size = tensor.element_size()
    return make_map(
        tensor.data_ptr(),
        (inner, tensor.shape[0]),
        (tensor.stride(0) * size,),
        (128 // size, box_rows),
        MAP_TYPES.get(tensor.dtype, 0),
        128,
    )


def extent(tensor: torch.Tensor, writable: bool) -> Buffer:
    last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return Buffer(tensor.data_ptr(), (last + 1) * tensor.element_size() if tensor.numel() else 0, writable, 0)


def run(
    entry, parameters, buffers, *, blocks, threads, cluster, shared_bytes, seed, what, cut_sums=False,
    left=POISON,
) -> Statistics:  # fmt: skip
    """cut_sums: those of the tensor core are cut as the hardware does, else exact and rounded once: so the
    bounds of tests can be those of FP32. left: words that kernels before have left, again and again in all
    of shared memory."""
    global latest
    latest = f"kernel: {what}\n  replay: DGJ_EMULATOR_SEED={seed}"
    pointers = (ctypes.c_void_p * len(parameters))(*(ctypes.addressof(p) for p in parameters))
    message = ctypes.create_string_buffer(1 << 16)
    statistics = (ctypes.c_uint64 * 2)()
    failed = build.runtime().dgj_emulator_run(
        entry,
        pointers,
        ctypes.c_uint32(blocks),
        ctypes.c_uint32(threads),
        ctypes.c_uint32(cluster),
        ctypes.c_uint32(shared_bytes),
        ctypes.c_uint64(seed),
        ctypes.c_uint32(cut_sums),
        (ctypes.c_uint32 * len(left))(*left),
        ctypes.c_uint32(len(left)),
        (Buffer * len(buffers))(*buffers),
        ctypes.c_uint32(len(buffers)),
        message,
        ctypes.c_uint32(len(message)),
        statistics,
    )
    if failed:
        raise EmulatorFault(f"{message.value.decode()}\n  {latest}")
    return Statistics(*statistics)


def planted(header: str, old: str, new: str):
    """A patch: `new` for `old`, which stands in `header` ("": in the kernel) once, however its lines are
    broken."""
    pattern = re.compile(r"\s+".join(map(re.escape, old.split())))

    def patch(text, headers):
        body = headers[header] if header else text
        count = len(pattern.findall(body))
        if count != 1:  # not an AssertionError, which would count as a rejection
            raise LookupError(f"the kernel has changed: {old!r} stands there {count} times")
        body = pattern.sub(lambda _: new, body)
        return (text, {**headers, header: body}) if header else (body, headers)

    return patch


def compiled(source, patch=None):
    text, headers = source.text, dict(source.headers)
    if patch is not None:
        text, headers = patch(text, headers)
    return build.load_kernel(build.compile_kernel(text, headers, source.entry))


def run_gemm(
    plan, a, sfa, b, sfb, d, c=None, bias=None, alpha=1.0, *, sms=2, seed=0, patch=None
) -> Statistics:
    """D as fp8_gemm_nt computes it, on a machine of `sms` SMs. `patch` may change the emitted text."""
    m, k = a.shape
    plan = plans.for_call(plan, c is not None or bias is not None or alpha != 1)
    shape = plan.shape
    maps = [
        encode_map(a, k, shape["a_box_rows"]),
        encode_map(b, k, shape["b_box_rows"]),
        encode_map(d if shape["d_box_rows"] else None, d.shape[1], shape["d_box_rows"]),
    ]
    args = GemmArgs(
        sfa.data_ptr(),
        sfb.data_ptr(),
        d.data_ptr(),
        c.data_ptr() if c is not None else 0,
        bias.data_ptr() if bias is not None else 0,
        *sfa.stride(),
        *sfb.stride(),
        d.stride(0),
        c.stride(0) if c is not None else 0,
        m,
        alpha,
        bias is not None and bias.dtype == torch.float32,
        0,
    )
    inputs = [t for t in (a, sfa, b, sfb, c, bias) if t is not None]
    return run(
        compiled(plans.emit(plan), patch),
        [*maps, args],
        [extent(d, True), *(extent(t, False) for t in inputs)],
        blocks=plan.grid_blocks(m, sms),
        threads=shape["threads"],
        cluster=shape["cluster"],
        shared_bytes=shape["smem_bytes"],
        seed=seed,
        what=f"{plan} m={m} sms={sms}",
    )


def constants(text: str) -> dict[str, int]:
    return {name: int(value) for name, value in re.findall(r"constexpr unsigned (\w+) = (\d+);", text)}


def run_cast(source, x, q, sf, *, ctas=None, seed=0, patch=None) -> Statistics:
    """q and sf as the cast kernel computes them from x, launched as csrc/runtime/cast.cpp does.

    ctas: fewer than there are tiles, as with fewer SMs; None: one for each tile."""
    c = constants(source.text)
    rows, cols = x.shape
    element, per_token = x.element_size(), c["kGranRows"] == 1
    blocks = -(-cols // c["kGranK"])
    lanes = c["kGranRows"] * c["kGranK"] // (16 // element * c["kSpan"])
    per_row = blocks * lanes if per_token else blocks
    per_cta = c["kThreads"] * (c["kUnits"] // c["kSpan"]) if per_token else c["kThreads"] // lanes
    addresses = x.data_ptr() % 16 == 0 and q.data_ptr() % (16 // element) == 0
    pitches = rows == 1 or (x.stride(0) * element % 16 == 0 and q.stride(0) % (16 // element) == 0)
    shift = 31 + (per_row - 1).bit_length()
    tiles = -(-(-(-rows // c["kGranRows"]) * per_row) // per_cta)
    if ctas is not None and ctas >= tiles:
        raise ValueError(f"{ctas} CTAs are not fewer than {tiles} tiles")
    args = CastArgs(
        x.data_ptr(),
        q.data_ptr(),
        sf.data_ptr(),
        x.stride(0) * element,
        q.stride(0),
        *sf.stride(),
        rows,
        cols,
        per_row,
        -(-(1 << shift) // per_row),
        shift,
        cols % (16 // element) == 0 and addresses and pitches,
        tiles,
    )
    return run(
        compiled(source, patch),
        [args],
        [extent(q, True), extent(sf, True), extent(x, False)],
        blocks=ctas or tiles,
        threads=c["kThreads"],
        cluster=1,
        shared_bytes=c["kThreads"] // 32 * 4,
        seed=seed,
        what=f"{source.text.splitlines()[0][3:]} of {rows} x {cols}, {ctas or tiles} CTAs",
    )
