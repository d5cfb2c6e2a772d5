"""Empty extents, strides that must not matter, and tensors of more than 2^31 elements."""

import pytest
import torch

import deep_gemm_jit as dg
from benchmarks import core_api
from benchmarks.data import FP8, random_operands
from benchmarks.reference import Reference

BF16 = torch.bfloat16


def assert_within_bounds(reference, d, **options):
    bad, worst = reference.check(d, **options)
    assert int(bad) == 0, f"{int(bad)} elements out of bounds, worst {float(worst):.3g} times the bound"


@pytest.mark.parametrize(("m", "n"), [(0, 64), (5, 0), (0, 0)])
def test_empty_output_returns(m, n):
    k = 256
    a, sfa = torch.empty(m, k, device="cuda").to(FP8), torch.empty(m, 2, device="cuda")
    b, sfb = torch.empty(n, k, device="cuda").to(FP8), torch.empty((n + 127) // 128, 2, device="cuda")
    dg.fp8_gemm_nt((a, sfa), (b, sfb), torch.empty(m, n, dtype=BF16, device="cuda"))


@pytest.mark.parametrize("with_c", [False, True])
@pytest.mark.parametrize("with_bias", [False, True])
def test_no_inner_extent_gives_bias_plus_c(with_c, with_bias):
    m, n = 33, 72
    a, sfa = torch.empty(m, 0, device="cuda").to(FP8), torch.empty(m, 0, device="cuda")
    b, sfb = torch.empty(n, 0, device="cuda").to(FP8), torch.empty(1, 0, device="cuda")
    c = torch.randn(m, n, device="cuda").to(BF16) if with_c else None
    bias = torch.randn(n, device="cuda") if with_bias else None
    d = torch.full((m, n), float("nan"), dtype=BF16, device="cuda")
    dg.fp8_gemm_nt((a, sfa), (b, sfb), d, c, alpha=2.0, bias=bias)
    want = torch.zeros(m, n, device="cuda")
    want = want + bias if with_bias else want
    want = want + c.float() if with_c else want
    assert torch.equal(d, want.to(BF16))


def test_strides_of_extent_one_are_never_looked_at():
    o = random_operands(1, 128, 128)
    reference = Reference(o.a, o.sfa, o.b, o.sfb)
    a = o.a.as_strided((1, 128), (7, 1))
    sfa = o.sfa.as_strided((1, 1), (5, 9))
    sfb = o.sfb.as_strided((1, 1), (3, 11))
    d = torch.full((1, 128), float("nan"), dtype=BF16, device="cuda").as_strided((1, 128), (13, 1))
    dg.fp8_gemm_nt((a, sfa), (o.b, sfb), d)
    assert_within_bounds(reference, d)


def test_lists_serve_as_operands():
    o = random_operands(9, 128, 256)
    d = torch.full((9, 128), float("nan"), dtype=BF16, device="cuda")
    dg.fp8_gemm_nt([o.a, o.sfa], [o.b, o.sfb], d)
    assert_within_bounds(Reference(o.a, o.sfa, o.b, o.sfb), d)


def random_bytes(rows, k):
    """Finite e4m3 values of both signs, cheap to make by the gigabyte. With one sign only, what the tensor
    core truncates in each addition adds up: see docs/notes/numerics.md."""
    magnitude = torch.randint(0, 0x50, (rows, k), dtype=torch.uint8, device="cuda")
    return magnitude.bitwise_or_(torch.randint_like(magnitude, 0, 2).mul_(0x80)).view(FP8)


@pytest.mark.parametrize(
    ("m", "n", "k", "what"),
    [(3, 270_000, 8192, "B"), (270_000, 24, 8192, "A"), (66_000, 32_776, 128, "D")],
)
def test_more_than_two_to_the_31_elements(m, n, k, what):
    k_blocks = k // 128
    a, b = random_bytes(m, k), random_bytes(n, k)
    sfa = torch.rand(m, k_blocks, device="cuda") + 0.5
    sfb = torch.rand((n + 127) // 128, k_blocks, device="cuda") + 0.5
    elements = {"A": m * k, "B": n * k, "D": m * n}[what]
    assert elements > 2**31
    d = torch.full((m, n), float("nan"), dtype=BF16, device="cuda")
    dg.fp8_gemm_nt((a, sfa), (b, sfb), d)
    assert not d.isnan().any()
    # Corners: the first and last rows of A against the first and last 128-row blocks of B.
    last = (n - 1) // 128 * 128 - 256
    for rows in (slice(0, 130), slice(max(0, m - 130), m)):
        for columns in (slice(0, min(n, 256)), slice(max(0, last), n)):
            reference = Reference(
                a[rows], sfa[rows], b[columns], sfb[columns.start // 128 : (columns.stop + 127) // 128]
            )
            assert_within_bounds(reference, d[rows, columns])


def test_every_candidate_plan_is_right():
    """Also those that the planner would not choose: a better cost model may choose them tomorrow."""
    for n, k in ((2112, 7168), (7168, 2048), (576, 1152)):
        for m in (1, 65, 129, 1000):
            o = random_operands(m, n, k)
            reference = Reference(o.a, o.sfa, o.b, o.sfb)
            plans = [plan for plan, _, _ in core_api.candidates(core_api.problem(n, k), m)]
            core_api.compile_ahead([], plans=plans)
            for plan in plans:
                d = torch.full((m, n), float("nan"), dtype=BF16, device="cuda")
                core_api.launch_with_plan(plan, o, d)
                bad, worst = reference.check(d)
                assert int(bad) == 0, f"M={m} {plan}: {int(bad)} out of bounds, worst {float(worst):.3g}"
