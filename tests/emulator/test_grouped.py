"""The M-grouped kernel in every form, on groups that cross every boundary, and faults planted into it."""

import pytest
import torch
from emulator import grouped, launch
from emulator.grouped import COUNTS, ENDS, IDS, OFFSETS

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32

# form, alignment, scales, rows of the groups, n, k, dtype of D, SMs. Groups of few rows (up to 32), of one to
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
    (OFFSETS, 1, "aligned", (33, 20, 385), 200, 2048, F32, 1),
    (OFFSETS, 1, "aligned", (250, 320, 20), 200, 3072, BF16, 1),
    (COUNTS, 1, "columns", (7, 0, 100, 31), 136, 1040, BF16, 2),
    (COUNTS, 1, "aligned", (192, 64, 4), 264, 400, F32, 2),
    (COUNTS, 1, "columns", (8, 150, 90, 40), 264, 1168, BF16, 2),
    (COUNTS, 1, "rows", (0, 0, 0), 136, 272, BF16, 1),
    (OFFSETS, 1, "columns", (200, 7, 70, 40, 129), 264, 1936, BF16, 1),  # unrolled loops (parts/multiply.cuh)
    (COUNTS, 1, "rows", (200, 20, 90), 136, 2048, F32, 2),
    # Last rounds of tiles cut in two and in three: rows of a full tile, columns of a wide one, few rows left.
    (OFFSETS, 1, "columns", (140,), 136, 272, BF16, 6),
    (OFFSETS, 1, "aligned", (300, 180), 264, 144, F16, 16),
    (COUNTS, 1, "rows", (250, 12), 264, 272, BF16, 19),
    (IDS, 64, "aligned", (193, 130), 328, 272, F32, 7),
    (OFFSETS, 1, "aligned", (20, 9, 32), 264, 272, F16, 19),
    (COUNTS, 1, "rows", (3, 0, 17), 200, 1168, F32, 12),
    # Wide tiles with all of their columns, which are those of the scales' columns or not.
    (OFFSETS, 1, "aligned", (250, 320), 392, 272, BF16, 1),
    (ENDS, 8, "columns", (230, 3), 584, 400, F32, 2),
    # More groups than one warp makes the table for.
    (OFFSETS, 1, "columns", (3, 0, 40, 1) * 9, 136, 144, BF16, 2),
    (ENDS, 8, "rows", (0, 5, 33) * 11, 136, 144, F16, 3),
    (COUNTS, 1, "aligned", (9, 0, 17) * 11, 136, 144, BF16, 2),
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


@pytest.mark.parametrize("form", [ENDS, COUNTS])
@pytest.mark.parametrize("dtype", [BF16, F32])
def test_rows_and_planes_more_than_32_bits_away(form, dtype):
    p = grouped.far_apart(grouped.make(form, (40, 130, 20), 136, 272, alignment=8, dtype=dtype))
    grouped.run(p, sms=2, seed=2)
    grouped.check(p)


@pytest.mark.parametrize("form, dtype", [(IDS, BF16), (OFFSETS, F32), (COUNTS, F16)])
def test_no_inner_extent_gives_zeros_tile_after_tile(form, dtype):
    """Nothing but the places of tiles goes from producers to consumers then, round after round."""
    for seed in launch.seeds((0, 1, 2)):
        p = grouped.make(form, (105, 7, 200, 140, 20), 328, 0, alignment=8 if form == IDS else 1, dtype=dtype)
        grouped.run(p, sms=1, seed=seed)
        grouped.check(p)


def test_pieces_without_holes_leave_by_tensor_copies_alone():
    """Full ones and the last ones of groups, past row 64: RowsOfBox."""
    patch = launch.planted(KERNEL, "write_boxes<kCols / 64>(", "if (false) write_boxes<kCols / 64>(")
    p = grouped.make(OFFSETS, (64, 100, 330), 392, 272)
    grouped.run(p, patch=patch)
    grouped.check(p)


