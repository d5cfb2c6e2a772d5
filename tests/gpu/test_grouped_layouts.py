"""Strides from group to group that callers may have, and tensors of more than 2^31 and 2^32 elements."""

from dataclasses import replace

import pytest
import torch

from benchmarks import core_api
from benchmarks.data import FP8
from benchmarks.grouped_correctness import output_of, same_bits
from benchmarks.grouped_data import (
    FORMS,
    Grouped,
    Weights,
    check,
    grouped_operands,
    ids_layout,
    masked_layout,
    offsets_layout,
    psum_layout,
    random_weights,
)

BF16 = torch.bfloat16
GROUPS, N, K = 5, 264, 400
COUNTS = [40, 0, 7, 150, 1]
LAYOUTS = {
    "ids": lambda: ids_layout(COUNTS, 24),
    "psum": lambda: psum_layout(COUNTS, 24, tail=3),
    "masked": lambda: masked_layout(COUNTS, 151),
    "offsets": lambda: offsets_layout(COUNTS, first=1, tail=2),
}


def run(case):
    _, d = output_of(case, BF16)
    d.fill_(1.0)
    core_api.grouped(case, d)
    return d


@pytest.fixture(params=FORMS)
def case(request):
    return grouped_operands(LAYOUTS[request.param](), random_weights(GROUPS, N, K))


def assert_right(case, d):
    bad, worst, touched = check(case, d, torch.ones_like(d))
    assert int(bad) == 0 and int(touched) == 0, (int(bad), float(worst), int(touched))


def test_one_matrix_for_all_groups_as_an_expanded_view(case):
    b, sfb = case.rhs
    shared = replace(case, weights=Weights(b[:1].expand(GROUPS, -1, -1), sfb[:1].expand(GROUPS, -1, -1)))
    assert_right(shared, run(shared))


def test_groups_of_b_far_apart_with_a_pitch_and_scales_in_any_order(case):
    want = run(case)
    b, sfb = case.rhs
    room = torch.full((GROUPS, 2, N + 3, K + 48), 0x7F, dtype=torch.uint8, device="cuda").view(FP8)
    spread = room[:, 1, :N, :K]
    spread.view(torch.uint8).copy_(b.view(torch.uint8))
    scales = sfb.permute(2, 1, 0).contiguous().permute(2, 1, 0)
    assert int(same_bits(run(replace(case, weights=Weights(spread, scales))), want)) == 0


def test_masked_groups_side_by_side():
    """A and D as [max_m, G, ...] memory: the step from group to group is smaller than the row pitch."""
    case = grouped_operands(masked_layout(COUNTS, 151), random_weights(GROUPS, N, K))
    want = run(case)
    turned = replace(
        case,
        a=case.a.view(torch.uint8).transpose(0, 1).contiguous().view(FP8).transpose(0, 1),
        sfa=case.sfa.permute(2, 0, 1).contiguous().permute(1, 2, 0),
    )
    d = torch.ones(151, GROUPS, N, dtype=BF16, device="cuda").transpose(0, 1)
    core_api.grouped(turned, d)
    assert int(same_bits(d, want)) == 0


def test_sizes_of_one_are_not_held_against_their_strides():
    case = grouped_operands(masked_layout([1], 1), random_weights(1, 128, 128))
    want = run(case)
    b, sfb = case.rhs
    odd = Grouped(
        case.layout,
        case.a.as_strided((1, 1, 128), (3, 5, 1)),
        case.sfa.as_strided((1, 1, 1), (77, 9, 11)),
        Weights(b.as_strided((1, 128, 128), (7, 128, 1)), sfb.as_strided((1, 1, 1), (5, 3, 2))),
        case.index.as_strided((1,), (9,)),
        case.plain,
    )
    assert int(same_bits(run(odd), want)) == 0


def random_bytes(*shape):
    """Finite e4m3 values of both signs, cheap to make by the gigabyte."""
    magnitude = torch.randint(0, 0x50, shape, dtype=torch.uint8, device="cuda")
    return magnitude.bitwise_or_(torch.randint_like(magnitude, 0, 2).mul_(0x80)).view(FP8)


def scales(*shape):
    return torch.rand(*shape, device="cuda") + 0.5


def test_b_of_more_than_two_to_the_32_elements():
    groups, n, k = 68, 8192, 8192
    assert groups * n * k > 2**32
    layout = offsets_layout([0] * (groups - 2) + [3, 40])
    a, sfa = random_bytes(43, k), scales(43, k // 128)
    weights = Weights(random_bytes(groups, n, k), scales(groups, n // 128, k // 128))
    index = torch.tensor(layout.index, dtype=torch.int32, device="cuda")
    case = Grouped(layout, a, sfa, weights, index, (a, sfa))
    assert_right(case, run(case))


def test_masked_a_and_d_of_more_than_two_to_the_31_elements():
    groups, room, n, k = 5, 53_000, 8192, 8192
    assert groups * room * k > 2**31 and groups * room * n > 2**31
    counts = [2, 0, 0, 35, room]
    layout = masked_layout(counts, room)
    a, sfa = random_bytes(groups, room, k), scales(groups, room, k // 128)
    weights = Weights(random_bytes(groups, n, k), scales(groups, n // 128, k // 128))
    case = Grouped(layout, a, sfa, weights, torch.tensor(counts, dtype=torch.int32, device="cuda"))
    d = torch.ones(groups, room, n, dtype=BF16, device="cuda")
    core_api.grouped(case, d)
    for g, rows in ((0, slice(0, 2)), (3, slice(0, 35)), (4, slice(0, 70)), (4, slice(room - 70, room))):
        part = offsets_layout([rows.stop - rows.start])
        cut = Grouped(
            part, a[g, rows], sfa[g, rows], Weights(weights.b[g : g + 1], weights.sfb[g : g + 1]),
            torch.tensor(part.index, dtype=torch.int32, device="cuda"), (a[g, rows], sfa[g, rows]),
        )  # fmt: skip
        bad, worst, _ = check(cut, d[g, rows], None)
        assert int(bad) == 0, (g, rows, float(worst))
    assert d[0, 2:].eq(1).all() and d[1].eq(1).all() and d[3, 35:].eq(1).all()
