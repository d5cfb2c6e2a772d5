"""Kernel time on the current CUDA device, for tune and the command bench. Needs torch and a GPU."""

import statistics
from collections.abc import Sequence

import torch

from deep_gemm_jit import _core
from deep_gemm_jit._core import GemmProblem, KernelPlan
from deep_gemm_jit.ops import register

__all__ = ["GpuTimer"]

FLUSH_BYTES = 256 << 20  # several times the L2 of any Hopper GPU


class GpuTimer:
    """Times plans of a dense problem on random operands: GpuTimer(problem, max_rows)(plans, m).

    Every launch finds a cold L2, which was filled by reading, so that it has nothing to write back. Events
    around a launch that waits behind that read measure the GPU alone, plus about a microsecond that all
    plans share. Plans take turns, so that a changing clock does not favour one of them.
    """

    def __init__(self, problem: GemmProblem, max_rows: int, repeats: int = 15):
        if problem.layout != "dense":
            raise NotImplementedError(
                f"GpuTimer: problem has layout '{problem.layout}'; 'dense' alone can be timed in this version"
            )
        if not torch.cuda.is_available():
            raise NotImplementedError("GpuTimer: there is no CUDA device; pass a timer of your own to tune")
        register()
        self._repeats = repeats
        n, k = problem.n, problem.k
        blocks = -(-k // 128)
        self._a, self._b = self._values(max_rows, k), self._values(n, k)
        # Row counts stand contiguously, as kernels like them best.
        self._sfa = torch.rand(blocks, max_rows, device="cuda").t()
        self._sfb = torch.rand(-(-n // 128), blocks, device="cuda")
        self._d = torch.empty(max_rows, n, dtype=getattr(torch, problem.d_dtype), device="cuda")
        self._flush = torch.ones(1024, FLUSH_BYTES // 4096, device="cuda")
        self._sink = torch.empty(1024, device="cuda")

    @staticmethod
    def _values(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, device="cuda", dtype=torch.bfloat16).to(torch.float8_e4m3fn)

    def __call__(self, plans: Sequence[KernelPlan], m: int) -> list[float]:
        """Return the microseconds of each plan for m rows: medians."""
        for plan in plans:
            self._launch(plan, m)
        torch.cuda.synchronize()
        times: list[list[float]] = [[] for _ in plans]
        for _ in range(self._repeats):
            for i, plan in enumerate(plans):
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                torch.sum(self._flush, dim=1, out=self._sink)
                start.record()
                self._launch(plan, m)
                end.record()
                end.synchronize()
                times[i].append(start.elapsed_time(end) * 1e3)
        return [statistics.median(row) for row in times]

    def _launch(self, plan: KernelPlan, m: int) -> None:
        _core.launch_with_plan(plan, self._a[:m], self._sfa[:m], self._b, self._sfb, self._d[:m])
