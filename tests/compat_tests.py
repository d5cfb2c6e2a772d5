"""The contract of DeepGEMM's callers: its traps T1-T16 and its tensor layouts, for the device of a fixture.

tests/cpu and tests/gpu each take all of these tests. T8 and T11 need processes of their own: see
test_dropin.py and tests/integration/test_shim.py. Each call is compared with float64 by oracle.py.
"""

import oracle
import pytest
import torch
from oracle import cast_blocks

import deep_gemm_jit as dg

E, K, N = 4, 384, 256
GARBAGE = float("nan")


@pytest.fixture(autouse=True)
def settings_stay():
    yield
    assert dg.get_mk_alignment_for_contiguous_layout() == 128
    assert dg.get_compile_mode() == 0


@pytest.fixture
def weights(device):
    torch.manual_seed(0)
    return cast_blocks(torch.randn(E, N, K, device=device) / 16)


def rows(count: int, device: str, k: int = K):
    return dg.per_token_cast_to_fp8(torch.randn(count, k, device=device))


def psum_layout(counts: list[int], alignment: int, device: str):
    """Ends of the groups, and how many rows they span."""
    ends, start = [], 0
    for count in counts:
        ends.append(start + count)
        start = dg.align(ends[-1], alignment)
    return torch.tensor(ends, dtype=torch.int32, device=device), start


def ids_layout(counts: list[int], alignment: int, device: str, fill_segment: bool = False):
    ends, total = psum_layout(counts, alignment, device)
    layout = torch.full((total,), -1, dtype=torch.int32, device=device)
    for group, (end, count) in enumerate(zip(ends.tolist(), counts, strict=True)):
        layout[end - count : dg.align(end, alignment) if fill_segment else end] = group
    return layout


def spoil(a, keep: torch.Tensor):
    """NaN into the values and scales of every row that `keep` leaves out."""
    a[0].view(torch.uint8)[~keep] = 0x7F
    a[1][~keep] = GARBAGE


def kept_rows(layout, total: int, psum: bool):
    keep = torch.zeros(total, dtype=torch.bool, device=layout.device)
    for found in oracle.rows_of(layout, E, total, psum):
        keep[found] = True
    return keep


class scope:  # noqa: N801  reads as a word in a with statement
    def __init__(self, alignment):
        self.alignment = alignment

    def __enter__(self):
        self.before = dg.get_mk_alignment_for_contiguous_layout()
        dg.set_mk_alignment_for_contiguous_layout(self.alignment)

    def __exit__(self, *_):
        dg.set_mk_alignment_for_contiguous_layout(self.before)


# ---- traps ---------------------------------------------------------------------------------------


def test_T1_the_alignment_is_128_outside_a_scope():
    assert dg.get_mk_alignment_for_contiguous_layout() == 128
    assert type(dg.get_mk_alignment_for_contiguous_layout()) is int


@pytest.mark.parametrize("alignment", [1, 8, 16, 100, 128])
def test_T2_groups_start_where_the_alignment_of_the_call_says(alignment, weights, device):
    counts = [5, 0, 130, 1]
    with scope(alignment):
        assert dg.get_mk_alignment_for_contiguous_layout() == alignment
        ends, total = psum_layout(counts, alignment, device)
        a, d = rows(total, device), torch.full((total, N), GARBAGE, dtype=torch.bfloat16, device=device)
        oracle.m_grouped_fp8_gemm_nt_contiguous(a, weights, d, ends, use_psum_layout=True)
        oracle.m_grouped_fp8_gemm_nt_contiguous(a, weights, d, ids_layout(counts, alignment, device))


