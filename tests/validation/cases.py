"""The validation set: micro-kernels, their inputs, and what their outputs are compared for."""

import functools
import hashlib
import random
import re
import struct
from dataclasses import dataclass, field, replace
from pathlib import Path

HERE = Path(__file__).resolve().parent
U8, U32, F16, F32, BF16 = 0, 2, 6, 7, 9  # CUtensorMapDataType
BYTES = {U8: 1, U32: 4, F16: 2, F32: 4, BF16: 2}


@dataclass(frozen=True)
class MapSpec:
    """A tensor map of the case's second input, or of its output; innermost dimension first."""

    extents: tuple[int, ...]
    pitches: tuple[int, ...]  # bytes, of all dimensions but the innermost
    box: tuple[int, ...]
    kind: int = U8
    swizzle: int = 128
    offset: int = 0  # bytes from the start of the buffer
    buffer: str = "x"  # "x", "y" or "out"

    @property
    def box_bytes(self) -> int:
        return functools.reduce(int.__mul__, self.box) * BYTES[self.kind]


@dataclass(frozen=True)
class Case:
    name: str
    kernel: str  # of kernels/
    out: bytes  # the output before the kernel runs
    constants: tuple[tuple[str, int], ...] = ()
    at: tuple[int, ...] = ()
    data: bytes = bytes(16)  # ProbeArgs.in
    x: bytes = bytes(16)
    y: bytes = bytes(16)
    maps: tuple[MapSpec | None, MapSpec | None] = (None, None)
    threads: int = 128
    blocks: int = 1
    cluster: int = 1
    shared_bytes: int = 48 * 1024
    headers: tuple[tuple[str, str], ...] = ()  # generated ones
    rounding: "Rounding | None" = field(default=None, compare=False)  # None: every bit must agree
    refused: str = field(default="", compare=False)  # in the emulator's fault; empty: the case runs
    gpu_refuses: bool = field(default=False, compare=False)  # a refused case: as an illegal instruction
    product: tuple = field(
        default=(), compare=False
    )  # rows of A, rows of B, elements of K: what D is made of

    @property
    def text(self) -> str:
        lines = ["namespace dgj {", f"constexpr unsigned kThreads = {self.threads};"]
        lines += [f"constexpr unsigned {name} = {value};" for name, value in self.constants]
        lines += ["}", *(f'#include "{name}"' for name, _ in self.headers)]
        return "\n".join([*lines, f'#include "kernels/{self.kernel}.cuh"', ""])

    def digest(self) -> str:
        """Of everything that decides the output, device headers of the repository left out."""
        parts = [
            self.text,
            (HERE / "kernels" / f"{self.kernel}.cuh").read_text(),
            str(self.at),
            str(self.maps),
        ]
        parts += [f"{self.blocks} {self.cluster}", *(body for _, body in self.headers)]
        hashed = hashlib.sha256()
        for part in (*(p.encode() for p in parts), self.data, self.x, self.y, self.out):
            hashed.update(len(part).to_bytes(8, "little") + part)
        return hashed.hexdigest()[:16]


@dataclass(frozen=True)
class Rounding:
    """A product whose sums are rounded: outputs are compared with the exact ones by measure."""

    n: int
    steps: int
    rows: int
    a: bytes  # rows x 32 * steps e4m3, K-major
    b: bytes
    c: bytes  # accumulators before, by thread; empty: zero


def noise(name: str, count: int) -> bytes:
    return random.Random(name).randbytes(count)


def header_closure(text: str, generated: dict[str, str], read) -> dict[str, str]:
    """Every header that `text` includes, directly or not. `read` gives those of the package."""
    found, open_names = {}, re.findall(r'#include "([^"]+)"', text)
    while open_names:
        name = open_names.pop()
        if name in found:
            continue
        own = HERE / name
        found[name] = (
            generated[name] if name in generated else own.read_text() if own.exists() else read(name)
        )
        open_names += re.findall(r'#include "([^"]+)"', found[name])
    return found


# ---- tiled copies ----------------------------------------------------------------------------------------


