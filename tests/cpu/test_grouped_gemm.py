"""The M-grouped GEMMs on the CPU: per element against float64 on the dequantised operands; what belongs to no
group holds NaN in A and its scales and is neither read nor written."""

import pytest
import torch

import deep_gemm_jit as dg
from benchmarks import core_api
from benchmarks.data import GuardedOutput
from benchmarks.grouped_data import (
    DISTRIBUTIONS,
    GROUP_SCALE_LAYOUTS,
    Grouped,
    Layout,
    check,
    draw_counts,
    grouped_operands,
    ids_layout,
    masked_layout,
    offsets_layout,
    psum_layout,
    random_weights,
)

FORMS = {
    "ids": lambda counts: ids_layout(counts, 16, tail_units=1),
    "psum": lambda counts: psum_layout(counts, 16, tail=5),
    "masked": lambda counts: masked_layout(counts, max([1, *counts])),
    "offsets": lambda counts: offsets_layout(counts, first=3, tail=2),
}


def run_and_check(case: Grouped, dtype=torch.bfloat16, extra_columns: int = 0, **options):
    layout, n = case.layout, case.weights.b.shape[1]
    guard = GuardedOutput(layout.total, n, dtype, extra_columns=extra_columns, device="cpu")
    rows = guard.take()
    d = rows.unflatten(0, (layout.groups, layout.rows)) if layout.form == "masked" else rows
    before = d.clone()
    core_api.grouped(case, d, **options)
    bad, worst, touched = check(case, d, None if options.get("ensure_zero_padding") else before)
    result = d.clone()
    assert int(bad) == 0, f"{int(bad)} elements out of bounds, worst {float(worst):.3g} times the bound"
    assert int(touched) == 0, f"{int(touched)} bytes of rows of no group are wrong"
    assert int(guard.broken_bytes()) == 0, "bytes outside of d were written"
    return result


def case_of(layout: Layout, n: int = 40, k: int = 144, **options) -> Grouped:
    weights = random_weights(layout.groups, n, k, "cpu")
    return grouped_operands(layout, weights, device="cpu", **options)


# ---- forms, groups, distributions ----------------------------------------------------------------


@pytest.mark.parametrize("groups", [1, 2, 3, 8, 32, 128, 256, 512])
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_against_float64(groups, distribution):
    torch.manual_seed(groups)
    counts = draw_counts(distribution, groups, total=150, seed=groups)
    if distribution != "empty":
        assert sum(counts) > 0 or groups == 1
    weights = random_weights(groups, 24, 144, "cpu")
    for make in FORMS.values():
        run_and_check(grouped_operands(make(counts), weights, device="cpu"))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_tiles_on_all_threads(form, dtype):
    """Large enough for several tiles in both directions, a partial scale block and a partial tile."""
    torch.manual_seed(1)
    run_and_check(case_of(FORMS[form]([300, 0, 193, 7]), n=264, k=400), dtype, extra_columns=8)


@pytest.mark.parametrize("alignment", [1, 2, 7, 8, 16, 24, 32, 64, 100, 127, 128])
@pytest.mark.parametrize("distribution", ["multinomial", "zipf"])
def test_alignments(alignment, distribution):
    torch.manual_seed(alignment)
    counts = draw_counts(distribution, 5, total=170, seed=alignment)
    for layout in (
        ids_layout(counts, alignment),
        ids_layout(counts, alignment, short_last=True),
        psum_layout(counts, alignment),
        psum_layout(counts, alignment, round_rows=False),
    ):
        run_and_check(case_of(layout))


def test_ids_need_not_be_sorted_and_recur():
    torch.manual_seed(2)
    counts = draw_counts("zipf", 6, total=200)
    layout = ids_layout(counts, 8, pieces=3, shuffle_seed=4)
    owners = [g for g, _, _ in layout.runs]
    assert owners != sorted(owners) and len(set(owners)) < len(owners)
    run_and_check(case_of(layout))


def test_rows_of_no_group_inside_a_unit():
    torch.manual_seed(3)
    layout = ids_layout([40, 9, 0, 77], 32, holes=True, tail_units=2)
    assert any(b != -1 and a == -1 for a, b in zip(layout.index, layout.index[1:], strict=False))
    run_and_check(case_of(layout))


def test_the_last_unit_may_be_short():
    for rows in (1, 31, 33, 64):
        layout = ids_layout([rows], 32, short_last=True)
        assert layout.rows == rows
        run_and_check(case_of(layout))


