"""Compile ahead of need everything that a set of problems can ever launch, and prove that nothing is left.

>>> problems = [GemmProblem(n=4096, k=7168), GemmProblem(n=4096, k=7168, layout="m_grouped", groups=32)]
>>> warmup(problems, device="h200")        # without a GPU: when an image is built, or before a server starts
>>> with zero_jit():                       # from here on a compile is an error
...     serve()
"""

import contextlib
import operator
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from deep_gemm_jit import _core
from deep_gemm_jit._core import CastPlan, GemmProblem, KernelPlan
from deep_gemm_jit.kernels import all_plans, emit
from deep_gemm_jit.settings import current_device

Kernel = KernelPlan | CastPlan

__all__ = ["PlanReport", "WarmupReport", "WarmupStep", "plan_report", "warmup", "zero_jit"]

# Another process that has been at one kernel for longer is taken to be stopped: it is compiled here too.
PATIENCE_S = 60.0
CASTS = ("operands", "all", "none")


@dataclass(frozen=True)
class PlanReport:
    """The kernels that problems can launch on a device, without duplicates."""

    device: str  # a profile, or an architecture
    plans: tuple[KernelPlan, ...]
    casts: tuple[CastPlan, ...]
    missing: tuple[Kernel, ...]  # of these, what no cache has

    def __len__(self) -> int:
        return len(self.plans) + len(self.casts)

    def __str__(self) -> str:
        missing = set(self.missing)
        lines = [f"{len(self)} kernels for {self.device}, {len(missing)} of them not compiled yet"]
        rows = [*self.plans, *self.casts]
        lines += [f"  {'missing' if row in missing else 'cached '}  {row}" for row in rows]
        return "\n".join(lines)


@dataclass(frozen=True)
class WarmupStep:
    """One kernel of a warm-up is ready; progress is called with it."""

    kernel: Kernel
    origin: str  # "compiled", "disk" or "memory"
    milliseconds: float  # compile, or read and verify
    done: int  # kernels ready so far, this one included
    total: int


@dataclass(frozen=True)
class WarmupReport:
    """What a warm-up did: the kernels that are ready, and how they came to be."""

    device: str
    kernels: tuple[Kernel, ...] = field(repr=False)
    compiled: int  # by this process
    found: int  # in memory or on disk, compiled by others or earlier
    seconds: float  # of the whole call
    compile_seconds: float  # sum over the kernels compiled here

    def __str__(self) -> str:
        return (
            f"{len(self.kernels)} kernels for {self.device} are ready: {self.compiled} compiled "
            f"({self.compile_seconds:.1f} s of compiling), {self.found} found, in {self.seconds:.1f} s"
        )


def plan_report(
    problems: GemmProblem | Sequence[GemmProblem],
    device: str,
    max_rows: int | Sequence[int | None] | None = None,
    casts: str = "operands",
) -> PlanReport:
    """Return the kernels that problems can launch, and which of them no cache has. Compiles nothing.

    Arguments and errors are those of warmup.
    """
    kernels = list_kernels(problems, device, max_rows, casts)
    missing = tuple(kernel for kernel in kernels if not _core.is_cached(emit(kernel)))
    return PlanReport(
        device=device,
        plans=tuple(kernel for kernel in kernels if isinstance(kernel, KernelPlan)),
        casts=tuple(kernel for kernel in kernels if isinstance(kernel, CastPlan)),
        missing=missing,
    )


