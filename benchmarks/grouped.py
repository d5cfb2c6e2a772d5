"""Speed of the M-grouped GEMMs, alternating with every peer in one process.

Parts: `contiguous` and `masked` are the tables of peers; `decode` compares the forms where almost every row
is dead; `ragged` offsets with padding; `skew` draws of equal work; `scales` the layouts of A's scales and the
zeroing of padding; `moe` the shapes of public models; `host` the time of a warm call."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from dataclasses import replace

import torch

from . import core_api, peers
from .data import mn_major
from .grouped_contestants import (
    ALIGNMENT,
    TORCH_GROUPED,
    deep_gemm,
    ours,
    output,
    try_deep_gemm,
    try_torch_grouped,
)
from .grouped_data import (
    GROUP_SCALE_LAYOUTS,
    Grouped,
    Layout,
    Weights,
    align,
    check,
    draw_counts,
    group_scale_layout,
    grouped_operands,
    ids_layout,
    masked_layout,
    offsets_layout,
    padded_to,
    psum_layout,
    random_weights,
)
from .grouped_rows import DEEPSEEK_V3, TOP_K, GroupedRow, contiguous_rows, floor_us, masked_rows, moe_rows
from .report import OURS, geometric_mean
from .timing import Flush, burst

FEW_HUNDRED_ROWS = range(192, 257)  # of a group: where peers lose most
GROUPS_CHECKED = 16  # of a timed call; the sweeps of grouped_correctness look at all


class _Weights:
    """One set of experts at a time: they are gigabytes."""

    def __init__(self):
        self._key, self._found = None, None

    def get(self, groups: int, n: int, k: int) -> Weights:
        if self._key != (groups, n, k):
            self._found = None
            torch.cuda.empty_cache()
            self._key, self._found = (groups, n, k), random_weights(groups, n, k)
        return self._found


def near(groups: int, rows: int, seed: int) -> list[int]:
    """Rows of each group between 0.7 and 1.3 of the mean, as DeepGEMM's own tests draw them."""
    rng = random.Random(seed)
    return [max(1, int(rows * rng.uniform(0.7, 1.3))) for _ in range(groups)]


def routed(kind: str, tokens: int, groups: int, seed: int) -> list[int]:
    """Every token goes to TOP_K experts, all different."""
    rng = random.Random(seed)
    weights = [1.0 / (rank + 1) if kind == "zipf" else 1.0 for rank in range(groups)]
    rng.shuffle(weights)
    counts = [0] * groups
    for _ in range(tokens):
        # The largest of u^(1/w): a draw without replacement in proportion to w.
        keys = [(rng.random() ** (1.0 / weight), g) for g, weight in enumerate(weights)]
        for _, g in sorted(keys, reverse=True)[:TOP_K]:
            counts[g] += 1
    return counts


def contiguous_layout(counts: list[int]) -> Layout:
    return ids_layout(counts, ALIGNMENT)


def masked_room(counts: list[int]) -> Layout:
    return masked_layout(counts, align(max(counts), 256))


DECODE = tuple((groups, n, k) for groups in (256, 32) for n, k in DEEPSEEK_V3)
DECODE_TOKENS = (1, 2, 4, 8, 16)
RAGGED = tuple((tokens, kind) for tokens in (512, 2048) for kind in ("uniform", "zipf"))
RAGGED_GROUPS = 256


def decode_layouts(tokens: int, groups: int) -> dict[str, Layout]:
    """The same live rows in the masked form and in contiguous buffers of the size that serving allocates."""
    counts = routed("uniform", tokens, groups, seed=tokens)
    room = tokens * TOP_K + min(tokens * TOP_K, groups) * (ALIGNMENT - 1)
    room = align(room, ALIGNMENT)
    return {
        "masked": masked_layout(counts, align(tokens, 128)),
        "ids": padded_to(contiguous_layout(counts), room),
        "psum": padded_to(psum_layout(counts, ALIGNMENT), room),
    }


# ---- parts ---------------------------------------------------------------------------------------


