"""A PNG from a result file: time of every contestant over the floor, row by row. Needs matplotlib."""

from __future__ import annotations

from pathlib import Path

from .report import COLUMNS, OURS, time_of

COLOURS = {
    OURS: "#d1495b",
    "deep_gemm": "#30638e",
    "cublaslt_tensorwise": "#7a9e7e",
    "cublaslt_1x128_128x128": "#b5c9a8",
    "torch_rowwise": "#c9b79c",
    "torch_bf16": "#bbbbbb",
}


def available() -> bool:
    import importlib.util

    return importlib.util.find_spec("matplotlib") is not None


def draw(result: dict, path: str | Path, *, clip: float = 4.0) -> Path:
    """One panel per M; bars end at `clip` times the floor, with the true figure written on those cut off."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    sizes = sorted({row["shape"][0] for row in result["rows"]})
    present = [(key, head) for key, head in COLUMNS if any(time_of(row, key) for row in result["rows"])]
    figure, panels = pyplot.subplots(
        len(sizes), 1, figsize=(11, 2.9 * len(sizes)), squeeze=False, constrained_layout=True
    )
    width = 0.82 / len(present)
    for panel, m in zip(panels[:, 0], sizes, strict=True):
        rows = [row for row in result["rows"] if row["shape"][0] == m]
        for index, (key, head) in enumerate(present):
            for place, row in enumerate(rows):
                us = time_of(row, key)
                if us is None:
                    continue
                over = us / row["floor_us"]
                x = place - 0.41 + (index + 0.5) * width
                panel.bar(
                    x, min(over, clip), width * 0.92, color=COLOURS[key], label=head if place == 0 else None
                )
                panel.text(x, min(over, clip), f"{over:.2f}", ha="center", va="bottom", fontsize=6)
        panel.axhline(1.0, color="black", linewidth=0.8)
        panel.set_xticks(range(len(rows)), [f"{row['shape'][1]} x {row['shape'][2]}" for row in rows])
        panel.set_ylim(0, clip * 1.08)
        panel.set_ylabel("time / floor")
        panel.set_title(f"M = {m}", loc="left", fontsize=10)
    handles = [pyplot.Rectangle((0, 0), 1, 1, color=COLOURS[key], label=head) for key, head in present]
    figure.legend(handles=handles, loc="outside upper right", ncols=len(handles), fontsize=8)
    environment = result["environment"]
    figure.suptitle(
        f"FP8 GEMM, BF16 out, cold L2: {environment['card']}, {environment['date']}",
        x=0.01,
        ha="left",
        fontsize=11,
    )
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
    return Path(path)
