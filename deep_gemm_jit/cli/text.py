"""Sizes, ages and tables for people."""

import codecs
import io
import os
import sys
from typing import TextIO

_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


def write(*lines: str) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))


def open_outputs() -> None:
    """Let sys.stdout and sys.stderr take any text, and let them close without ending the command.

    Bytes of names that are no UTF-8 come out as they are, other characters that an encoding lacks as
    backslashes. What cannot be written any more is left out, as _Output says.
    """
    codecs.register_error("deep_gemm_jit.cli", _bytes_or_backslashes)
    sys.stdout = _lasting(sys.stdout, BrokenPipeError)
    sys.stderr = _lasting(sys.stderr, OSError)  # progress and warnings: no reason to stop
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors in ("strict", "surrogateescape"):
            stream.reconfigure(errors="deep_gemm_jit.cli")


class _Output(io.FileIO):
    """A file that takes what nobody reads, so that the exit code says what the command found.

    After an error of the kind `forgiven` (a pipe whose reader, such as head, has seen enough) and after any
    other, which is raised once, all further bytes are dropped.
    """

    def __init__(self, stream: io.TextIOWrapper, forgiven: type[OSError]):
        super().__init__(stream.fileno(), "w", closefd=False)
        self._before, self._forgiven, self._ended = stream, forgiven, False  # it would close the file

    def write(self, data) -> int | None:
        if not self._ended:
            try:
                return super().write(data)
            except OSError as error:
                self._ended = True
                if not isinstance(error, self._forgiven):
                    raise
        return len(data)


def _lasting(stream: TextIO | None, forgiven: type[OSError]) -> TextIO:
    if stream is None:  # closed by the caller (>&-), who wants no text
        return open(os.devnull, "w")
    buffer = getattr(stream, "buffer", None)
    raw = getattr(buffer, "raw", buffer)  # unbuffered streams stand on the file itself
    if not isinstance(stream, io.TextIOWrapper) or not isinstance(raw, io.FileIO) or isinstance(raw, _Output):
        return stream
    stream.flush()
    output = _Output(stream, forgiven)
    return io.TextIOWrapper(
        output if buffer is raw else io.BufferedWriter(output),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


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
