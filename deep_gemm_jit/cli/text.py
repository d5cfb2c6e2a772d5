"""Sizes, ages and tables for people."""

import codecs
import io
import sys

_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


def write(*lines: str) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))


def write_anything(stream: object) -> None:
    """Let a stream take any text, whatever its encoding is.

    Bytes of names that are no UTF-8 come out as they are, other characters that it lacks as backslashes.
    """
    codecs.register_error("deep_gemm_jit.cli", _bytes_or_backslashes)
    if isinstance(stream, io.TextIOWrapper) and stream.errors in ("strict", "surrogateescape"):
        stream.reconfigure(errors="deep_gemm_jit.cli")


def _bytes_or_backslashes(error: UnicodeError) -> tuple[str | bytes, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    character = error.object[error.start]
    if "\udc80" <= character <= "\udcff":  # how Python holds a byte of a name
        return bytes([ord(character) - 0xDC00]), error.start + 1
    return character.encode("ascii", "backslashreplace").decode(), error.start + 1


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