def refusal(spec: MapSpec, at, stores: bool) -> dict:
    """What is expected of a tiled copy that Hopper does not run, or not as the emulator does."""
    if at[0] * BYTES[spec.kind] % 16 != 0:
        return {"refused": "is not a multiple of 16: an illegal instruction", "gpu_refuses": True}
    if stores and min(at) < 0:
        return {"refused": "is negative, which only loads may be: an illegal", "gpu_refuses": True}
    if spec.box[0] * BYTES[spec.kind] < spec.swizzle:
        return {"refused": f"with a swizzle of {spec.swizzle} is not modelled"}
    return {}


def load(name, spec: MapSpec, at, *, offset=0) -> Case:
    size = max(spec.offset + sum(p * e for p, e in zip(spec.pitches, spec.extents[1:], strict=True)), 0)
    size += spec.extents[0] * BYTES[spec.kind] + 256
    return Case(
        f"load {name}",
        "load_tile",
        noise(name + "out", spec.box_bytes),
        (("kRank", len(at)),),
        (*at, *(0,) * (5 - len(at)), spec.box_bytes, offset),
        x=noise(name, size),
        maps=(spec, None),
        **refusal(spec, at, stores=False),
    )


def store(name, spec: MapSpec, at, *, reduce=0) -> Case:
    size = sum(p * e for p, e in zip(spec.pitches, spec.extents[1:], strict=True))
    size += spec.offset + spec.extents[0] * BYTES[spec.kind] + 256
    data = noise(name, spec.box_bytes)
    if reduce and spec.kind != U32:  # small integers, whose sums no format rounds
        data = small_numbers(name, spec.box_bytes, spec.kind)
    before = (
        noise(name + "out", size) if not reduce or spec.kind == U32 else small_numbers(name, size, spec.kind)
    )
    return Case(
        f"store {name}",
        "store_tile",
        before,
        (("kRank", len(at)), ("kReduce", reduce)),
        (*at, *(0,) * (5 - len(at)), spec.box_bytes),
        data=data,
        maps=(replace(spec, buffer="out"), None),
        **refusal(spec, at, stores=True),
    )


