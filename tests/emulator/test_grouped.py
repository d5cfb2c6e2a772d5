"""The M-grouped kernel in every form, on groups that cross every boundary, and faults planted into it."""

import pytest
import torch
from emulator import grouped, launch
from emulator.grouped import COUNTS, ENDS, IDS, OFFSETS

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32

# form, alignment, scales, rows of the groups, n, k, dtype of D, SMs. Groups of few rows (16, 32), of one to
# five pieces of 64 and of several tiles; K with a whole and a partial last block, odd and even numbers of
# blocks, more than both rings hold, and as many as the unrolled loop needs; columns that leave a warpgroup
# of a wide tile without work.
KERNELS = [
    (IDS, 128, "rows", (3, 200, 0, 70, 33), 264, 400, BF16, 1),
    (IDS, 24, "columns", (30, 40, 129), 136, 272, BF16, 2),
    (IDS, 8, "aligned", (9, 65), 136, 272, F16, 2),
    (IDS, 16, "columns", (20, 257, 100), 264, 272, BF16, 1),
    (ENDS, 16, "columns", (5, 32, 0, 64, 1, 250), 136, 272, BF16, 3),
    (ENDS, 32, "rows", (3, 50, 0), 136, 272, F16, 1),
    (ENDS, 128, "aligned", (128, 1, 64), 264, 400, F32, 2),
    (ENDS, 8, "rows", (129, 5, 40), 392, 144, F16, 2),
    (OFFSETS, 1, "rows", (17, 190, 1), 136, 1040, F32, 1),
    (OFFSETS, 1, "aligned", (300,), 136, 272, BF16, 3),
    (OFFSETS, 1, "columns", (31, 16, 17, 0, 193), 264, 1168, BF16, 2),
    (OFFSETS, 1, "columns", (130, 9, 70), 136, 2048, BF16, 1),
    (OFFSETS, 1, "aligned", (33, 20, 385), 200, 2048, F32, 1),
    (COUNTS, 1, "columns", (7, 0, 100, 31), 136, 1040, BF16, 2),
    (COUNTS, 1, "aligned", (192, 64, 4), 264, 400, F32, 2),
    (COUNTS, 1, "columns", (8, 150, 90, 40), 264, 1168, BF16, 2),
    (COUNTS, 1, "rows", (0, 0, 0), 136, 272, BF16, 1),
]


def name_of(kernel) -> str:
    form, alignment, lie, counts, n, k, dtype, _ = kernel
    name = ("ids", "ends", "offsets", "counts")[form]
    return f"{name}{alignment}-{lie}-{'.'.join(map(str, counts))}-{n}x{k}-{str(dtype)[6:]}"


@pytest.mark.parametrize("kernel", KERNELS, ids=name_of)
def test_every_live_row_is_right_and_no_other_written(kernel):
    form, alignment, lie, counts, n, k, dtype, sms = kernel
    results = []
    for seed in launch.seeds((0, 1, 2)):
        p = grouped.make(form, counts, n, k, alignment=alignment, dtype=dtype, lie=lie, seed=5)
        grouped.run(p, sms=sms, seed=seed)
        grouped.check(p)
        results.append(p.guard.view(torch.uint8))
    assert all(torch.equal(r, results[0]) for r in results), "the order of events changed the bits"


@pytest.mark.smoke
def test_one_grouped_kernel():
    p = grouped.make(ENDS, (5, 40, 200), 136, 272, alignment=16, lie="aligned")
    grouped.run(p, sms=2, seed=2)
    grouped.check(p)


@pytest.mark.parametrize("form, alignment", [(IDS, 24), (ENDS, 16)])
def test_rows_of_no_group_become_zero_when_asked(form, alignment):
    p = grouped.make(form, (5, 0, 40, 1), 136, 144, alignment=alignment, zero_padding=True)
    grouped.run(p, sms=2, seed=3)
    grouped.check(p)


@pytest.mark.parametrize("form", [IDS, ENDS, OFFSETS, COUNTS])
def test_more_groups_than_the_table_holds(form):
    counts = [i % 5 == 0 for i in range(1100)]  # three pages
    counts[511], counts[512], counts[1024], counts[1099] = 2, 1, 3, 2
    p = grouped.make(form, list(map(int, counts)), 8, 16, alignment=2)
    grouped.run(p, sms=3, seed=2)
    grouped.check(p)


