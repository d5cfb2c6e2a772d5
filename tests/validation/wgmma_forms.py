"""WGMMA in the types and operand layouts that the emulator models beside those of the kernels."""

import random
import struct

from validation.cases import BF16, F16, U8, Case, MapSpec, noise

# Order of emu::MatrixType; name in PTX, bytes, element type of a tensor map.
TYPES = {
    "e4m3": (0, 1, U8),
    "e5m2": (1, 1, U8),
    "bf16": (2, 2, BF16),
    "f16": (3, 2, F16),
    "s8": (4, 1, U8),
    "u8": (5, 1, U8),
}
FP8 = {
    "e4m3": {0: 0x00, 1: 0x38, 2: 0x40, 3: 0x44, 4: 0x48},
    "e5m2": {0: 0x00, 1: 0x3C, 2: 0x40, 3: 0x42, 4: 0x44},
}
ROWS_A = 64


def encode(kind: str, v: int) -> bytes:
    if kind in FP8:
        return bytes([FP8[kind][abs(v)] | (0x80 if v < 0 else 0)])
    if kind == "bf16":
        return struct.pack("<f", v)[2:]
    return struct.pack({"f16": "<e", "s8": "<b", "u8": "<B"}[kind], v)


def header(n: int, a: str, b: str, mn_a: bool, mn_b: bool, registers: bool) -> str:
    """probe::wgmma of one form."""
    integers, wide = a in ("s8", "u8"), TYPES[a][1] == 2
    count, letter = n // 2, "r" if integers else "f"
    d = ", ".join(f"%{i}" for i in range(count))
    first = count
    operand_a = "{" + ", ".join(f"%{first + i}" for i in range(4)) + "}" if registers else f"%{first}"
    inputs = [f'"r"(a[{i}])' for i in range(4)] if registers else ['"l"(a)']
    at_b = first + len(inputs)
    inputs += ['"l"(b)', '"r"(accumulate)']
    flags = "" if integers else ", 1, 1"
    if wide:
        flags += f", {int(mn_b)}" if registers else f", {int(mn_a)}, {int(mn_b)}"
    k = 32 // TYPES[a][1]
    instruction = f"wgmma.mma_async.sync.aligned.m64n{n}k{k}.{'s32' if integers else 'f32'}.{a}.{b}"
    outputs = ", ".join(f'"+{letter}"(d[{i}])' for i in range(count))
    return f"""#pragma once
#include "ptx/base.cuh"
namespace dgj::probe {{
template <u32, u32, u32, u32>
DGJ_DEVICE void wgmma({"i32" if integers else "float"} (&d)[{count}],
                      {"const u32 (&a)[4]" if registers else "u64 a"}, u64 b, u32 accumulate) {{
    asm volatile("{{\\n.reg .pred p;\\nsetp.ne.b32 p, %{at_b + 1}, 0;\\n"
        "{instruction} {{{d}}}, {operand_a}, %{at_b}, p{flags};\\n}}"
        : {outputs} : {", ".join(inputs)});
}}
}}
"""


