"""Sizes, ages and tables for people."""

import sys

_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


def write(*lines: str) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))


def size(count: int) -> str:
    """Return "512 bytes", "1.5 MiB"."""
    value, unit = float(count), 0
    while value >= 1024 and unit + 1 < len(_UNITS):
        value, unit = value / 1024, unit + 1
    return f"{count} bytes" if unit == 0 else f"{value:.1f} {_UNITS[unit]}"


def age(seconds: float) -> str:
    """Return "now", "5 min", "3 h", "12 d"."""
    for limit, divisor, unit in ((60, 0, ""), (7200, 60, "min"), (172800, 3600, "h")):
        if seconds < limit:
            return f"{seconds // divisor:.0f} {unit}" if divisor else "now"
    return f"{seconds // 86400:.0f} d"


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    """Return lines with the columns aligned; the last one is not padded."""
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head) - 1)]
    return [
        "  ".join([*(cell.ljust(width) for cell, width in zip(row[:-1], widths, strict=True)), row[-1]])
        for row in [head, *rows]
    ]
