"""Replace the planner's predictions by measurements, for the shapes that matter.

>>> os.environ["DGJ_TUNING"] = "/etc/deep_gemm_jit/h200.json"
>>> tune(GemmProblem(n=4096, k=7168), [1, 8, 64, 512, 4096])
"""

import contextlib
import fcntl
import json
import math
import operator
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from deep_gemm_jit import _core
from deep_gemm_jit._core import GemmProblem, KernelPlan
from deep_gemm_jit.ahead import compile_kernels
from deep_gemm_jit.kernels import all_plans, candidates, plan
from deep_gemm_jit.settings import current_device

__all__ = ["TunedRow", "tune"]

# Microseconds of each plan on m rows.
Timer = Callable[[Sequence[KernelPlan], int], Sequence[float]]

# What two measurements of one kernel may differ by: the planner's choice stays unless it is beaten by more.
NOISE = 0.01
MOST_ROWS = 10**15  # what the planner takes from a table


@dataclass(frozen=True)
class TunedRow:
    """The measured winner for m rows."""

    m: int
    plan: KernelPlan
    us: float  # microseconds
    planned_us: float  # of what the planner chooses without measurements or had chosen before


def tune(
    problem: GemmProblem,
    ms: Sequence[int],
    device: str | None = None,
    path: str | os.PathLike | None = None,
    top: int = 6,
    timer: Timer | None = None,
) -> list[TunedRow]:
    """Time the plans of a problem on this GPU for each m of ms, and store the winners where plan finds them.

    problem: dense. ms: rows of A. device: the profile that the winners are for; None: that of the current
    CUDA device. path: the table, a JSON file that is made or extended; None: the file that DGJ_TUNING names.
    top: how many plans are timed, those that the planner predicts to be fastest. timer: what measures
    instead of the GPU: called with plans and m, it returns the microseconds of each.

    Only plans that all_plans lists are compared, so a warm-up without max_rows covers what tuning chooses. A
    row count takes the winner of its own step of the planner, or of the measured steps on both sides of it
    where these agree. The planner uses the new table at once, except for row counts that were called before.
    Several processes may tune into one table. A file there that is no tuning table is left as it is.
    Raises ValueError, TypeError, NotImplementedError for an M-grouped problem without a timer or no supported
    device, OSError where the table cannot be written, and what compile raises.
    """
    table = os.environ.get("DGJ_TUNING") if path is None else os.fspath(path)
    if not table:
        raise ValueError("tune: there is no table to write: set DGJ_TUNING to a file, or pass path")
    try:
        rows = sorted({operator.index(m) for m in ms})
    except TypeError:
        raise TypeError(f"tune: ms is {ms!r}; it must be a sequence of whole numbers") from None
    if not rows or rows[0] < 1 or rows[-1] > MOST_ROWS:
        raise ValueError(f"tune: ms is {rows}; it must hold row counts of at least 1 and at most {MOST_ROWS}")
    if top < 1:
        raise ValueError(f"tune: top is {top}; it must be at least 1")
    device = _core.device_profile_name(current_device()) if device is None else device
    target = Path(os.path.realpath(table))  # a link stays a link
    _rows_of(target)  # what cannot be extended is an error before anything is timed
    listed = all_plans(problem, device)
    contestants = {m: _contestants(problem, m, device, listed, top) for m in rows}
    if timer is None:
        from deep_gemm_jit.timing import GpuTimer

        timer = GpuTimer(problem, rows[-1])
        _check_current(device)
        compile_kernels(list(dict.fromkeys(p for plans in contestants.values() for p in plans)))
    winners = [_winner(m, contestants[m], timer(contestants[m], m)) for m in rows]
    _store(target, problem, device, winners)
    _core.forget_tuning()
    return winners


def _check_current(device: str) -> None:
    """What is timed here says nothing about another device."""
    current = _core.device_profile_name(current_device())
    if device != current:
        raise ValueError(
            f"tune: device is '{device}', but the GPU to be timed is '{current}'; pass that, None, or a "
            "timer of your own"
        )


def _contestants(
    problem: GemmProblem, m: int, device: str, listed: list[KernelPlan], top: int
) -> list[KernelPlan]:
    """The planner's choice first, then the other listed plans, those predicted to be fastest first."""
    chosen = plan(problem, m, device)
    others = [row.plan for row in candidates(problem, m, device) if row.plan in listed and row.plan != chosen]
    return [chosen, *others[: top - 1]]


def _winner(m: int, plans: list[KernelPlan], us: Sequence[float]) -> TunedRow:
    us = [float(time) for time in us]
    if len(us) != len(plans) or not all(time > 0 and math.isfinite(time) for time in us):
        raise ValueError(
            f"tune: the timer returned {us} for {len(plans)} plans; each needs a time, positive and finite"
        )
    best = min(range(len(plans)), key=lambda i: us[i])
    if us[best] >= us[0] * (1 - NOISE):
        best = 0
    return TunedRow(m, plans[best], us[best], us[0])


def _store(path: Path, problem: GemmProblem, device: str, winners: list[TunedRow]) -> None:
    line = _core.problem_line(problem)
    replaced = {(device, line, row.m) for row in winners}
    new = [
        {"device": device, "problem": line, "m": row.m, "plan": str(row.plan), "us": round(row.us, 3)}
        for row in winners
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    with _locked(path.parent):
        rows = [r for r in _rows_of(path) if (r["device"], r["problem"], r["m"]) not in replaced] + new
        rows.sort(key=lambda r: (r["device"], r["problem"], r["m"]))
        table = {"format": _core.TUNING_FORMAT, "package": _core.__version__, "winners": rows}
        # In one step: a server that starts meanwhile reads the old table or the new one.
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".tmp")
        try:
            with os.fdopen(handle, "w") as file:
                json.dump(table, file, indent=1, allow_nan=False)
            os.chmod(temporary, 0o644)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep other tuners away while a table in the folder is read and replaced; it leaves no file behind."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        # Some network file systems lock no folders; tuning alone is all right there.
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _rows_of(path: Path) -> list[dict]:
    """The rows of a table that the planner would use; none of another version's table or an empty file.

    Raises ValueError where the file is something else: it is not ours to overwrite.
    """
    if path.exists() and not path.is_file():
        raise ValueError(f"tune: {path} is no file; pass the path of a tuning table, or of a file to make")
    try:
        text = path.read_text()
        table = json.loads(text) if text.strip() else {"format": 0, "package": "", "winners": []}
        kind, package, rows = table["format"], table["package"], table["winners"]
    except FileNotFoundError:
        return []
    except (ValueError, KeyError, TypeError, RecursionError):
        rows = None
    if not isinstance(rows, list):
        raise ValueError(
            f"tune: {path} is no tuning table and stays as it is; remove it or pass another path"
        )
    good = (kind, package) == (_core.TUNING_FORMAT, _core.__version__)
    return [row for row in map(_usable, rows) if row] if good else []


def _usable(row: object) -> dict | None:
    if not isinstance(row, dict):
        return None
    names = all(isinstance(row.get(name), str) for name in ("device", "problem", "plan"))
    m, us = row.get("m"), row.get("us")
    # Between these bounds there is neither an infinity nor a NaN.
    numbers = all(isinstance(x, int | float) and not isinstance(x, bool) and 0 < x < 1e300 for x in (m, us))
    if not names or not numbers or not 1 <= m <= MOST_ROWS or m != int(m):
        return None
    return {"device": row["device"], "problem": row["problem"], "m": int(m), "plan": row["plan"], "us": us}
