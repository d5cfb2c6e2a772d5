"""cache path|ls|stats|show|verify|prune|clear: what the kernel cache holds. docs/cache.md describes it."""

import argparse
import collections
import json
import os
import sys
import time
from pathlib import Path

import deep_gemm_jit as dg
from deep_gemm_jit import _core
from deep_gemm_jit.cli import store
from deep_gemm_jit.cli.text import age, size, table, write

_SHORTEST_PREFIX = 4
_SECONDS_PER_DAY = 86400


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parts = parser.add_subparsers(dest="part", required=True, metavar="WHAT")
    for name, (_, meaning) in _PARTS.items():
        part = parts.add_parser(name, help=meaning, description=meaning)
        part.add_argument("--json", action="store_true", help="as one JSON object")
        if name == "show":
            part.add_argument("key", help="the key, or how it begins")
            part.add_argument("--cubin", metavar="FILE", help="write the machine code there; -: on stdout")
        if name == "prune":
            part.add_argument(
                "--max-size", metavar="SIZE", help="such as 200M; default: DGJ_CACHE_MAX_SIZE, or 1G"
            )
            part.add_argument("--older-than", type=float, metavar="DAYS", help="unused for so many days")


def run(args: argparse.Namespace) -> int:
    return _PARTS[args.part][0](args)


def _show_json(value: object) -> None:
    write(json.dumps(value, indent=2))


def _primary(what: str) -> str:
    """Return the writable root; raises ValueError where there is none."""
    state = store.roots()
    if not state["primary"]:
        reasons = "; ".join(_reasons(state))
        raise ValueError(f"cache {what}: there is no cache folder to write to: {reasons}; set DGJ_CACHE_DIR")
    return state["primary"]


def _reasons(state: dict) -> list[str]:
    """What was found wrong with the roots; without a writable one never nothing."""
    found = [text for text in (state["unwritable"], *state["warnings"]) if text]
    return found if found or state["primary"] else ["it is turned off: DGJ_CACHE_DIR names no folder"]


def _path(args: argparse.Namespace) -> int:
    state = store.roots()
    if args.json:
        _show_json(
            {
                "primary": state["primary"] or None,
                "seeds": [path for path, writable in state["roots"] if not writable],
                "unwritable": state["unwritable"] or None,
                "warnings": state["warnings"],
            }
        )
    elif state["primary"]:
        write(state["primary"])
    for line in [] if args.json else _reasons(state):
        sys.stderr.write(f"{line}\n")
    return 0 if state["primary"] else 1


def _ls(args: argparse.Namespace) -> int:
    found = store.records()
    if args.json:
        _show_json([record.as_dict() for record in found])
        return 0
    now, rows = time.time(), []
    for record in found:
        what = record.meta.get("plan") or f"({record.problem or 'of another version'}) {record.file.path}"
        arch = record.meta.get("arch", "?")
        rows.append((record.key[:12] or "?", size(record.file.size), age(now - record.file.used), arch, what))
    write(*table(("key", "size", "used", "arch", "plan"), rows))
    return 0


def _stats(args: argparse.Namespace) -> int:
    state, found, unfinished = store.roots(), store.records(), []
    for root, _ in state["roots"]:
        unfinished += _core.cache_unfinished(root)
    own = [record for record in found if record.writable]
    sound = [record for record in found if record.meta]
    fingerprint = store.fingerprint()
    groups = {name: collections.Counter() for name in ("arch", "package", "nvrtc")}
    for record in sound:
        for name, counter in groups.items():
            counter[str(record.meta.get(name))] += 1
    values = {
        "primary": state["primary"] or None,
        "seeds": [path for path, writable in state["roots"] if not writable],
        "max_size": state["max_size"] or None,
        "entries": len(found),
        "bytes": sum(record.file.size for record in found),
        "bytes_in_primary": sum(record.file.size for record in own),
        "unusable": sum(bool(record.problem) for record in found),
        "other_schemas": sum(record.other_schema for record in found),
        "of_this_version": sum(
            record.meta.get("package") == dg.__version__ and record.meta.get("nvrtc") == fingerprint
            for record in sound
        ),
        "unfinished_files": len(unfinished),
        "compile_seconds": round(sum(record.meta.get("compile_ms", 0) for record in sound) / 1000, 3),
        "last_use": max((record.file.used for record in found), default=None),
        "first_use": min((record.file.used for record in found), default=None),
        **{f"by_{name}": dict(counter) for name, counter in groups.items()},
    }
    if args.json:
        _show_json(values)
        return 0
    bound = size(values["max_size"]) if values["max_size"] else "no bound"
    write(
        f"writable    {values['primary'] or 'none'}",
        *(f"seed        {path}" for path in values["seeds"]),
        f"entries     {values['entries']}, {size(values['bytes'])}; {values['unusable']} unusable, "
        f"{values['other_schemas']} of other schemas",
        f"bound       {size(values['bytes_in_primary'])} of {bound}",
        f"this setup  {values['of_this_version']} entries of this package version and NVRTC",
        f"compiled    {values['compile_seconds']:.1f} s of compile time are stored",
        f"unfinished  {values['unfinished_files']} files in tmp",
    )
    for name, counter in groups.items():
        write(*(f"{name:10}  {count:5}  {value}" for value, count in counter.most_common()))
    return 0