def warmup(
    problems: GemmProblem | Sequence[GemmProblem],
    device: str | None = None,
    max_rows: int | Sequence[int | None] | None = None,
    jobs: int | None = None,
    rank: int = 0,
    world_size: int = 1,
    progress: Callable[[WarmupStep], object] | None = None,
    load: bool = False,
    casts: str = "operands",
) -> WarmupReport:
    """Compile, or find in the cache, every kernel that problems can launch, and nothing twice.

    problems: one or more. device: a profile such as "h200", or an architecture such as "sm_90a", which means
    all of its profiles; neither needs a GPU. None: the current CUDA device. max_rows: rows of A, as for
    all_plans (M-grouped: of all groups together); one value, or one for each problem. jobs: threads that
    compile; None: one for each CPU that this process may use. progress: called in this thread with each
    WarmupStep. load: also load every kernel into the current CUDA device. casts: quantisation kernels to
    include: "operands": those that make operands of these problems; "all"; or "none".

    rank and world_size: of several processes that share a cache and are given the same arguments, each
    starts with its own share, and helps the others, or waits for them, when it is through. Processes that
    say nothing share as well: none compiles what another is compiling. Every process ends with all kernels.

    What is compiled is in the cache at once: a warm-up that was interrupted goes on where it stopped.
    KeyboardInterrupt ends it after the kernels in progress, 2 s at most.
    Raises ValueError, TypeError, NotImplementedError for a problem without kernels or no supported device,
    CompileError, JitForbiddenError, and with load what load raises.
    """
    started = time.monotonic()
    try:
        rank, world_size = operator.index(rank), operator.index(world_size)
        jobs = None if jobs is None else operator.index(jobs)
    except TypeError:
        raise TypeError(
            f"warmup: rank is {rank!r} of {world_size!r}, jobs is {jobs!r}; they must be whole numbers"
        ) from None
    if not 0 <= rank < world_size:
        raise ValueError(f"warmup: rank is {rank} of {world_size}; it must be in 0..world_size - 1")
    if jobs is not None and jobs < 1:
        raise ValueError(f"warmup: jobs is {jobs}; it must be at least 1, or None for one a CPU")
    index = None
    if device is None or load:
        index, profile = _current_profile()
        device = profile["name"] if device is None else device
        if load and device not in (profile["name"], profile["arch"]):
            raise ValueError(
                f"warmup: device is '{device}', but load=True loads into the current device, which is "
                f"'{profile['name']}'; pass that, or device=None"
            )
    kernels = list_kernels(problems, device, max_rows, casts)
    # Long compiles first, so that none of them is alone at the end.
    order = sorted(kernels, key=_weight, reverse=True)
    shares = [kernel for i in range(world_size) for kernel in order[(rank + i) % world_size :: world_size]]
    steps = compile_kernels(shares, jobs, progress)
    if index is not None and load:
        for kernel in kernels:
            _core.load_plan(kernel, index)
    compiled = [step for step in steps if step.origin == "compiled"]
    return WarmupReport(
        device=device,
        kernels=tuple(kernels),
        compiled=len(compiled),
        found=len(steps) - len(compiled),
        seconds=time.monotonic() - started,
        compile_seconds=sum(step.milliseconds for step in compiled) / 1e3,
    )


@contextlib.contextmanager
def zero_jit() -> Iterator[None]:
    """Let every compile in this process raise JitForbiddenError, which names the kernel and what to run.

    It holds for all threads. Scopes may be nested and may overlap between threads: compiles are allowed
    again when the last one ends. DGJ_JIT=forbid does the same for a whole process.
    """
    _core.begin_zero_jit()
    try:
        yield
    finally:
        _core.end_zero_jit()


def list_kernels(
    problems: GemmProblem | Sequence[GemmProblem],
    device: str,
    max_rows: int | Sequence[int | None] | None,
    casts: str,
) -> list[Kernel]:
    """Distinct kernels in a fixed order: every process that is given the same problems lists the same."""
    try:
        problems = [problems] if isinstance(problems, GemmProblem) else list(problems)
    except TypeError:
        kind = type(problems).__name__
        raise TypeError(f"warmup: problems is a {kind}; pass one GemmProblem or a list of them") from None
    if wrong := [problem for problem in problems if not isinstance(problem, GemmProblem)]:
        raise TypeError(f"warmup: problems holds {wrong[0]!r}; pass GemmProblem objects")
    limits = _limits(max_rows, len(problems))
    if casts not in CASTS:
        raise ValueError(f"warmup: casts is '{casts}'; allowed: {', '.join(CASTS)}")
    known = dict.fromkeys(row[key] for key in ("name", "arch") for row in _core.device_profiles())
    if not isinstance(device, str):
        raise TypeError(f"warmup: device is {device!r}; it must be one of {', '.join(known)}")
    if device not in known:
        raise ValueError(f"warmup: device '{device}' is not known; allowed: {', '.join(known)}")
    found: dict[Kernel, None] = {}
    for problem, limit in zip(problems, limits, strict=True):
        found.update(dict.fromkeys(all_plans(problem, device, limit)))
    for plan in _core.all_cast_plans():
        if casts == "all" or (casts == "operands" and any(_makes_operands(plan, p) for p in problems)):
            found[plan] = None
    return list(found)


