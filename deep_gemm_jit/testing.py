"""Timing and comparing, under the names of DeepGEMM's testing package; works on CUDA and on CPU tensors."""

from __future__ import annotations

import functools
import logging
import os
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext, redirect_stdout
from io import StringIO
from typing import Any

import torch

__all__ = [
    "assert_bitwise_equal",
    "bench",
    "bench_kineto",
    "calc_diff",
    "count_bytes",
    "get_arch_major",
    "ignore_env",
    "test_filter",
]

_FLUSH_BYTES = 256 << 20  # several times the L2 of any GPU so far (H200: 50 MiB, B200: 126 MiB)
_SPIN_CYCLES = 20_000_000  # about 10 ms of a busy GPU, in which the host queues the calls to be timed

_logger = logging.getLogger("deep_gemm_jit")


# ---- timing --------------------------------------------------------------------------------------


def bench(
    fn: Callable[[], Any], num_warmups: int = 5, num_tests: int = 10, high_precision: bool = False
) -> float:
    """Return the mean time of a call of fn in seconds; the GPU's L2 is flushed before warm-up and test.

    high_precision: keep the GPU busy while the calls are queued, so that the host's time between them does
    not count. Without CUDA it is wall-clock time, and the flag has no meaning.
    Raises ValueError for num_tests < 1.
    """
    if num_tests < 1:
        raise ValueError(f"bench: num_tests is {num_tests}; it must be at least 1")
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.synchronize()
        _flush_l2()
    for _ in range(num_warmups):
        fn()
    if not cuda:
        begin = time.perf_counter()
        for _ in range(num_tests):
            fn()
        return (time.perf_counter() - begin) / num_tests
    _flush_l2()
    if high_precision:
        torch.cuda._sleep(_SPIN_CYCLES)
    begin_event, end_event = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin_event.record()
    for _ in range(num_tests):
        fn()
    end_event.record()
    end_event.synchronize()
    return begin_event.elapsed_time(end_event) / num_tests / 1e3


def bench_kineto(
    fn: Callable[[], Any],
    kernel_names: str | Sequence[str],
    num_tests: int = 30,
    suppress_kineto_output: bool = False,
    trace_path: str | None = None,
    flush_l2: bool = True,
    with_multiple_kernels: bool = False,
    barrier: Callable[[], Any] | None = None,
) -> float | tuple[float, ...]:
    """Return the mean time in seconds that torch's profiler gives for one run of the kernels named.

    kernel_names: a part of a kernel's name, or several; the result is a float or a tuple accordingly. Without
    CUDA they are names of operators. A part that no kernel has gives 0.
    suppress_kineto_output: drop what is written to stdout meanwhile. trace_path: file for a Chrome trace.
    flush_l2: flush the GPU's L2 before each call. with_multiple_kernels: a part may fit several kernels,
    whose times are added for each call. barrier: called before each call, such as
    torch.distributed.barrier.

    Raises ValueError when a part fits several kernels and with_multiple_kernels is off, and for
    num_tests < 1.
    """
    if num_tests < 1:
        raise ValueError(f"bench_kineto: num_tests is {num_tests}; it must be at least 1")
    names = (kernel_names,) if isinstance(kernel_names, str) else tuple(kernel_names)
    cuda = torch.cuda.is_available()
    fn()  # compiles what is missing, outside the profile
    activity = torch.profiler.ProfilerActivity
    with redirect_stdout(StringIO()) if suppress_kineto_output else nullcontext():
        with torch.profiler.profile(activities=[activity.CUDA if cuda else activity.CPU]) as profile:
            for _ in range(num_tests):
                if flush_l2 and cuda:
                    _flush_l2()
                if barrier is not None:
                    barrier()
                fn()
            if cuda:
                torch.cuda.synchronize()
    if trace_path is not None:
        profile.export_chrome_trace(trace_path)
    rows = [
        (row.key, row.device_time_total if cuda else row.cpu_time_total, row.count)
        for row in profile.key_averages()
    ]
    times = tuple(_time_of(name, rows, num_tests, with_multiple_kernels) for name in names)
    return times[0] if isinstance(kernel_names, str) else times