def test_empty_groups_behind_the_last_row_in_the_psum_layout():
    # Their start, rounded up, lies behind a's last row, which is no multiple of the alignment.
    layout = psum_layout([5, 0, 0], 16, round_rows=False)
    assert layout.rows == 5 and layout.index == [5, 16, 16]
    run_and_check(case_of(layout))


@pytest.mark.parametrize("max_m", [1, 8, 31, 96, 128, 1000])
def test_masked_room(max_m):
    torch.manual_seed(max_m)
    counts = [min(max_m, count) for count in (0, 1, max_m, max_m // 2, 7)]
    run_and_check(case_of(masked_layout(counts, max_m), n=24))


def test_offsets_at_odd_rows():
    layout = offsets_layout([1, 0, 13, 129, 7], first=5, tail=3)
    run_and_check(case_of(layout))


# ---- rows of no group ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "layout",
    [ids_layout([3, 0, 40], 32, holes=True, tail_units=1), psum_layout([3, 0, 40], 32, tail=7)],
    ids=["ids", "psum"],
)
@pytest.mark.parametrize("given", [None, False, True])
def test_only_an_explicit_true_zeroes_the_padding(layout, given):
    options = {} if given is None else {"ensure_zero_padding": given}
    d = run_and_check(case_of(layout), **options)
    live = [row for _, start, count in layout.flat_runs() for row in range(start, start + count)]
    dead = [row for row in range(layout.rows) if row not in live]
    assert dead and (d[dead] == 0).all() == bool(given)


@pytest.mark.parametrize("layout", [ids_layout([0, 0], 8, tail_units=3), psum_layout([0, 0], 8, tail=11)])
def test_zeroes_when_no_row_is_live(layout):
    run_and_check(case_of(layout), ensure_zero_padding=True)


def test_the_room_of_masked_rows_may_be_infinite_as_well():
    case = case_of(masked_layout([2, 0, 5], 6))
    want = run_and_check(case)
    for g, count in enumerate(case.layout.index):
        case.a.view(torch.uint8)[g, count:] = 0x7E
        case.sfa[g, count:] = float("inf")
    got = run_and_check(case)
    for g, count in enumerate(case.layout.index):
        assert torch.equal(got[g, :count], want[g, :count])


# ---- layouts of operands -------------------------------------------------------------------------


@pytest.mark.parametrize("name", GROUP_SCALE_LAYOUTS)
@pytest.mark.parametrize("max_m", [1, 7, 96])
def test_scales_of_masked_a(name, max_m):
    torch.manual_seed(0)
    layout = masked_layout([max_m, 0, max_m // 2 + 1], max_m)
    torch.manual_seed(9)
    want = run_and_check(case_of(layout, k=400))
    torch.manual_seed(9)
    case = case_of(layout, k=400, sfa_layout=name)
    assert torch.equal(run_and_check(case).nan_to_num(), want.nan_to_num())


@pytest.mark.parametrize("name", ["row_major", "mn_major_aligned", "mn_major_unaligned", "column_sliced"])
@pytest.mark.parametrize("form", ["ids", "psum", "offsets"])
def test_scales_of_contiguous_a(name, form):
    torch.manual_seed(0)
    run_and_check(case_of(FORMS[form]([13, 0, 30]), k=400, sfa_layout=name))


def test_sizes_of_one_are_not_held_against_their_strides():
    torch.manual_seed(5)
    case = case_of(masked_layout([1], 1), k=128)
    want = run_and_check(case)
    b, sfb = case.rhs
    odd = Grouped(
        case.layout,
        case.a.as_strided((1, 1, 128), (3, 5, 1)),
        case.sfa.as_strided((1, 1, 1), (77, 9, 11)),
        type(case.weights)(b.as_strided((1, 40, 128), (7, 128, 1)), sfb.as_strided((1, 1, 1), (5, 3, 2))),
        case.index.as_strided((1,), (9,)),
        case.plain,
    )
    assert torch.equal(run_and_check(odd), want)


def test_groups_of_b_may_have_any_stride():
    torch.manual_seed(6)
    case = case_of(FORMS["offsets"]([4, 9, 2]))
    want = run_and_check(case)
    b, sfb = case.rhs
    room = torch.zeros(3, 2, *b.shape[1:], dtype=torch.uint8)
    room[:, 1] = b.view(torch.uint8)
    case.weights.b = room.view(b.dtype)[:, 1]
    case.weights.sfb = sfb.permute(2, 1, 0).contiguous().permute(2, 1, 0)
    assert not case.weights.b.is_contiguous() and not case.weights.sfb.is_contiguous()
    assert torch.equal(run_and_check(case).nan_to_num(), want.nan_to_num())


def test_one_matrix_for_all_groups_as_an_expanded_view():
    torch.manual_seed(6)
    case = case_of(FORMS["offsets"]([4, 9, 2]))
    b, sfb = case.rhs
    case.weights.b, case.weights.sfb = b[:1].expand(3, -1, -1), sfb[:1].expand(3, -1, -1)
    run_and_check(case)


def test_masked_d_whose_groups_lie_side_by_side():
    torch.manual_seed(7)
    case = case_of(masked_layout([3, 5, 1], 6))
    want = run_and_check(case)
    d = torch.full((6, 3, 40), float("nan"), dtype=torch.bfloat16)
    core_api.grouped(case, d.transpose(0, 1))
    assert torch.equal(d.transpose(0, 1).nan_to_num(), want.nan_to_num())


# ---- edges ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_no_inner_extent_zeroes_live_rows(form):
    layout = FORMS[form]([3, 0, 4])
    case = Grouped(
        layout,
        torch.empty(layout.total, 0).to(torch.float8_e4m3fn),
        torch.empty(layout.total, 0),
        type(random_weights(1, 8, 128, "cpu"))(
            torch.empty(3, 40, 0).to(torch.float8_e4m3fn), torch.empty(3, 1, 0)
        ),
        torch.tensor(layout.index, dtype=torch.int32),
    )
    if form == "masked":
        case.a, case.sfa = (t.view(3, layout.rows, 0) for t in (case.a, case.sfa))
    d = torch.full((*case.a.shape[:-1], 40), 7.0)
    core_api.grouped(case, d)
    flat = d.view(layout.total, 40)
    live = [row for _, start, count in layout.flat_runs() for row in range(start, start + count)]
    assert (flat[live] == 0).all() and (flat == 0).sum() == len(live) * 40


@pytest.mark.parametrize(("rows", "n"), [(0, 40), (6, 0)])
def test_empty_outputs_return_at_once(rows, n):
    fp8, k = torch.float8_e4m3fn, 144
    b = (torch.empty(2, n, k).to(fp8), torch.empty(2, -(-n // 128), 2))
    a = (torch.empty(rows, k).to(fp8), torch.empty(rows, 2))
    ids = torch.full((rows,), 99, dtype=torch.int32)  # nothing is written, so nothing is looked at
    dg.m_grouped_fp8_gemm_nt_contiguous(a, b, torch.empty(rows, n), ids)
    dg.m_grouped_fp8_gemm_nt_offsets(a, b, torch.empty(rows, n), ids.new_zeros(3))
    masked = tuple(t[None].repeat_interleave(2, 0) if t.dtype != fp8 else t for t in a)
    masked = (torch.empty(2, rows, k).to(fp8), masked[1])
    dg.m_grouped_fp8_gemm_nt_masked(masked, b, torch.empty(2, rows, n), ids.new_zeros(2), 1)


@pytest.mark.parametrize("form", FORMS)
def test_a_row_has_the_bits_of_the_dense_operation(form):
    torch.manual_seed(8)
    case = case_of(FORMS[form]([70, 3, 0, 200]), n=264, k=400)
    got = run_and_check(case, torch.float32).reshape(case.layout.total, 264)
    a, sfa = case.plain
    for g, start, count in case.layout.flat_runs():
        want = torch.empty(count, 264)
        rows = slice(start, start + count)
        dg.fp8_gemm_nt((a[rows], sfa[rows]), (case.weights.b[g], case.weights.sfb[g]), want)
        assert torch.equal(got[rows], want)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("hint", [-5, 0, 1, 10**30])
def test_hints_change_no_bits(form, hint):
    torch.manual_seed(8)
    case = case_of(FORMS[form]([7, 0, 9]))
    want = run_and_check(case)
    name = "expected_m" if form == "masked" else "expected_m_for_psum_layout"
    options = {} if form == "offsets" else {name: hint}
    got = run_and_check(case, b_is_constant=True, **options)
    assert torch.equal(got.nan_to_num(), want.nan_to_num())