def _limits(max_rows: int | Sequence[int | None] | None, count: int) -> list[int | None]:
    """Rows of A for each of so many problems."""

    def limit(value: object) -> int | None:
        return None if value is None else operator.index(value)

    try:
        return [limit(max_rows)] * count
    except TypeError:
        pass
    try:
        limits = [limit(value) for value in max_rows]
    except TypeError:
        raise TypeError(
            f"warmup: max_rows is {max_rows!r}; it must be a whole number, None, or one of these for each "
            "problem"
        ) from None
    if len(limits) != count:
        raise ValueError(
            f"warmup: max_rows has {len(limits)} values for {count} problems; pass one value, or one "
            "for each problem"
        )
    return limits


def _makes_operands(plan: CastPlan, problem: GemmProblem) -> bool:
    # Activations have the dtype that the layer before them wrote: D's, or BF16 where D is FP32.
    return plan.gran_k == 128 and plan.x_dtype in (problem.d_dtype, "bfloat16")


def _weight(kernel: Kernel) -> int:
    return kernel.tile_rows * kernel.tile_cols if isinstance(kernel, KernelPlan) else 0


def _current_profile() -> tuple[int, dict]:
    index = current_device()
    name = _core.device_profile_name(index)
    return index, next(row for row in _core.device_profiles() if row["name"] == name)


def compile_kernels(
    kernels: list[Kernel],
    jobs: int | None = None,
    progress: Callable[[WarmupStep], object] | None = None,
) -> list[WarmupStep]:
    """Compile or find distinct kernels in parallel, about in this order. The rest is as for warmup."""
    return _Compiling(kernels, jobs or len(os.sched_getaffinity(0))).run(progress)


class _Compiling:
    """Threads that take kernels from one queue; what another process is at goes back to its end.

    NVRTC runs without the GIL and has next to no lock of its own (docs/serving.md has figures), so threads
    do as well as processes and need no second start-up.
    """

    def __init__(self, kernels: list[Kernel], jobs: int):
        self._total = len(kernels)
        self._waiting = deque((kernel, None) for kernel in kernels)  # and when it was first found busy
        self._jobs = max(1, min(jobs, len(kernels)))
        self._results: queue.SimpleQueue = queue.SimpleQueue()
        self._stop = threading.Event()

    def run(self, progress: Callable[[WarmupStep], object] | None) -> list[WarmupStep]:
        threads = [threading.Thread(target=self._work, daemon=True) for _ in range(self._jobs)]
        for thread in threads:
            thread.start()
        steps: list[WarmupStep] = []
        failures: list[tuple[Kernel, Exception]] = []
        try:
            while len(steps) + len(failures) < self._total:
                kernel, outcome = self._results.get()
                if isinstance(outcome, BaseException):
                    failures.append((kernel, outcome))
                    continue
                step = WarmupStep(kernel, *outcome, done=len(steps) + 1, total=self._total)
                steps.append(step)
                if progress is not None:
                    progress(step)
        finally:
            self._stop.set()
            for thread in threads:
                thread.join()
        if failures:
            kernel, first = failures[0]
            count = f"{len(failures)} of {self._total} kernels are not ready"
            raise type(first)(f"warmup: {count}; the first is {kernel}: {first}") from first
        return steps

    def _work(self) -> None:
        while not self._stop.is_set():
            try:
                kernel, busy_since = self._waiting.popleft()
            except IndexError:
                return
            try:
                outcome = self._attempt(kernel, busy_since)
            except Exception as error:  # noqa: BLE001  handed to the thread that called
                outcome = error
            if outcome is None:
                self._waiting.append((kernel, busy_since or time.monotonic()))
            else:
                self._results.put((kernel, outcome))

    def _attempt(self, kernel: Kernel, busy_since: float | None) -> tuple[str, float] | None:
        source, line = emit(kernel), str(kernel)
        if busy_since is None or time.monotonic() - busy_since < PATIENCE_S:
            return _core.compile_ahead(source, line)
        found = _core.get_or_compile(source, line)
        return found["origin"], found["milliseconds"]
