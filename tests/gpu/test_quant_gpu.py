"""Quantisation on the GPU: its speed, and the bits of the CPU version, which tests/cpu checks on its own."""

import itertools

import pytest
import torch

import deep_gemm_jit as dg
from deep_gemm_jit import layouts

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
FORMATS = ((False, False), (True, False), (True, True))  # use_ue8m0, use_packed_ue8m0


def assert_same_bits(got: torch.Tensor, want: torch.Tensor) -> None:
    assert got.shape == want.shape and got.dtype == want.dtype and got.stride() == want.stride()
    kind = {1: torch.uint8, 4: torch.int32}[got.element_size()]
    wrong = got.cpu().view(kind) != want.view(kind)
    assert not wrong.any(), f"{int(wrong.sum())} differ, first at {wrong.nonzero()[0].tolist()}"


def sample(m: int, n: int, dtype: torch.dtype, seed: int = 0, dirty: bool = False) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(m, n, generator=g) * torch.exp2(torch.randint(-12, 9, (m, n), generator=g).float())
    chance = torch.rand(m, n, generator=g)
    x[chance < 0.02] = 0.0
    if dirty:
        x[chance > 0.9995] = float("nan")
        x[(chance > 0.999) & (chance <= 0.9995)] = -float("inf")
    return x.to(dtype)


# What decides the path: columns that are whole 16-byte units or not, whole scale blocks or not; few rows.
SHAPES = ((1, 1), (1, 7168), (3, 128), (9, 100), (33, 136), (64, 1160), (130, 392), (257, 40), (1000, 2112))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("gran_k", (32, 64, 128))
@pytest.mark.parametrize(("use_ue8m0", "packed"), FORMATS)
def test_per_token_has_the_bits_of_the_cpu(dtype, gran_k, use_ue8m0, packed):
    for seed, (m, n) in enumerate(SHAPES):
        x = sample(m, n, dtype, seed, dirty=True)
        want = dg.per_token_cast_to_fp8(x, use_ue8m0, gran_k, packed)
        for got, wanted in zip(
            dg.per_token_cast_to_fp8(x.cuda(), use_ue8m0, gran_k, packed), want, strict=True
        ):
            assert_same_bits(got, wanted)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("gran_k", (32, 64, 128))
@pytest.mark.parametrize("use_ue8m0", (False, True))
def test_per_block_has_the_bits_of_the_cpu(dtype, gran_k, use_ue8m0):
    for seed, (m, n) in enumerate(SHAPES):
        x = sample(m, n, dtype, seed, dirty=True)
        want = dg.per_block_cast_to_fp8(x, use_ue8m0, gran_k)
        for got, wanted in zip(dg.per_block_cast_to_fp8(x.cuda(), use_ue8m0, gran_k), want, strict=True):
            assert_same_bits(got, wanted)


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16), ids=str)
def test_every_16_bit_pattern(dtype):
    """Each with 448 in its block, so that the scale is 1 where the pattern is finite and not larger."""
    x = torch.zeros(65536, 32, dtype=dtype)
    x[:, 0] = torch.arange(-32768, 32768, dtype=torch.int32).to(torch.int16).view(dtype)
    x[:, 17] = 448.0
    for got, want in zip(
        dg.per_token_cast_to_fp8(x.cuda(), False, 32), dg.per_token_cast_to_fp8(x, False, 32), strict=True
    ):
        assert_same_bits(got, want)


def test_fp32_scales_over_all_magnitudes():
    """The division and the reciprocal are the correctly rounded ones: a million random maxima."""
    g = torch.Generator().manual_seed(7)
    mantissa = 1.0 + torch.rand(1 << 20, generator=g)
    exponent = torch.randint(-20, 120, (1 << 20,), generator=g).float()
    x = torch.zeros(1 << 20, 32)
    x[:, 3] = mantissa * torch.exp2(exponent)
    x[:, 4] = x[:, 3] * torch.rand(1 << 20, generator=g)
    for got, want in zip(
        dg.per_token_cast_to_fp8(x.cuda(), False, 32), dg.per_token_cast_to_fp8(x, False, 32), strict=True
    ):
        assert_same_bits(got, want)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("offset", "pitch"), ((1, 0), (0, 3), (8, 8), (5, 11)))