def _time_of(name: str, rows: list, num_tests: int, several: bool) -> float:
    fitting = [row for row in rows if name in row[0]]
    if len(fitting) > 1 and not several:
        raise ValueError(
            f"bench_kineto: {name!r} fits {len(fitting)} kernels ({', '.join(row[0] for row in fitting)}); "
            "pass a longer part, or with_multiple_kernels=True"
        )
    if several:
        return sum(microseconds for _, microseconds, _ in fitting) / num_tests / 1e6
    return sum(microseconds / count for _, microseconds, count in fitting) / 1e6


def _flush_l2() -> None:
    torch.empty(_FLUSH_BYTES // 4, dtype=torch.int32, device="cuda").zero_()


# ---- comparing -----------------------------------------------------------------------------------


def calc_diff(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return 1 - 2 <x, y> / (<x, x> + <y, y>) in float64, a scalar tensor; 0 where both are zero.

    x, y: of one shape, any dtype. One wrong row of many hardly shows: compare per element as well.
    """
    x, y = x.double(), y.double()
    denominator = (x * x + y * y).sum()
    difference = 1 - 2 * (x * y).sum() / denominator
    return torch.where(denominator == 0, torch.zeros_like(difference), difference)


def count_bytes(*tensors: Any) -> int:
    """Return the bytes that the elements of tensors take; tuples and lists are entered, None counts 0."""
    total = 0
    for item in tensors:
        if isinstance(item, tuple | list):
            total += count_bytes(*item)
        elif item is not None:
            total += item.numel() * item.element_size()
    return total


def assert_bitwise_equal(x: torch.Tensor, y: torch.Tensor, label: str = "") -> None:
    """Raise AssertionError unless x and y have one shape, one dtype and the same bits, NaN included."""
    where = f"{label}: " if label else ""
    assert x.shape == y.shape, f"{where}the shapes are {list(x.shape)} and {list(y.shape)}"
    assert x.dtype == y.dtype, f"{where}the dtypes are {x.dtype} and {y.dtype}"
    different = (_bytes_of(x) != _bytes_of(y)).any(dim=-1)
    count = int(different.sum())
    if count:
        first = int(different.nonzero()[0])
        values = x.flatten()[first].item(), y.flatten()[first].item()
        raise AssertionError(
            f"{where}{count} of {different.numel()} elements have other bits, the first at flat index "
            f"{first}: {values[0]} and {values[1]}"
        )


def _bytes_of(x: torch.Tensor) -> torch.Tensor:
    return x.resolve_conj().resolve_neg().contiguous().view(-1, 1).view(torch.uint8)


# ---- test helpers --------------------------------------------------------------------------------


def get_arch_major() -> int:
    """Return the major number of the current CUDA device's compute capability (Hopper: 9).

    Raises RuntimeError where there is no CUDA device.
    """
    if not torch.cuda.is_available():
        raise RuntimeError("get_arch_major: there is no CUDA device (torch.cuda.is_available() is False)")
    return torch.cuda.get_device_capability()[0]


def test_filter(condition: Callable[[], bool]) -> Callable:
    """Decorator: the function runs where condition() is true; elsewhere a call returns None and is logged."""

    def decorate(function: Callable) -> Callable:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if condition():
                return function(*args, **kwargs)
            _logger.info("%s is filtered out by its condition", function.__name__)
            return None

        return call

    return decorate


test_filter.__test__ = False  # pytest would take it for a test where a test file imports it


def ignore_env(name: str, condition: Callable[[], bool]) -> Callable:
    """Decorator: where condition() is true the function runs without the environment variable `name`."""

    def decorate(function: Callable) -> Callable:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            saved = os.environ.pop(name, None) if condition() else None
            try:
                return function(*args, **kwargs)
            finally:
                if saved is not None:
                    os.environ[name] = saved

        return call

    return decorate