class _Part:
    def __init__(self, peer, seconds: float, repeats: int, say):
        self.peer, self.repeats, self.say = peer, repeats, say
        self.deadline = time.monotonic() + seconds
        self.flush, self.weights = Flush(), _Weights()
        self.rows, self.refused, self.missing = [], {}, 0

    def case(self, layout: Layout, n: int, k: int, sfa: str = "mn_major_aligned") -> Grouped:
        # Live rows only count: dead ones are left finite so that torch can take the same tensors.
        return grouped_operands(layout, self.weights.get(layout.groups, n, k), sfa_layout=sfa, poison=False)

    def verified(self, case: Grouped, **options) -> tuple[Callable, torch.Tensor, dict]:
        d = output(case)
        call = ours(case, d, **options)
        call()
        before = None if options.get("ensure_zero_padding") else torch.zeros_like(d)
        bad, worst, touched = check(case, d, before, GROUPS_CHECKED)
        return call, d, {
            "out_of_bounds": int(bad) + int(touched),
            "worst_error_over_bound": round(float(worst), 4),
        }

    def add(self, label: str, counts: list[int], n: int, k: int, contestants: dict, facts: dict) -> None:
        row = {
            "label": label,
            "shape": [len(counts), sum(counts), n, k],
            "live_groups": sum(count > 0 for count in counts),
            "floor_us": round(floor_us(counts, n, k), 2),
            **facts,
            "burst": burst(contestants, self.flush, repeats=self.repeats),
        }
        self.rows.append(row)
        shown = "  ".join(f"{name} {found['us']:.1f}" for name, found in row["burst"].items())
        self.say(f"{label:>34}  floor {row['floor_us']:.1f}  {shown}  wrong {row.get('out_of_bounds')}")

    def attempt(self, label: str, body: Callable[[], None]) -> None:
        if time.monotonic() > self.deadline:
            self.missing += 1
            return
        try:
            body()
        except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
            self.missing += 1
            self.refused[label] = f"{type(error).__name__}: {str(error)[:300]}"
            self.say(f"{label}: {self.refused[label]}")
        torch.cuda.empty_cache()

    def result(self, **summary) -> dict:
        return {
            "rows": self.rows,
            "refused": self.refused,
            "complete": not self.missing,
            "summary": {name: value for name, value in summary.items() if value is not None},
        }

    def spread(self, over: str, under: str = OURS, rows_of_group: range | None = None) -> dict | None:
        """Time of `over` by the time of `under`, for the rows that have both."""
        found = [
            row["burst"][over]["us"] / row["burst"][under]["us"]
            for row in self.rows
            if over in row["burst"]
            and under in row["burst"]
            and (rows_of_group is None or row["mean_rows"] in rows_of_group)
        ]
        if not found:
            return None
        return {
            "rows": len(found),
            "geomean": round(geometric_mean(found), 4),
            "min": round(min(found), 4),
            "max": round(max(found), 4),
        }


def _compile(rows) -> None:
    core_api.compile_ahead({core_api.grouped_problem(row.n, row.k) for row in rows})


def run_contiguous(part: _Part) -> dict:
    rows = contiguous_rows()
    _compile(rows)
    for number, row in enumerate(rows):

        def body(row=row, number=number):
            counts = near(row.groups, row.rows, number)
            case = part.case(contiguous_layout(counts), row.n, row.k)
            call, d, facts = part.verified(case)
            others = {}
            if part.peer is not None:
                others = try_deep_gemm(part.peer, case, d, part.refused, row.label, peers.DEEP_GEMM)
            others |= try_torch_grouped(case, part.refused, row.label)
            part.add(row.label, counts, row.n, row.k, {OURS: call, **others}, facts | {"mean_rows": row.rows})

        part.attempt(row.label, body)
    return part.result(
        deep_gemm=part.spread(peers.DEEP_GEMM),
        deep_gemm_192_to_256_rows=part.spread(peers.DEEP_GEMM, rows_of_group=FEW_HUNDRED_ROWS),
        torch=part.spread(TORCH_GROUPED),
        over_floor=_over_floor(part),
    )