def test_rows_of_any_pitch_and_alignment(dtype, offset, pitch):
    m, n = 70, 264
    x = sample(m, n, dtype, seed=3)
    wide = torch.full((m * (n + pitch) + offset,), float("nan"), dtype=dtype, device="cuda")
    view = wide[offset:].view(m, n + pitch)[:, :n]
    view.copy_(x)
    for cast in (dg.per_token_cast_to_fp8, dg.per_block_cast_to_fp8):
        for got, want in zip(cast(view), cast(x), strict=True):
            assert_same_bits(got, want)
        for got, want in zip(cast(x.t().contiguous().cuda().t()), cast(x), strict=True):
            assert_same_bits(got, want)


@pytest.mark.parametrize("gran_rows", (1, 128))
def test_nothing_is_written_beside_the_outputs(gran_rows):
    from deep_gemm_jit import _core

    for n in (136, 133):
        x = sample(131, n, torch.bfloat16).cuda()
        rows, blocks = layouts.ceil_div(131, gran_rows), layouts.ceil_div(n, 128)
        q = torch.full((135, n + 24), 0x55, dtype=torch.uint8, device="cuda")
        sf = torch.full((blocks + 1, rows + 5), -3.0, device="cuda")
        q_view, sf_view = q[2:133, 8 : 8 + n].view(torch.float8_e4m3fn), sf[:blocks, 2 : 2 + rows].t()
        _core.run_cast_to_fp8(x, q_view, sf_view, gran_rows, 128, False)
        cast = dg.per_token_cast_to_fp8 if gran_rows == 1 else dg.per_block_cast_to_fp8
        want_q, want_sf = cast(x)
        assert torch.equal(q_view.view(torch.uint8), want_q.view(torch.uint8)) and torch.equal(
            sf_view, want_sf
        )
        q_view.view(torch.uint8).fill_(0x55)
        sf_view.fill_(-3.0)
        assert (q == 0x55).all() and (sf == -3.0).all()


def test_empty_tensors():
    for m, n in ((0, 256), (5, 0)):
        x = torch.empty(m, n, dtype=torch.bfloat16, device="cuda")
        q, sf = dg.per_token_cast_to_fp8(x)
        assert q.shape == (m, n) and sf.shape == (m, layouts.ceil_div(n, 128)) and q.is_cuda and sf.is_cuda
        assert dg.per_block_cast_to_fp8(x)[1].shape == (layouts.ceil_div(m, 128), layouts.ceil_div(n, 128))


def test_helpers_on_the_gpu():
    x = sample(200, 1152, torch.bfloat16)
    q, packed = dg.per_token_cast_to_fp8(x.cuda(), True, 128, True)
    want_q, sf = dg.per_token_cast_to_fp8(x, True)
    back = dg.cast_back_from_fp8(q, packed, use_packed_ue8m0=True)
    assert torch.equal(back.cpu(), dg.cast_back_from_fp8(want_q, sf))
    for helper in (dg.get_mn_major_tma_aligned_tensor, dg.get_mn_major_tma_aligned_packed_ue8m0_tensor):
        assert_same_bits(helper(sf.cuda()), helper(sf))
    assert_same_bits(
        dg.get_mn_major_tma_aligned_packed_ue8m0_tensor(sf.cuda()), packed.cpu().t().contiguous().t()[:200]
    )
    for got, want in zip(dg.per_channel_cast_to_fp8(x.cuda()), dg.per_channel_cast_to_fp8(x), strict=True):
        assert_same_bits(got, want)


