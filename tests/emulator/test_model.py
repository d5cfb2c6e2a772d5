"""The emulator's instructions against references written down here, where no GPU has judged them yet."""

import itertools
import struct

import pytest
import torch
from validation import cases, emulated, wgmma_forms

CASES = {case.name: case for case in cases.all_cases()}


# ---- tiled loads -----------------------------------------------------------------------------------------


def box_of(case: cases.Case) -> bytes:
    """What the box holds in shared memory, element by element."""
    spec, offset = case.maps[0], case.at[6]
    size, width = cases.BYTES[spec.kind], spec.box[0] * cases.BYTES[spec.kind]
    placed = bytearray(spec.box_bytes)
    for row, outer in enumerate(itertools.product(*(range(b) for b in reversed(spec.box[1:])))):
        at = [case.at[d + 1] + i for d, i in enumerate(reversed(outer))]
        row_inside = all(0 <= x < e for x, e in zip(at, spec.extents[1:], strict=True))
        for i in range(spec.box[0]):
            x = case.at[0] + i
            element = bytes(size)
            if row_inside and 0 <= x < spec.extents[0]:
                source = x * size + sum(a * p for a, p in zip(at, spec.pitches, strict=True))
                element = case.x[source : source + size]
            to = row * width + i * size
            address = offset + to  # kData is a multiple of what the pattern repeats after
            bits = {128: 7, 64: 3, 32: 1, 0: 0}[spec.swizzle]
            to ^= (address >> 7 & bits) << 4
            placed[to : to + size] = element
    return bytes(placed)


@pytest.mark.parametrize("name", [n for n, c in CASES.items() if c.kernel == "load_tile" and not c.refused])
def test_a_box_arrives_element_by_element(name):
    assert emulated.run(CASES[name], 2) == box_of(CASES[name])


# ---- wgmma -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", wgmma_forms.all_forms(), ids=lambda c: c.name)
def test_each_form_of_wgmma_multiplies(case):
    a, b, k = case.product
    n = len(b)
    out = struct.unpack(
        f"<{64 * n}{'i' if dict(case.constants)['kIntegers'] else 'f'}", emulated.run(case, 3)
    )
    for thread, i in itertools.product(range(128), range(n // 2)):
        row = thread // 32 * 16 + thread % 32 // 4 + i // 2 % 2 * 8
        column = i // 4 * 8 + thread % 4 * 2 + i % 2
        want = sum(a[row][j] * b[column][j] for j in range(k))
        assert out[thread * (n // 2) + i] == want, (row, column)


# ---- warps and atomics -----------------------------------------------------------------------------------


def test_shuffles_and_votes_of_a_whole_warp():
    case = CASES["collectives 32"]
    given = [struct.unpack_from("<2I", case.data, 8 * t) for t in range(128)]
    out = emulated.run(case, 5)
    for thread in range(128):
        lane, warp = thread % 32, [v for v, _ in given[thread // 32 * 32 :][:32]]
        b = given[thread][1]
        sources = [
            (lane - 1, lane >= 1),
            (lane + 3, lane + 3 < 32),
            (lane ^ 5, True),
            (0, True),
            (lane - 2, lane % 8 >= 2),
            (lane + 1, lane % 8 < 7),
            (lane ^ 7, True),
            (lane // 8 * 8 + b % 8, True),
            (lane - b % 8, lane % 8 >= b % 8),
            (lane + b % 8, lane % 8 + b % 8 < 8),
        ]
        want = [w for source, inside in sources for w in (warp[source if inside else lane], int(inside))]
        odd = [v & 1 for v in warp]
        want += [
            sum(bit << i for i, bit in enumerate(odd)),
            sum((v % 4 == warp[lane] % 4) << i for i, v in enumerate(warp)),
            0xFFFFFFFF if len({v >> 8 for v in warp}) == 1 else 0,
            1,
            int(all(odd)),
            int(any(odd)),
            int(len(set(odd)) == 1),
            int(len({v >> 31 for v in warp}) == 1),
        ]
        assert list(struct.unpack_from("<28I", out, thread * 112)) == want, thread


def test_atomics_of_three_blocks():
    case = CASES["atomics 3"]
    v = struct.unpack("<128I", case.data)
    out = emulated.run(case, 4)
    low = (1 << 32) - 1
    assert struct.unpack_from("<I", out, 0)[0] == 3 * sum(v) & low
    assert struct.unpack_from("<Q", out, 8)[0] == 3 * sum(v) << 20 & (1 << 64) - 1
    assert struct.unpack_from("<I", out, 16)[0] == max(v)
    assert struct.unpack_from("<f", out, 20)[0] == 3 * sum(x % 1024 for x in v)
    signed = [x - (x >> 31 << 32) for x in v]
    both = [0xFFFFFFFF, 100, 100]
    for x in v:
        both = [both[0] & (x | 0xFF0), both[1] | x & 0xFF00FF, both[2] ^ x]
    want = [228, 100 + sum(v) & low, min(100, *v), max(signed) & low, *both]
    want += [200 + sum(v) & low, 0, 100 + 3 * 128, 101, v[0] + 1 & low, v[0], 100, 100, 100]
    assert list(struct.unpack_from("<16I", out, 32)) == want
    assert struct.unpack_from("<256I", out, 256) == tuple(w for i in range(128) for w in (100 + i, 1))


# ---- arithmetic ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["convert special", "convert halves"])
def test_conversions_are_those_of_torch(name):
    case = CASES[name]
    a, b, c = (torch.frombuffer(bytearray(case.data), dtype=torch.int32).view(-1, 3)[:, i] for i in range(3))
    out = torch.frombuffer(bytearray(emulated.run(case)), dtype=torch.int32).view(-1, 16)
    fa, fb, fc = (t.contiguous().view(torch.float32) for t in (a, b, c))
    half = (c & 0xFFFF).to(torch.int16)
    wanted = {
        1: fa * fb,
        2: fa + fb,
        3: fa / fb,
        4: 1 / fa,
        8: half.view(torch.bfloat16).float(),
        9: half.view(torch.float16).float(),
    }
    for column, want in wanted.items():
        got = out[:, column].contiguous().view(torch.float32)
        number = ~want.isnan()
        assert torch.equal(got.isnan(), want.isnan())
        assert torch.equal(got[number].view(torch.int32), want[number].view(torch.int32))
        assert column == 8 or (out[:, column][~number] == 0x7FFFFFFF).all()
    for column, dtype, low, high in (
        (5, torch.bfloat16, fa, fb),
        (6, torch.float16, fa, fb),
        (14, torch.bfloat16, fb, fc),
        (15, torch.float16, fb, fc),
    ):
        for shift, values in ((0, low), (16, high)):
            bits, want = out[:, column] >> shift & 0xFFFF, values.to(dtype)
            number = ~values.isnan()
            assert torch.equal(bits[number], want.view(torch.int16)[number].int() & 0xFFFF)
            assert (bits[~number] == 0x7FFF).all()
