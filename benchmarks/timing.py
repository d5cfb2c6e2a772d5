"""Kernel time, two ways, always alternating between the contestants in one process.

Burst: every call is preceded by a pause and by *reading* 1 GB, so the L2 is cold, holds no dirty lines that
the measured kernel would have to write back, and the card is not power-limited. The time of a call is the sum
of all its kernels as CUPTI recorded them, the flush apart.

Sustained: calls back to back for a fraction of a second, so the card runs at the clock that its power limit
allows. Events around the whole block measure it: only for kernels that last longer than their launch.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

Call = Callable[[], object]


def _device_events(recorded: profile) -> list[tuple[int, int, str]]:
    """(start, duration, name) in nanoseconds of everything that ran on the device, in order."""
    events = [
        (event.start_ns(), event.duration_ns(), event.name())
        for event in recorded.profiler.kineto_results.events()
        if event.device_type() == DeviceType.CUDA
    ]
    return sorted(events)


class Flush:
    """Reads 1 GB with one kernel of a known name. The sum is per row: a full reduction would add a memset."""

    def __init__(self, size_bytes: int = 1 << 30):
        side = int((size_bytes // 4) ** 0.5)
        self._buffer = torch.ones(side, side, device="cuda")
        self._sink = torch.empty(side, device="cuda")
        self()
        torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as recorded:
            self()
            self()
            torch.cuda.synchronize()
        names = [name for _, _, name in _device_events(recorded)]
        if len(names) != 2 or names[0] != names[1]:
            raise RuntimeError(f"the flush must be one kernel a call, the profiler recorded {names}")
        self.kernel_name = names[0]

    def __call__(self) -> None:
        torch.sum(self._buffer, dim=1, out=self._sink)


def split_by_flush(events: list[tuple[int, int, str]], flush_name: str) -> list[list[tuple[int, str]]]:
    """One list of (duration, name) per flush: what ran between it and the next one."""
    calls: list[list[tuple[int, str]]] = []
    for _, duration, name in events:
        if name == flush_name:
            calls.append([])
        elif calls:
            calls[-1].append((duration, name))
    return calls


def burst(
    contestants: Mapping[str, Call], flush: Flush, *, repeats: int = 20, pause_s: float = 0.002
) -> dict[str, dict]:
    """{name: {"us": median, "spread_us": [p10, p90], "kernels": names of one call}}"""
    for call in contestants.values():
        call()
        call()
    torch.cuda.synchronize()
    order = []
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as recorded:
        for _ in range(repeats):
            for name, call in contestants.items():
                time.sleep(pause_s)
                flush()
                call()
                torch.cuda.synchronize()
                order.append(name)
    calls = split_by_flush(_device_events(recorded), flush.kernel_name)
    if len(calls) != len(order) or not all(calls):
        empty = sum(not call for call in calls)
        raise RuntimeError(f"the profiler recorded {len(calls)} of {len(order)} calls, {empty} of them empty")
    samples: dict[str, list[float]] = {name: [] for name in contestants}
    kernels: dict[str, list[str]] = {}
    for name, call in zip(order, calls, strict=True):
        samples[name].append(sum(duration for duration, _ in call) / 1e3)
        kernels[name] = [kernel[:160] for _, kernel in call]
    return {name: {**summary(samples[name]), "kernels": kernels[name]} for name in contestants}


def summary(samples: list[float]) -> dict:
    ordered = sorted(samples)
    tenth = len(ordered) // 10
    return {
        "us": round(statistics.median(ordered), 3),
        "spread_us": [round(ordered[tenth], 3), round(ordered[-1 - tenth], 3)],
    }


def sustained(contestants: Mapping[str, Call], *, seconds: float = 0.3, blocks: int = 3) -> dict[str, dict]:
    """{name: {"us": median over blocks, "spread_us": ...}}; `seconds` is the load of each contestant in
    all."""
    counts = {}
    for name, call in contestants.items():
        call()
        took = _events_us(call, 5)
        counts[name] = max(5, int(seconds * 1e6 / blocks / max(took, 1.0)))
    samples: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(blocks):
        for name, call in contestants.items():
            samples[name].append(_events_us(call, counts[name]))
    return {name: summary(values) for name, values in samples.items()}


def _events_us(call: Call, count: int) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(count):
        call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e3 / count