@pytest.mark.parametrize("psum", [False, True])
def test_T3_gaps_tails_and_dead_blocks_may_hold_anything(psum, weights, device):
    counts, tail = [3, 0, 129, 64], 300
    layout, total = psum_layout(counts, 128, device)
    if not psum:
        layout = torch.cat([ids_layout(counts, 128, device), layout.new_full((tail,), -1)])
    total += tail
    a, d = rows(total, device), torch.full((total, N), 7, dtype=torch.bfloat16, device=device)
    spoil(a, kept_rows(layout, total, psum))
    oracle.m_grouped_fp8_gemm_nt_contiguous(a, weights, d, layout, use_psum_layout=psum)
    assert (d[total - tail :] == 7).all()
    nobody = layout.new_zeros(E) if psum else layout.new_full((total,), -1)
    d.fill_(7)
    dg.m_grouped_fp8_gemm_nt_contiguous(a, weights, d, nobody, use_psum_layout=psum)
    assert (d == 7).all()


@pytest.mark.parametrize("value", [0.0, 1.0, GARBAGE, -3.0, 1.7, float("inf"), 1e-42])
def test_T4_scales_of_inactive_rows_may_be_anything(value, weights, device):
    ends, total = psum_layout([3, 0, 5, 1], 128, device)
    a, d = rows(total, device), torch.zeros(total, N, dtype=torch.bfloat16, device=device)
    a[1][~kept_rows(ends, total, True)] = value
    for disable in (False, True):
        oracle.m_grouped_fp8_gemm_nt_contiguous(
            a, weights, d, ends, use_psum_layout=True, disable_ue8m0_cast=disable
        )
    packed = dg.get_mn_major_tma_aligned_packed_ue8m0_tensor(a[1])  # never a trap, whatever the value
    assert packed.shape == (total, 1) and packed.dtype == torch.int32
    a[1].fill_(value)  # as warm-ups do with all rows: zeros or ones
    if value in (0.0, 1.0):
        oracle.m_grouped_fp8_gemm_nt_contiguous(a, weights, d, ends, use_psum_layout=True)


@pytest.mark.parametrize("m", [1, 2, 5, 33])
@pytest.mark.parametrize("k", [128, 384])
def test_T5_scales_come_in_every_layout_and_go_back_aligned(m, k, device):
    a, b = rows(m, device, k), cast_blocks(torch.randn(N, k, device=device))
    d = torch.empty(m, N, dtype=torch.bfloat16, device=device)
    aligned = dg.get_mn_major_tma_aligned_tensor(a[1])
    unaligned = a[1].t().contiguous().t()
    normalised = a[1].as_strided((m, 1), (1, 1)) if k == 128 else a[1]  # size-1 dimension, stride 1
    results = []
    for scales in (a[1], aligned, unaligned, normalised):
        oracle.fp8_gemm_nt((a[0], scales), b, d)
        results.append(d.clone())
        back = dg.get_mn_major_tma_aligned_tensor(scales)
        assert back.stride() == (1, dg.align(m, 4)) and torch.equal(back, a[1])
        packed = dg.get_mn_major_tma_aligned_packed_ue8m0_tensor(dg.ceil_to_ue8m0(scales.contiguous()))
        assert packed.shape == (m, 1) and packed.stride() == (1, dg.align(m, 4))
    for other in results[1:]:
        dg.testing.assert_bitwise_equal(other, results[0])
    three = dg.transform_sf_into_required_layout(
        sf=a[1][None], mn=m, k=k, recipe=(1, 128, 128), num_groups=1, is_sfa=True
    )
    assert three.stride()[1:] == (1, dg.align(m, 4))


def test_T6_no_rows_empty_experts_and_a_wrong_expected_m(weights, device):
    options = dict(dtype=torch.bfloat16, device=device)
    dg.fp8_gemm_nt(rows(0, device), (weights[0][0], weights[1][0]), torch.empty(0, N, **options))
    none = torch.empty(0, dtype=torch.int32, device=device)
    dg.m_grouped_fp8_gemm_nt_contiguous(rows(0, device), weights, torch.empty(0, N, **options), none)
    a = rows(E * 40, device)
    a, d = (a[0].view(E, 40, K), a[1].view(E, 40, -1)), torch.empty(E, 40, N, **options)
    for counts in ([0, 0, 0, 0], [40, 0, 1, 0], [40, 40, 40, 40]):
        masked_m = torch.tensor(counts, dtype=torch.int32, device=device)
        for expected_m in (1, 16, 4096):
            oracle.m_grouped_fp8_gemm_nt_masked(a, weights, d, masked_m, expected_m)