def run_masked(part: _Part) -> dict:
    rows = masked_rows()
    _compile(rows)
    for number, row in enumerate(rows):

        def body(row=row, number=number):
            counts = near(row.groups, row.rows, number)
            case = part.case(masked_room(counts), row.n, row.k)
            call, d, facts = part.verified(case)
            others = {}
            if part.peer is not None:
                others = try_deep_gemm(part.peer, case, d, part.refused, row.label, peers.DEEP_GEMM)
            part.add(row.label, counts, row.n, row.k, {OURS: call, **others}, facts | {"mean_rows": row.rows})

        part.attempt(row.label, body)
    return part.result(
        deep_gemm=part.spread(peers.DEEP_GEMM),
        deep_gemm_192_to_256_rows=part.spread(peers.DEEP_GEMM, rows_of_group=FEW_HUNDRED_ROWS),
        over_floor=_over_floor(part),
    )


def _over_floor(part: _Part) -> float | None:
    found = [row["burst"][OURS]["us"] / row["floor_us"] for row in part.rows if OURS in row["burst"]]
    return round(geometric_mean(found), 4) if found else None


def run_decode(part: _Part) -> dict:
    """Almost every row of the contiguous buffers is dead."""
    _compile(GroupedRow(groups, 1, n, k) for groups, n, k in DECODE)
    for groups, n, k in DECODE:
        for tokens in DECODE_TOKENS:
            label = f"{tokens} tokens, {groups} x {n} x {k}"

            def body(groups=groups, n=n, k=k, tokens=tokens, label=label):
                layouts = decode_layouts(tokens, groups)
                cases = {name: part.case(layout, n, k) for name, layout in layouts.items()}
                contestants, wrong, outputs = {}, 0, {}
                for name, case in cases.items():
                    contestants[name], outputs[name], facts = part.verified(case)
                    wrong += facts["out_of_bounds"]
                if part.peer is not None:
                    for name in ("masked", "ids"):
                        contestants |= try_deep_gemm(
                            part.peer, cases[name], outputs[name], part.refused, label, f"deep_gemm_{name}"
                        )
                facts = {"out_of_bounds": wrong, "buffer_rows": layouts["ids"].rows}
                part.add(label, layouts["masked"].index, n, k, contestants, facts)

            part.attempt(label, body)
    return part.result(
        ids_over_masked=part.spread("ids", "masked"), psum_over_masked=part.spread("psum", "masked"),
        deep_gemm_masked_over_masked=part.spread("deep_gemm_masked", "masked"),
        deep_gemm_ids_over_ids=part.spread("deep_gemm_ids", "ids"),
    )  # fmt: skip


def run_ragged(part: _Part) -> dict:
    """Offsets beside padding to the alignment, and how much of the padding's time they save."""
    _compile(GroupedRow(RAGGED_GROUPS, 1, n, k) for n, k in DEEPSEEK_V3)
    for n, k in DEEPSEEK_V3:
        for tokens, kind in RAGGED:
            label = f"{tokens} tokens {kind}, {RAGGED_GROUPS} x {n} x {k}"

            def body(n=n, k=k, tokens=tokens, kind=kind, label=label):
                counts = routed(kind, tokens, RAGGED_GROUPS, seed=tokens)
                padded = part.case(contiguous_layout(counts), n, k)
                ragged = part.case(offsets_layout(counts), n, k)
                contestants, wrong = {}, 0
                for name, case in (("padded", padded), ("offsets", ragged)):
                    contestants[name], d, facts = part.verified(case)
                    wrong += facts["out_of_bounds"]
                    if name == "padded" and part.peer is not None:
                        contestants |= try_deep_gemm(
                            part.peer, case, d, part.refused, label, "deep_gemm_padded"
                        )
                contestants |= try_torch_grouped(ragged, part.refused, label)
                part.add(label, counts, n, k, contestants, {"out_of_bounds": wrong})
                row, live = part.rows[-1], sum(counts) / padded.layout.rows
                took = row["burst"]
                row["live_over_padded_rows"] = round(live, 4)
                row["offsets_over_padded"] = round(took["offsets"]["us"] / took["padded"]["us"], 4)
                row["allowed_where_compute_bound"] = round(1 - 0.6 * (1 - live), 4)

            part.attempt(label, body)
    return part.result(offsets_over_padded=part.spread("offsets", "padded"))