def test_a_map_that_begins_before_its_tensor_is_refused(monkeypatch):
    """64 rows before, of which no box has any: docs/emulator.md."""
    encode = grouped.encode

    def early(tensor, box_rows, ended=True):
        made = encode(tensor, box_rows, ended)
        if ended:
            made.words[1] -= 64 * tensor.stride(-2) * tensor.element_size()  # address
            made.words[4] += 64  # rows that boxes may stand at
        return made

    def patch(text, headers):
        headers = {**headers}
        for header, old in ((ROWS, "second = row - first;"), (KERNEL, "t.row + i * 64 : last.second")):
            assert headers[header].count(old) == 1
            headers[header] = headers[header].replace("row - first;", "row - first + 64;")
            headers[header] = headers[header].replace(old, "t.row + i * 64 + 64 : last.second")
        return text, headers

    monkeypatch.setattr(grouped, "encode", early)
    with pytest.raises(launch.EmulatorFault, match="outside every buffer"):
        grouped.run(grouped.make(OFFSETS, (100, 5), 136, 272), patch=patch)


def read_to_the_end(p: grouped.Problem) -> grouped.Problem:
    """Rows behind the last group's must not be read."""
    p.readable = p.a[: int((p.owner >= 0).nonzero().max()) + 1]
    return p


@pytest.mark.parametrize("alignment", [24, 128])
def test_the_last_unit_of_ids_may_be_short(alignment):
    p = grouped.whole_to_the_end(grouped.make(IDS, (200, 3), 136, 144, alignment=alignment, seed=3))
    assert len(p.owner) % alignment != 0
    grouped.run(p, sms=2, seed=2)
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


