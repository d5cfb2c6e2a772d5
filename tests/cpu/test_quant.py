"""Quantisation and scale layouts on CPU tensors, bit for bit against explicitly rounded float64 numbers."""

import numpy as np
import pytest
import torch

import deep_gemm_jit as dg
from deep_gemm_jit import layouts, quant

E4M3 = torch.float8_e4m3fn
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
LARGEST = 448.0


def bits(t: torch.Tensor) -> torch.Tensor:
    return t.contiguous().view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[t.element_size()])


def assert_same_bits(got: torch.Tensor, want: torch.Tensor) -> None:
    assert got.shape == want.shape and got.dtype == want.dtype
    assert torch.equal(bits(got), bits(want)), int((bits(got) != bits(want)).sum())


def padded_blocks(x: torch.Tensor, gran_rows: int, gran_k: int) -> np.ndarray:
    """float32 [row blocks, gran_rows, column blocks, gran_k], zeros past the edges."""
    m, n = x.shape
    rows, cols = layouts.align(m, gran_rows), layouts.align(n, gran_k)
    wide = np.zeros((rows, cols), dtype=np.float32)
    wide[:m, :n] = x.float().numpy()
    return wide.reshape(rows // gran_rows, gran_rows, cols // gran_k, gran_k)


def reference_scale(amax: np.ndarray, use_ue8m0: bool) -> np.ndarray:
    # A quotient of two FP32 numbers, computed in FP64 and rounded to FP32, is the correctly rounded one.
    sf = (np.maximum(amax.astype(np.float32), np.float32(1e-4)).astype(np.float64) / LARGEST).astype(
        np.float32
    )
    if use_ue8m0:
        mantissa, exponent = np.frexp(sf.astype(np.float64))
        sf = np.ldexp(1.0, np.where(mantissa == 0.5, exponent - 1, exponent)).astype(np.float32)
    return sf


def round_to_e4m3(x: np.ndarray) -> np.ndarray:
    """Finite float32 -> float64 values of e4m3, to nearest even, saturated; trusts no conversion of torch."""
    x = np.clip(x.astype(np.float64), -LARGEST, LARGEST)
    _, exponent = np.frexp(x)
    step = np.ldexp(1.0, np.maximum(exponent - 1, -6) - 3)  # 3 mantissa bits; subnormals below 2^-6
    return np.rint(x / step) * step


def reference(
    x: torch.Tensor, gran_rows: int, gran_k: int, use_ue8m0: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    blocks = padded_blocks(x, gran_rows, gran_k)
    sf = reference_scale(np.abs(blocks).max(axis=(1, 3)), use_ue8m0)
    inverse = (1.0 / sf.astype(np.float64)).astype(np.float32)
    product = blocks * inverse[:, None, :, None]  # FP32 by FP32
    assert product.dtype == np.float32
    values = round_to_e4m3(product).reshape(blocks.shape[0] * gran_rows, -1)[: x.shape[0], : x.shape[1]]
    return torch.from_numpy(values), torch.from_numpy(sf)


def assert_quantised(
    q: torch.Tensor, sf: torch.Tensor, x: torch.Tensor, gran_rows: int, gran_k: int, ue8m0: bool
):
    values, scales = reference(x, gran_rows, gran_k, ue8m0)
    assert q.dtype == E4M3 and q.is_contiguous() and q.shape == x.shape
    assert_same_bits(sf, scales)
    assert torch.equal(q.double(), values), int((q.double() != values).sum())
    assert torch.equal(q.double().signbit(), x.signbit())  # a value that became 0 keeps its sign


def sample(m: int, n: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Magnitudes over many octaves, zeros, a block of tiny values, and exact ties of e4m3."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(m, n, generator=g) * torch.exp2(torch.randint(-12, 9, (m, n), generator=g).float())
    if m * n > 0:
        x[torch.rand(m, n, generator=g) < 0.05] = 0.0
        x[m // 2, :] = torch.randn(n, generator=g) * 1e-6
        x[0, : min(n, 32)] = (torch.arange(min(n, 32)) * 0.5 + 1.0)[: min(n, 32)]
    return x.to(dtype)


SHAPES = ((1, 128), (3, 1), (5, 31), (7, 129), (64, 576), (130, 1000), (257, 128))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("gran_k", (32, 64, 128))
@pytest.mark.parametrize("use_ue8m0", (False, True))
def test_per_token_is_the_formula_bit_for_bit(dtype, gran_k, use_ue8m0):
    for m, n in SHAPES:
        x = sample(m, n, dtype)
        q, sf = dg.per_token_cast_to_fp8(x, use_ue8m0, gran_k)
        assert sf.shape == (m, layouts.ceil_div(n, gran_k)) and sf.is_contiguous()
        assert_quantised(q, sf, x, 1, gran_k, use_ue8m0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("gran_k", (32, 64, 128))
@pytest.mark.parametrize("use_ue8m0", (False, True))
def test_per_block_is_the_formula_bit_for_bit(dtype, gran_k, use_ue8m0):
    for m, n in SHAPES:
        x = sample(m, n, dtype, seed=1)
        q, sf = dg.per_block_cast_to_fp8(x, use_ue8m0, gran_k)
        assert sf.shape == (layouts.ceil_div(m, gran_k), layouts.ceil_div(n, gran_k)) and sf.is_contiguous()
        assert_quantised(q, sf, x, gran_k, gran_k, use_ue8m0)


@pytest.mark.parametrize("m, n", ((128, 64), (130, 17), (1, 5)))
def test_per_channel_scales_run_down_the_columns(m, n):
    x = sample(m, n, torch.bfloat16, seed=2)
    q, sf = dg.per_channel_cast_to_fp8(x)
    assert sf.shape == (layouts.ceil_div(m, 128), n) and sf.is_contiguous() and q.is_contiguous()
    values, scales = reference(x, 128, 1, False)
    assert_same_bits(sf, scales)
    assert torch.equal(q.double(), values)


def test_every_finite_bfloat16_and_float16():
    """All 16-bit patterns, each alone with 448 in its block: the conversion itself, with scale 1."""
    for dtype in (torch.bfloat16, torch.float16):
        x = torch.arange(-32768, 32768, dtype=torch.int32).to(torch.int16).view(dtype)
        x = x[x.float().abs() <= LARGEST]
        rows = torch.zeros(x.numel(), 32, dtype=dtype)
        rows[:, 0], rows[:, 1] = x, LARGEST
        q, sf = dg.per_token_cast_to_fp8(rows, gran_k=32)
        assert torch.equal(sf, torch.ones_like(sf))
        assert torch.equal(q[:, 0].double(), torch.from_numpy(round_to_e4m3(x.float().numpy())))


def test_the_largest_of_a_block_never_overflows():
    x = torch.linspace(1e-5, 3.0, 4096).view(-1, 1).repeat(1, 32)
    q, _ = dg.per_token_cast_to_fp8(x, gran_k=32)
    assert q.float().max() == LARGEST and not q.float().isnan().any()
    big = torch.full((1, 32), torch.finfo(torch.float32).max)
    q, sf = dg.per_token_cast_to_fp8(big, gran_k=32)
    assert torch.equal(q.float(), torch.full((1, 32), LARGEST)) and sf.isfinite().all()


def test_a_block_of_zeros_has_the_smallest_scale():
    q, sf = dg.per_token_cast_to_fp8(torch.zeros(2, 256, dtype=torch.bfloat16))
    assert torch.equal(bits(q), torch.zeros(2, 256, dtype=torch.uint8))
    assert torch.equal(sf, torch.full((2, 2), np.float32(1e-4) / np.float32(LARGEST)))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("use_ue8m0", (False, True))
@pytest.mark.parametrize("negative", (False, True))
def test_what_is_not_finite_spoils_its_own_block_only(dtype, use_ue8m0, negative):
    sign = -1.0 if negative else 1.0
    clean = sample(256, 384, dtype, seed=3)
    dirty = clean.clone()
    dirty[5, 130], dirty[200, 3] = sign * float("nan"), sign * float("inf")
    for cast, gran_rows in ((dg.per_token_cast_to_fp8, 1), (dg.per_block_cast_to_fp8, 128)):
        q, sf = cast(dirty, use_ue8m0)
        want_q, want_sf = cast(clean, use_ue8m0)
        nan_block = (slice(5, 6) if gran_rows == 1 else slice(0, 128), slice(128, 256))
        inf_block = (slice(200, 201) if gran_rows == 1 else slice(128, 256), slice(0, 128))
        assert (bits(q)[nan_block] == 0x7F).all()
        assert bits(sf)[5 // gran_rows, 1] == 0x7FC00000
        assert bits(q)[200, 3] == 0x7F and bits(sf)[200 // gran_rows, 0] == 0x7F800000
        rest = q[inf_block].float()
        assert (rest[rest == rest] == 0).all() and int(rest.isnan().sum()) == 1
        back = dg.cast_back_from_fp8(q, sf)
        assert back[nan_block].isnan().all() and back[inf_block].isnan().all()
        others = torch.ones(256, 384, dtype=torch.bool)
        others[nan_block] = others[inf_block] = False
        assert torch.equal(bits(q)[others], bits(want_q)[others])
        same = torch.ones_like(sf, dtype=torch.bool)
        same[5 // gran_rows, 1] = same[200 // gran_rows, 0] = False
        assert torch.equal(sf[same], want_sf[same])


@pytest.mark.parametrize("shape", ((0, 128), (5, 0), (0, 0)))
def test_empty_tensors(shape):
    m, n = shape
    x = torch.empty(shape, dtype=torch.bfloat16)
    q, sf = dg.per_token_cast_to_fp8(x)
    assert q.shape == shape and sf.shape == (m, layouts.ceil_div(n, 128))
    q, sf = dg.per_block_cast_to_fp8(x)
    assert q.shape == shape and sf.shape == (layouts.ceil_div(m, 128), layouts.ceil_div(n, 128))
    q, sf = dg.per_token_cast_to_fp8(x, use_ue8m0=True, use_packed_ue8m0=True)
    assert sf.dtype == torch.int32 and sf.shape == (m, layouts.ceil_div(n, 512))


def test_strides_do_not_change_the_result():
    x = sample(40, 300, torch.bfloat16, seed=4)
    wide = torch.full((40, 411), float("nan"), dtype=torch.bfloat16)
    wide[:, 7:307] = x
    views = (wide[:, 7:307], x.t().contiguous().t(), x.repeat_interleave(2, dim=0)[::2])
    for cast in (dg.per_token_cast_to_fp8, dg.per_block_cast_to_fp8):
        want_q, want_sf = cast(x)
        for view in views:
            assert not view.is_contiguous()
            q, sf = cast(view)
            assert_same_bits(q, want_q)
            assert_same_bits(sf, want_sf)
    row = x[:1].expand(6, 300)  # rows on one another: reading that is fine
    assert_same_bits(dg.per_token_cast_to_fp8(row)[0], dg.per_token_cast_to_fp8(row.contiguous())[0])
    column = x[:, :1]
    assert_same_bits(dg.per_token_cast_to_fp8(column)[0], dg.per_token_cast_to_fp8(column.contiguous())[0])


@pytest.mark.parametrize("n", (32, 96, 512, 1152, 2304))
@pytest.mark.parametrize("gran_k", (32, 128))
def test_packed_scales_are_the_exponents_of_the_unpacked(n, gran_k):
    x = sample(13, n, torch.bfloat16, seed=5)
    q, packed = dg.per_token_cast_to_fp8(x, True, gran_k, use_packed_ue8m0=True)
    want_q, sf = dg.per_token_cast_to_fp8(x, True, gran_k)
    assert_same_bits(q, want_q)
    blocks = layouts.ceil_div(n, gran_k)
    assert packed.dtype == torch.int32 and packed.shape == (13, layouts.ceil_div(blocks, 4))
    assert packed.stride() == (1, 16)
    for block in range(packed.shape[1] * 4):
        byte = (packed[:, block // 4] >> (block % 4 * 8)) & 0xFF
        want = torch.log2(sf[:, block]).int() + 127 if block < blocks else torch.zeros(13, dtype=torch.int32)
        assert torch.equal(byte, want)
    assert torch.equal(dg.unpack_ue8m0_from_int(packed)[:, :blocks], sf)
    assert torch.equal(dg.cast_back_from_fp8(q, packed, gran_k, True), dg.cast_back_from_fp8(q, sf, gran_k))


def test_cast_back_multiplies_by_the_scale_of_the_block():
    x = sample(200, 300, torch.float32, seed=6)
    q, sf = dg.per_block_cast_to_fp8(x)
    back = dg.cast_back_from_fp8(q, sf)
    assert back.dtype == torch.float32
    for i, j in ((0, 0), (127, 127), (128, 128), (199, 299), (3, 256)):
        assert back[i, j] == q[i, j].float() * sf[i // 128, j // 128]
    q, sf = dg.per_token_cast_to_fp8(x, gran_k=64)
    back = dg.cast_back_from_fp8(q, sf.t().contiguous().t(), gran_k=64)
    for i, j in ((0, 63), (7, 64), (199, 299)):
        assert back[i, j] == q[i, j].float() * sf[i, j // 64]
    normal = x.abs() > 2.0**-6 * sf.repeat_interleave(64, 1)[:, :300]
    assert ((back - x).abs()[normal] <= 2.0**-4 * x.abs()[normal]).all()


def test_ceil_to_ue8m0():
    x = torch.tensor([1.0, 1.0000001, 0.75, -3.0, 2.0**-126, 0.0, 1e-40, float("inf"), float("nan")])
    got = dg.ceil_to_ue8m0(x)
    want = torch.tensor([1.0, 2.0, 1.0, 4.0, 2.0**-126, 2.0**-126, 2.0**-126, float("inf"), float("nan")])
    assert torch.equal(got[:-1], want[:-1]) and got[-1].isnan()


def test_pack_and_unpack():
    x = torch.exp2(torch.arange(-126, 126, dtype=torch.float32)).view(9, 28)
    packed = dg.pack_ue8m0_to_int(x)
    assert packed.dtype == torch.int32 and packed.shape == (9, 7)
    assert packed[0, 0] == 0x04030201
    assert torch.equal(dg.unpack_ue8m0_from_int(packed), x)
    odd = dg.unpack_ue8m0_from_int(dg.pack_ue8m0_to_int(x[:, :5]))
    assert torch.equal(odd[:, :5], x[:, :5]) and (odd[:, 5:] == 0).all()
    spoiled = dg.unpack_ue8m0_from_int(
        dg.pack_ue8m0_to_int(torch.tensor([1.0, float("nan"), float("inf"), 2.0]))
    )
    assert spoiled[1].isnan() and spoiled[2].isnan() and spoiled[0] == 1 and spoiled[3] == 2
    with pytest.raises(ValueError, match="ceil_to_ue8m0"):
        dg.pack_ue8m0_to_int(torch.tensor([3.0]))
    with pytest.raises(ValueError, match="ceil_to_ue8m0"):
        dg.pack_ue8m0_to_int(torch.tensor([-2.0]))


# ---- layouts -------------------------------------------------------------------------------------


def test_small_integers():
    assert [dg.ceil_div(x, 4) for x in (0, 1, 4, 5)] == [0, 1, 1, 2]
    assert [dg.align(x, 4) for x in (0, 1, 4, 5)] == [0, 4, 4, 8]
    assert dg.get_tma_aligned_size(5, 4) == 8 and dg.get_tma_aligned_size(5, 2) == 8
    assert dg.get_tma_aligned_size(17, 1) == 32 and dg.get_tma_aligned_size(3, 16) == 3
    with pytest.raises(ValueError, match="element_size"):
        dg.get_tma_aligned_size(5, 3)


def mn_major(mn: int, k: int, pitch: int) -> torch.Tensor:
    return torch.randn(k, pitch).t()[:mn]


def test_mn_major_alignment_of_every_input_layout():
    for mn, k in ((1, 1), (1, 7), (5, 1), (8, 3), (130, 56)):
        pitch = layouts.align(mn, 4)
        for sf in (
            torch.randn(mn, k),
            mn_major(mn, k, mn),
            mn_major(mn, k, pitch + 4),
            torch.randn(mn, k * 2)[:, ::2],
        ):
            out = dg.get_mn_major_tma_aligned_tensor(sf)
            assert torch.equal(out, sf) and out.stride() == (1, pitch)
            assert out is sf or out.data_ptr() != sf.data_ptr()
            assert out.data_ptr() % 16 == 0 and out.untyped_storage().nbytes() >= pitch * k * 4
        groups = torch.randn(3, mn, k)
        out = dg.get_mn_major_tma_aligned_tensor(groups)
        assert torch.equal(out, groups) and out.stride() == (pitch * k, 1, pitch)


def test_a_result_that_shares_the_input_is_the_input():
    """A caller asserts that a result with the input's pointer has the input's shape and strides."""
    aligned = mn_major(5, 3, 8)
    assert dg.get_mn_major_tma_aligned_tensor(aligned) is aligned
    single = torch.randn(
        8, 1
    )  # stride of the last dimension is 1, not 8: a copy, though the bytes are in place
    out = dg.get_mn_major_tma_aligned_tensor(single)
    assert out.stride() == (1, 8) and out.data_ptr() != single.data_ptr()
    shifted = torch.randn(100)[1:25].view(3, 8).t()  # 4 bytes off: no tensor map can start there
    out = dg.get_mn_major_tma_aligned_tensor(shifted)
    assert out.stride() == (1, 8) and out.data_ptr() != shifted.data_ptr() and torch.equal(out, shifted)


def test_packed_layout():
    for shape in ((5, 7), (2, 9, 4), (1, 1)):
        sf = torch.exp2(torch.randint(-20, 20, shape).float())
        out = dg.get_mn_major_tma_aligned_packed_ue8m0_tensor(sf)
        *groups, mn, k = shape
        pitch, words = layouts.align(mn, 4), layouts.ceil_div(k, 4)
        assert out.dtype == torch.int32 and out.shape == (*groups, mn, words)
        assert out.stride() == ((pitch * words, 1, pitch) if groups else (1, pitch))
        assert torch.equal(dg.unpack_ue8m0_from_int(out)[..., :k], sf)
    garbage = torch.tensor([[3.0, float("nan"), -1.0, 0.0]])
    out = dg.get_mn_major_tma_aligned_packed_ue8m0_tensor(garbage)
    assert out.view(-1).tolist() == [128 | 255 << 8 | 127 << 16]


def test_required_layout():
    sfa, sfb = torch.randn(130, 3), torch.randn(5, 3)
    out = dg.transform_sf_into_required_layout(sfa, 130, 384, (1, 128, 128), is_sfa=True)
    assert out.stride() == (1, 132) and torch.equal(out, sfa)
    assert dg.transform_sf_into_required_layout(sfb, 600, 300, (1, 128, 128), is_sfa=False) is sfb
    assert dg.transform_sf_into_required_layout(sfb, 600, 300, (128, 128), disable_ue8m0_cast=True) is sfb
    grouped = torch.randn(4, 130, 3)
    out = dg.transform_sf_into_required_layout(
        sf=grouped, mn=130, k=384, recipe=(1, 128), num_groups=4, disable_ue8m0_cast=False
    )
    assert out.stride() == (132 * 3, 1, 132) and torch.equal(out, grouped)
    assert dg.transform_sf_into_required_layout(sfb[None], 600, 300, (1, 128, 128), 1, False).shape == (
        1,
        5,
        3,
    )


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"is_sfa": None}, ValueError, "is_sfa=True"),
        ({"recipe": (1, 128)}, ValueError, "leave is_sfa out"),
        ({"recipe": (1, 128, 128, 1)}, ValueError, "has 4 numbers"),
        ({"recipe": (1, 1, 32)}, NotImplementedError, "1x32"),
        ({"sf": torch.zeros(8, 1, dtype=torch.int32)}, NotImplementedError, "int32"),
        ({"sf": torch.zeros(8, 2, dtype=torch.float64)}, TypeError, "float64"),
        ({"mn": 9}, ValueError, r"\[9, 2\]"),
        ({"k": 257}, ValueError, r"\[8, 3\]"),
        ({"num_groups": 2}, ValueError, r"\[2, 8, 2\]"),
    ],
)
def test_wrong_arguments_of_the_layout(change, error, text):
    arguments = {"sf": torch.zeros(8, 2), "mn": 8, "k": 256, "recipe": (1, 128, 128), "is_sfa": True} | change
    with pytest.raises(error, match=text) as caught:
        dg.transform_sf_into_required_layout(**arguments)
    assert "transform_sf_into_required_layout" in str(caught.value)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda x: dg.per_token_cast_to_fp8(x[0]), ValueError, "1 dimensions"),
        (lambda x: dg.per_block_cast_to_fp8(x[None]), ValueError, "3 dimensions"),
        (lambda x: dg.per_token_cast_to_fp8(x.double()), TypeError, "float64"),
        (lambda x: dg.per_block_cast_to_fp8(x.int()), TypeError, "int32"),
        (lambda x: dg.per_token_cast_to_fp8(x, gran_k=48), ValueError, "gran_k is 48"),
        (lambda x: dg.per_block_cast_to_fp8(x, gran_k=256), ValueError, "gran_k is 256"),
        (lambda x: dg.per_channel_cast_to_fp8(x, gran_k=1), ValueError, "gran_k is 1"),
        (lambda x: dg.per_token_cast_to_fp8(x, use_packed_ue8m0=True), ValueError, "use_ue8m0=True"),
        (lambda x: dg.cast_back_from_fp8(x, x), TypeError, "float8_e4m3fn"),
        (lambda x: dg.cast_back_from_fp8(x.to(E4M3), x[:, :3]), ValueError, r"\[4, 2\] or \[1, 2\]"),
        (lambda x: dg.cast_back_from_fp8(x.to(E4M3), x[:, :2].int()), TypeError, "use_packed_ue8m0=False"),
        (lambda x: dg.get_mn_major_tma_aligned_tensor(x.half()), TypeError, "float16"),
        (lambda x: dg.cast_back_from_fp8(x.to(E4M3), x, 0), ValueError, "gran_k is 0"),
        (lambda x: dg.cast_back_from_fp8(x.to(E4M3), x.int(), 0, True), ValueError, "gran_k is 0"),
        (lambda x: dg.cast_back_from_fp8(x.to(E4M3), None), TypeError, "sf is a NoneType"),
        (lambda x: dg.cast_back_from_fp8([1.0], x), TypeError, "x is a list"),
        (lambda x: dg.per_token_cast_to_fp8(None), TypeError, "per_token_cast_to_fp8: x is a NoneType"),
        (lambda x: dg.per_block_cast_to_fp8([[1.0]]), TypeError, "per_block_cast_to_fp8: x is a list"),
        (lambda x: dg.per_channel_cast_to_fp8(None), TypeError, "per_channel_cast_to_fp8: x is a NoneType"),
        (lambda x: dg.ceil_to_ue8m0(1.0), TypeError, "ceil_to_ue8m0: x is a float"),
        (lambda x: dg.pack_ue8m0_to_int(None), TypeError, "pack_ue8m0_to_int: x is a NoneType"),
        (lambda x: dg.unpack_ue8m0_from_int(7), TypeError, "packed is a int"),
        (lambda x: dg.get_mn_major_tma_aligned_tensor(x[0]), ValueError, "1 dimensions"),
        (lambda x: dg.ceil_to_ue8m0(x.half()), TypeError, "float16"),
        (lambda x: dg.unpack_ue8m0_from_int(x), TypeError, "float32"),
    ],
)
def test_wrong_arguments_of_the_casts(call, error, text):
    with pytest.raises(error, match=text):
        call(torch.ones(4, 256))


# ---- torch ---------------------------------------------------------------------------------------


def test_opcheck():
    x = sample(5, 200, torch.bfloat16)
    for arguments in ((x,), (x, True, 32), (x, True, 64, True)):
        torch.library.opcheck(torch.ops.deep_gemm_jit.per_token_cast_to_fp8.default, arguments)
    torch.library.opcheck(torch.ops.deep_gemm_jit.per_block_cast_to_fp8.default, (x, False, 128))


def test_fake_tensors_have_the_shapes_and_strides_of_real_ones():
    from torch._subclasses.fake_tensor import FakeTensorMode

    x = sample(6, 700, torch.bfloat16)
    real = (*dg.per_token_cast_to_fp8(x, True, 32, True), *dg.per_block_cast_to_fp8(x))
    with FakeTensorMode() as mode:
        y = mode.from_tensor(x)
        fake = (*dg.per_token_cast_to_fp8(y, True, 32, True), *dg.per_block_cast_to_fp8(y))
    for r, f in zip(real, fake, strict=True):
        assert r.shape == f.shape and r.dtype == f.dtype and r.stride() == f.stride()


def test_compiled_without_graph_breaks():
    x = sample(9, 256, torch.bfloat16)
    compiled = torch.compile(dg.per_token_cast_to_fp8, fullgraph=True, backend="aot_eager")
    for got, want in zip(compiled(x), dg.per_token_cast_to_fp8(x), strict=True):
        assert_same_bits(got, want)


def test_results_carry_no_gradient():
    x = torch.randn(3, 128, requires_grad=True)
    q, sf = dg.per_token_cast_to_fp8(x)
    assert not q.requires_grad and not sf.requires_grad


def test_the_names_of_the_other_library_are_the_same_functions():
    from deep_gemm_jit import utils
    from deep_gemm_jit.utils import layout, math

    for name in quant.__all__:
        assert getattr(math, name) is getattr(quant, name) is getattr(dg, name) is getattr(utils, name)
    for name in layouts.__all__:
        assert getattr(utils, name) is getattr(layouts, name) is getattr(dg, name)
    assert layout.get_mn_major_tma_aligned_tensor is layouts.get_mn_major_tma_aligned_tensor
