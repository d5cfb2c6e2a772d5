"""Which tiles the blocks of the M-grouped kernel take: every row of every group, with every column, once."""

import random

import pytest
import torch
from emulator import grouped, launch, plans
from emulator.grouped import COUNTS, ENDS, IDS, OFFSETS

from deep_gemm_jit import _core

WORDS = 8  # group, row, rows, columns, first column, is wide, page of the table, is half a tile of few rows
PAGE = 6
FEW = 32  # kFewRows
BEHIND = 128  # rows behind the last one, of which something stands in shared memory: the largest alignment

# In place of the kernel: the table is made as there, then a warp writes down what its walk says, parts
# without rows too. After a tile without rows all leave the page.
WALK = """
#include "parts/group_walk.cuh"
DGJ_KERNEL(512) dgj_kernel(const DGJ_GRID_CONSTANT dgj::GroupedArgs args) {
    using namespace dgj;
    const GroupTable table(ptx::shared_base());
    Word4* out = (Word4*)args.d + 2 * args.d_group * ptx::block_index();
    // What a kernel before may leave there: rows, and tiles that seem to start here.
    for (u32 s = ptx::thread_index(); s < kSegments; s += 128 * (kWarpgroups + 1)) {
        ptx::store_shared_u32(table.row + 4 * s, 0);
        ptx::store_shared_u32(table.end + 4 * s, 1);
        ptx::store_shared_u32(table.group + 4 * s, 0);
        ptx::store_shared_u32(table.first_tile + 4 * s, 0);
    }
    ptx::sync_block();
    ptx::wait_for_prior_kernels();
    if (come_at_once(args)) {
        const u32 ids = ptx::shared_base() + 16384, last = args.rows - 1;
        // Behind the last id its group's go on: what was there before may look like that.
        for (u32 r = ptx::thread_index(); r < args.rows + kBehind; r += 128 * (kWarpgroups + 1))
            ptx::store_shared_u32(ids + 4 * r, (u32)ptx::load_global_i32(args.index + (r < last ? r : last)));
        ptx::sync_block();
        UnitIds unit;
        if (ptx::thread_index() < args.units) unit = UnitIds(args, ptx::thread_index());
        list_units(table, args, unit);
        end_runs(table, args, ids);
    }
    ptx::sync_block();
    for (u32 page = 0;; page++) {
        Found first;
        if (fits_a_warp(table, args)) {
            const SmallIndex index = args.form == kFormIds ? SmallIndex() : SmallIndex(args);
            first = build_small_table(table, args, index, ptx::warp_index() == 1);  // not who walks
        } else if (ptx::thread_index() < kBuilders) {
            build_table(table, args, page);
        }
        ptx::sync_block();
        const u32 pages = page_count(table, args);
        if (ptx::warp_index() == 0) {
            for (GroupWalk walk(table, args, first);; walk.next()) {
                const GroupTile t = walk.locate();
                if (t.rows == 0 && walk.item >= walk.items()) break;
                const u32 left = kN - t.col, tile = left < kTileCols ? left : kTileCols;
                const u32 cols = t.cols != 0 ? t.cols : tile;
                if (ptx::lane_index() == 0) {
                    ptx::store_global_word4(out++, {t.group, t.row, t.rows, cols});
                    ptx::store_global_word4(out++, {t.col, t.wide(), page, t.few() && t.cols != 0});
                }
                if (t.rows == 0) break;
            }
        }
        if (page + 1 >= pages) break;
        ptx::sync_block();
    }
}
"""


def compiled(n: int):
    """The walk with the tiles that the planner gives this N."""
    problem = _core.GemmProblem(n=n, k=128, d_dtype=torch.bfloat16, layout="m_grouped", groups=1)
    source = plans.emit(plans.find(problem, 100))

    def walk(text, headers):
        constants = text[text.index("namespace dgj") : text.index("#include", text.index("namespace dgj"))]
        return f"{constants}constexpr unsigned kBehind = {BEHIND};\n{WALK}", headers

    return launch.compiled(source, walk)