def run_skew(part: _Part, draws: int = 10) -> dict:
    """Every expert has at least one row, so that all draws read the same weights."""
    shapes = [(32, 8192, 4096, 7168), (256, 4096, 4096, 7168), (256, 16384, 7168, 2048)]
    _compile(GroupedRow(groups, 1, n, k) for groups, _, n, k in shapes)
    medians = {}
    for groups, total, n, k in shapes:
        for form in ("offsets", "ids"):
            label = f"{form}, {total} rows, {groups} x {n} x {k}"

            def body(groups=groups, total=total, n=n, k=k, form=form, label=label):
                contestants, wrong, counts = {}, 0, []
                for kind in ("multinomial", "zipf"):
                    for draw in range(draws):
                        counts = [1 + c for c in draw_counts(kind, groups, total - groups, seed=draw)]
                        made = offsets_layout(counts) if form == "offsets" else ids_layout(counts, ALIGNMENT)
                        case = part.case(made, n, k)
                        contestants[f"{kind}_{draw}"], _, facts = part.verified(case)
                        wrong += facts["out_of_bounds"]
                part.add(label, counts, n, k, contestants, {"out_of_bounds": wrong})
                found = part.rows[-1]["burst"]
                of = {
                    kind: statistics.median(v["us"] for name, v in found.items() if name.startswith(kind))
                    for kind in ("multinomial", "zipf")
                }
                medians[label] = round(of["zipf"] / of["multinomial"], 4)

            part.attempt(label, body)
    return part.result(zipf_over_multinomial=medians)


def run_scales(part: _Part) -> dict:
    """A's scales as callers pass them, and what zeroing the padding costs."""
    masked = [GroupedRow(32, rows, n, k) for rows in (20, 192) for n, k in DEEPSEEK_V3]
    flat = [GroupedRow(32, rows, n, k) for rows in (100, 256) for n, k in DEEPSEEK_V3]
    _compile(masked + flat)
    for number, row in enumerate(masked):

        def body(row=row, number=number):
            counts = near(row.groups, row.rows, number)
            case = part.case(masked_layout(counts, align(max(counts), 4) + 1), row.n, row.k)
            scales = case.plain[1].view(case.layout.groups, case.layout.rows, -1)
            contestants, wrong = {}, 0
            for name in GROUP_SCALE_LAYOUTS:
                laid_out = replace(case, sfa=group_scale_layout(scales, name))
                contestants[name], _, facts = part.verified(laid_out)
                wrong += facts["out_of_bounds"]
            part.add(f"masked {row.label}", counts, row.n, row.k, contestants, {"out_of_bounds": wrong})

        part.attempt(f"masked {row.label}", body)
    for number, row in enumerate(flat):

        def body(row=row, number=number):
            counts = near(row.groups, row.rows, number)
            made = padded_to(ids_layout(counts, ALIGNMENT), align(sum(counts) + 32 * 127, ALIGNMENT) + 2)
            case = part.case(made, row.n, row.k)
            sfa = case.plain[1]
            contestants, wrong = {}, 0
            for name, laid in (("row_major", sfa), ("mn_major_aligned", mn_major(sfa)),
                               ("mn_major_unaligned", mn_major(sfa, 1))):  # fmt: skip
                contestants[name], _, facts = part.verified(replace(case, sfa=laid))
                wrong += facts["out_of_bounds"]
            contestants["zero_padding"], _, facts = part.verified(case, ensure_zero_padding=True)
            wrong += facts["out_of_bounds"]
            part.add(f"contiguous {row.label}", counts, row.n, row.k, contestants, {"out_of_bounds": wrong})

        part.attempt(f"contiguous {row.label}", body)
    names = [*GROUP_SCALE_LAYOUTS, "zero_padding"]
    return part.result(
        **{f"{name}_over_mn_major_aligned": part.spread(name, "mn_major_aligned") for name in names}
    )


def run_moe(part: _Part) -> dict:
    rows = moe_rows()
    _compile(rows)
    for number, row in enumerate(sorted(rows, key=lambda row: (row.groups, row.n, row.k))):

        def body(row=row, number=number):
            counts = draw_counts("multinomial", row.groups, row.groups * row.rows, seed=number)
            case = part.case(psum_layout(counts, ALIGNMENT), row.n, row.k)
            call, _, facts = part.verified(case)
            part.add(row.label, counts, row.n, row.k, {OURS: call}, facts)
            last = part.rows[-1]
            last["floor_over_time"] = round(last["floor_us"] / last["burst"][OURS]["us"], 4)

        part.attempt(row.label, body)
    return part.result(over_floor=_over_floor(part))


