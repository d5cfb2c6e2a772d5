"""One kernel of each family under early, late and random timing."""

import pytest
import torch
from emulator import launch, problems

from deep_gemm_jit import _core

pytestmark = pytest.mark.smoke


def first_plan(problem, m, **fields):
    for candidate in _core.candidates(problem, m, "h200"):
        plan = candidate["plan"]
        if all(getattr(plan, name) == value for name, value in fields.items()):
            return plan
    raise AssertionError(f"no plan of {problem} for m = {m} has {fields}")


@pytest.mark.parametrize("seed", launch.seeds((0, 1, 2)))
@pytest.mark.parametrize(
    "fields",
    [
        {"family": "gemm", "tile_cols": 64, "warpgroups": 2},
        {"family": "gemm_swap_ab", "tile_cols": 16, "warpgroups": 1},
    ],
    ids=lambda f: f["family"],
)
def test_one_kernel_of_each_family(fields, seed):
    m, n, k = 200, 264, 400  # partial tiles both ways, a partial last block of K, more tiles than blocks
    plan = first_plan(_core.GemmProblem(n=n, k=k), m, **fields)
    o = problems.make(m, n, k, torch.bfloat16, c=True, bias=torch.float32, alpha=0.5, seed=seed)
    launch.run_gemm(plan, **o.as_dict(), seed=seed)
    problems.check(o)
