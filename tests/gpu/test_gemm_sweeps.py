"""fp8_gemm_nt over shapes, layouts and options, per element against float64; bits that must not change."""

import time

import pytest

from benchmarks import core_api, correctness

# Seconds on one GPU with the kernels compiled ahead; all together stay below eight minutes.
BUDGET = {"rows": 150, "grid": 60, "options": 40, "repeats": 40, "batch_invariant": 90, "families": 60}


@pytest.mark.parametrize("name", list(correctness.SWEEPS))
def test_sweep(name):
    core_api.compile_ahead(correctness.problems_of([name]))
    outcome = correctness.SWEEPS[name](time.monotonic() + BUDGET[name])
    assert not outcome.failures, "\n".join(
        [f"{len(outcome.failures)} of {outcome.cases} cases", *outcome.failures[:12]]
    )
    assert outcome.complete, f"{outcome.cases} of {outcome.planned} cases within {BUDGET[name]} s"
