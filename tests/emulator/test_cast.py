"""Quantisation kernels: every plan, bit for bit what the CPU implementation gives."""

import pytest
import torch
from emulator import launch, problems

import deep_gemm_jit as dg
from deep_gemm_jit import _core

SOURCES = dict(_core.cast_sources())
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
# Whole 16-byte units and not, whole scale blocks and not, one row and more rows than a block of scales.
SHAPES = ((1, 1), (9, 100), (33, 136), (3, 1160), (130, 40))


def sample(m: int, n: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Magnitudes around every rounding of e4m3, with zeros, infinities and NaN."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(m, n, generator=g) * torch.exp2(torch.randint(-12, 9, (m, n), generator=g).float())
    chance = torch.rand(m, n, generator=g)
    x[chance < 0.02] = 0.0
    x[chance > 0.998] = float("nan")
    x[(chance > 0.996) & (chance <= 0.998)] = -float("inf")
    return problems.corner(x.to(dtype), 1, 16 if n % 8 == 0 else 3)


def outputs(like_q: torch.Tensor, like_sf: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Of the same strides, full of a byte that says that nobody wrote there."""
    q, sf = (torch.empty_strided(t.shape, t.stride(), dtype=t.dtype) for t in (like_q, like_sf))
    for t in (q, sf):
        t.untyped_storage().fill_(0xA5)
    return q, sf


def same_bits(got: torch.Tensor, want: torch.Tensor) -> None:
    kind = torch.uint8 if got.element_size() == 1 else torch.int32
    wrong = got.view(kind) != want.view(kind)
    assert not wrong.any(), f"{int(wrong.sum())} differ, the first at {wrong.nonzero()[0].tolist()}"


def cast_on_both(line: str, x: torch.Tensor, seed: int, patch=None, ctas=None) -> None:
    c = launch.constants(SOURCES[line].text)
    ue8m0 = "ue8m0" in line
    if c["kGranRows"] == 1:
        want = dg.per_token_cast_to_fp8(x, ue8m0, c["kGranK"], "packed" in line)
    else:
        want = dg.per_block_cast_to_fp8(x, ue8m0, c["kGranK"])
    got = outputs(*want)
    launch.run_cast(SOURCES[line], x, *got, ctas=ctas, seed=seed, patch=patch)
    for g, w in zip(got, want, strict=True):
        same_bits(g, w)


def dtype_of(line: str) -> torch.dtype:
    return DTYPES[line.split("x=")[1].split()[0]]


@pytest.mark.parametrize("line", SOURCES)
def test_cast_has_the_bits_of_the_cpu(line):
    for i, (m, n) in enumerate(SHAPES):
        for seed in launch.seeds((i % 2, 10 + i)):
            cast_on_both(line, sample(m, n, dtype_of(line), i), seed)


@pytest.mark.parametrize("line", SOURCES)
def test_fewer_ctas_than_tiles_give_the_same_bits(line):
    """As with set_num_sms: each CTA does several tiles, on both paths of loads and stores."""
    c, dtype = launch.constants(SOURCES[line].text), dtype_of(line)
    tile = c["kThreads"] * c["kUnits"] * 16 // dtype.itemsize
    for i, (ctas, tiles, n) in enumerate(((1, 3, 8 * c["kGranK"]), (2, 4, 5 * c["kGranK"] - 3))):
        rows = tile * tiles // n  # the last tile is not full
        for seed in launch.seeds((i,)):
            cast_on_both(line, sample(rows, n, dtype, i), seed, ctas=ctas)


@pytest.mark.smoke
@pytest.mark.parametrize("kind", ["bfloat16 scale=ue8m0_packed per 1x32", "float32 scale=fp32 per 128x128"])
def test_one_cast_of_each_kind(kind):
    line = f"cast_to_fp8 x={kind}"
    cast_on_both(line, sample(33, 264, dtype_of(line), 1), 2)
    cast_on_both(line, sample(9, 101, dtype_of(line), 2), 1)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_every_16_bit_pattern(dtype):
    """One in each row beside a 448, so that the scale is 1 where the pattern is finite and not larger."""
    x = torch.zeros(2048, 32 * 32, dtype=DTYPES[dtype])
    patterns = torch.arange(-32768, 32768, dtype=torch.int32).to(torch.int16).view(DTYPES[dtype])
    x[:, ::32] = patterns.view(2048, 32)
    x[:, 17::32] = 448.0
    cast_on_both(f"cast_to_fp8 x={dtype} scale=fp32 per 1x32", x, 0)


@pytest.mark.parametrize(
    ("line", "old", "new", "reason"),
    [
        (
            "cast_to_fp8 x=float32 scale=fp32 per 128x128",
            "amax);\n        ptx::sync_block();",
            "amax);",
            "not ordered before this read",
        ),
        (
            "cast_to_fp8 x=float32 scale=fp32 per 128x128",
            "ptx::sync_block();  // between turns",
            "//",
            "not ordered before this write",
        ),
        (
            "cast_to_fp8 x=bfloat16 scale=fp32 per 1x128",
            "tile < args.tiles; tile += ptx::grid_size()",
            "tile < ptx::grid_size(); tile += ptx::grid_size()",
            "differ",
        ),
        (
            "cast_to_fp8 x=bfloat16 scale=fp32 per 128x128",
            "ptx::shuffle_xor(amax, mask));\n    if constexpr (kWarps > 1)",
            "amax);\n    if constexpr (kWarps > 1)",
            "differ",
        ),
        (
            "cast_to_fp8 x=bfloat16 scale=fp32 per 1x128",
            "ptx::wait_for_prior_kernels();\n    DGJ_NO_UNROLL",
            "DGJ_NO_UNROLL",
            "before griddepcontrol.wait",
        ),
        (
            "cast_to_fp8 x=bfloat16 scale=fp32 per 1x128",
            "if (row >= args.rows || col >= args.cols) return v;",
            "if (row >= args.rows) return v;",
            "outside every buffer|differ",
        ),
        (
            "cast_to_fp8 x=bfloat16 scale=fp32 per 1x128",
            "if (ptx::thread_index() % kLanes == 0 && row[i] < args.rows)",
            "if (row[i] < args.rows)",
            "is written twice",
        ),
    ],
    ids=[
        "no barrier",
        "no barrier between turns",
        "one turn only",
        "no exchange",
        "no wait for prior kernels",
        "no column check",
        "all lanes store",
    ],
)
def test_a_fault_in_a_cast_is_rejected(line, old, new, reason):
    patch = launch.planted("cast/quantize.cuh", old, new)
    found = []
    for seed in (1, 0, 2, 3):
        for shape in ((130, 136), (513, 40)):
            try:
                cast_on_both(line, sample(*shape, dtype_of(line), 5), seed, patch, ctas=1)
            except AssertionError as error:
                found.append(str(error))
    assert found, "no timing shows the fault"
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(found[0])
