"""Compile ahead everything that shapes or a model can launch; torch is not imported, no GPU is needed."""

import argparse
import json
import os
import re
import sys
import time
from pathlib import Path

import deep_gemm_jit as dg
from deep_gemm_jit import _core
from deep_gemm_jit.ahead import CASTS
from deep_gemm_jit.cli.explain import add_problem_arguments
from deep_gemm_jit.cli.text import write
from deep_gemm_jit.models import MODEL_TYPES, model_gemms

# A kernel of M-grouped problems may serve any number of groups: where none is given, these are planned for.
ANY_GROUPS = tuple(2**i for i in range(11))

# What the values of a problem in a file are.
FIELDS = {
    **dict.fromkeys(("n", "k", "groups"), (int, "a whole number")),
    **dict.fromkeys(("d_dtype", "layout", "recipe"), (str, "text")),
    **dict.fromkeys(("batch_invariant", "extras"), (bool, "true or false")),
    "max_rows": (int | None, "a whole number, or null for any"),
}

EPILOG = """examples:
  warmup --device h200 --shape 4096x7168 --shape 4096x7168x32      N x K, and N x K x groups
  warmup --device h200 --model-config DeepSeek-V3/config.json --ep 8 --max-tokens 8192
  warmup --device h200 --problems problems.json
      a list of objects: {"n": 4096, "k": 7168, "d_dtype": "bfloat16", "layout": "m_grouped", "groups": 32,
      "max_rows": 8192}; n and k must be there, the other options hold for what an object leaves out
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog, parser.formatter_class = EPILOG, argparse.RawDescriptionHelpFormatter
    parser.add_argument("--device", help="device profile or architecture; default: the GPU of this machine")
    parser.add_argument("--shape", action="append", default=[], metavar="NxK[xG]", help="may be repeated")
    add_problem_arguments(parser, "also what dense calls with alpha, bias or c launch")
    parser.add_argument("--problems", type=Path, metavar="FILE", help="JSON list of problems")
    models = ", ".join(sorted(MODEL_TYPES))
    parser.add_argument(
        "--model-config", type=Path, metavar="FILE", help=f"config.json of a Hugging Face model: {models}"
    )
    parser.add_argument("--tp", type=int, default=1, help="ranks that share heads and intermediate sizes")
    parser.add_argument("--ep", type=int, default=1, help="ranks that share the experts")
    parser.add_argument("--max-tokens", type=int, help="of a batch on a rank of --model-config; default: any")
    parser.add_argument("--max-rows", type=int, help="rows of A for --shape and --problems; default: any")
    parser.add_argument(
        "--casts", choices=CASTS, default="operands", help="quantisation kernels (default: %(default)s)"
    )
    parser.add_argument("--jobs", type=int, help="threads that compile; default: one for each CPU")
    parser.add_argument("--rank", type=int, default=0, help="of --world-size processes, which share the work")
    parser.add_argument("--world-size", type=int, default=1)
    parser.add_argument("--load", action="store_true", help="also load the kernels into the GPU, as a check")
    parser.add_argument(
        "--dry-run", action="store_true", help="list the kernels; exit code 1 if one is missing"
    )


def run(args: argparse.Namespace) -> int:
    problems, limits = work_of(args)
    if not problems and args.casts != "all":
        raise ValueError("nothing to do: pass --shape, --problems, --model-config or --casts all")
    if args.dry_run:
        if args.device is None:
            raise ValueError("--dry-run needs --device")
        report = dg.plan_report(problems, args.device, limits, args.casts)
        write(str(report))
        return 1 if report.missing else 0
    with Progress(sys.stderr) as progress:
        done = dg.warmup(
            problems,
            args.device,
            limits,
            jobs=args.jobs,
            rank=args.rank,
            world_size=args.world_size,
            progress=progress,
            load=args.load,
            casts=args.casts,
        )
    lost = lost_of(progress.compiled)
    root = _core.cache_root()
    if root:
        where = f"cache {root}"
        if lost:
            where += f": {lost} of the kernels compiled now are not in it; a warning or its bound says why"
    elif lost:
        where = "nothing is kept: DGJ_CACHE_DIR is empty, or no folder can be written"
    else:
        where = "every kernel is in a seed; there is no folder to write to"
    write(str(done), where)
    return 1 if lost else 0


def lost_of(compiled: list) -> int:
    """How many of these a process that starts now would not find: a disk may be full, a bound too small."""
    root = _core.cache_root()
    kept = {Path(file.path).stem for file in _core.cache_files(root)} if root else set()
    return sum(_core.cache_key(dg.emit(kernel)) not in kept for kernel in compiled)


def work_of(args: argparse.Namespace) -> tuple[list[dg.GemmProblem], list[int | None]]:
    """Problems, and the rows of A that each can get."""
    found: list[tuple[dg.GemmProblem, int | None]] = []
    for text in args.shape:
        found += [(problem, args.max_rows) for problem in problems_of_shape(text, args)]
    if args.problems is not None:
        found += problems_of_file(args.problems, args)
    if args.model_config is not None:
        gemms = model_gemms(
            read_json(args.model_config),
            tp=args.tp,
            ep=args.ep,
            max_tokens=args.max_tokens,
            d_dtype=args.d_dtype,
            batch_invariant=args.batch_invariant,
        )
        found += [(gemm.problem, gemm.max_rows) for gemm in gemms]
    if args.extras:  # M-grouped GEMMs have none
        found += [(with_extras(problem), rows) for problem, rows in found if problem.layout == "dense"]
    return [problem for problem, _ in found], [rows for _, rows in found]


def with_extras(problem: dg.GemmProblem) -> dg.GemmProblem:
    return dg.GemmProblem.from_dict({**problem.to_dict(), "extras": True})


def problems_of_shape(text: str, args: argparse.Namespace) -> list[dg.GemmProblem]:
    if not re.fullmatch(r"\d+x\d+(x\d+)?", text):
        raise ValueError(f"--shape is '{text}'; it must be NxK or NxKxG, such as 4096x7168 or 4096x7168x32")
    n, k, *groups = (int(part) for part in text.split("x"))
    layout = args.layout or ("m_grouped" if groups else "dense")
    if layout == "m_grouped" and not groups:
        groups = ANY_GROUPS
    return [
        dg.GemmProblem(
            n=n,
            k=k,
            d_dtype=args.d_dtype,
            layout=layout,
            groups=count,
            batch_invariant=args.batch_invariant,
        )
        for count in groups or (1,)
    ]


def problems_of_file(path: Path, args: argparse.Namespace) -> list[tuple[dg.GemmProblem, int | None]]:
    """What a row does not say, the arguments do."""
    rows = read_json(path)
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError(f"{path}: it must be a list of objects with n, k and what else makes a GemmProblem")
    found = []
    for number, row in enumerate(rows):
        limit = row.get("max_rows", args.max_rows)
        common = {"d_dtype": args.d_dtype, "batch_invariant": args.batch_invariant}
        for name, value in row.items():
            wanted, allowed = FIELDS.get(name, (object, ""))
            # To Python, true and false are whole numbers.
            if not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool):
                raise ValueError(f"{path}: {name} of problem {number} is {value!r}; it must be {allowed}")
        try:
            fields = common | {key: value for key, value in row.items() if key != "max_rows"}
            problem = dg.GemmProblem(**fields)
        except TypeError:
            raise ValueError(
                f"{path}: problem {number} is {row}; it must have n and k, and may have d_dtype, layout, "
                "groups, recipe, batch_invariant, extras and max_rows"
            ) from None
        found.append((problem, limit))
    return found


def read_json(path: Path):
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} is no JSON file that can be read: {error}") from None
    except RecursionError:
        raise ValueError(f"{path} is no JSON file that can be read: it is nested too deeply") from None


class Progress:
    """A bar with the time that is left on a terminal; elsewhere a line for each kernel that was compiled."""

    WIDTH = 30

    def __init__(self, stream):
        self._stream = stream
        self._terminal = stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self._start = time.monotonic()
        self.compiled: list = []  # kernels, by this process

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_) -> None:
        if self._terminal:
            self._stream.write("\r\x1b[K")
            self._stream.flush()

    def __call__(self, step: dg.WarmupStep) -> None:
        if step.origin == "compiled":
            self.compiled.append(step.kernel)
        if self._terminal:
            bar = self.bar(step, time.monotonic() - self._start)
            self._stream.write(f"\r\x1b[K{bar[: self._columns() - 1]}")  # a full line would wrap
        elif step.origin == "compiled":
            self._stream.write(f"{step.done}/{step.total}  {step.milliseconds:6.0f} ms  {step.kernel}\n")
        else:
            return
        self._stream.flush()

    def _columns(self) -> int:
        try:
            columns = os.get_terminal_size(self._stream.fileno()).columns
        except (OSError, ValueError):
            columns = 0
        return columns or 80  # serial lines know no width

    def bar(self, step: dg.WarmupStep, seconds: float) -> str:
        filled = self.WIDTH * step.done // step.total
        left = seconds / step.done * (step.total - step.done)
        return (
            f"[{'#' * filled}{'.' * (self.WIDTH - filled)}] {step.done}/{step.total} kernels, "
            f"{len(self.compiled)} compiled, about {left:.0f} s left"
        )
