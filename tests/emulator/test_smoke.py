"""One kernel of each family and of each kind of cluster, and a few planted faults: what every change runs."""

import pytest
import torch
from emulator import launch, plans, problems

from deep_gemm_jit import _core

pytestmark = pytest.mark.smoke


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
    plan = plans.find(_core.GemmProblem(n=n, k=k), m, **fields)
    o = problems.make(m, n, k, torch.bfloat16, c=True, bias=torch.float32, alpha=0.5, seed=seed)
    launch.run_gemm(plan, **o.as_dict(), seed=seed)
    problems.check(o)


@pytest.mark.parametrize(
    "fields",
    [
        {"family": "gemm", "tile_cols": 64, "warpgroups": 2, "cluster_rows": 2},
        {"family": "gemm_swap_ab", "tile_cols": 16, "warpgroups": 1, "split_k": 2},
    ],
    ids=["multicast", "split"],
)
def test_one_kernel_of_each_kind_of_cluster(fields):
    m, n, k = 40 if "split_k" in fields else 300, 136, 1168
    plan = plans.find(_core.GemmProblem(n=n, k=k), m, **fields)
    for seed in launch.seeds((1, 2)):
        o = problems.make(m, n, k, torch.bfloat16)
        launch.run_gemm(plan, **o.as_dict(), seed=seed)
        problems.check(o)


@pytest.mark.parametrize(
    ("header", "removed", "reason"),
    [
        (
            "parts/multiply.cuh",
            "if (!there) ptx::barrier_wait(o.full + 8 * rings.tiles.stage, rings.tiles.phase);",
            "observed",
        ),
        ("parts/multiply.cuh", "ptx::wgmma_commit();", "a wgmma that was not waited for"),
        ("sm90/fp8_gemm.cuh", "ptx::fence_async_shared();", "no fence.proxy.async"),
    ],
)
def test_a_missing_line_is_noticed(header, removed, reason):
    patch = launch.planted(header, removed, "")
    m, n, k = 200, 136, 1168
    plan = plans.find(_core.GemmProblem(n=n, k=k), m, family="gemm", tile_cols=64)
    o = problems.make(m, n, k, torch.bfloat16)
    with pytest.raises(launch.EmulatorFault, match=reason):
        launch.run_gemm(plan, **o.as_dict(), sms=1, seed=1, patch=patch)