def run_host(part: _Part, groups: int = 256, calls: int = 300, blocks: int = 5) -> dict:
    """Microseconds a warm call without the loop, beside a bare driver launch of the same kernel."""
    from .data import as_kind
    from .host import _block

    n, k = 1024, 512
    _compile([GroupedRow(groups, 1, n, k)])
    weights = random_weights(groups, n, k)
    weights = Weights(as_kind(weights.b, "subclass"), as_kind(weights.sfb, "subclass"))
    counts = [g % 2 for g in range(groups)]
    layouts = {
        "ids": ids_layout(counts, ALIGNMENT), "psum": psum_layout(counts, ALIGNMENT),
        "masked": masked_layout(counts, 8), "offsets": offsets_layout(counts),
    }  # fmt: skip
    samples: dict[str, list[float]] = {}

    def block(call) -> float:
        return _block(lambda _, call=call: call(), [None] * calls)

    for _ in range(blocks):
        samples.setdefault("python_loop", []).append(block(lambda: None))
        for name, made in layouts.items():
            case = grouped_operands(made, weights, poison=False)
            d = output(case)
            call = ours(case, d)
            call()
            samples.setdefault(name, []).append(block(call))
            samples.setdefault(f"{name}_bare", []).append(core_api.bare_us(call, calls))
    us = {name: round(statistics.median(values), 3) for name, values in samples.items()}
    for name in layouts:
        us[name] = round(us[name] - us["python_loop"], 3)
    ratios = {name: round(us[name] / us[f"{name}_bare"], 3) for name in layouts}
    part.say(f"host, us a call: {us}; over a bare launch: {ratios}")
    blocks_us = {name: [round(value, 3) for value in values] for name, values in samples.items()}
    return {
        "rows": [], "refused": {}, "complete": True, "us": us, "blocks_us": blocks_us,
        "summary": {"over_bare_launch": ratios},
    }  # fmt: skip


PARTS = {
    "contiguous": run_contiguous,
    "masked": run_masked,
    "decode": run_decode,
    "ragged": run_ragged,
    "skew": run_skew,
    "scales": run_scales,
    "moe": run_moe,
    "host": run_host,
}


def run(name: str, peer, *, seconds: float, repeats: int = 20, say=lambda text: None) -> dict:
    return PARTS[name](_Part(peer, seconds, repeats, say))


# ---- the peer's own compiler ---------------------------------------------------------------------

PEER_TABLES = ("contiguous", "masked", "decode", "ragged")


def _layouts_of(table: str) -> list[tuple[Layout, int, int]]:
    """(layout, N, K) of every call that a part makes to the peer."""
    if table in ("contiguous", "masked"):
        rows = contiguous_rows() if table == "contiguous" else masked_rows()
        made = contiguous_layout if table == "contiguous" else masked_room
        return [(made(near(row.groups, row.rows, i)), row.n, row.k) for i, row in enumerate(rows)]
    found = []
    if table == "decode":
        for groups, n, k in DECODE:
            for tokens in DECODE_TOKENS:
                layouts = decode_layouts(tokens, groups)
                found += [(layouts[form], n, k) for form in ("masked", "ids")]
    elif table == "ragged":
        for n, k in DEEPSEEK_V3:
            for tokens, kind in RAGGED:
                found.append((contiguous_layout(routed(kind, tokens, RAGGED_GROUPS, tokens)), n, k))
    else:
        raise ValueError(f"unknown table {table!r}; there are {PEER_TABLES}")
    return found


def compile_peer(module, table: str, part: int, parts: int) -> int:
    """First calls of every `parts`-th case of a table: several processes fill the peer's kernel cache
    together."""
    mine = _layouts_of(table)[part::parts]
    weights = _Weights()
    for layout, n, k in mine:
        experts = weights.get(layout.groups, n, k)
        case = grouped_operands(layout, experts, sfa_layout="mn_major_aligned", poison=False)
        deep_gemm(module, case, output(case))()
        torch.cuda.synchronize()
    return len(mine)