def tiles_of(n: int, form: int, index, owner, groups: int, alignment: int, blocks: int) -> torch.Tensor:
    """What each block lists, [blocks, most tiles, WORDS]; -1 behind its last tile."""
    rows = owner.shape[-1]
    tiles = (int((owner >= 0).sum()) // 64 + groups) * (n // 128 + 1)  # at most, but for holes
    most = 2 * tiles // blocks + 8
    out = torch.full((blocks, most, WORDS), -1, dtype=torch.int32)
    args = grouped.GroupedArgs(
        d=out.data_ptr(), d_group=most, index=index.data_ptr(), rows=rows, groups=groups, form=form,
        alignment=alignment, units=-(-rows // alignment) if form == IDS else 0,
    )  # fmt: skip
    launch.run(
        compiled(n),
        [args],
        [launch.extent(out, True), launch.extent(index, False)],
        blocks=blocks,
        threads=512,
        cluster=1,
        shared_bytes=16384 + 4 * (min(rows, 40960) + BEHIND),
        seed=launch.seeds((0,))[0],
        what=f"walk n={n} form={form} alignment={alignment} groups={groups} rows={rows} blocks={blocks}",
    )
    return out


def counts_of(groups: int, largest: int, generator: random.Random) -> list[int]:
    """Rows of groups: none, few, as many as few can be, around multiples of a piece of 64, any."""

    def one() -> int:
        kind = generator.randrange(5)
        if kind < 2:
            return generator.randint(0, 40) * kind
        if kind == 4:
            return FEW
        any_rows = generator.randint(0, largest)
        return any_rows if kind == 2 else max(0, any_rows // 64 * 64 + generator.randint(-1, 1))

    return [min(one(), largest) for _ in range(groups)]


def check(n: int, form: int, owner: torch.Tensor, out: torch.Tensor) -> list[list[list[int]]]:
    """Returns the tiles of each block, those without rows too."""
    planes = owner if form == COUNTS else owner[None]
    covered = torch.zeros(*planes.shape, n // 8, dtype=torch.uint8)
    lists = [block[: int((block[:, 0] < 0).nonzero()[0])].tolist() for block in out]
    for tiles in lists:
        for at, (group, row, rows, cols, col, wide, page, half) in enumerate(tiles):
            if rows == 0:
                last = at == len(tiles) - 1 or tiles[at + 1][PAGE] > page
                assert last, "a block went on after it was told that nothing is left"
                continue
            most = (128, 192) if wide else (FEW, 64) if half else (192, 128)
            assert not (wide and half)
            assert 0 < rows <= most[0] and 0 < cols <= most[1] and col % 8 == cols % 8 == 0, (rows, col, cols)
            plane = group if form == COUNTS else 0
            owners = planes[plane, row : row + rows]
            assert len(owners) == rows and col + cols <= n, "a tile goes past the end of D"
            mine = owners == group
            assert bool((mine | (owners < 0)).all() if form == IDS else mine.all()), "rows of another group"
            covered[plane, row : row + rows, col // 8 : (col + cols) // 8] += 1
    live = planes >= 0
    assert bool((covered[live] == 1).all()), "a row of a group is computed not at all or twice"
    assert bool((covered[~live] <= (form == IDS)).all()), "a row of no group is computed"
    for page in {tile[PAGE] for tiles in lists for tile in tiles}:
        lengths = [sum(tile[PAGE] == page for tile in tiles) for tiles in lists]
        assert lengths == sorted(lengths, reverse=True) and lengths[0] - lengths[-1] <= 1, lengths
    return lists


def draw(form: int, groups: int, largest: int, generator: random.Random):
    alignment = generator.choice((1, 8, 24, 128)) if form in (IDS, ENDS) else 1
    counts = counts_of(groups, largest, generator)
    seed = torch.Generator().manual_seed(generator.randrange(1000))
    return alignment, *grouped.rows_of(form, counts, alignment, seed)


# N: part of a tile, of a span of 384 columns, whole spans, all of that.
@pytest.mark.parametrize("n", [8, 136, 384, 392, 584, 768, 1160])
@pytest.mark.parametrize("form", [IDS, ENDS, OFFSETS, COUNTS], ids=["ids", "ends", "offsets", "counts"])
def test_every_row_and_column_of_every_group_is_computed_once(form, n):
    generator = random.Random(1000 * form + n)
    sizes = (2000, 1, 4), (600, 1, 20), (2000, 33, 40), (150, 1, 40), (70, 1, 40), (6, 513, 1100)  # pages
    for largest, fewest, most in sizes:
        groups, blocks = generator.randint(fewest, most), generator.choice((1, 2, 5, 20, 66, 132))
        alignment, index, owner = draw(form, groups, largest, generator)
        check(n, form, owner, tiles_of(n, form, index, owner, groups, alignment, blocks))


# Blocks: fewer than tiles, as many, more, and more than there are parts of tiles.
@pytest.mark.parametrize("blocks", [31, 32, 33, 65, 97])
@pytest.mark.parametrize("form", [ENDS, OFFSETS, COUNTS], ids=["ends", "offsets", "counts"])
def test_the_last_of_as_many_groups_as_a_warp_has_lanes_is_computed_once(form, blocks):
    alignment = 8 if form == ENDS else 1
    index, owner = grouped.rows_of(form, [5] * 32, alignment, None)  # 32 tiles
    check(8, form, owner, tiles_of(8, form, index, owner, 32, alignment, blocks))


@pytest.mark.parametrize("runs", [31, 32, 33, 64])
def test_as_many_runs_of_ids_as_a_warp_has_lanes_are_computed_once(runs):
    index, owner = grouped.rows_of(IDS, [5] * runs, 8, None)
    check(8, IDS, owner, tiles_of(8, IDS, index, owner, runs, 8, 33))


def test_no_tile_has_a_unit_that_is_nobodys_before_a_run():
    owner = torch.tensor([0] * 9 + [-1] * 247 + [1] + [-1] * 31 + [2])  # 1: after 32 units of 8
    for blocks in (1, 5):
        for tiles in check(8, IDS, owner, tiles_of(8, IDS, owner.int(), owner, 3, 8, blocks)):
            assert all(owner[row] == group for group, row, rows, *_ in tiles if rows)


# As many as the table has segments come at once; one more would not fit.
@pytest.mark.parametrize("units", [511, 512, 513, 1025])
def test_units_that_are_runs_of_their_own_are_computed_once(units):
    owner = torch.arange(2 * units) // 2
    for blocks in (1, 5):
        check(8, IDS, owner, tiles_of(8, IDS, owner.int(), owner, units, 2, blocks))


def last_unit(group: int, rows: int) -> torch.Tensor:
    """Whole or short; it goes on with a run or begins one; one of its rows is nobody's."""
    return torch.tensor([0] * 8 + [group, *[-1] * (rows > 2), *[group] * 6][:rows])


@pytest.mark.parametrize("rows", [8, 7, 1])
@pytest.mark.parametrize("group", [0, 1])
def test_a_run_ends_with_the_rows_whatever_stands_behind_the_ids(group, rows):
    owner = last_unit(group, rows)
    check(8, IDS, owner, tiles_of(8, IDS, owner.int(), owner, 2, 8, 1))


UNITS = "return args.form == kFormIds && args.units <= kSegments"
FAULTS = {  # of parts/groups.cuh; what shows them, in units of so many rows
    "a short unit is looked at as a whole one": (
        "const u32 rows = left < args.alignment ? left : args.alignment;",
        "const u32 rows = args.alignment;",
        last_unit(0, 7),
        8,
    ),
    "a unit behind the last one": (
        "(unit + 1 == args.units || ids.after != own)",
        "(ids.after != own)",
        torch.cat([last_unit(0, 8), last_unit(1, 8)[8:]]),
        8,
    ),
    "a run for every lane": (
        "in = lane < ptx::load_shared_u32(table.carry);",
        "in = true;",
        last_unit(1, 8),
        8,
    ),
    "more units than segments": (UNITS, f"{UNITS} + 1", torch.arange(1026) // 2, 2),
    "runs counted among 32 units only": (
        "run.segment(ptx::sum_of_lanes(lane < warp ? count : 0))",
        "run.segment(0)",
        torch.arange(40).repeat_interleave(4),
        2,
    ),
    "runs listed before all warps have counted theirs": (
        "ptx::count_ones(run.mask));\n    ptx::sync_block();\n",
        "ptx::count_ones(run.mask));\n",
        torch.arange(40).repeat_interleave(4),
        2,
    ),
    "ends looked for before all runs are listed": (
        "ptx::store_shared_u32(table.carry, all);\n    ptx::sync_block();\n",
        "ptx::store_shared_u32(table.carry, all);\n",
        last_unit(1, 8),
        8,
    ),
    "an end written where lanes still read": (
        "        ptx::sync_warp();  // every lane has read the last unit\n",
        "",
        last_unit(1, 8),
        8,
    ),
    "a run ends with its first unit": (
        "if (run.ends) ptx::store_shared_u32(table.end + 4 * segment, unit);",
        "if (run.starts) ptx::store_shared_u32(table.end + 4 * segment, unit);",
        torch.zeros(24, dtype=torch.int64),
        8,
    ),
    "no run starts with the first unit": (
        "(unit == 0 || ids.before != own)",
        "ids.before != own",
        last_unit(1, 8),
        8,
    ),
    "every run ends where the first one's ids do": (
        "own = ptx::load_shared_u32(table.group + 4 * s);",
        "own = ptx::load_shared_u32(table.group);",
        last_unit(1, 8),
        8,
    ),
}


def plant(monkeypatch, old: str, new: str):
    """A fault in parts/groups.cuh, beside what makes a walk of the kernel."""
    compile_for_host, fault = launch.compiled, launch.planted("parts/groups.cuh", old, new)
    monkeypatch.setattr(
        launch,
        "compiled",
        lambda source, walk: compile_for_host(source, lambda *emitted: fault(*walk(*emitted))),
    )


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_rejected(name, monkeypatch):
    old, new, owner, alignment = FAULTS[name]

    def attempt():
        out = tiles_of(8, IDS, owner.int(), owner, int(owner.max()) + 1, alignment, 1)
        check(8, IDS, owner, out)

    attempt()
    plant(monkeypatch, old, new)
    with pytest.raises((AssertionError, launch.EmulatorFault)):
        attempt()


@pytest.mark.parametrize("parts", [2, 3])
@pytest.mark.parametrize("n", [136, 584])
def test_tiles_of_the_last_round_are_cut_where_blocks_are_left(n, parts):
    generator, seen, halves = random.Random(n + parts), set(), 0
    for form, groups in ((COUNTS, 3), (OFFSETS, 5), (ENDS, 35), (IDS, 4)):
        alignment, index, owner = draw(form, groups, 300, generator)

        def walk(blocks, form=form, groups=groups, alignment=alignment, index=index, owner=owner):
            out = tiles_of(n, form, index, owner, groups, alignment, blocks)
            return check(n, form, owner, out)

        (whole,) = walk(1)
        total = len(whole)
        # All tiles are of the last round, or a round of whole ones comes before it.
        fewer = [left for left in range(1, total) if parts * left <= total - left < (parts + 1) * left]
        for left in [total, *fewer[-1:]]:
            rounds, blocks = (0, total * parts) if left == total else (1, total - left)
            seen.add(rounds)
            lists = walk(blocks)
            assert sum(map(len, lists)) == total - left + left * parts
            for tiles in lists:
                for group, _, rows, cols, _, wide, _, half in tiles[rounds:]:
                    assert (cols if wide else rows) <= (64 if parts == 3 else 128)
                    # With ids there may be holes.
                    few = form != IDS and 0 < rows and int((owner == group).sum()) <= FEW
                    assert cols <= 64 or not few, "a tile of few rows is whole"
                    halves += half
    assert seen == {0, 1} and halves > 0


# Groups with a few rows and groups without, for blocks that leave tiles whole, halve them, and have no tile.
FEW_COUNTS = {
    "whole": ([5, 0, 32, 1, 0, 9], 13),
    "halved": ([0, 32, 0, 7], 13),
    "a third empty": ([1, 0], 10),
    "as many as lanes": ([1] * 32, 100),
}
FEW_FAULTS = {
    "groups without rows are counted": ("end != start && below == tile.rank", "lane == tile.rank"),
    "a group too far": ("below == tile.rank", "below == tile.rank + 1"),
    "a block without a tile takes one": ("if (mine == 0 || tile.empty) return", "if (tile.empty) return"),
    "the third part of two halves": ("empty = half.cols == 0;", "empty = false;"),
    "both halves are the first": (": col(first + part * 64)", ": col(first)"),
    "a half is a whole tile": ("cols = half.cols, empty", "cols = 0, empty"),
}


def few_tiles(counts: list[int], blocks: int, form: int = COUNTS):
    groups, rows, n = len(counts), max(counts), 328  # three tiles of columns, the last one of 72
    if form == COUNTS:
        index = torch.tensor(counts, dtype=torch.int32)
        owner = torch.full((groups, rows), -1)
        for group, count in enumerate(counts):
            owner[group, :count] = group
    else:
        index = torch.tensor([0, *counts]).cumsum(0).int()
        owner = torch.arange(groups).repeat_interleave(torch.tensor(counts))
    return check(n, form, owner, tiles_of(n, form, index, owner, groups, 1, blocks))


@pytest.mark.parametrize("form", [COUNTS, OFFSETS])
@pytest.mark.parametrize("name", FEW_COUNTS)
def test_where_all_groups_have_few_rows_blocks_start_with_their_tiles(name, form):
    counts, blocks = FEW_COUNTS[name]
    lists = few_tiles(counts, blocks, form)
    widths = {cols for tiles in lists for _, _, rows, cols, *_ in tiles if rows}
    assert widths == ({64, 8} if name in ("halved", "a third empty") else {128, 72})


@pytest.mark.parametrize("name", FEW_FAULTS)
def test_a_fault_in_finding_the_first_tile_is_rejected(name, monkeypatch):
    plant(monkeypatch, *FEW_FAULTS[name])
    rejected = 0
    for counts, blocks in FEW_COUNTS.values():
        try:
            few_tiles(counts, blocks)
        except (AssertionError, launch.EmulatorFault):
            rejected += 1
    assert rejected > 0
