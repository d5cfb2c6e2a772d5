"""Every family, tile class, dtype, split and cluster on small problems whose extents cross every boundary."""

import pytest
import torch
from emulator import launch, plans, problems

from deep_gemm_jit import _core

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
GEMM = {"family": "gemm"}
SWAP = {"family": "gemm_swap_ab"}
ONE = {**SWAP, "tile_rows": 64, "reuse_ring": 0}

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
    (200, 264, 272, 1, F16, {**GEMM, "tile_cols": 192}, {}),
    (300, 136, 400, 1, BF16, {**GEMM, "tile_rows": 256}, {}),
    (129, 136, 272, 1, BF16, {**GEMM, "tile_rows": 128, "tile_cols": 128}, {}),
    # rounds of the ring that end with the tile
    (400, 136, 1424, 1, BF16, {**GEMM, "tile_rows": 192}, {"scales": "columns"}),
    (200, 72, 1536, 1, F32, {**GEMM, "tile_rows": 192}, {"scales": "aligned"}),
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
    (5, 296, 272, 1, F16, {**SWAP, "tile_rows": 256, "tile_cols": 8}, {"bias": F16}),
    (30, 296, 400, 1, BF16, {**SWAP, "tile_rows": 256, "tile_cols": 16}, {"scales": "aligned"}),
    (130, 296, 400, 1, F32, {**SWAP, "tile_rows": 256, "tile_cols": 64}, {"c": True}),
    (130, 296, 400, 1, BF16, {**SWAP, "tile_rows": 256, "tile_cols": 128}, {"alpha": -2.0}),
    (9, 136, 528, 1, BF16, {**SWAP, "tile_rows": 128, "tile_cols": 8}, {"c": True}),
    (30, 136, 528, 1, F32, {**SWAP, "tile_rows": 128, "tile_cols": 16}, {}),
    (70, 136, 528, 1, BF16, {**ONE, "tile_rows": 128, "tile_cols": 64, "stage_blocks": 2}, {}),
    (130, 136, 528, 1, F16, {**SWAP, "tile_rows": 128, "tile_cols": 128}, {"scales": "columns"}),
    (30, 136, 656, 1, F32, {**ONE, "tile_cols": 16, "stage_blocks": 2, "split_k": 1}, {}),
    (40, 136, 656, 1, BF16, {**ONE, "tile_cols": 32, "stage_blocks": 2, "split_k": 1}, {}),
    (40, 136, 1168, 1, F16, {**ONE, "tile_cols": 32, "stage_blocks": 4, "split_k": 1}, {"c": True}),
    (70, 136, 1680, 1, BF16, {**ONE, "tile_cols": 64, "stage_blocks": 4, "split_k": 1}, {"bias": F32}),
    # scales that come by bulk copies; K blocks that do not fill the last stage
    (130, 136, 1168, 1, BF16, {**GEMM, "tile_cols": 64}, {"scales": "aligned"}),
    (200, 264, 656, 2, F32, {"family": "gemm", "cluster_cols": 2, "tile_cols": 64}, {"scales": "aligned"}),
    (41, 136, 1040, 1, BF16, {**SWAP, "tile_cols": 16, "stage_blocks": 4}, {"scales": "aligned"}),
    (70, 136, 1168, 2, F16, {**SWAP, "split_k": 2, "tile_cols": 32}, {"scales": "aligned", "c": True}),
    (131, 264, 1040, 1, BF16, {**SWAP, "reuse_ring": 1, "split_k": 1}, {"scales": "aligned"}),
    # split-K and the ring that is used again
    (9, 136, 2064, 6, BF16, {**ONE, "tile_cols": 8, "stage_blocks": 4, "split_k": 3}, {}),
    (20, 136, 1168, 2, F16, {**ONE, "tile_cols": 16, "stage_blocks": 4, "split_k": 2}, {}),
    (40, 136, 2064, 3, F32, {**ONE, "tile_cols": 32, "stage_blocks": 4, "split_k": 3}, {"c": True}),
    (70, 136, 1168, 2, BF16, {**ONE, "tile_cols": 64, "stage_blocks": 2, "split_k": 2}, {"c": True}),
    (70, 136, 2064, 4, BF16, {**ONE, "tile_cols": 64, "stage_blocks": 4, "split_k": 4}, {"bias": F32}),
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