def test_T7_disable_ue8m0_cast_means_nothing_here(weights, device):
    a, outputs = rows(128, device), []
    for disable in (False, True):
        dense = torch.empty(128, N, dtype=torch.bfloat16, device=device)
        grouped, ids = torch.empty_like(dense), torch.zeros(128, dtype=torch.int32, device=device)
        b = (weights[0][0], weights[1][0])
        dg.fp8_gemm_nt(a, b, dense, disable_ue8m0_cast=disable)
        dg.m_grouped_fp8_gemm_nt_contiguous(a, weights, grouped, ids, disable_ue8m0_cast=disable)
        outputs.append(torch.cat([dense, grouped]))
    dg.testing.assert_bitwise_equal(*outputs)


def test_T9_the_default_recipe_is_a_scale_for_each_128(weights, device):
    a, b = rows(9, device), (weights[0][0], weights[1][0])
    d = [torch.empty(9, N, dtype=torch.bfloat16, device=device) for _ in range(3)]
    dg.fp8_gemm_nt(a, b, d[0])
    dg.fp8_gemm_nt(a, b, d[1], recipe=(1, 128, 128))
    dg.fp8_gemm_nt(a, b, d[2], recipe_a=(1, 128), recipe_b=(128, 128))
    for other in d[1:]:
        dg.testing.assert_bitwise_equal(other, d[0])
    for recipe in ((1, 1, 128), (1, 32, 32), (1, 1, 32)):  # of other architectures: callers fall back on it
        with pytest.raises(NotImplementedError, match="recipe"):
            dg.fp8_gemm_nt(a, b, d[1], recipe=recipe)


def test_T10_a_mutating_operator_of_the_caller_wraps_the_call(weights, device):
    library = torch.library.Library("dgj_compat", "FRAGMENT")
    library.define("gemm(Tensor a, Tensor sa, Tensor b, Tensor sb, Tensor(a!) d) -> ()")
    library.impl("gemm", lambda a, sa, b, sb, d: dg.fp8_gemm_nt((a, sa), (b, sb), d), device.upper())
    torch.library.register_fake("dgj_compat::gemm", lambda *_: None, lib=library)

    def layer(a, sa, b, sb):
        d = torch.empty(a.shape[0], b.shape[0], dtype=torch.bfloat16, device=a.device)
        torch.ops.dgj_compat.gemm(a, sa, b, sb, d)
        return d + 1

    a, b = rows(9, device), (weights[0][0], weights[1][0])
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    dg.testing.assert_bitwise_equal(compiled(*a, *b), layer(*a, *b))
    library._destroy()


def test_T12_the_theoretical_alignment_is_128_with_two_arguments_and_small_with_one():
    alignment = dg.get_theoretical_mk_alignment_for_contiguous_layout
    assert {alignment(total, groups) for total in (8, 1024, 65536) for groups in (1, 32, 256)} == {128}
    assert alignment(expected_m=64, num_groups=8) == 128 and alignment() == 128
    small = [alignment(expected) for expected in (0, 1, 2, 8, 64, 500, 10**6)]
    assert small == sorted(small) and small[0] == 8 and small[-1] == 128


@pytest.mark.parametrize("shape", [(1, 1), (4, 3), (5, 3), (2, 4, 3), (2, 5, 3)])
def test_T13_the_layout_helper_gives_the_argument_or_a_copy(shape, device):
    x = torch.rand(shape, device=device)
    mn_major = x.transpose(-1, -2).contiguous().transpose(-1, -2)
    for given in (x, dg.get_mn_major_tma_aligned_tensor(x), mn_major):
        result = dg.get_mn_major_tma_aligned_tensor(given)
        if result.data_ptr() == given.data_ptr():
            assert result is given
        assert torch.equal(result, given)


