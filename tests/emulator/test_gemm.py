"""Every family, tile class, dtype, split and cluster on small problems whose extents cross every boundary."""

import pytest
import torch
from emulator import launch, plans, problems

from deep_gemm_jit import _core

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
GEMM = {"family": "gemm"}
SWAP = {"family": "gemm_swap_ab"}

# m, n, k, SMs, dtype of D, fields of the plan, options of the operands. Extents: partial tiles in each
# direction and a partial last block of 128 of K (k % 128 != 0), one block of K and more of them than stages,
# more tiles than blocks.
KERNELS = [
    # tiles of the gemm family
    (130, 72, 144, 1, BF16, {**GEMM, "tile_cols": 64}, {}),
    (129, 136, 1168, 1, F16, {**GEMM, "tile_rows": 128, "tile_cols": 128}, {"c": True}),
    (300, 264, 272, 1, F32, {**GEMM, "tile_cols": 64}, {"bias": F32, "scales": "columns"}),
    (300, 200, 656, 1, BF16, {**GEMM, "tile_cols": 192}, {"bias": BF16, "alpha": -1.5}),
    (257, 200, 528, 1, BF16, {**GEMM, "tile_rows": 256, "tile_cols": 128}, {"c": True, "bias": F32}),
    (257, 136, 528, 1, F32, {**GEMM, "tile_rows": 256, "tile_cols": 128}, {"c": True, "alpha": 0.25}),
    (200, 72, 400, 1, F16, {**GEMM, "tile_rows": 192}, {"bias": F16}),
    (1, 8, 16, 1, BF16, {**GEMM}, {}),
    # clusters: a unit that is not whole, in each direction
    (300, 136, 400, 4, BF16, {"family": "gemm", "cluster_rows": 2, "tile_cols": 64}, {}),
    (129, 200, 400, 2, F32, {"family": "gemm", "cluster_rows": 2, "tile_cols": 128}, {"c": True}),
    (200, 264, 1168, 2, F16, {"family": "gemm", "cluster_cols": 2, "tile_cols": 64}, {"alpha": 3.0}),
    (300, 200, 272, 4, BF16, {"family": "gemm", "cluster_cols": 2, "tile_rows": 256}, {"bias": BF16}),
    # tiles of the swap-AB family
    (1, 72, 272, 2, BF16, {**SWAP, "tile_cols": 8, "split_k": 1}, {}),
    (9, 136, 400, 1, F32, {**SWAP, "tile_cols": 8, "split_k": 1}, {"c": True, "bias": F32}),
    (40, 136, 1040, 1, F16, {**SWAP, "tile_cols": 16, "stage_blocks": 4}, {"bias": F16, "alpha": 0.5}),
    (70, 200, 528, 1, BF16, {**SWAP, "tile_cols": 32, "warpgroups": 2}, {"scales": "columns"}),
    (130, 264, 400, 1, BF16, {**SWAP, "tile_cols": 64, "split_k": 1, "reuse_ring": 0}, {"c": True}),
    (130, 264, 528, 1, F32, {**SWAP, "tile_cols": 128, "split_k": 1}, {"bias": F32}),
    (70, 296, 400, 1, F16, {**SWAP, "waves": 2, "tile_cols": 32}, {}),
    (17, 136, 2064, 1, BF16, {**SWAP, "tile_cols": 8, "stage_blocks": 4, "split_k": 1}, {}),
    # scales that come by bulk copies; K blocks that do not fill the last stage
    (130, 136, 1168, 1, BF16, {**GEMM, "tile_cols": 64}, {"scales": "aligned"}),
    (200, 264, 656, 2, F32, {"family": "gemm", "cluster_cols": 2, "tile_cols": 64}, {"scales": "aligned"}),
    (41, 136, 1040, 1, BF16, {**SWAP, "tile_cols": 16, "stage_blocks": 4}, {"scales": "aligned"}),
    (70, 136, 1168, 2, F16, {**SWAP, "split_k": 2, "tile_cols": 32}, {"scales": "aligned", "c": True}),
    (131, 264, 1040, 1, BF16, {**SWAP, "reuse_ring": 1, "split_k": 1}, {"scales": "aligned"}),
    # split-K and the ring that is used again
    (40, 136, 1168, 4, BF16, {**SWAP, "split_k": 2, "tile_cols": 16}, {"c": True}),
    (70, 136, 1680, 3, F32, {**SWAP, "split_k": 3, "tile_cols": 32}, {"bias": F32}),
    (20, 72, 2064, 4, F16, {**SWAP, "split_k": 4, "tile_cols": 8}, {"alpha": 2.0}),
    (33, 72, 2576, 5, BF16, {**SWAP, "split_k": 5}, {}),
    (9, 72, 4112, 8, BF16, {**SWAP, "split_k": 8}, {"c": True, "bias": BF16}),
    (200, 264, 400, 1, BF16, {**SWAP, "reuse_ring": 1, "split_k": 1}, {"c": True}),
    (200, 264, 1168, 2, F32, {**SWAP, "reuse_ring": 1, "split_k": 2}, {}),
    (200, 136, 1680, 3, BF16, {**SWAP, "reuse_ring": 1, "split_k": 3}, {"bias": F32}),
]


def name_of(kernel) -> str:
    m, n, k, _, dtype, fields, _ = kernel
    return f"{m}x{n}x{k}-{str(dtype)[6:]}-" + "-".join(f"{v}" for v in fields.values())


@pytest.mark.parametrize("kernel", KERNELS, ids=name_of)
def test_kernel_gives_every_element_within_its_bound(kernel):
    m, n, k, sms, dtype, fields, options = kernel
    plan = plans.find(_core.GemmProblem(n=n, k=k, d_dtype=dtype), m, **fields)
    results = []
    for seed in launch.seeds((0, 1, 2, 3)):
        o = problems.make(m, n, k, dtype, seed=3, **options)
        launch.run_gemm(plan, **o.as_dict(), sms=sms, seed=seed)
        problems.check(o)
        results.append(o.d.contiguous().view(torch.uint8))
    assert all(torch.equal(r, results[0]) for r in results), "the order of events changed the bits"


@pytest.mark.parametrize("family", ["gemm", "gemm_swap_ab"])
def test_no_inner_extent_gives_bias_plus_c(family):
    m, n = 33, 72
    plan = plans.find(_core.GemmProblem(n=n, k=0), m, family=family)
    for seed in launch.seeds((0, 1, 2)):
        o = problems.make(m, n, 0, BF16, c=True, bias=F32)
        launch.run_gemm(plan, **o.as_dict(), seed=seed)
        problems.check(o)


@pytest.mark.parametrize("m", [1, 7, 8, 9, 63, 64, 65, 127, 128, 129])
def test_rows_around_every_boundary(m):
    n, k = 136, 272
    for fields in ({**GEMM, "tile_cols": 64, "tile_rows": 128}, {**SWAP, "tile_cols": 64, "warpgroups": 1}):
        plan = plans.find(_core.GemmProblem(n=n, k=k), 100, **fields)
        for seed in launch.seeds((1, 10 + m)):
            o = problems.make(m, n, k, BF16, seed=m)
            launch.run_gemm(plan, **o.as_dict(), seed=seed)
            problems.check(o)
