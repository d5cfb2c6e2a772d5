"""Results as JSON files, summaries and tables. No torch: anything here can be redone from a JSON file."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

from . import ROOT
from .environment import slug

RESULTS = ROOT / "benchmarks" / "results"
OURS = "deep_gemm_jit"
FLOOR = "floor"
COLUMNS = (  # key, heading; in the order of the table
    (OURS, "ours"),
    ("deep_gemm", "DeepGEMM"),
    ("cublaslt_tensorwise", "cuBLASLt tensor"),
    ("cublaslt_1x128_128x128", "cuBLASLt block"),
    ("torch_rowwise", "torch row"),
    ("torch_bf16", "torch BF16"),
)


def write(result: dict, what: str, folder: str | Path | None = None) -> Path:
    folder = Path(folder) if folder else RESULTS
    folder.mkdir(parents=True, exist_ok=True)
    environment = result["environment"]
    path = folder / f"{environment['date']}-{slug(environment['card'])}-{what}.json"
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    temporary.write_text(json.dumps(result, indent=1) + "\n")
    temporary.replace(path)
    return path


def read(path: str | Path) -> dict:
    return json.loads(Path(path).read_text())


def geometric_mean(values) -> float | None:
    values = list(values)
    return math.exp(sum(math.log(value) for value in values) / len(values)) if values else None


def time_of(row: dict, name: str, mode: str = "burst") -> float | None:
    if name == FLOOR:
        return row["floor_us"]
    return row.get(mode, {}).get(name, {}).get("us")


def speedups(rows: list[dict], peer: str, mode: str = "burst") -> list[float]:
    """Peer's time over ours, for the rows that both have: above 1 we are faster."""
    pairs = [(time_of(row, peer, mode), time_of(row, OURS, mode)) for row in rows]
    return [theirs / ours for theirs, ours in pairs if theirs and ours]


def _part(rows: list[dict], peer: str, mode: str) -> dict | None:
    found = speedups(rows, peer, mode)
    if not found:
        return None
    return {
        "rows": len(found),
        "geomean": round(geometric_mean(found), 4),
        "min": round(min(found), 4),
        "max": round(max(found), 4),
    }


def summarise(rows: list[dict]) -> dict:
    """{peer: {burst: {all, few_rows (M <= 128), many_rows}, sustained: {...}}}, as speed of ours over the
    peer's."""
    few = [row for row in rows if row["shape"][0] <= 128]
    many = [row for row in rows if row["shape"][0] > 128]
    out = {}
    for peer in [key for key, _ in COLUMNS if key != OURS] + [FLOOR]:
        parts = {}
        for mode in ("burst", "sustained"):
            if mode == "sustained" and peer == FLOOR:
                continue
            found = {
                "all": _part(rows, peer, mode),
                "few_rows": _part(few, peer, mode),
                "many_rows": _part(many, peer, mode),
            }
            if found["all"]:
                parts[mode] = {name: part for name, part in found.items() if part}
        if parts:
            out[peer] = parts
    return out


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def table(result: dict, mode: str = "burst") -> str:
    rows = [row for row in result["rows"] if mode in row]
    present = [(key, head) for key, head in COLUMNS if any(time_of(row, key, mode) for row in rows)]
    heads = ["M x N x K", "floor", *(head for _, head in present), "vs DeepGEMM", "vs floor"]
    lines = [heads]
    for row in rows:
        ours, theirs = time_of(row, OURS, mode), time_of(row, "deep_gemm", mode)
        lines.append(
            [
                " x ".join(str(extent) for extent in row["shape"]),
                _cell(row["floor_us"]),
                *(_cell(time_of(row, key, mode)) for key, _ in present),
                f"{theirs / ours:.2f}x" if ours and theirs else "",
                f"{ours / row['floor_us']:.2f}" if ours else "",
            ]
        )
    return _columns(lines)


def _columns(lines: list[list[str]]) -> str:
    """The first line is the head."""
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    text = ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]
    text.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(text)


def grouped_table(result: dict) -> str:
    """One part of the M-grouped GEMMs: every contestant, microseconds."""
    rows = result["grouped"]["rows"]
    names = list(dict.fromkeys(name for row in rows for name in row["burst"]))
    lines = [["case", "live rows", "floor", *names, "floor / first"]]
    for row in rows:
        first = next(iter(row["burst"].values()))["us"]
        lines.append(
            [
                row["label"],
                str(row["shape"][1]),
                _cell(row["floor_us"]),
                *(_cell(time_of(row, name)) for name in names),
                f"{row['floor_us'] / first:.2f}",
            ]
        )
    return _columns(lines)


def markdown(result: dict, mode: str = "burst") -> str:
    lines = (grouped_table(result) if result.get("grouped") else table(result, mode)).splitlines()
    cells = [[cell.strip() for cell in _split(line, lines[1])] for line in lines]
    cells[1] = ["---"] * len(cells[0])
    return "\n".join("| " + " | ".join(row) + " |" for row in cells)


def _split(line: str, ruler: str) -> list[str]:
    out, start = [], 0
    for dashes in ruler.split("  "):
        out.append(line[start : start + len(dashes)])
        start += len(dashes) + 2
    return out


def text(result: dict) -> str:
    """Everything a reader of a terminal wants, shortest last."""
    environment = result["environment"]
    parts = [
        f"{environment['card']}, driver {environment['driver']}, torch {environment['versions']['torch']}, "
        f"commit {environment['commit']}"
    ]
    if result.get("rows"):
        parts += ["", "Kernel time, us, cold L2, median", table(result)]
        if any("sustained" in row for row in result["rows"]):
            parts += ["", "Back to back, us", table(result, "sustained")]
        if result.get("refused"):
            parts += ["", *(f"not measured: {where}: {why}" for where, why in result["refused"].items())]
    if result.get("grouped"):
        found = result["grouped"]
        if found["rows"]:
            parts += ["", "Kernel time, us, cold L2, median", grouped_table(result)]
        parts += [f"not measured: {where}: {why}" for where, why in found["refused"].items()]
        parts += [f"{name}: {value}" for name, value in found["summary"].items()]
    if result.get("compile"):
        parts += ["", "Compile: " + json.dumps(result["compile"]["summary"])]
    if result.get("host"):
        host = result["host"]
        parts += [
            "",
            "Host, us a call: " + ", ".join(f"{name} {us:.2f}" for name, us in host["us"].items()),
            "Host ratios: " + ", ".join(f"{name} {value:.2f}" for name, value in host["ratios"].items()),
        ]
    for outcome in result.get("correctness", []):
        parts.append(
            f"correctness {outcome['name']}: {outcome['cases']}/{outcome['planned']} cases, "
            f"{outcome['failed']} failed, worst error {outcome['worst_error_over_bound']:.3f} of the bound, "
            f"{outcome['seconds']} s"
        )
        parts += [f"    {failure}" for failure in outcome["first_failures"]]
    for peer, modes in result.get("summary", {}).items():
        for mode, found in modes.items():
            shown = ", ".join(
                f"{name} {part['geomean']:.3f} (min {part['min']:.3f})" for name, part in found.items()
            )
            parts.append(f"speed over {peer}, {mode}: {shown}")
    return "\n".join(parts)