def small_numbers(name: str, count: int, kind: int) -> bytes:
    draw = random.Random(name + "small")
    code = {F32: lambda v: struct.pack("<f", v), F16: lambda v: struct.pack("<e", v)}
    code[BF16] = lambda v: struct.pack("<f", v)[2:]
    return b"".join(code[kind](draw.randint(-100, 100)) for _ in range(-(-count // BYTES[kind])))[:count]


# The edges of a 200 x 20 tensor (rows of 256 bytes apart, so that what lies outside is not zero in memory).
EDGES = {
    "inside": (0, 0),
    "left": (-48, 3),
    "left by one": (-1, 0),
    "right": (160, 2),
    "right by one": (73, 0),
    "above": (16, -5),
    "below": (16, 17),
    "corner": (-64, -7),
    "opposite corner": (185, 19),
    "outside left": (-128, 0),
    "outside right": (200, 0),
    "outside above": (0, -8),
    "outside below": (0, 20),
    "far outside": (-2000000000, 2000000000),
    "unaligned": (37, 6),
    "left, whole chunks": (-16, 0),
    "right, whole chunks": (80, 0),
    "opposite corner, whole chunks": (192, 19),
    "outside right, whole chunks": (208, 0),
}


def tile_cases() -> list[Case]:
    plain = MapSpec((200, 20), (256,), (128, 8))
    cases = [load(f"edge {name}", plain, at) for name, at in EDGES.items()]
    cases += [store(f"edge {name}", plain, at) for name, at in EDGES.items()]
    for swizzle, width in ((128, 128), (64, 64), (32, 32), (0, 128), (0, 16), (0, 256), (128, 64), (64, 32)):
        spec = MapSpec((512, 64), (512,), (width, 32), swizzle=swizzle)
        cases.append(load(f"swizzle {swizzle} width {width}", spec, (16, 5)))
        cases.append(store(f"swizzle {swizzle} width {width}", spec, (16, 5)))
    for swizzle in (128, 64, 32):
        for offset in (128, 256, 512, 1024):
            spec = MapSpec((512, 64), (512,), (swizzle, 16), swizzle=swizzle)
            cases.append(load(f"swizzle {swizzle} at offset {offset}", spec, (0, 0), offset=offset))
    cases.append(load("one row", MapSpec((512, 64), (512,), (128, 1)), (128, 63)))
    cases.append(load("256 rows", MapSpec((128, 256), (128,), (128, 256)), (0, 3)))
    for kind in (F16, F32, BF16, U32):
        size = BYTES[kind]
        spec = MapSpec((100, 20), (512,), (128 // size, 8), kind)
        places = {"left": (-5, 1), "right": (100 - 64 // size // 2, 15)}
        places |= {"left, whole chunks": (-16 // size, 1), "right, whole chunks": (80 // size, 15)}
        for where, at in places.items():
            cases.append(load(f"{size}-byte elements {kind} {where}", spec, at))
            cases.append(store(f"{size}-byte elements {kind} {where}", spec, at))
    # Three dimensions: rows that end inside a group, groups that do not exist.
    grouped = MapSpec((200, 20, 5), (256, 256 * 24), (128, 8, 1))
    for where, at in {
        "inside": (0, 4, 2),
        "end of a group": (64, 17, 1),
        "below a group": (0, 20, 1),
        "above a group": (0, -3, 3),
        "last group": (128, 12, 4),
        "no group": (0, 0, 5),
        "negative group": (0, 0, -1),
    }.items():
        cases.append(load(f"3-D {where}", grouped, at))
        cases.append(store(f"3-D {where}", grouped, at))
    cases.append(
        load("3-D box of groups", MapSpec((200, 20, 5), (256, 6144), (64, 4, 3), swizzle=64), (32, 18, 3))
    )
    # Two dimensions of the same pitch: a box ends at any row (RowsOfBox, kernels_src/parts/grouped_rows.cuh).
    # Rows are counted from the ninth on.
    ended = MapSpec((200, 8, 21, 3), (256, 256, 256 * 24), (128, 8, 1, 1))
    for rows, row in ((8, 0), (5, 0), (5, 15), (1, 7), (8, 12)):
        at = (64, 8 - rows, row + rows, 1)
        cases.append(load(f"box of {rows} rows from {row} on", ended, at))
        cases.append(store(f"box of {rows} rows from {row} on", ended, at))
    for name, first in (("1-D", 936), ("1-D, whole chunks", 928)):
        cases.append(load(name, MapSpec((1000,), (), (128,), swizzle=0), (first,)))
        cases.append(store(name, MapSpec((1000,), (), (128,), swizzle=0), (first,)))
    four = MapSpec((96, 6, 5, 4), (96, 576, 2880), (32, 3, 2, 2), swizzle=32)
    cases.append(load("4-D", four, (80, 4, 3, 2)))
    cases.append(store("4-D", four, (80, 4, -1, 3)))
    cases.append(store("4-D, whole chunks", four, (80, 4, 4, 3)))
    five = MapSpec((64, 4, 3, 3, 3), (64, 256, 768, 2304), (16, 2, 2, 2, 2), F16, swizzle=32)
    five = replace(five, extents=(32, 4, 3, 3, 3))
    cases.append(load("5-D", five, (20, 3, 1, 2, -1)))
    cases.append(store("5-D", five, (20, 3, 1, 2, -1)))
    cases.append(load("5-D, whole chunks", five, (24, 3, 1, 2, -1)))
    cases.append(store("5-D, whole chunks", five, (24, 3, 1, 2, 2)))
    for kind in (U32, F32, F16, BF16):
        spec = MapSpec((100, 20), (512,), (128 // BYTES[kind], 8), kind)
        cases.append(store(f"add {kind}", spec, (100 - 64 // BYTES[kind], 15), reduce=1))
        if BYTES[kind] == 2:  # rows that end at a whole chunk, and within one
            cases.append(store(f"add {kind}, whole chunks", spec, (64, 15), reduce=1))
            to_a_chunk = replace(spec, extents=(104, 20))
            cases.append(store(f"add {kind} to a row of whole chunks", to_a_chunk, (72, 15), reduce=1))
    return cases


def multicast_cases() -> list[Case]:
    cases = []
    for masks in ((0b11, 0b11), (0b10, 0b01), (0b01, 0b11), (0b1111,) * 4, (0b0110, 0b1001, 0, 0b1111)):
        size, part = len(masks), 1024
        out = noise(f"multicast{masks}", size * size * part)
        cases.append(
            Case(
                f"multicast {' '.join(f'{m:b}' for m in masks)}",
                "multicast",
                out,
                (("kCluster", size),),
                (0, part, *masks),
                data=noise(f"multicast in {masks}", size * part),
                x=noise(f"multicast x {masks}", size * part),
                maps=(MapSpec((128, size * part // 128), (128,), (128, part // 128)), None),
                blocks=size,
                cluster=size,
            )
        )
    return cases


# ---- everything else but the tensor core -----------------------------------------------------------------


def copy_cases() -> list[Case]:
    cases = []
    for sizes in ((16, 16, 16), (4096, 16, 528), (48, 8192, 1040)):
        total = sum(sizes)
        places = (16, total + 32, 2 * total + 96)
        data = noise(f"bytes{sizes}", 4 * total + 256)
        for reduce in (0, 1):
            cases.append(
                Case(
                    f"bytes {'add' if reduce else ''}{sizes}",
                    "bytes",
                    noise(f"bytes out{sizes}", total),
                    (("kReduce", reduce),),
                    (*sizes, *places),
                    data=data,
                )
            )
    for rounds in (1, 2, 3, 9):
        cases.append(
            Case(
                f"ring {rounds}",
                "ring",
                noise(f"ring{rounds}", rounds * 1024),
                at=(rounds,),
                data=noise(f"ring in {rounds}", rounds * 512),
            )
        )
    for cluster, size in ((2, 1040), (3, 16), (4, 4096), (8, 256)):
        cases.append(
            Case(
                f"to block {cluster} x {size}",
                "to_block",
                noise(f"to block{cluster}", cluster * cluster * size),
                (("kCluster", cluster),),
                (size,),
                data=noise(f"to block in {cluster}", cluster * size),
                blocks=cluster,
                cluster=cluster,
            )
        )
    for size, valid in ((4, 0xFFFFFFFF), (4, 0), (4, 0x5A5A3C71), (8, 0x5A5A3C71), (16, 0x5A5A3C71)):
        cases.append(
            Case(
                f"cp.async {size} {valid:08x}",
                "copy_async",
                noise(f"cp{valid}", 3 * 128 * size),
                (("kBytes", size),),
                (3,),
                data=valid.to_bytes(16, "little") + noise(f"cp in {valid}", 3 * 128 * size),
            )
        )
    for order in ("rows", "shuffled"):
        chunks = list(range(32))
        if order == "shuffled":
            random.Random("chunks").shuffle(chunks)
        cases.append(
            Case(
                f"stmatrix {order}",
                "stmatrix",
                noise("stmatrix out", 2048),
                data=noise("stmatrix", 2048) + struct.pack("<32I", *chunks),
            )
        )
    return cases


def warp_cases() -> list[Case]:
    """Instructions that no kernel uses yet."""
    cases = []
    for split, segment in ((32, 0), (1, 1), (16, 0x1000), (27, 1)):
        draw = random.Random(f"warp{split}")
        data = [
            (draw.getrandbits(32) if t >= 64 else 0xABC00 | t % 8 * 2 + 1, draw.getrandbits(5))
            for t in range(128)
        ]
        cases.append(
            Case(
                f"collectives {split}",
                "warp",
                noise("warp out", 128 * 112),
                at=(split, segment),
                data=b"".join(struct.pack("<2I", *pair) for pair in data),
            )
        )
    for count in (1, 2, 4):
        for transposed in (0, 1):
            for step, shift in ((1, 0), (11, 6)):
                cases.append(
                    Case(
                        f"matrix x{count}{' transposed' if transposed else ''} {step}",
                        "matrix",
                        noise("matrix out", 4096),
                        (("kCount", count), ("kTransposed", transposed)),
                        (step, shift),
                        data=noise(f"matrix{count}{step}", 2048),
                    )
                )
    for blocks in (1, 3):
        cases.append(
            Case("atomics" + f" {blocks}", "atomics", bytes(1280), data=noise("atomics", 512), blocks=blocks)
        )
    for cluster, step in ((2, 1), (4, 3)):
        cases.append(
            Case(
                f"remote {cluster}",
                "remote",
                noise("remote out", cluster * 1024),
                (("kCluster", cluster),),
                (step,),
                data=noise("remote", cluster * 512),
                blocks=cluster,
                cluster=cluster,
            )
        )
    spec = MapSpec((200, 20), (256,), (128, 8))
    cases.append(
        Case(
            "prefetch",
            "prefetch",
            noise("p", 1024),
            at=(96, 15, 1024),
            data=noise("q", 1024),
            x=bytes(5120),
            maps=(spec, None),
        )
    )
    return cases


def words(name: str) -> list[int]:
    """Bits of floats: every class, around each rounding boundary of the narrow types, and any."""
    draw = random.Random(name)
    special = [
        0,
        0x80000000,
        0x7F800000,
        0xFF800000,
        0x7FC00000,
        0xFFC12345,
        0x7F800001,
        1,
        0x007FFFFF,
        0x00800000,
    ]
    found = [draw.choice(special) for _ in range(200)]
    for _ in range(1500):
        exponent = draw.choice(
            (103, 104, 112, 113, 116, 117, 118, 120, 121, 127, 135, 142, 143, draw.randrange(255))
        )
        low = draw.choice((0, 1, 0x7FFFF, 0x80000, 0x80001, 0xFFF, 0x1000, 0x1001, 0x7FFF, 0x8000, 0x8001))
        high = draw.randrange(8) << 20 | draw.choice((0, 0x80000, 0xFE000, 0xF0000, 0x10000, 0x2000))
        found.append(draw.randrange(2) << 31 | exponent << 23 | (high ^ low) & 0x7FFFFF)
    return found + [draw.getrandbits(32) for _ in range(400)]


def convert_cases() -> list[Case]:
    triples = list(zip(words("a"), words("b"), words("c"), strict=True))
    cases = [("special", triples)]
    halves = [(h << 16 | h, h << 16 | (h * 31 & 0xFFFF), h) for h in range(0, 65536, 7)]
    cases.append(("halves", halves))
    return [
        Case(
            f"convert {name}",
            "convert",
            bytes(64 * len(given)),
            at=(len(given),),
            data=struct.pack(f"<{3 * len(given)}I", *(w for t in given for w in t)),
            blocks=-(-len(given) // 128),
        )
        for name, given in cases
    ]


# ---- the tensor core -------------------------------------------------------------------------------------

E4M3_OF = {0: 0x00, 1: 0x38, 2: 0x40, 3: 0x44, 4: 0x48}


def e4m3(v: int) -> int:
    return E4M3_OF[abs(v)] | (0x80 if v < 0 else 0)


def wgmma_headers() -> dict[int, str]:
    """N -> the generated header, for every N that the planner knows."""
    from deep_gemm_jit import _core

    found = {}
    for n, k in ((4096, 7168), (576, 1152)):
        problem = _core.GemmProblem(n=n, k=k)
        for m in (1, 16, 32, 64, 128, 1000, 4096):
            for candidate in _core.candidates(problem, m, "h200"):
                plan = candidate["plan"]
                if plan.tile_cols not in found:
                    name = f"ptx/wgmma_n{plan.tile_cols}.cuh"
                    found[plan.tile_cols] = _core.emit(plan).headers[name]
    return dict(sorted(found.items()))


def product(name, n, header, a, b, *, steps=4, blocks=1, c=b"", rounding=False) -> Case:
    """A [64 * blocks, 128] and B [n, 128] in e4m3; C by thread."""
    spec_a = MapSpec((128, 64 * blocks), (128,), (128, 64))
    spec_b = MapSpec((128, n), (128,), (128, n), buffer="y")
    return Case(
        f"wgmma {name}",
        "wgmma_e4m3",
        noise(name, blocks * 64 * n * 4),
        (("kN", n), ("kSteps", steps)),
        (1 if c else 0,),
        data=c or bytes(16),
        x=a,
        y=b,
        maps=(spec_a, spec_b),
        blocks=blocks,
        headers=((f"ptx/wgmma_n{n}.cuh", header),),
        rounding=Rounding(n, steps, 64 * blocks, a, b, c) if rounding else None,
    )


def finite_codes(name: str, count: int, low: int, high: int, signs: bool) -> bytes:
    draw = random.Random(name)
    return bytes(draw.randrange(low, high) | (draw.randrange(2) << 7 if signs else 0) for _ in range(count))


def wgmma_cases() -> list[Case]:
    cases, headers = [], wgmma_headers()
    for n, header in headers.items():
        draw = random.Random(f"wgmma{n}")
        a = bytes(e4m3(draw.randint(-4, 4)) for _ in range(64 * 128))
        b = bytes(e4m3(draw.randint(-4, 4)) for _ in range(n * 128))
        c = struct.pack(f"<{64 * n}f", *(draw.randint(-100, 100) for _ in range(64 * n)))
        cases.append(product(f"exact n{n}", n, header, a, b))
        cases.append(product(f"exact n{n} plus C", n, header, a, b, c=c))
    n, header = 8, headers[8]
    # NaN in one row of A and one of B; infinities and zeros of both signs in C.
    a, b = bytearray(64 * 128), bytearray(n * 128)
    a[5 * 128 + 17], b[3 * 128 + 40], a[7 * 128], b[7 * 128] = 0x7F, 0xFF, 0xFE, 0x7E
    specials = [0.0, -0.0, float("inf"), -float("inf"), 1e-45, -1e-40, 3.4e38]
    c = struct.pack(f"<{64 * n}f", *(specials[i % 7] for i in range(64 * n)))
    cases.append(product("special values", n, header, bytes(a), bytes(b), c=c))
    cases.append(product("negative zeros", n, header, b"\x80" * (64 * 128), b"\x38" * (n * 128)))
    n, header, blocks = 64, headers[64], 4
    ranges = {"narrow": (0x28, 0x48), "wide": (0x00, 0x7F), "small": (0x00, 0x10), "large": (0x70, 0x7F)}
    for kind, (low, high) in ranges.items():
        for signs in (True, False):
            for steps in (1, 4):
                name = f"rounding {kind} {'signed' if signs else 'positive'} k{32 * steps}"
                a = finite_codes(name + "a", blocks * 64 * 128, low, high, signs)
                b = finite_codes(name + "b", n * 128, low, high, signs)
                cases.append(product(name, n, header, a, b, steps=steps, blocks=blocks, rounding=True))
    draw = random.Random("C")
    c = struct.pack(
        f"<{blocks * 64 * n}f",
        *(draw.uniform(-1, 1) * 2.0 ** draw.randint(-8, 16) for _ in range(blocks * 64 * n)),
    )
    a, b = (
        finite_codes("ca", blocks * 64 * 128, 0x28, 0x48, True),
        finite_codes("cb", n * 128, 0x28, 0x48, True),
    )
    cases.append(
        product("rounding narrow plus C k32", n, header, a, b, steps=1, blocks=blocks, c=c, rounding=True)
    )
    return cases


KERNELS = {  # and what their cases show
    "load_tile": "tiled loads of 1 to 5 dimensions: each edge, zero fill, swizzles, places in shared memory",
    "store_tile": "tiled stores and additions: each edge, negative coordinates, swizzles, groups",
    "multicast": "masks of clusters of 2 and 4, blocks that send nothing",
    "bytes": "bulk copies both ways, bytes that come before they are expected, additions",
    "ring": "phases and parities of full and empty barriers over several rounds",
    "to_block": "copies and arrives to the other blocks of clusters of 2 to 8",
    "copy_async": "cp.async of 4, 8 and 16 bytes with zero fill, and the arrive behind it",
    "stmatrix": "stmatrix.x4 to rows in any order",
    "convert": "FP32 arithmetic and conversions: special values, boundaries of rounding, halves",
    "wgmma_e4m3": "each N of the planner, C, special values; sums that are rounded",
    "wgmma_form": "types, A in registers, K-major and MN-major operands with each swizzle",
    "warp": "shuffles, votes, match and elect with whole and partial masks",
    "matrix": "ldmatrix and stmatrix x1, x2, x4, transposed or not",
    "atomics": "atomics on shared and global memory of one and three blocks; release and acquire",
    "remote": "loads and stores of another block's memory behind an arrive of cluster scope",
    "prefetch": "prefetches of maps, boxes, bytes and lines change nothing",
}


def all_cases() -> list[Case]:
    from validation import wgmma_forms  # which needs this module

    cases = [*tile_cases(), *multicast_cases(), *copy_cases(), *warp_cases(), *convert_cases()]
    cases += [*wgmma_cases(), *wgmma_forms.all_forms()]
    assert len({c.name for c in cases}) == len(cases) and {c.kernel for c in cases} == set(KERNELS)
    return cases
