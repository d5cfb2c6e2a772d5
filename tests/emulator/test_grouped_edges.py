"""The M-grouped kernel at the ends of what it was given, and with what kernels before have left in shared
memory: what is there is nobody's, whatever it says."""

import pytest
import torch
from emulator import grouped, launch
from emulator.grouped import COUNTS, ENDS, IDS, OFFSETS

FORMS = {"ids": IDS, "ends": ENDS, "offsets": OFFSETS, "counts": COUNTS}
# The largest last, since planes end with it; few rows and many, 16 bytes of scales whole or not.
GROUPS = [(9, 21), (3, 32), (21, 70), (30, 128)]


def ending_with_its_rows(form: int, counts, lie: str) -> grouped.Problem:
    """Views of what make() gives, so that columns of scales keep their pitch."""
    p = grouped.make(form, counts, 8, 144, alignment=8, lie=lie)
    rows = int((p.owner >= 0).reshape(-1, p.owner.shape[-1]).any(0).nonzero().max()) + 1
    p.a, p.sfa, p.guard = (t[..., :rows, :] for t in (p.a, p.sfa, p.guard))
    p.d, p.owner = p.guard[..., :8], p.owner[..., :rows]
    if form == IDS:
        p.index = p.owner.int()
    return p


@pytest.mark.parametrize("counts", GROUPS, ids=str)
@pytest.mark.parametrize("lie", ["rows", "columns", "aligned"])
@pytest.mark.parametrize("form", FORMS)
def test_nothing_behind_the_last_row_is_touched(form, lie, counts):
    for seed in (1, 2):
        p = ending_with_its_rows(FORMS[form], counts, lie)
        grouped.run(p, sms=1, seed=seed)
        grouped.check(p)


@pytest.mark.parametrize("counts", GROUPS, ids=str)
def test_sixteen_bytes_of_scales_too_many_are_seen(counts):
    patch = launch.planted("parts/scales.cuh", "+ skew + 3) / 4 * 16;", "+ skew + 3) / 4 * 16 + 16;")
    with pytest.raises(launch.EmulatorFault, match="past the end of their buffer"):
        grouped.run(ending_with_its_rows(ENDS, counts, "aligned"), seed=1, patch=patch)


# Units of 8: with ids of other groups and of none behind their own, of nobody with groups' ids, of no group.
FOREIGN = [
    *(0, 0, 1, -7, 3, 2**31 - 1, 0, -1),
    *(-1, 0, 2, 2, 2, 2, 2, 2),
    *(3, 0, 1, 2, 3, 3, 3, 3),
    *(2, 2, 2, 2, 0, 2),
]


