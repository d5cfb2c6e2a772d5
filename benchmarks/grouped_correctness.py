"""The M-grouped GEMMs against float64: a covering set of groups, distributions, forms and layouts, the room
of the masked form, and bits that must not change."""

from __future__ import annotations

import time

import torch

from . import core_api
from .correctness import Outcome, _attempt, _Recorder
from .covering import pairwise
from .data import GuardedOutput, as_kind
from .grouped_data import (
    DISTRIBUTIONS,
    FORMS,
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

# (N, K) for each number of groups. A kernel is compiled for each (N, K).
SHAPE_OF_GROUPS = {
    1: (576, 1152), 2: (2112, 512), 3: (392, 400), 8: (1024, 2048), 32: (512, 1024), 128: (256, 640),
    256: (264, 384), 512: (128, 256),
}  # fmt: skip
D_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
AXES = {
    "groups": list(SHAPE_OF_GROUPS),
    "distribution": list(DISTRIBUTIONS),
    "form": [*FORMS, "ids_recurring", "ids_holes"],
    "sfa": list(range(len(GROUP_SCALE_LAYOUTS))),
    "d_dtype": list(D_DTYPES),
    "rows": [1, 3, 20, 190],  # of a group, at the mean
    "alignment": [1, 8, 24, 64, 128],
    "d_pitch": [0, 24],
    "b_kind": ["tensor", "parameter", "subclass"],
    "zero": [False, True],
    "sms": [0, 30],
}
FLAT_SCALES = ("row_major", "mn_major_aligned", "mn_major_unaligned", "column_sliced", "mn_major_aligned")
MOST_ROWS = 20000
MASKED_GROUPS = 3
MASKED_ROOM = (1, 8, 31, 96, 128, 1000, 4096)


def problems() -> list:
    """What the sweeps compile, so that it can be compiled ahead on all cores."""
    return [core_api.grouped_problem(n, k, dtype) for n, k in SHAPE_OF_GROUPS.values() for dtype in D_DTYPES]


def layout_of(form: str, counts: list[int], alignment: int, seed: int) -> Layout:
    if form == "ids_recurring":
        return ids_layout(counts, alignment, pieces=3, shuffle_seed=seed, short_last=True)
    if form == "ids_holes":
        return ids_layout(counts, alignment, holes=True, tail_units=3)
    if form == "ids":
        return ids_layout(counts, alignment, tail_units=seed % 2)
    if form == "psum":
        return psum_layout(counts, alignment, round_rows=bool(seed % 2), tail=seed % 3 * 5)
    if form == "offsets":
        return offsets_layout(counts, first=seed % 4, tail=seed % 3)
    return masked_layout(counts, max(1, max(counts) + seed % 3))


def output_of(case: Grouped, dtype, extra_columns: int = 0) -> tuple[GuardedOutput, torch.Tensor]:
    layout = case.layout
    guard = GuardedOutput(layout.total, case.weights.b.shape[1], dtype, extra_columns=extra_columns)
    rows = guard.take()
    return guard, rows.unflatten(0, (layout.groups, layout.rows)) if layout.form == "masked" else rows


def _run(record: _Recorder, label: str, case: Grouped, dtype, extra_columns: int = 0, **options) -> None:
    guard, d = output_of(case, dtype, extra_columns)
    before = d.clone()
    if not _attempt(record.outcome, label, lambda: core_api.grouped(case, d, **options)):
        return
    bad, worst, touched = check(case, d, None if options.get("ensure_zero_padding") else before)
    record.add(label, bad, worst, touched + guard.broken_bytes())


def sweep_groups(deadline: float, axes=None, seed: int = 0) -> Outcome:
    cases = pairwise(axes or AXES, seed)
    outcome = Outcome("groups", planned=len(cases))
    start = time.monotonic()
    record = _Recorder(outcome, deadline)
    weights = {}
    for number, chosen in enumerate(sorted(cases, key=lambda case: case["groups"])):
        if record.late():
            break
        groups, form = chosen["groups"], chosen["form"]
        total = min(groups * chosen["rows"], MOST_ROWS)
        counts = draw_counts(chosen["distribution"], groups, total, seed=number)
        if form == "masked" and groups * max(counts) > MOST_ROWS:  # one_hot: all groups get that much room
            counts = [min(count, MOST_ROWS // groups) for count in counts]
        if groups not in weights:
            weights = {groups: random_weights(groups, *SHAPE_OF_GROUPS[groups])}
        layout = layout_of(form, counts, chosen["alignment"], number)
        names = GROUP_SCALE_LAYOUTS if form == "masked" else FLAT_SCALES
        case = grouped_operands(layout, weights[groups], sfa_layout=names[chosen["sfa"]])
        case.weights = type(case.weights)(
            as_kind(case.weights.b, chosen["b_kind"]), as_kind(case.weights.sfb, chosen["b_kind"])
        )
        zero = chosen["zero"] and form not in ("masked", "offsets")
        options = {"ensure_zero_padding": True} if zero else {}
        label = " ".join(f"{name}={value}" for name, value in chosen.items()) + f" case={number}"
        core_api.set_num_sms(chosen["sms"])
        try:
            _run(record, label, case, chosen["d_dtype"], chosen["d_pitch"], **options)
        finally:
            core_api.set_num_sms(0)
    record.flush()
    outcome.seconds = time.monotonic() - start
    return outcome


def sweep_masked_room(deadline: float) -> Outcome:
    """Every room, filled in several ways, each with the next layout of scales."""
    fills = (lambda t: [t, 0, t], lambda t: [1, t // 2 + 1, 0], lambda t: [max(t - 1, 0), t, t // 3])
    outcome = Outcome("masked_room", planned=len(MASKED_ROOM) * len(fills))
    start = time.monotonic()
    record = _Recorder(outcome, deadline)
    weights = random_weights(MASKED_GROUPS, *SHAPE_OF_GROUPS[MASKED_GROUPS])
    for i, room in enumerate(MASKED_ROOM):
        for j, fill in enumerate(fills):
            if record.late():
                break
            name = GROUP_SCALE_LAYOUTS[(i + j) % len(GROUP_SCALE_LAYOUTS)]
            case = grouped_operands(masked_layout(fill(room), room), weights, sfa_layout=name)
            label = f"max_m={room} counts={case.layout.index} sfa={name}"
            _run(record, label, case, torch.bfloat16, expected_m=(1, room, 7 * room)[j])
    record.flush()
    outcome.seconds = time.monotonic() - start
    return outcome


def same_bits(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Number of bytes that differ, on the device."""
    return (x.contiguous().view(torch.uint8) != y.contiguous().view(torch.uint8)).sum()


def sweep_repeats(deadline: float, times: int = 6) -> Outcome:
    """The same call gives the same bits, whatever stood in D before."""
    shapes = [(groups, form) for groups in (3, 8, 32, 256) for form in FORMS]
    outcome = Outcome("repeats", planned=len(shapes))
    start = time.monotonic()
    for number, (groups, form) in enumerate(shapes):
        if time.monotonic() > deadline:
            break
        weights = random_weights(groups, *SHAPE_OF_GROUPS[groups])
        layout = layout_of(form, draw_counts("zipf", groups, 20 * groups, seed=number), 64, number)
        case = grouped_operands(layout, weights)
        _, first = output_of(case, torch.bfloat16)
        first.fill_(1.0)
        core_api.grouped(case, first)
        changed = torch.zeros((), dtype=torch.int64, device="cuda")
        for _ in range(times):
            again = torch.ones_like(first)
            core_api.grouped(case, again)
            changed += same_bits(again, first)
        outcome.cases += 1
        if int(changed):
            outcome.failures.append(f"G={groups} {form}: {int(changed)} bytes differ over {times} repeats")
    outcome.seconds = time.monotonic() - start
    return outcome


def _rows_of_batch(layout: Layout, weights, sources: dict[int, tuple], order: torch.Tensor) -> Grouped:
    """A case whose groups hold the first rows, in `order`, of what `sources` has for each of them."""
    case = grouped_operands(layout, weights)
    a, sfa = case.plain
    for g, first, count in layout.flat_runs():
        picked = order[order < count]
        a.view(torch.uint8)[first : first + count] = sources[g][0].view(torch.uint8)[picked]
        sfa[first : first + count] = sources[g][1][picked]
    if layout.form == "masked":
        shape = (layout.groups, layout.rows, -1)
        case.a = a.view(torch.uint8).view(shape).view(a.dtype)
        case.sfa = sfa.view(shape)
    return case


def sweep_batch_invariance(deadline: float, groups_list=(8, 32), most: int = 300) -> Outcome:
    """With the mode on, a row's bits are the same with any other rows beside it, at any place and in every
    form."""
    sizes = (1, 7, 16, 40, 64, 100, 129, 200, most)
    outcome = Outcome("batch_invariant", planned=len(groups_list) * len(sizes) * len(FORMS))
    start = time.monotonic()
    with core_api.batch_invariant():
        for groups in groups_list:
            weights = random_weights(groups, *SHAPE_OF_GROUPS[groups])
            whole = grouped_operands(offsets_layout([most] * groups), weights)
            wanted = torch.empty(groups * most, weights.b.shape[1], dtype=torch.bfloat16, device="cuda")
            core_api.grouped(whole, wanted)
            places = [slice(g * most, (g + 1) * most) for g in range(groups)]
            sources = {g: (whole.a[place], whole.sfa[place]) for g, place in enumerate(places)}
            for number, size in enumerate(sizes):
                for form in FORMS:
                    if time.monotonic() > deadline:
                        break
                    # Every group has a size of its own, group 1 none.
                    counts = [0 if g == 1 else max(1, size * (1 + g % 3) // 3) for g in range(groups)]
                    layout = layout_of(form, counts, 16, number)
                    order = torch.randperm(most, device="cuda")
                    case = _rows_of_batch(layout, weights, sources, order)
                    _, d = output_of(case, torch.bfloat16)
                    core_api.grouped(case, d)
                    flat, changed = d.reshape(layout.total, -1), 0
                    for g, first, count in layout.flat_runs():
                        picked = order[order < count]
                        changed += same_bits(flat[first : first + count], wanted[g * most + picked])
                    outcome.cases += 1
                    if int(changed):
                        outcome.failures.append(f"G={groups} {form} rows={size}: {int(changed)} bytes differ")
    outcome.seconds = time.monotonic() - start
    return outcome


SWEEPS = {
    "groups": sweep_groups,
    "masked_room": sweep_masked_room,
    "repeats": sweep_repeats,
    "batch_invariant": sweep_batch_invariance,
}