def operand(kind: str, rows: int, k: int, mn_major: bool, swizzle: int, buffer: str, values):
    """The matrix [rows, k] in global memory, its map, and (boxes, step, leading, stride) in shared memory."""
    _, size, element = TYPES[kind]
    span = (swizzle or 16) // size  # elements of one row of a box
    if not mn_major:
        data = b"".join(encode(kind, values[r][i]) for r in range(rows) for i in range(k))
        spec = MapSpec((k, rows), (k * size,), (span, rows), element, swizzle, buffer=buffer)
        return data, spec, (k // span, span, rows * 16 if swizzle == 0 else 16, 8 * (swizzle or 16))
    data = b"".join(encode(kind, values[r][i]) for i in range(k) for r in range(rows))
    spec = MapSpec((rows, k), (rows * size,), (span, k), element, swizzle, buffer=buffer)
    box = k * (swizzle or 16)  # bytes
    offsets = (box, 8 * swizzle) if swizzle else (128, box)
    return data, spec, (rows // span, span, *offsets)


def fragments(kind: str, values) -> bytes:
    """A in registers: four words of each of 128 threads (PTX ISA, "Register Fragments")."""
    size = TYPES[kind][1]
    out = b""
    for thread in range(128):
        row, quarter = thread // 32 * 16 + thread % 32 // 4, thread % 4
        for word in range(4):
            first = (word // 2 * 16 + quarter * 4) // size
            line = values[row + word % 2 * 8]
            out += b"".join(encode(kind, line[first + i]) for i in range(4 // size))
    return out


def draw_values(name, a, b, n, mn_a, mn_b, swizzle_a, swizzle_b, registers):
    """Small integers for A and B by rows, as long as spans in shared memory, and the steps that are used."""
    draw = random.Random(name)
    step = 32 // TYPES[a][1]
    # Spans along K hold several steps, but one alone has MN-major operands, whose steps lie otherwise.
    steps = 1 if mn_a or mn_b or registers else min(swizzle_a or 32, swizzle_b or 32) // 32
    spread = 127 if a in ("s8", "u8") else 4

    def matrix(rows, kind, columns):
        return [
            [draw.randint(0 if kind == "u8" else -spread, spread) for _ in range(columns)]
            for _ in range(rows)
        ]

    def columns(mn, swizzle):
        return step if mn else max((swizzle or 32) // TYPES[a][1], step)

    return (
        matrix(ROWS_A, a, columns(mn_a, swizzle_a)),
        matrix(n, b, columns(mn_b, swizzle_b)),
        steps,
    )


def form(a, b, n, *, mn_a=False, mn_b=False, swizzle_a=128, swizzle_b=128, registers=False) -> Case:
    name = f"wgmma {a} {b} n{n}" + (
        " A in registers" if registers else f" A {'MN' if mn_a else 'K'}{swizzle_a}"
    )
    name += f" B {'MN' if mn_b else 'K'}{swizzle_b}"
    values_a, values_b, steps = draw_values(name, a, b, n, mn_a, mn_b, swizzle_a, swizzle_b, registers)
    x, spec_a, (boxes_a, step_a, lead_a, stride_a) = operand(
        a, ROWS_A, len(values_a[0]), mn_a, swizzle_a, "x", values_a
    )
    y, spec_b, (boxes_b, step_b, lead_b, stride_b) = operand(
        b, n, len(values_b[0]), mn_b, swizzle_b, "y", values_b
    )
    constants = {
        "kN": n,
        "kSteps": steps,
        "kTypeA": TYPES[a][0],
        "kTypeB": TYPES[b][0],
        "kMnMajorA": int(mn_a),
        "kMnMajorB": int(mn_b),
        "kSwizzleA": swizzle_a,
        "kSwizzleB": swizzle_b,
        "kRegistersA": int(registers),
        "kIntegers": int(a in ("s8", "u8")),
    }
    return Case(
        name,
        "wgmma_form",
        noise(name, 64 * n * 4),
        tuple(constants.items()),
        (
            0 if registers else boxes_a,
            step_a,
            boxes_b,
            step_b,
            spec_a.box_bytes,
            spec_b.box_bytes,
            lead_a,
            stride_a,
            lead_b,
            stride_b,
            32,
        ),
        data=fragments(a, values_a) if registers else bytes(16),
        x=x,
        y=y,
        maps=(spec_a, spec_b),
        headers=((f"ptx/wgmma_n{n}_form.cuh", header(n, a, b, mn_a, mn_b, registers)),),
        product=(values_a, values_b, steps * 32 // TYPES[a][1]),
    )


def all_forms() -> list[Case]:
    forms = [form(a, b, 64) for a in ("e4m3", "e5m2") for b in ("e4m3", "e5m2")]
    forms += [form(t, t, n) for t in ("bf16", "f16") for n in (8, 128, 256)]
    forms += [form("s8", "s8", 24), form("u8", "s8", 96), form("s8", "u8", 256), form("u8", "u8", 8)]
    for swizzle in (64, 32, 0):
        forms.append(form("e4m3", "e4m3", 72, swizzle_a=swizzle, swizzle_b=swizzle))
        forms.append(form("bf16", "bf16", 40, swizzle_a=swizzle, swizzle_b=swizzle))
    forms.append(form("e4m3", "e4m3", 40, swizzle_a=128, swizzle_b=32))
    for swizzle in (128, 64, 32, 0):
        forms.append(form("bf16", "bf16", 128, mn_a=True, mn_b=True, swizzle_a=swizzle, swizzle_b=swizzle))
    forms.append(form("f16", "f16", 64, mn_b=True, swizzle_a=64, swizzle_b=128))
    forms.append(form("f16", "f16", 192, mn_a=True, swizzle_a=64, swizzle_b=32))
    for a, b in (("e4m3", "e4m3"), ("e5m2", "e4m3"), ("bf16", "bf16"), ("f16", "f16"), ("s8", "s8")):
        forms.append(form(a, b, 32, swizzle_b=32, registers=True))
    forms.append(form("bf16", "bf16", 64, mn_b=True, swizzle_b=128, registers=True))
    return forms