@pytest.mark.parametrize("zero_padding", [False, True])
def test_rows_of_a_unit_with_other_ids_than_its_own_are_nobodys(zero_padding):
    ids = torch.tensor(FOREIGN, dtype=torch.int32)
    own = ids[torch.arange(len(ids)) // 8 * 8]
    p = grouped.make(OFFSETS, (1, 1, len(ids) - 5), 8, 144)  # for three groups: 3 rows before, 6 behind
    p.form, p.alignment, p.zero_padding, p.index = IDS, 8, zero_padding, ids
    p.owner = torch.where((ids == own) & (ids >= 0) & (ids < 3), ids, -1).long()
    p.a, p.sfa, p.guard = (t[: len(ids)] for t in (p.a, p.sfa, p.guard))
    p.d = p.guard[:, :8]
    live = p.owner >= 0
    p.a.view(torch.uint8)[live], p.sfa[live] = 0x38, 0.5
    grouped.run(p, seed=2)
    grouped.check(p)


def ids_that_end(alignment: int, skew: int, group: int, last: int) -> grouped.Problem:
    """Begin `skew` words after 16 bytes, and are followed by ids of `group` that are not of the call; the
    last group has `last` rows, and the last of them is the last row."""
    p = grouped.whole_to_the_end(
        grouped.make(IDS, (20, 2, last), 8, 16, alignment=alignment, holes=(), seed=3)
    )
    rows = p.index.numel()
    assert p.index[-1] == 2
    around = torch.full((rows + 16,), group, dtype=torch.int32)
    begin = -around.data_ptr() // 4 % 4 + 4 + skew
    around[begin : begin + rows] = p.index
    p.index = around[begin : begin + rows + 7]
    return p


def rows_that_end() -> grouped.Problem:
    """Those of A behind the last live one, though of its unit, must not be read."""
    p = grouped.make(IDS, (130,), 8, 16, alignment=128, holes=())
    p.readable = p.a[: int((p.owner >= 0).nonzero().max()) + 1]
    return p


def attempt(problem: grouped.Problem, *, left=launch.POISON, patch=None) -> None:
    grouped.run(problem, sms=2, seed=2, patch=patch, left=left)
    grouped.check(problem)


def each_end_of_ids(patch=None) -> None:
    for alignment, last in ((5, 7), (8, 16), (128, 130)):  # a short last unit; a whole one
        for skew, group in ((0, 0), (1, 1), (0, 2), (1, 2), (2, 2), (3, 2)):
            attempt(ids_that_end(alignment, skew, group, last), left=(group,), patch=patch)


def test_ids_end_with_the_last_row():
    each_end_of_ids()


def test_what_is_read_of_a_unit_ends_with_its_last_live_row():
    attempt(rows_that_end())


# For one warp, for the builders, for two pages.
GROUPS_LEFT = [(20, 0, 2, 70), (3, 0, 1, 9) * 12, tuple(i % 130 < 2 for i in range(560))]
LEFT = ((0,), (1,), (5, 1, 900, 0, 64, 2, 300))  # rows, ends and groups that could be some


def with_something_left(form: int, counts, patch=None) -> None:
    for left in LEFT:
        alignment = 2 if form in (IDS, ENDS) else 1
        attempt(
            grouped.make(form, list(map(int, counts)), 8, 16, alignment=alignment), left=left, patch=patch
        )


@pytest.mark.parametrize("form", [IDS, ENDS, OFFSETS, COUNTS])
@pytest.mark.parametrize("counts", GROUPS_LEFT, ids=len)
def test_what_kernels_before_have_left_in_shared_memory_is_not_looked_at(form, counts):
    with_something_left(form, counts)


def zeros_behind_two_pages(patch=None) -> None:
    p = grouped.make(ENDS, [int(i % 130 < 2) for i in range(560)], 8, 16, alignment=2, zero_padding=True)
    attempt(p, patch=patch)


def test_rows_of_no_group_are_zeroed_once_however_many_pages_there_are():
    zeros_behind_two_pages()


TABLE, KERNEL = "parts/groups.cuh", "sm90/fp8_gemm_grouped.cuh"
FAULTS = {
    "ids copied without the last one": (
        each_end_of_ids, KERNEL, "(args.rows * 4 + skew + 15)", "(args.rows * 4 + skew + 11)",
    ),
    "rows of no group zeroed with each page": (
        zeros_behind_two_pages, KERNEL, "if (page == 0 && args.zero_padding", "if (args.zero_padding",
    ),
    "a run that ends with its last unit": (
        lambda patch: attempt(rows_that_end(), patch=patch), TABLE,
        "ptx::store_shared_u32(table.end + 4 * s, row + live);",
        "ptx::store_shared_u32(table.end + 4 * s, row + rows);",
    ),
    "runs that are not there taken from a warp's table": (
        lambda patch: with_something_left(IDS, GROUPS_LEFT[0], patch), TABLE,
        "const bool in = lane < ptx::load_shared_u32(table.carry);", "const bool in = true;",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_rejected(name):
    show, *change = FAULTS[name]
    with pytest.raises(AssertionError):
        show(patch=launch.planted(*change))