def test_T14_a_serving_call_after_a_warm_up_call_compiles_nothing(weights, device):
    total = 4 * 128
    a = torch.empty(total, K, dtype=torch.float8_e4m3fn, device=device)
    a.view(torch.uint8).zero_()
    d = torch.empty(total, N, dtype=torch.bfloat16, device=device)
    zeros = torch.zeros(total, K // 128, device=device)
    ids = torch.arange(E, dtype=torch.int32, device=device).repeat_interleave(128)
    dg.m_grouped_fp8_gemm_nt_contiguous((a, zeros), weights, d, ids)  # vLLM's warm-up: ids, row-major scales
    dg.fp8_gemm_nt((a[:64], zeros[:64]), (weights[0][0], weights[1][0]), d[:64])
    compiled = dg._core.compile_count()
    ends, _ = psum_layout([100, 7, 0, 128], 128, device)
    unaligned = torch.rand(K // 128, total + 3, device=device).t()[:total]
    aligned = dg.get_mn_major_tma_aligned_tensor(zeros)
    for scales in (aligned, unaligned, zeros):
        dg.m_grouped_fp8_gemm_nt_contiguous((a, scales), weights, d, ends, use_psum_layout=True)
        dg.m_grouped_fp8_gemm_nt_contiguous((a, scales), weights, d, ids)
        dg.fp8_gemm_nt((a[:64], scales[:64]), (weights[0][0], weights[1][0]), d[:64])
    assert dg._core.compile_count() == compiled


def test_T15_deterministic_mode_makes_rows_independent_of_their_batch(weights, device):
    before = dg.get_deterministic_algorithms()
    dg.use_deterministic_algorithms(True)
    try:
        assert dg.get_deterministic_algorithms() is True and dg.get_batch_invariant() is True
        a, b = rows(130, device), (weights[0][0], weights[1][0])
        whole = torch.empty(130, N, dtype=torch.bfloat16, device=device)
        dg.fp8_gemm_nt(a, b, whole)
        for count in (1, 7, 64, 129):
            part = torch.empty(count, N, dtype=torch.bfloat16, device=device)
            dg.fp8_gemm_nt((a[0][:count], a[1][:count]), b, part)
            dg.testing.assert_bitwise_equal(part, whole[:count])
    finally:
        dg.use_deterministic_algorithms(before)


def test_T16_the_second_gemm_may_write_where_the_activation_still_reads(weights, device):
    """Two GEMMs and the kernel between them share two workspaces, with dependent launches."""
    ends, total = psum_layout([60, 128, 0, 3], 128, device)
    w2 = cast_blocks(torch.randn(E, K, N // 2, device=device) / 16)
    a = rows(total, device)
    workspace = torch.empty(total, max(N, K), dtype=torch.bfloat16, device=device)

    def layer(gate_up, d):
        dg.m_grouped_fp8_gemm_nt_contiguous(a, weights, gate_up, ends, use_psum_layout=True)
        gate, up = gate_up.chunk(2, dim=1)
        activated = dg.per_token_cast_to_fp8(torch.nn.functional.silu(gate) * up)
        dg.m_grouped_fp8_gemm_nt_contiguous(activated, w2, d, ends, use_psum_layout=True)
        return d[kept_rows(ends, total, True)].clone()

    separate = layer(torch.empty(total, N, dtype=torch.bfloat16, device=device), torch.empty_like(workspace))
    pdl = dg.get_pdl()
    dg.set_pdl(True)
    try:
        for _ in range(20 if device == "cuda" else 2):
            shared = layer(workspace.flatten()[: total * N].view(total, N), workspace[:, :K])
            dg.testing.assert_bitwise_equal(shared, separate)
    finally:
        dg.set_pdl(pdl)


# ---- tensors as callers lay them out ---------------------------------------------------------------


LINEAR = {
    "vllm": lambda sf: dg.get_mn_major_tma_aligned_tensor(sf),
    "vllm behind FlashInfer": lambda sf: sf.t().contiguous().t(),
    "sglang power of two, transformers, warm-ups": lambda sf: sf,
}


@pytest.mark.parametrize("m", [1, 7, 33])
@pytest.mark.parametrize("layout", LINEAR)
def test_linear_on_hopper(layout, m, device):
    b = cast_blocks(torch.randn(192, K, device=device))  # N: a multiple of 64 alone
    a = rows(m, device)
    d = torch.full((m, 192), GARBAGE, dtype=torch.bfloat16, device=device)
    oracle.fp8_gemm_nt((a[0], LINEAR[layout](a[1])), b, d, disable_ue8m0_cast=False)


CONTIGUOUS = {
    "vllm GEMM1: row-major, zero outside real rows": lambda sf, keep: sf * keep[:, None],
    "vllm GEMM2: strides (1, rows), padding unwritten": lambda sf, keep: sf.t().contiguous().t(),
    "sglang: aligned by its own kernel": lambda sf, keep: dg.get_mn_major_tma_aligned_tensor(sf),
}


@pytest.mark.parametrize("form", ["psum", "ids, -1 on padding", "ids on the whole segment", "aligned ends"])
@pytest.mark.parametrize("layout", CONTIGUOUS)
def test_contiguous_on_hopper(layout, form, weights, device):
    counts = [5, 0, 130, 128] if form != "aligned ends" else [128, 0, 256, 128]
    psum = form in ("psum", "aligned ends")
    if psum:
        groups, total = psum_layout(counts, 128, device)
    else:
        groups = ids_layout(counts, 128, device, fill_segment="segment" in form)
        total = groups.numel()
    a = rows(total, device)
    keep = kept_rows(groups, total, psum)
    a[0].view(torch.uint8)[~keep] = 0x7F
    if "zero" not in layout:
        a[1][~keep] = GARBAGE
    d = torch.full((total, N), GARBAGE, dtype=torch.bfloat16, device=device)
    scales = CONTIGUOUS[layout](a[1], keep)
    oracle.m_grouped_fp8_gemm_nt_contiguous((a[0], scales), weights, d, groups, use_psum_layout=psum)


MASKED = {
    "vllm: strides (T*G, 1, T)": lambda sf: sf.transpose(1, 2).contiguous().transpose(1, 2),
    "sglang: made MN-major by the helper": lambda sf: dg.get_mn_major_tma_aligned_tensor(sf),
    "warm-ups: row-major": lambda sf: sf,
}


@pytest.mark.parametrize("most", [13, 16])
@pytest.mark.parametrize("layout", MASKED)
def test_masked_on_hopper(layout, most, weights, device):
    masked_m = torch.tensor([3, 0, most, 1], dtype=torch.int32, device=device)
    a = rows(E * most, device)
    keep = (torch.arange(most, device=device) < masked_m[:, None]).flatten()
    spoil(a, keep)
    d = torch.full((E, most, N), 7, dtype=torch.bfloat16, device=device)
    operand = a[0].view(E, most, K), MASKED[layout](a[1].view(E, most, -1))
    oracle.m_grouped_fp8_gemm_nt_masked(operand, weights, d, masked_m, 4)
    assert (d.flatten(0, 1)[~keep] == 7).all()


def test_packed_scales_and_mx_recipes_are_refused_with_an_error_on_which_callers_fall_back(weights, device):
    a, d = rows(8, device), torch.empty(8, N, dtype=torch.bfloat16, device=device)
    b = (weights[0][0], weights[1][0])
    packed = dg.get_mn_major_tma_aligned_packed_ue8m0_tensor(dg.ceil_to_ue8m0(a[1]))
    with pytest.raises((NotImplementedError, TypeError), match="int32"):
        dg.fp8_gemm_nt((a[0], packed), b, d)
    with pytest.raises(NotImplementedError, match="recipe_a"):
        dg.fp8_gemm_nt(a, b, d, recipe_a=(1, 32), recipe_b=(1, 32))
