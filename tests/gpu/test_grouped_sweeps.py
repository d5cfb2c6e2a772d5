"""The M-grouped GEMMs over groups, distributions, forms, layouts and dtypes, per element against float64."""

import time

import pytest

from benchmarks import core_api, grouped_correctness

# Seconds on one GPU with the kernels compiled ahead.
BUDGET = {"groups": 60, "masked_room": 30, "repeats": 15, "batch_invariant": 30}


@pytest.fixture(scope="module", autouse=True)
def _compiled():
    core_api.compile_ahead(grouped_correctness.problems())


@pytest.mark.parametrize("name", list(grouped_correctness.SWEEPS))
def test_sweep(name):
    outcome = grouped_correctness.SWEEPS[name](time.monotonic() + BUDGET[name])
    assert not outcome.failures, "\n".join(
        [f"{len(outcome.failures)} of {outcome.cases} cases", *outcome.failures[:12]]
    )
    assert outcome.complete, f"{outcome.cases} of {outcome.planned} cases within {BUDGET[name]} s"