def _show(args: argparse.Namespace) -> int:
    prefix = args.key.lower()
    if len(prefix) < _SHORTEST_PREFIX or set(prefix) - set("0123456789abcdef"):
        raise ValueError(f"cache show: '{args.key}' is no key: give at least {_SHORTEST_PREFIX} hex digits")
    found = [record for record in store.records() if record.key.startswith(prefix)]
    keys = sorted({record.key for record in found})
    if len(keys) != 1:
        text = f"matches {len(keys)} keys: {', '.join(keys)}" if keys else "is in no root"
        sys.stderr.write(f"cache show: {prefix} {text}\n")
        return 1
    record = next((one for one in found if not one.problem), found[0])
    if args.cubin is not None and not record.problem:
        if args.cubin == "-":
            sys.stdout.flush()
            sys.stdout.buffer.write(record.image)
            return 0
        _write_file(Path(args.cubin), record.image)
    values = {**record.as_dict(), "log": record.meta.get("log"), "image_bytes": len(record.image)}
    if args.json:
        _show_json(values)
    else:
        log = values.pop("log")
        write(*(f"{name:12}  {value}" for name, value in values.items() if value is not None))
        write(*(f"  {line}" for line in (log or "").splitlines()))
    return 1 if record.problem else 0


def _write_file(path: Path, data: bytes) -> None:
    """Write all of it or leave what was there: a disk may get full on the way."""
    if path.is_symlink() or (path.exists() and not path.is_file()):  # such as /dev/stdout; a device, a pipe
        path.write_bytes(data)
        return
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(data)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _verify(args: argparse.Namespace) -> int:
    found = store.records()
    ours = [record for record in found if not record.other_schema]
    findings = [
        {"path": record.file.path, "problem": record.problem} for record in ours if record.problem
    ] + [{"path": None, "problem": warning} for warning in store.roots()["warnings"]]
    if args.json:
        _show_json(
            {
                "checked": len(ours),
                "sound": sum(not record.problem for record in ours),
                "other_schemas": len(found) - len(ours),
                "findings": findings,
            }
        )
    else:
        write(*(": ".join(filter(None, finding.values())) for finding in findings))
        write(f"{len(ours)} entries checked, {len(findings)} findings")
    return 1 if findings else 0


def _prune(args: argparse.Namespace) -> int:
    root = _primary("prune")
    bound = store.roots()["max_size"] if args.max_size is None else _core.parse_size(args.max_size)
    if args.older_than is not None and not args.older_than >= 0:  # a NaN neither
        raise ValueError(f"cache prune: --older-than is {args.older_than}; it must be a number of at least 0")
    latest = time.time() - args.older_than * _SECONDS_PER_DAY if args.older_than is not None else 0.0
    removed = {"unusable": 0, "old": 0, "over_bound": 0, "litter": 0, "bytes": 0}
    for record in store.records(only_primary=True):
        reason = "unusable" if record.problem else "old" if record.file.used < latest else None
        if reason and record.file.path.endswith(".dgk") and _core.cache_remove(record.file):
            removed[reason] += 1
            removed["bytes"] += record.file.size
    if bound or args.max_size is not None:
        removed["over_bound"], evicted = _core.cache_evict(root, bound)
        removed["bytes"] += evicted
    removed["litter"] = _core.cache_sweep(root)
    if args.json:
        _show_json(removed)
    else:
        counts = [f"{count} {name.replace('_', ' ')}" for name, count in removed.items() if name != "bytes"]
        write(f"removed {size(removed['bytes'])}: {', '.join(counts)}")
    return 0


def _clear(args: argparse.Namespace) -> int:
    """File by file: locks and what others are writing stay, so that it is safe while others run."""
    root, entries, freed = _primary("clear"), 0, 0
    for file in _core.cache_files(root):
        if file.path.endswith(".dgk") and _core.cache_remove(file):
            entries += 1
            freed += file.size
    litter = _core.cache_sweep(root)
    if args.json:
        _show_json({"entries": entries, "litter": litter, "bytes": freed})
    else:
        write(f"removed {entries} entries, {size(freed)}, from {root}")
    return 0


_PARTS = {
    "path": (_path, "the folder that kernels are written to"),
    "ls": (_ls, "every entry, the last used first"),
    "stats": (_stats, "counts and sizes"),
    "show": (_show, "one entry: how its kernel was made, and the machine code"),
    "verify": (_verify, "check every entry as a reader does; exit code 1 if one would not be used"),
    "prune": (_prune, "remove unusable entries, litter, and over the bound those unused for longest"),
    "clear": (_clear, "remove every entry; safe while other processes use the cache"),
}
