"""The M-grouped kernel where memory ends with the last row of a group: nothing behind it is touched."""

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
    header, old = "parts/scales.cuh", "+ skew + 3) / 4 * 16;"

    def patch(text, headers):
        if headers[header].count(old) != 1:
            raise LookupError(f"the kernel has changed: {old!r} occurs not once")
        return text, {**headers, header: headers[header].replace(old, f"{old[:-1]} + 16;")}

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
