"""problem -> plan -> source -> cubin -> loaded kernel. Only load needs a GPU; none needs torch.

>>> problem = GemmProblem(n=4096, k=7168, d_dtype="bfloat16")
>>> for kernel_plan in all_plans(problem, "h200"):
...     compile(kernel_plan)            # in parallel threads, at server start or on a machine without a GPU
"""

import json
import operator
from dataclasses import dataclass, field

from deep_gemm_jit import _core
from deep_gemm_jit._core import CastPlan, GemmProblem, KernelPlan, KernelSource

__all__ = [
    "Candidate",
    "CompileReport",
    "CompiledKernel",
    "all_plans",
    "candidates",
    "compile",
    "emit",
    "load",
    "plan",
]


@dataclass(frozen=True)
class Candidate:
    """A plan that was considered, with the time the cost model predicts and how it comes about."""

    plan: KernelPlan
    predicted_us: float  # microseconds
    why: str


@dataclass(frozen=True)
class CompileReport:
    """What the compiler's log says: registers per thread, bytes of spills and stack, advisories (C75xx)."""

    registers: int
    spill_stores: int
    spill_loads: int
    stack_bytes: int
    advisories: tuple[str, ...]


@dataclass(frozen=True)
class CompiledKernel:
    """A compiled kernel: machine code and how it was made or found."""

    cubin: bytes = field(repr=False)
    entry: str
    arch: str
    key: str  # of the cache, 64 hex digits
    origin: str  # "compiled", "disk" or "memory"
    milliseconds: float  # what this call took: compile, or read and verify
    log: str = field(repr=False)  # of the compiler, also when it ran earlier
    report: CompileReport


def _check(function: str, name: str, value: object, *kinds: type) -> None:
    """For the functions of _core, which would list their overloads."""
    if not isinstance(value, kinds):
        *others, last = (kind.__name__ for kind in kinds)
        allowed = f"{', '.join(others)} or {last}" if others else last
        raise TypeError(f"{function}: {name} is a {type(value).__name__}; it must be a {allowed}")


def _check_planning(function: str, problem: object, device: object) -> None:
    _check(function, "problem", problem, GemmProblem)
    _check(function, "device", device, str)


def plan(problem: GemmProblem, m: int, device: str) -> KernelPlan:
    """Return the plan chosen for m rows; a step function of m.

    problem: what is asked. m: rows of A and D, at least 1. device: a profile such as "h100" or "h200".
    Raises ValueError for m < 1 and for an unknown device, NotImplementedError for a problem without kernels.
    """
    _check_planning("plan", problem, device)
    return _core.plan(problem, m, device)


def all_plans(problem: GemmProblem, device: str, max_rows: int | None = None) -> list[KernelPlan]:
    """Return every plan that `plan` chooses for m in 1..max_rows (None: for any m), each once, by first use.

    device: a profile, or an architecture such as "sm_90a", which means all of its profiles together. How many
    multiprocessors are in use (set_num_sms) never changes the set.
    Raises ValueError for max_rows < 1 and for an unknown device.
    """
    _check_planning("all_plans", problem, device)
    return _core.all_plans(problem, device, max_rows)


def candidates(problem: GemmProblem, m: int, device: str) -> list[Candidate]:
    """Every plan considered for m rows, best first; `plan` returns one near the first. Else as plan."""
    _check_planning("candidates", problem, device)
    return [Candidate(**row) for row in _core.candidates(problem, m, device)]


def emit(plan: KernelPlan | CastPlan) -> KernelSource:
    """Return the kernel's source, a program for NVRTC that a person can read and diff.

    The result has text, entry (the kernel's name), arch and headers (text by include name).
    """
    _check("emit", "plan", plan, KernelPlan, CastPlan)
    return _core.emit(plan)


def compile(what: KernelPlan | CastPlan | KernelSource) -> CompiledKernel:  # noqa: A001
    """Compile a plan, or the source of one, or find it in memory or on disk. Other threads run meanwhile.

    Raises CompileError when NVRTC is missing or rejects the source, JitForbiddenError when DGJ_JIT=forbid is
    set and the kernel is in no cache.
    """
    _check("compile", "what", what, KernelPlan, CastPlan, KernelSource)
    if isinstance(what, KernelSource):
        source, line = what, what.entry
    else:
        source, line = _core.emit(what), str(what)
    found = _core.get_or_compile(source, line)
    log = _log_of(found["meta"])
    report = _core.parse_compile_log(log)
    report["advisories"] = tuple(report["advisories"])
    return CompiledKernel(
        cubin=found["cubin"],
        entry=source.entry,
        arch=source.arch,
        key=found["key"],
        origin=found["origin"],
        milliseconds=found["milliseconds"],
        log=log,
        report=CompileReport(**report),
    )


def _log_of(meta: bytes) -> str:
    """The compiler's log in an entry's description, "" where that is broken: the kernel is good without."""
    try:
        log = json.loads(meta.decode())["log"]
        log.encode()  # an escape can name half a character
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return ""
    return log


def load(plan: KernelPlan | CastPlan, device: int = 0) -> None:
    """Compile or find a plan and load it into the primary context of a CUDA device, without launching it.

    device: its index. Afterwards a call that needs this plan only launches. Raises what compile raises,
    NotImplementedError where there is no driver or no supported device, RuntimeError when the driver refuses.
    """
    _check("load", "plan", plan, KernelPlan, CastPlan)
    try:
        index = operator.index(device)
    except TypeError:
        raise TypeError(
            f"load: device is a {type(device).__name__}; it must be the index of a device"
        ) from None
    if not 0 <= index < 2**31:
        raise ValueError(f"load: device is {index}; it must be the index of a device, 0 or larger")
    _core.load_plan(plan, index)