# Values that no caller should give, and what they come to (dgj::GroupForm).
def test_groups_out_of_range_are_clamped():
    for form, index, owner in [
        (COUNTS, [-5, 1 << 30], [[-1] * 9, [1] * 9]),
        (OFFSETS, [-4, 3, 1, 1 << 30], [0, 0, 0, *[2] * 6]),
        (ENDS, [3, -7, 1 << 30], [0, 0, 0, -1, *[2] * 5]),
        (IDS, [0, -1, 7, 7, 2, 2, -(1 << 31), 1, 1], [0, -1, -1, -1, 2, 2, -1, -1, 1]),
    ]:
        groups = 2 if form == COUNTS else 3
        p = grouped.make(form, [9] * groups, 8, 144, alignment=4 if form == ENDS else 2)
        if form == IDS:
            p.alignment = 1 if form == IDS else p.alignment
            owner = [0, -1, -1, -1, 2, 2, -1, 1, 1]
        rows = 9
        p.a, p.sfa, p.guard = (t[..., :rows, :].contiguous() for t in (p.a, p.sfa, p.guard))
        p.d, p.index = p.guard[..., :8], torch.tensor(index, dtype=torch.int32)
        p.owner = torch.tensor(owner)
        p.sfa = torch.rand(p.sfa.shape) + 0.5
        p.a.view(torch.uint8).bitwise_and_(0x3F)
        grouped.run(p, seed=2)
        grouped.check(p)


def test_a_sum_that_underflows_keeps_its_sign_in_groups_of_any_size():
    p = grouped.make(OFFSETS, (3, 40), 8, 128)  # one K block, where a stage for few rows holds two
    for operand, value in ((p.a, -0.5), (p.b, 0.5)):
        operand.copy_(torch.zeros(operand.shape))
        operand[..., 0] = value
    p.sfa.fill_(2.0**-74)
    p.sfb.fill_(2.0**-75)
    grouped.run(p, seed=2)
    live = p.d[p.owner >= 0].contiguous().view(torch.int16)
    assert bool((live == -(1 << 15)).all()), "-2^-151 rounds to -0"


KERNEL, TABLE = "sm90/fp8_gemm_grouped.cuh", "parts/groups.cuh"
FAULTS = {
    "a warp's index is asked for by one lane alone": (
        TABLE,
        "if (lane == 31) ptx::store_shared_u32(table.warp_sums + 4 * warp, upto);",
        "if (lane == 31) ptx::store_shared_u32(table.warp_sums + 4 * ptx::warp_index(), upto);",
        "lanes",
    ),
    "an idle warpgroup gives a stage back before every lane has seen it": (
        KERNEL,
        "            ptx::sync_warp();\n            release(smem, rings.tiles.stage);",
        "            release(smem, rings.tiles.stage);",
        "deadlock",
    ),
    "bulk copies of scales where plain ones wrote, without a fence": (
        KERNEL,
        "if (bulk && (plain & slot) != 0) ptx::fence_async_shared();",
        "",
        "fence",
    ),
    "results staged where a copy still reads": (
        KERNEL,
        "if (ptx::thread_index() % 128 == 0) ptx::wait_stores_read<0>();",
        "",
        "",
    ),
    "staged results stored without a fence": (
        KERNEL,
        "        ptx::fence_async_shared();\n        ptx::sync_threads(1 + warpgroup, 128);\n",
        "        ptx::sync_threads(1 + warpgroup, 128);\n",
        "fence",
    ),
    "the table is read before the builders are done": (
        KERNEL,
        "            ptx::sync_block();  // barriers and table are there\n",
        "",
        "",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_rejected(name):
    header, old, new, reason = FAULTS[name]

    def patch(text, headers):
        assert headers[header].count(old) == 1, f"the kernel has changed: {old!r} occurs not once"
        return text, {**headers, header: headers[header].replace(old, new)}

    def attempt(seed, patch=None):
        # Few rows, unaligned and aligned, and whole pieces: plain and bulk copies of scales take turns.
        p = grouped.make(OFFSETS, (13, 300, 1, 20, 200), 136, 2320, lie="aligned", seed=1)
        p.index[0], p.index[1] = 0, 16
        grouped.run(p, sms=1, seed=seed, patch=patch)

    attempt(2)
    for seed in (1, 0, 2, 3, 4, 5):
        try:
            attempt(seed, patch)
        except launch.EmulatorFault as fault:
            assert reason in str(fault), f"rejected for another reason: {fault}"
            return
    pytest.fail("no timing showed the fault")