MODEL_SHAPES = [(2112, 7168), (24576, 1536), (32768, 512), (7168, 16384), (4096, 7168), (7168, 2048)]
MODEL_SHAPES += [(576, 7168), (1024, 8192), (5120, 12288), (256, 6144), (4096, 1408), (72, 272), (136, 400)]


def tile_class(plan) -> tuple:
    """With how D leaves, which in one family is by tensor copies or, where something is added, by threads."""
    tile = plan.tile_rows, plan.tile_cols, plan.stage_blocks, plan.split_k > 1, plan.reuse_ring
    return plan.family, *tile, plan.shape["d_box_rows"] != 0


def test_every_tile_class_that_the_planner_chooses_is_run():
    run = set()
    for m, n, k, _, dtype, fields, options in KERNELS:
        plan = plans.find(_core.GemmProblem(n=n, k=k, d_dtype=dtype), m, **fields)
        plan = plans.for_call(plan, not {"c", "bias", "alpha"}.isdisjoint(options))
        run.add(tile_class(getattr(plan, "plan", plan)))
    chosen = {
        tile_class(plan)
        for n, k in MODEL_SHAPES
        for extras in (False, True)
        for plan in _core.all_plans(_core.GemmProblem(n=n, k=k, extras=extras), "h200")
    }
    assert len(chosen) > 10
    assert not chosen - run


@pytest.mark.parametrize("family", ["gemm", "gemm_swap_ab"])
def test_no_inner_extent_gives_bias_plus_c(family):
    m, n = 33, 72
    plan = plans.find(_core.GemmProblem(n=n, k=0), m, family=family)
    for seed in launch.seeds((0, 1, 2)):
        o = problems.make(m, n, 0, BF16, c=True, bias=F32)
        launch.run_gemm(plan, **o.as_dict(), seed=seed)
        problems.check(o)


@pytest.mark.parametrize("dtype", [BF16, F32])
@pytest.mark.parametrize("fields", [{**GEMM, "tile_cols": 64}, {**ONE, "tile_cols": 32}])
def test_rows_more_than_32_bits_away(fields, dtype):
    m, n, k = 200, 136, 272
    plan = plans.find(_core.GemmProblem(n=n, k=k, d_dtype=dtype), m, **fields)
    for seed in launch.seeds((2,)):
        o = problems.far_apart(problems.make(m, n, k, dtype, c=True))
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


@pytest.mark.parametrize("blocks", [2, 4])
@pytest.mark.parametrize("k", [640, 1408])  # blocks of K that do not fill the last stage
def test_a_sum_that_underflows_keeps_its_sign_in_every_family(k, blocks):
    m, n = 9, 72
    problem = _core.GemmProblem(n=n, k=k)
    for fields in (GEMM, {**SWAP, "split_k": 1, "stage_blocks": blocks}):
        plan = plans.find(problem, m, **fields)
        for seed in launch.seeds((0, 1, 2)):
            o = problems.make(m, n, k, BF16)
            for operand, value in ((o.a, -0.5), (o.b, 0.5)):
                operand.copy_(torch.zeros(operand.shape))
                operand[:, k - 128] = value
            o.sfa.fill_(2.0**-74)
            o.sfb.fill_(2.0**-75)
            launch.run_gemm(plan, **o.as_dict(), seed=seed)
            assert bool((o.d.contiguous().view(torch.int16) == -(1 << 15)).all()), "-2^-151 rounds to -0"