KERNEL, TABLE, ROWS = "sm90/fp8_gemm_grouped.cuh", "parts/groups.cuh", "parts/grouped_rows.cuh"
WALK = "parts/group_walk.cuh"
BOXES = "parts/grouped_boxes.cuh"
# Few rows, unaligned and aligned, and solid pieces: plain and bulk copies of scales take turns.
MIXED = (OFFSETS, (13, 301, 3, 20, 200), 136, 2320)
PROBLEMS = {
    "mixed": lambda: shifted(grouped.make(*MIXED, lie="aligned", seed=1)),
    "pages": lambda: grouped.make(ENDS, [int(i % 5 == 0) for i in range(600)], 8, 16, alignment=2),
    "pieces": lambda: grouped.make(ENDS, (250,), 136, 272, alignment=16),
    "two pieces": lambda: grouped.make(OFFSETS, (128, 70, 192), 136, 272),
    "few rows": lambda: grouped.make(OFFSETS, (5, 20, 3), 136, 272),
    # rows of nobody between others: in the second half of a piece, in one of two pieces of a wide tile
    "holes": lambda: grouped.make(
        IDS, (250, 128, 200, 20), 392, 272, alignment=128, holes=((0, 70), (1, 100), (2, 10))
    ),
    "solid, then few": lambda: grouped.make(OFFSETS, (64, 5), 136, 272),
    "solid, then a page of few": lambda: grouped.make(ENDS, (64, *[0] * 550, 1), 8, 16),
    "many rows at the end": lambda: read_to_the_end(grouped.make(OFFSETS, (250,), 136, 272)),
    "few rows at the end": lambda: read_to_the_end(grouped.make(OFFSETS, (30,), 136, 272)),
    "fewer rows than groups": lambda: grouped.make(IDS, [2, *[0] * 40], 8, 16),
    "small without K": lambda: grouped.make(OFFSETS, (200, 7, 100), 264, 0),
    "a block without tiles": lambda: grouped.make(OFFSETS, (20,), 8, 272),
    "without K": lambda: grouped.make(ENDS, [i % 3 for i in range(600)], 8, 0, alignment=2),
    "cut columns": lambda: grouped.make(OFFSETS, (256,), 136, 272),
    "wide": lambda: grouped.make(OFFSETS, (250, 330), 392, 272),
    "halves": lambda: grouped.make(OFFSETS, (20, 9), 264, 272),
    "full units": lambda: grouped.make(IDS, (128, 256), 8, 144, alignment=128, seed=3),
    "index within 16 bytes": lambda: grouped.within_16_bytes(
        grouped.whole_to_the_end(grouped.make(IDS, (130, 40), 8, 144, alignment=64))
    ),
    "more runs than lanes": lambda: grouped.make(IDS, [1 + i % 3 for i in range(40)], 8, 144, alignment=8),
    "long run": lambda: grouped.make(IDS, (70, 400, 30), 8, 144, alignment=8),
    # read from memory: more units than the table has segments; more ids than the ring of stages has room for
    "many units": lambda: grouped.whole_to_the_end(
        grouped.make(IDS, [*[7, 2, 20] * 110, 3], 8, 16, alignment=8)
    ),
    "more ids than the ring holds": lambda: grouped.make(IDS, (300, 46000), 8, 0, alignment=128, dtype=F32),
    "short tiles": lambda: grouped.make(OFFSETS, (200, 250, 40, 100), 264, 144),
    "far": lambda: grouped.far_apart(grouped.make(ENDS, (40, 130, 20), 8, 144, alignment=8)),
    "far planes": lambda: grouped.far_apart(grouped.make(COUNTS, (40, 9, 20), 8, 144)),
}
SMS = {"cut columns": 4, "halves": 12, "a block without tiles": 5}  # others: 1
FAULTS = {
    "a warp's index is asked for by one lane alone": (
        "pages",
        TABLE,
        "if (lane == 31) ptx::store_shared_u32(table.warp_sums + 4 * warp, upto);",
        "if (lane == 31) ptx::store_shared_u32(table.warp_sums + 4 * ptx::warp_index(), upto);",
        "lanes",
    ),
    "a stage is filled before every lane has seen it empty": (
        "mixed",
        KERNEL,
        "        if (ptx::elect_one()) {\n            ptx::barrier_arrive_expect(full, (pieces",
        "        if (ptx::lane_index() == 0) {\n            ptx::barrier_arrive_expect(full, (pieces",
        "might wait for that for ever",
    ),
    "an idle warpgroup gives a stage back before every lane has seen it": (
        "mixed",
        KERNEL,
        "            ptx::sync_warp();\n            release(smem, rings.tiles.stage);",
        "            release(smem, rings.tiles.stage);",
        "might wait for that for ever",
    ),
    "bulk copies of scales where plain ones wrote, without a fence": (
        "mixed",
        KERNEL,
        "if (bulk && (me.plain & mark) != 0) ptx::fence_async_shared();",
        "",
        "fence",
    ),
    "results staged where a copy still reads": (
        "mixed",
        BOXES,
        "        ptx::barrier_wait(smem.sent + 8 * warpgroup, phase ^ 1);\n        if (read)",
        "        if (read)",
        "reads the old value",
    ),
    "boxes given back before the copies have read them": (
        "mixed",
        BOXES,
        "            ptx::wait_stores_read<0>();\n",
        "",
        "is still read",
    ),
    "boxes staged while other warps still read them": (
        "holes",
        BOXES,
        "        if (read) ptx::sync_threads(1 + warpgroup, 128);\n",
        "",
        "not ordered before",
    ),
    "a sender lets go before every lane has waited": (
        "mixed",
        BOXES,
        "            ptx::sync_warp();  // every lane has waited and read\n",
        "",
        "",
    ),
    "a warpgroup without rows hands nothing over": (
        "two pieces",
        KERNEL,
        "if (kOutput != Output::kF32 && t.solid != 0) boxes.",
        "if (false) boxes.",
        "",
    ),
    "senders are never told the end": (
        "mixed",
        KERNEL,
        "        if (kOutput != Output::kF32 && boxes.used)\n",
        "        if (false)\n",
        "deadlock",
    ),
    "senders who have nothing are never told the end": (
        "few rows",
        KERNEL,
        "!me.tiles && me.solid == 0",
        "false",
        "deadlock",
    ),
    "senders are dismissed for a last tile that has nothing for them": (
        "solid, then few",
        KERNEL,
        "me.solid |= me.slot.tell",
        "me.solid = me.slot.tell",
        "",
    ),
    "senders are dismissed for a last page that has nothing for them": (
        "solid, then a page of few",
        KERNEL,
        "            const u32 pages = page_count(smem.table, args);\n",
        "            const u32 pages = page_count(smem.table, args);\n            me.solid = 0;\n",
        "",
    ),
    "a warpgroup without columns has its boxes sent": (
        "cut columns",
        BOXES,
        "        else t.solid = 0;\n",
        "",
        "it was never written",
    ),
    "boxes handed over before every lane has staged": (
        "mixed",
        BOXES,
        "        ptx::sync_warp();\n        ptx::barrier_arrive_if",
        "        ptx::barrier_arrive_if",
        "not ordered before",
    ),
    "a tile mailed while the last one is read": (
        "two pieces",
        BOXES,
        "        ptx::barrier_wait(smem.sent + 8 * warpgroup, phase ^ 1);\n        hand_over(",
        "        hand_over(",
        "a read of the old value is not ordered before",
    ),
    "pieces written out before other warps have staged them": (
        "holes",
        KERNEL,
        "        if (sent == 3) return;\n        ptx::sync_threads(1 + warpgroup, 128);\n",
        "        if (sent == 3) return;\n",
        "not ordered before",
    ),
    "few rows staged where a copy still reads": (
        "mixed",
        KERNEL,
        "        boxes.await(smem.boxes, warpgroup);\n        stage_columns",
        "        stage_columns",
        "not ordered before",
    ),
    "boxes written by a sender and by who staged them": (
        "holes",
        KERNEL,
        "        if ((sent >> w & 1) != 0) continue;\n",
        "",
        "written twice",
    ),
    "staged results stored without a fence": (
        "mixed",
        BOXES,
        "        if (some) ptx::fence_async_shared();\n        else t.solid",
        "        if (!some) t.solid",
        "fence",
    ),
    "the table is read before the builders are done": (
        "pages",
        KERNEL,
        "if (!small) ptx::sync_threads(kTableBarrier, kTableThreads);  // the table is there\n",
        "",
        "",
    ),
    "barriers are used before they are made": (
        "mixed",
        KERNEL,
        "    ptx::sync_block();  // barriers are there; before what the roles read of the arguments\n",
        "",
        "",
    ),
    "a tile is told after it was announced": (
        "mixed",
        WALK,
        "        if (lane == 0) t.write_to(at(table));\n"
        "        ptx::sync_warp();  // one lane says that it is there\n"
        "        ptx::barrier_arrive_if(lane == 0, told + 8 * place.stage);\n",
        "        ptx::sync_warp();\n"
        "        ptx::barrier_arrive_if(lane == 0, told + 8 * place.stage);\n"
        "        if (lane == 0) t.write_to(at(table));\n",
        "",
    ),
    "a told tile awaited with the parity of the round before": (
        "short tiles",
        WALK,
        "told + 8 * place.stage, place.phase",
        "told + 8 * place.stage, 0",
        "",
    ),
    "few rows promoted before their scales are there": (
        "mixed",
        KERNEL,
        "            ptx::barrier_wait(smem.scales_full + 8 * rings.scales.stage, rings.scales.phase);\n"
        "            float products",
        "            float products",
        "",
    ),
    "scales of no tile given back before they came": (
        "without K",
        KERNEL,
        "    ptx::barrier_wait(smem.scales_full + 8 * rings.scales.stage, rings.scales.phase);\n"
        "    ptx::sync_warp();  // without K",
        "    ptx::sync_warp();  // without K",
        "",
    ),
    "groups read before the kernels before are done": (
        "mixed",
        KERNEL,
        "    ptx::wait_for_prior_kernels();\n    SmallIndex index;\n"
        "    if (ptx::warp_index() / 4 == kWarpgroups && few_groups(args)) index = SmallIndex(args);\n",
        "    SmallIndex index;\n"
        "    if (ptx::warp_index() / 4 == kWarpgroups && few_groups(args)) index = SmallIndex(args);\n"
        "    ptx::wait_for_prior_kernels();\n",
        "griddepcontrol.wait",
    ),
    "ids copied before the kernels before are done": (
        "holes",
        KERNEL,
        "    ptx::wait_for_prior_kernels();\n",
        "    if (!come_at_once(args) || ptx::thread_index() != 0) ptx::wait_for_prior_kernels();\n",
        "griddepcontrol.wait",
    ),
    "ids looked at before they came": ("holes", KERNEL, "ptx::barrier_wait(smem.ids, 0);\n", "", ""),
    "fewer ids copied than skewed": ("index within 16 bytes", KERNEL, "4 + skew + 15", "4 + 15", ""),
    "stages filled while ids are still looked at": (
        "holes",
        KERNEL,
        "        ptx::sync_block();  // runs are there, and the ring is free\n",
        "",
        "",
    ),
    "ids looked for a row behind where they are": (
        "index within 16 bytes",
        KERNEL,
        "smem.ring + skew",
        "smem.ring + skew + 4",
        "",
    ),
    "a unit for threads that have none": (
        "index within 16 bytes",
        KERNEL,
        "if (ptx::thread_index() < args.units) unit_ids = UnitIds",
        "unit_ids = UnitIds",
        "",
    ),
    "ids for which the ring has no place": (
        "more ids than the ring holds",
        TABLE,
        " && args.rows <= kIdsRoom",
        "",
        "",
    ),
    "more runs than a warp has lanes, taken as a group a lane": (
        "more runs than lanes",
        TABLE,
        "ptx::shuffle(ptx::load_shared_u32(table.carry), 0) <= 32",
        "ptx::shuffle(ptx::load_shared_u32(table.carry), 0) != 0",
        "",
    ),
    "ids read as if they were groups": (
        "fewer rows than groups",
        KERNEL,
        "if (ptx::warp_index() / 4 == kWarpgroups && few_groups(args)) index",
        "if (ptx::warp_index() / 4 == kWarpgroups) index",
        "outside every buffer",
    ),
    "scales start without the tiles' warp": (
        "mixed",
        KERNEL,
        "        me.meet();\n        if (first == 0)",
        "        if (first == 0)",
        "deadlock",
    ),
    "one warp's table is read before it is written": (
        "mixed",
        KERNEL,
        "        if (small) first = build_small_table(smem.table, args, index, warp == 2);\n",
        "        if (warp == 2) ptx::sync_threads(kProducerBarrier, kProducerThreads);\n"
        "        if (small) first = build_small_table(smem.table, args, index, warp == 2);\n"
        "        if (warp == 2) return;\n",
        "",
    ),
    "without loads one warp's table is read before it is written": (
        "small without K",
        KERNEL,
        "    if constexpr (kKBlocks == 0) me.meet();  // there are no loads to meet at\n",
        "",
        "not ordered before",
    ),
    "a block without tiles leaves its table before it is written": (
        "a block without tiles",
        KERNEL,
        "    me.meet();  // where there was no tile\n",
        "",
        "",
    ),
    "a block looks for its first tile where it has found it": (
        "mixed",
        WALK,
        "        if (f.cut == 0) f = look_up();\n",
        "        f = look_up();\n",
        "not ordered before",
    ),
    "a block's second tile is its first one again": (
        "mixed",
        WALK,
        "        item += ptx::grid_size();\n        found = {};\n",
        "        item += ptx::grid_size();\n",
        "",
    ),
    "scales' stages counted as free of plain writes": (
        "mixed",
        KERNEL,
        "me.plain = bulk ? me.plain & ~mark : me.plain | mark;",
        "me.plain &= ~mark;",
        "no fence.proxy.async",
    ),
    "warp sums overwritten while others read them": (
        "pages",
        TABLE,
        "        sync_builders();  // warp_sums are free\n",
        "",
        "a read of the old value is not ordered before",
    ),
    "a page's table overwritten while it is read": (
        "pages",
        KERNEL,
        "            ptx::sync_threads(kTableBarrier, kTableThreads);  // it has been read\n",
        "",
        "not ordered before",
    ),
    "a tile told before every lane has written its part": (
        "mixed",
        WALK,
        "        ptx::sync_warp();  // one lane says that it is there\n",
        "",
        "",
    ),
    "a place for a tile used again while the last tile but one is read": (
        "short tiles",
        TABLE,
        "constexpr u32 kTileSlots = 4;",
        "constexpr u32 kTileSlots = 2;",
        "not ordered before",
    ),
    "few rows' stage given back while the second product reads it": (
        "mixed",
        KERNEL,
        "            ptx::wgmma_wait<0>();\n            ptx::pin_registers(partial[1]);\n"
        "            release(smem, stage);",
        "            release(smem, stage);\n            ptx::wgmma_wait<0>();",
        "a wgmma that",
    ),
    "bytes of a whole tile of weights where half of one comes": (
        "halves",
        KERNEL,
        "kFewBlocks * (boxes * kPieceBytes + kTokenBytes)",
        "kFewBlocks * (kWeightBytes + kTokenBytes)",
        "",
    ),
    "the third warpgroup of a wide tile has the columns of the first scale": (
        "wide",
        BOXES,
        ": !two ? odd * 64 : odd ? 0 : 128;",
        ": !two ? 0 : 128;",
        "",
    ),
    "a piece without holes in its first half counts as solid": (
        "holes",
        WALK,
        "(full >> 2 * p & 3) == 3",
        "(full >> 2 * p & 1) == 1",
        "a row of no group was written",
    ),
    "rows behind a group's last sent with its piece": (
        "pieces",
        BOXES,
        "left < 64 ? left : 64",
        "64",
        "a row of no group was written",
    ),
    "a piece is filled up with the rows behind it": (
        "many rows at the end",
        KERNEL,
        "t.rows - (pieces - 1) * 64",
        "64",
        "outside every buffer",
    ),
    "tokens are filled up with the rows behind them": (
        "few rows at the end",
        KERNEL,
        "tokens(args, kFewRows, t.row, t.rows)",
        "tokens(args, kFewRows, t.row, kFewRows)",
        "outside every buffer",
    ),
    "ids read past the end of the last of many units": (
        "many units",
        TABLE,
        "left < args.alignment ? left : args.alignment, live = 0;",
        "args.alignment, live = 0;",
        "outside every buffer",
    ),
    "runs of many units counted by one warp only": (
        "many units",
        TABLE,
        "started = ptx::sum_of_lanes(lane < warp ? count : 0);",
        "started = 0;",
        "",
    ),
    "runs of many units listed before all are counted": (
        "many units",
        TABLE,
        "            sync_builders();\n            const u32 count",
        "            const u32 count",
        "not ordered before",
    ),
    "the end of a unit looked for in its last four ids alone": (
        "many units",
        TABLE,
        "    for (; rows > live; rows = rows > kAtOnce ? rows - kAtOnce : 0) {",
        "    for (u32 once = 1; once != 0; once--) {",
        "",
    ),
    "row of D in 32 bits": ("far", ROWS, "(i64)row * args.ldd", "row * (u32)args.ldd", ""),
    "plane of D in 32 bits": (
        "far planes",
        ROWS,
        "(i64)plane(args, group) * args.d_group",
        "plane(args, group) * (u32)args.d_group",
        "",
    ),
}


def shifted(p: grouped.Problem) -> grouped.Problem:
    """Groups of more than one row begin at 0, where bulk copies of scales may begin, and elsewhere."""
    p.index[0] = 0
    p.owner[:3], p.sfa[:3] = 0, 0.5
    p.a.view(torch.uint8)[:3] = 0x38
    return p


def attempt(problem, seed, patch=None):
    p = PROBLEMS[problem]()
    grouped.run(p, sms=SMS.get(problem, 1), seed=seed, patch=patch)
    grouped.check(p)


@pytest.mark.parametrize("problem", PROBLEMS)
def test_the_kernel_without_faults_passes(problem):
    for seed in launch.seeds((1, 0, 2, 3, 4, 5)):
        attempt(problem, seed)


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_rejected(name):
    problem, header, old, new, reason = FAULTS[name]
    patch = launch.planted(header, old, new)
    for seed in (1, 0, 2, 3, 4, 5):
        try:
            attempt(problem, seed, patch)
        except AssertionError as fault:
            assert reason in str(fault), f"rejected for another reason: {fault}"
            return
    pytest.fail("no timing showed the fault")