def test_more_than_two_to_the_31_elements():
    if torch.cuda.mem_get_info()[0] < 12 << 30:
        pytest.skip("needs 12 GiB of free GPU memory")
    m, n = 262_145, 8_200  # 2.15e9 elements
    x = torch.zeros(m, n, dtype=torch.bfloat16, device="cuda")
    tail = sample(129, n, torch.bfloat16, seed=9)
    x[-129:] = tail.cuda()
    q, sf = dg.per_token_cast_to_fp8(x)
    for got, want in zip((q[-129:], sf[-129:]), dg.per_token_cast_to_fp8(tail), strict=True):
        assert_same_bits(got, want)
    assert not q[:-129].view(torch.uint8).any()
    q, sf = dg.per_block_cast_to_fp8(x)  # 262145 = 2048 * 128 + 1: the last block row holds one row
    for got, want in zip((q[-1:], sf[-1:]), dg.per_block_cast_to_fp8(tail[-1:]), strict=True):
        assert_same_bits(got, want)


def test_other_streams_and_graph_capture():
    x = sample(512, 1024, torch.bfloat16).cuda()
    want = dg.per_token_cast_to_fp8(x)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(20_000_000)
        y = x * 1
        got = dg.per_token_cast_to_fp8(y)  # on another stream it would read y too early
    side.synchronize()
    assert torch.equal(got[0].view(torch.uint8), want[0].view(torch.uint8)) and torch.equal(got[1], want[1])

    static = torch.zeros_like(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        q, sf = dg.per_token_cast_to_fp8(static)
    static.copy_(x)
    graph.replay()
    assert torch.equal(q.view(torch.uint8), want[0].view(torch.uint8)) and torch.equal(sf, want[1])


@pytest.fixture
def limited_sms():
    yield dg.set_num_sms
    dg.set_num_sms(0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("n", (2112, 2109))
def test_number_of_sms_changes_no_bits(dtype, n, limited_sms):
    """Each block of a grid of 4 does many tiles, where it would do one; both paths of loads and stores."""
    x = sample(1000, n, dtype, seed=11, dirty=True).cuda()
    casts = {
        "per token": lambda: dg.per_token_cast_to_fp8(x),
        "per token, packed": lambda: dg.per_token_cast_to_fp8(x, True, 128, True),
        "per token, 32": lambda: dg.per_token_cast_to_fp8(x, False, 32),
        "per block": lambda: dg.per_block_cast_to_fp8(x),
        "per block, 32": lambda: dg.per_block_cast_to_fp8(x, True, 32),
    }
    for name, cast in casts.items():
        limited_sms(0)
        want = cast()
        for count in (4, 1, dg.get_num_sms() - 1):
            limited_sms(count)
            for got, wanted in zip(cast(), want, strict=True):
                kind = torch.uint8 if got.element_size() == 1 else torch.int32
                assert torch.equal(got.view(kind), wanted.view(kind)), f"{name} on {count} SMs"


def test_opcheck():
    x = sample(5, 200, torch.bfloat16).cuda()
    torch.library.opcheck(torch.ops.deep_gemm_jit.per_token_cast_to_fp8.default, (x, True, 64, True))
    torch.library.opcheck(torch.ops.deep_gemm_jit.per_block_cast_to_fp8.default, (x,))


def cold_microseconds(run, repeats: int = 25) -> float:
    """Median GPU time with a cold L2, flushed by reading: dirty lines would be written back in our time."""
    flush = torch.zeros(64 << 20, device="cuda")
    times = []
    for _ in range(repeats):
        flush.sum()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        run()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3)
    return sorted(times)[repeats // 2]


@pytest.mark.parametrize(
    ("m", "n", "cast"),
    [
        (*shape, cast)
        for shape, cast in itertools.product(
            ((8192, 7168), (16384, 7168)), ("per_token_cast_to_fp8", "per_block_cast_to_fp8")
        )
    ],
)
def test_speed_is_near_the_rate_of_a_copy(m, n, cast):
    """At least 80 % of the rate at which a device-to-device copy moves as many bytes in the same run."""
    x = torch.randn(m, n, device="cuda", dtype=torch.bfloat16)
    run = getattr(dg, cast)
    q, sf = run(x)
    moved = x.nbytes + q.nbytes + sf.nbytes
    source = torch.empty(moved // 2, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    copy = cold_microseconds(lambda: target.copy_(source))
    ours = cold_microseconds(lambda: run(x))
    assert ours <= copy / 0.8, f"{cast} {m}x{n}: {ours:.1f} us, a copy of {moved} bytes {copy:.1f} us"
