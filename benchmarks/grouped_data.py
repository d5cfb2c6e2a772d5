"""Inputs of the M-grouped GEMMs: how many rows each group has, where they lie in each form of the operation,
and operands whose rows of no group hold NaN in values and scales."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

import torch

from .data import (
    BLOCK,
    FP8,
    FP8_NAN_BYTE,
    ceil_div,
    quantise_blocks,
    quantise_rows,
    random_rows,
    scale_layout,
)
from .reference import Reference

FORMS = ("ids", "psum", "masked", "offsets")
MOST_AT_ONCE = 1 << 28  # elements of experts that are quantised together: a few gigabytes in between
DISTRIBUTIONS = ("multinomial", "zipf", "one_hot", "empty", "alternating")


def align(x: int, y: int) -> int:
    return ceil_div(x, y) * y


# ---- how many rows -------------------------------------------------------------------------------


def draw_counts(kind: str, groups: int, total: int, seed: int = 0) -> list[int]:
    """Rows of each group; they sum to `total` but for empty (0) and alternating (every other group has
    one)."""
    rng = random.Random(seed)
    if kind == "empty":
        return [0] * groups
    if kind == "alternating":
        return [g % 2 for g in range(groups)]
    if kind == "one_hot":
        chosen = rng.randrange(groups)
        return [total if g == chosen else 0 for g in range(groups)]
    if kind == "multinomial":
        weights = [1.0] * groups
    elif kind == "zipf":
        weights = [1.0 / (rank + 1) for rank in range(groups)]
        rng.shuffle(weights)
    else:
        raise ValueError(f"unknown distribution {kind!r}")
    counts = [0] * groups
    for g in rng.choices(range(groups), weights, k=total):
        counts[g] += 1
    return counts


# ---- where they lie ------------------------------------------------------------------------------


@dataclass
class Layout:
    form: str
    groups: int
    rows: int  # of A, or of one group of it (masked)
    alignment: int
    runs: list[tuple[int, int, int]]  # (group, first row, rows); masked: the row within the group
    index: list[int]  # what the operation is told

    @property
    def live(self) -> int:
        return sum(count for _, _, count in self.runs)

    @property
    def total(self) -> int:
        return self.rows * (self.groups if self.form == "masked" else 1)

    def flat_runs(self) -> list[tuple[int, int, int]]:
        """Rows of all groups one after another."""
        pitch = self.rows if self.form == "masked" else 0
        return [(g, g * pitch + start, count) for g, start, count in self.runs if count]


def ids_layout(
    counts: list[int], alignment: int = 128, *, pieces: int = 1, shuffle_seed: int | None = None,
    short_last: bool = False, holes: bool = False, tail_units: int = 0,
) -> Layout:  # fmt: skip
    """pieces: how many separate segments a group has. holes: every fifth row of a unit but its first is -1.
    short_last: nothing follows the last live row, so the last unit may be short."""
    segments = []
    for g, count in enumerate(counts):
        for piece in range(pieces):
            size = count * (piece + 1) // pieces - count * piece // pieces
            if size:
                segments.append((g, size))
    if shuffle_seed is not None:
        random.Random(shuffle_seed).shuffle(segments)
    index: list[int] = []
    for g, size in segments:
        unit = [g] * size + [-1] * (align(size, alignment) - size)
        if holes:
            unit = [
                -1 if i % alignment != 0 and i % 5 == 4 and owner == g else owner
                for i, owner in enumerate(unit)
            ]
        index += unit
    if short_last:
        while index and index[-1] == -1:
            index.pop()
    index += [-1] * (tail_units * alignment)
    runs, row = [], 0
    while row < len(index):
        end = row
        while end < len(index) and index[end] == index[row]:
            end += 1
        if index[row] >= 0:
            runs.append((index[row], row, end - row))
        row = end
    return Layout("ids", len(counts), len(index), alignment, runs, index)


def psum_layout(counts: list[int], alignment: int = 128, *, tail: int = 0, round_rows: bool = True) -> Layout:
    ends, runs, start = [], [], 0
    for g, count in enumerate(counts):
        runs.append((g, start, count))
        ends.append(start + count)
        start = align(start + count, alignment)
    last = max((first + count for _, first, count in runs if count), default=0)
    rows = (align(last, alignment) if round_rows else last) + tail
    return Layout("psum", len(counts), rows, alignment, runs, ends)


def offsets_layout(counts: list[int], *, first: int = 0, tail: int = 0) -> Layout:
    offsets, runs = [first], []
    for g, count in enumerate(counts):
        runs.append((g, offsets[-1], count))
        offsets.append(offsets[-1] + count)
    return Layout("offsets", len(counts), offsets[-1] + tail, 1, runs, offsets)


def masked_layout(counts: list[int], max_m: int) -> Layout:
    counts = [min(count, max_m) for count in counts]
    return Layout(
        "masked", len(counts), max_m, 1, [(g, 0, count) for g, count in enumerate(counts)], counts
    )


# ---- operands ------------------------------------------------------------------------------------


@dataclass
class Weights:
    b: torch.Tensor  # e4m3 [G, N, K]
    sfb: torch.Tensor  # fp32 [G, ceil(N/128), ceil(K/128)]


def random_weights(groups: int, n: int, k: int, device="cuda") -> Weights:
    """Quantised as tall matrices; N is padded so that no block spans two groups."""
    tall = align(n, BLOCK)
    b = torch.empty(groups, n, k, dtype=FP8, device=device)
    sfb = torch.empty(groups, tall // BLOCK, ceil_div(k, BLOCK), device=device)
    step = max(1, MOST_AT_ONCE // (tall * k))
    for g in range(0, groups, step):
        count = min(step, groups - g)
        q, sf = quantise_blocks(random_rows(count * tall, k, device) * 0.1)
        b[g : g + count].view(torch.uint8).copy_(q.view(torch.uint8).view(count, tall, k)[:, :n])
        sfb[g : g + count] = sf.view(count, tall // BLOCK, -1)
    return Weights(b, sfb)


@dataclass
class Grouped:
    layout: Layout
    a: torch.Tensor
    sfa: torch.Tensor
    weights: Weights
    index: torch.Tensor
    plain: tuple[torch.Tensor, torch.Tensor] = field(repr=False, default=None)  # A, scales: flat, row-major

    @property
    def lhs(self):
        return self.a, self.sfa

    @property
    def rhs(self):
        return self.weights.b, self.weights.sfb


GROUP_SCALE_LAYOUTS = ("row_major", "mn_major_aligned", "mn_major_unaligned", "column_sliced", "wide_groups")


def group_scale_layout(scale: torch.Tensor, name: str) -> torch.Tensor:
    """[G, rows, blocks] in one of the layouts of masked callers; what lies between is NaN."""
    groups, rows, blocks = scale.shape

    def nan(*shape):
        return torch.full(shape, float("nan"), device=scale.device)

    if name == "row_major":
        return scale.contiguous()
    if name == "mn_major_aligned":
        view = nan(groups, blocks, align(rows, 4)).transpose(1, 2)[:, :rows]
    elif name == "mn_major_unaligned":  # strides (rows * blocks, 1, rows), at a base of 4 bytes
        view = nan(groups * rows * blocks + 1)[1:].view(groups, blocks, rows).transpose(1, 2)
    elif name == "column_sliced":
        view = nan(groups, rows, blocks + 3)[:, :, 1 : 1 + blocks]
    elif name == "wide_groups":  # every third group of a larger tensor, MN-major
        view = nan(3 * groups, blocks, rows + 5)[::3].transpose(1, 2)[:, :rows]
    else:
        raise ValueError(f"unknown scale layout {name!r}")
    view.copy_(scale)
    return view


def live_rows(layout: Layout, device) -> torch.Tensor:
    """bool [total rows]"""
    live = torch.zeros(layout.total, dtype=torch.bool)
    for _, start, count in layout.flat_runs():
        live[start : start + count] = True
    return live.to(device)


def grouped_operands(
    layout: Layout, weights: Weights, *, sfa_layout: str = "row_major", poison: bool = True, device="cuda"
) -> Grouped:
    """poison: rows of no group hold NaN, in values and scales."""
    k = weights.b.shape[2]
    a, sfa = quantise_rows(random_rows(layout.total, k, device))
    if poison:
        dead = ~live_rows(layout, device)
        a.view(torch.uint8)[dead] = FP8_NAN_BYTE
        sfa[dead] = float("nan")
    plain = (a, sfa)
    if layout.form == "masked":
        shape = (layout.groups, layout.rows, -1)
        a = a.view(torch.uint8).view(shape).view(a.dtype)
        sfa = group_scale_layout(sfa.view(shape), sfa_layout)
    else:
        sfa = scale_layout(sfa, sfa_layout)
    index = torch.tensor(layout.index, dtype=torch.int32, device=device)
    return Grouped(layout, a, sfa, weights, index, plain)


def with_layout(case: Grouped, layout: Layout) -> Grouped:
    """The same tensors, with rows given to groups in another way."""
    if (layout.form, layout.groups, layout.rows) != (case.layout.form, case.layout.groups, case.layout.rows):
        raise ValueError("the layouts differ in more than the rows of groups")
    index = torch.tensor(layout.index, dtype=torch.int32, device=case.index.device)
    return replace(case, layout=layout, index=index)


def padded_to(layout: Layout, rows: int) -> Layout:
    """The same groups in a matrix of more rows."""
    if layout.rows > rows:
        raise ValueError(f"the layout needs {layout.rows} rows, more than {rows}")
    if layout.form == "ids":
        layout.index += [-1] * (rows - layout.rows)
    layout.rows = rows
    return layout


def check(
    case: Grouped, d: torch.Tensor, before: torch.Tensor | None, most_groups: int | None = None
) -> tuple:
    """(live elements out of bounds, worst |d - ref| / bound, bytes of other rows that are not as in `before`,
    or not zero where that is None), as tensors on the device. most_groups: compares the rows of so many
    groups, evenly picked, not of all."""
    layout, n = case.layout, d.shape[-1]
    d = d.reshape(layout.total, n)
    a, sfa = case.plain
    bad = torch.zeros((), dtype=torch.int64, device=d.device)
    worst = torch.zeros((), dtype=torch.float64, device=d.device)
    rows: dict[int, list[torch.Tensor]] = {}
    for g, start, count in layout.flat_runs():
        rows.setdefault(g, []).append(torch.arange(start, start + count))
    step = 1 if most_groups is None else max(1, len(rows) // most_groups)
    for g, parts in list(rows.items())[::step]:
        at = torch.cat(parts).to(d.device)
        values = a.view(torch.uint8)[at].view(a.dtype)
        reference = Reference(values, sfa[at], case.weights.b[g], case.weights.sfb[g])
        group_bad, group_worst = reference.check(d[at])
        bad, worst = bad + group_bad, torch.maximum(worst, group_worst.double())
    dead = ~live_rows(layout, d.device)
    left = d.contiguous().view(torch.uint8)[dead]
    want = 0 if before is None else before.reshape(layout.total, n).contiguous().view(torch.uint8)[dead]
    return bad, worst, (left != want).sum()
