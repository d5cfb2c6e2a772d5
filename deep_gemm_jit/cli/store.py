"""The files of the kernel cache as plain records, for the commands; nothing here changes a file."""

import json
from dataclasses import dataclass, field
from typing import Any

import deep_gemm_jit as dg
from deep_gemm_jit import _core

# What the commands show or add up.
_KINDS = {
    **dict.fromkeys(("plan", "arch", "log", "package"), (str, "text")),
    "nvrtc": (str | None, "text"),
    "compile_ms": (int | float, "number"),
}
_MOST_MS = 1e9  # integers of JSON can be too large to add


@dataclass
class Record:
    """One file where entries lie. problem: "" or why no look-up uses it; meta and image are then empty."""

    file: Any  # _core.CacheFile
    root: str
    writable: bool
    schema: str  # the folder below the root
    other_schema: bool  # of another version of the package: never read
    key: str
    problem: str
    meta: dict
    image: bytes = field(repr=False)

    def as_dict(self) -> dict:
        """Return what --json shows; the compiler's log only in `cache show`."""
        facts = {name: value for name, value in self.meta.items() if name != "log"}
        return {
            **facts,
            "key": self.key,
            "path": self.file.path,
            "writable": self.writable,
            "schema": self.schema,
            "bytes": self.file.size,
            "used": self.file.used,
            "problem": self.problem or None,
        }


def roots() -> dict:
    """Return roots [(path, writable)], primary, unwritable, warnings, max_size and schema, as of now."""
    return _core.cache_roots()


def records(only_primary: bool = False) -> list[Record]:
    """Every file of every root, read and checked; the last used first."""
    found, state = [], roots()
    for root, writable in state["roots"]:
        if writable or not only_primary:
            found += [_record(file, root, writable, state["schema"]) for file in _core.cache_files(root)]
    return sorted(found, key=lambda record: -record.file.used)


def _record(file: Any, root: str, writable: bool, own_schema: str) -> Record:
    schema = file.path[len(root) :].split("/")[1]
    record = Record(file, root, writable, schema, schema != own_schema, "", "", {}, b"")
    if record.other_schema:
        return record
    report = _core.cache_inspect(file, writable)
    record.key, record.problem = report["key"], report["problem"]
    if not record.problem:
        record.meta, record.problem = _parse_meta(report["meta"], record.key)
    if not record.problem:
        record.problem = _core.image_problem(report["image"], record.meta["kernel"])
    record.image = b"" if record.problem else report["image"]
    return record


def _parse_meta(data: bytes, key: str) -> tuple[dict, str]:
    try:
        meta = json.loads(data.decode())
        # Nothing that --json could not show: escapes can name half a character, numbers be infinite, and one
        # level more could be too deep.
        json.dumps([meta], indent=2, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeError as error:
        return {}, f"its description is no UTF-8: {error.reason} at {error.start}"
    except (ValueError, RecursionError) as error:
        return {}, f"its description is no JSON: {error}"
    if not isinstance(meta, dict) or not isinstance(meta.get("kernel"), str):
        return {}, "its description names no kernel"
    if meta.get("key") != key:
        return {}, "its description names another key"
    for name, (kind, what) in _KINDS.items():
        if name in meta and not isinstance(meta[name], kind):
            return {}, f"'{name}' of its description is no {what}"
    if not abs(meta.get("compile_ms", 0)) < _MOST_MS:
        return {}, "'compile_ms' of its description is no time"
    return meta, ""


def fingerprint() -> str | None:
    """Return the identity of the NVRTC that this process would use, None without one."""
    try:
        return _core.nvrtc_identity()["fingerprint"]
    except dg.CompileError:
        return None
