"""Faults planted into the emitted kernels: each is rejected for its reason, and the kernel without it passes.

A fault replaces text that must occur exactly once, so that a kernel that changes takes its faults along.
"""

import functools
import re
from dataclasses import dataclass

import pytest
import torch
from emulator import launch, plans, problems

from deep_gemm_jit import _core

SEEDS = (1, 0, 2, 3, 4, 5)
GEMM, SWAP = "sm90/fp8_gemm.cuh", "sm90/fp8_gemm_swap_ab.cuh"
MULTIPLY = "parts/multiply.cuh"
STAGING, SCALES, OUTPUT = "parts/staging.cuh", "parts/scales.cuh", "parts/output.cuh"
RACE = "not ordered before"


@dataclass(frozen=True)
class Case:
    m: int
    n: int
    k: int
    sms: int
    fields: tuple[tuple[str, object], ...]
    dtype: torch.dtype = torch.bfloat16
    scales: str = "rows"
    far: bool = False  # problems.far_apart, with c
    bias: torch.dtype | None = None

    def plan(self):
        problem = _core.GemmProblem(n=self.n, k=self.k, d_dtype=self.dtype)
        return plans.find(problem, self.m, **dict(self.fields))


def case(m, n, k, sms, dtype=torch.bfloat16, scales="rows", far=False, bias=None, **fields):
    return Case(m, n, k, sms, tuple(fields.items()), dtype, scales, far, bias)


CASES = {
    "gemm": case(300, 136, 2320, 1, family="gemm", tile_rows=128, tile_cols=64),
    "columns": case(130, 136, 1168, 1, scales="columns", family="gemm", tile_cols=64),
    "far": case(130, 72, 144, 1, torch.float32, far=True, family="gemm", tile_cols=64),
    "bias": case(130, 72, 144, 1, bias=torch.float32, family="gemm", tile_cols=64),
    "wide": case(300, 136, 400, 1, family="gemm", tile_rows=256, tile_cols=128, waves=2),
    "cluster": case(300, 264, 1424, 2, family="gemm", tile_cols=64, cluster_cols=2),
    "swap": case(40, 136, 2320, 1, family="gemm_swap_ab", tile_cols=16, warpgroups=1, split_k=1),
    "far swap": case(200, 72, 144, 1, far=True, family="gemm_swap_ab", tile_cols=32, split_k=1),
    "batch": case(40, 136, 1040, 1, family="gemm_swap_ab", tile_cols=16, stage_blocks=4, split_k=1),
    "bulk scales": case(
        41, 136, 1040, 1, scales="aligned", family="gemm_swap_ab", tile_cols=16, stage_blocks=4, split_k=1
    ),
    "split": case(40, 136, 1424, 2, family="gemm_swap_ab", tile_cols=16, warpgroups=1, split_k=2),
    "reuse": case(200, 264, 1040, 1, family="gemm_swap_ab", warpgroups=2, reuse_ring=1, split_k=1),
    "reuse split": case(200, 264, 1040, 2, family="gemm_swap_ab", warpgroups=2, reuse_ring=1, split_k=2),
}


@dataclass(frozen=True)
class Fault:
    name: str
    case: str
    header: str
    old: str
    new: str
    reason: str  # searched for in the message

    @property
    def patch(self):
        return launch.planted(self.header, self.old, self.new)


WRONG = "elements out of bounds"
G_FULL = "if (!there) ptx::barrier_wait(o.full + 8 * rings.tiles.stage, rings.tiles.phase);"
G_FIRST = "ptx::barrier_wait(o.full + 8 * rings.tiles.stage, rings.tiles.phase); locate_tiles();"
G_TEST = "there = ptx::barrier_test(o.full + 8 * rings.tiles.stage, rings.tiles.phase);"
G_WAIT = "ptx::wgmma_wait<0>(); made(); scales.template promote<0>(acc[0], first);"
G_SENT = "ptx::barrier_wait(smem.sent + 8 * group, phase ^ 1);"
G_STAGED = "ptx::fence_async_shared();\n        ptx::sync_warp();\n        ptx::barrier_arrive_if("
G_STORED = "ptx::sync_warp(); float bias[kValues]"
G_AGAIN = "ptx::sync_warp();  // the chunk before has been read\n        DGJ_UNROLL"
G_EXIT = "ptx::sync_warp();\n        ptx::sync_cluster();"
S_STAGED = "ptx::fence_async_shared();\n    ptx::sync_threads(1 + group, 128);\n    if (thread == 0) {"

FAULTS = [
    Fault("missing wait for a stage", "gemm", MULTIPLY, G_FULL, "", "end was not observed|no wait has"),
    Fault(
        "missing wait for the first stage",
        "gemm",
        MULTIPLY,
        G_FIRST,
        "locate_tiles();",
        "no wait has|end was not",
    ),
    Fault("wrong parity for full", "gemm", MULTIPLY, G_FIRST, G_FIRST.replace("phase", "phase ^ 1"), ""),
    Fault(
        "a stage looked for is taken to be there",
        "gemm",
        MULTIPLY,
        G_TEST,
        "there = true;",
        "no wait has|end was not",
    ),
    Fault(
        "the stage before is looked for",
        "gemm",
        MULTIPLY,
        G_TEST,
        "there = ptx::barrier_test(o.full + 8 * stage, rings.tiles.phase);",
        "",
    ),
    Fault(
        "producer does not wait for empty stages",
        "gemm",
        GEMM,
        "ptx::barrier_wait(smem.empty + 8 * ring.stage, ring.phase ^ 1);",
        "",
        "",
    ),
    Fault(
        "producer waits with the consumers' parity",
        "gemm",
        GEMM,
        "ptx::barrier_wait(smem.empty + 8 * ring.stage, ring.phase ^ 1);",
        "ptx::barrier_wait(smem.empty + 8 * ring.stage, ring.phase);",
        "deadlock",
    ),
    Fault(
        "expect_tx 16 bytes too many",
        "gemm",
        GEMM,
        "ptx::barrier_arrive_expect(full, kABytes + kBBytes);",
        "ptx::barrier_arrive_expect(full, kABytes + kBBytes + 16);",
        "deadlock",
    ),
    Fault(
        "expect_tx 16 bytes too few",
        "gemm",
        GEMM,
        "ptx::barrier_arrive_expect(full, kABytes + kBBytes);",
        "ptx::barrier_arrive_expect(full, kABytes + kBBytes - 16);",
        "deadlock",
    ),
    Fault(
        "missing wgmma wait",
        "gemm",
        MULTIPLY,
        G_WAIT,
        "made(); scales.template promote<0>(acc[0], first);",
        "a wgmma that was not waited for",
    ),
    Fault(
        "missing wgmma fence",
        "gemm",
        MULTIPLY,
        "ptx::wgmma_fence(); issue_products(first, a, b);",
        "issue_products(first, a, b);",
        "no wgmma.fence since",
    ),
    Fault(
        "stage given back before the wgmma has read it",
        "gemm",
        MULTIPLY,
        G_WAIT,
        "made(); ptx::wgmma_wait<0>(); scales.template promote<0>(acc[0], first);",
        "a wgmma that was not waited for|a wgmma that reads the old value is not ordered",
    ),
    Fault(
        "scales given back before every lane has read them",
        "gemm",
        MULTIPLY,
        "ptx::sync_warp();  // every lane has read its scales",
        "",
        RACE,
    ),
    Fault(
        "scales read without a wait",
        "gemm",
        MULTIPLY,
        "ptx::barrier_wait(o.scales_full + 8 * rings.scales.stage, rings.scales.phase);",
        "",
        "not ordered before|no wait has observed its end",
    ),
    Fault(
        "one arrival too few on the scales' barrier",
        "gemm",
        GEMM,
        "ptx::barrier_init(smem.scales_full + 8 * s, 32);",
        "ptx::barrier_init(smem.scales_full + 8 * s, 31);",
        "",
    ),
    Fault(
        "scale warp arrives before its copies are done",
        "gemm",
        GEMM,
        "ptx::barrier_arrive_after_copies(full);",
        "ptx::barrier_arrive(full);",
        "no wait has observed its end",
    ),
    Fault(
        "missing proxy fence before the TMA store",
        "gemm",
        GEMM,
        G_STAGED,
        G_STAGED.replace("ptx::fence_async_shared();", ""),
        "no fence.proxy.async",
    ),
    Fault(
        "proxy fence by the arriving lane only",
        "gemm",
        GEMM,
        G_STAGED,
        "if (ptx::lane_index() == 0) " + G_STAGED,
        "no fence.proxy.async",
    ),
    Fault(
        "boxes handed over before every lane has staged",
        "gemm",
        GEMM,
        G_STAGED,
        G_STAGED.replace("ptx::sync_warp();", ""),
        RACE,
    ),
    Fault("staging used again while stores read it", "gemm", GEMM, G_SENT, "", ""),
    Fault(
        "boxes given back while stores read them",
        "gemm",
        GEMM,
        "ptx::wait_stores_read<0>();",
        "",
        "is still read by",
    ),
    Fault(
        "boxes given back before every lane has seen them staged",
        "gemm",
        GEMM,
        "ptx::sync_warp();  // every lane has seen it",
        "",
        "it might wait",
    ),
    Fault(
        "wrong swizzle chunk",
        "gemm",
        STAGING,
        "((lane / 16) ^ (lane % 8)) * 16);",
        "((lane / 16) ^ ((lane + 1) % 8)) * 16);",
        WRONG,
    ),
    Fault("no swizzle", "gemm", STAGING, "((lane / 16) ^ (lane % 8)) * 16);", "lane / 16 * 16);", WRONG),
    Fault("wrong step along K", "gemm", MULTIPLY, "partial, a + 2 * k", "partial, a + 2 * (k ^ 1)", WRONG),
    Fault("wrong wave", "wide", MULTIPLY, "first, a + kWaveRows", "first, a + 64", WRONG),
    Fault(
        "wgmma keeps the sums of the block before",
        "gemm",
        MULTIPLY,
        "b + 2 * k, k != 0)",
        "b + 2 * k, true)",
        WRONG,
    ),
    Fault("one warpgroup's boxes for all", "gemm", GEMM, G_SENT, G_SENT.replace(" + 8 * group", ""), ""),
    Fault("barriers without fence", "gemm", GEMM, "ptx::fence_barrier_init();", "", "fence.mbarrier_init"),
    Fault("no barrier after initialisation", "gemm", GEMM, "else ptx::sync_block();", "", ""),
    Fault(
        "read before the kernels before are done",
        "gemm",
        GEMM,
        "ptx::wait_for_prior_kernels();",
        "",
        "before griddepcontrol.wait",
    ),
    Fault(
        "producers keep too many registers",
        "gemm",
        "",
        "constexpr unsigned kProducerRegisters = 40;",
        "constexpr unsigned kProducerRegisters = 48;",
        "setmaxnreg",
    ),
    Fault(
        "stage given back to the own block only",
        "cluster",
        GEMM,
        "if (lane < kCluster) ptx::barrier_arrive_remote(empty, lane);",
        "if (lane < kCluster) ptx::barrier_arrive(empty);",
        "",
    ),
    Fault("arrive on a block that has exited", "cluster", GEMM, G_EXIT, "", "has exited"),
    Fault(
        "multicast to the own block only",
        "cluster",
        GEMM,
        "const u16 mask = (u16)(((1u << kClusterCols) - 1) << (tiles.row_in_cluster * kClusterCols));",
        "const u16 mask = (u16)(1u << (tiles.row_in_cluster * kClusterCols + tiles.col_in_cluster));",
        "deadlock",
    ),
    Fault(
        "both blocks fetch the same half",
        "cluster",
        GEMM,
        "const u32 part = tiles.col_in_cluster * kShare;",
        "const u32 part = 0 * kShare;",
        "",
    ),
    Fault(
        "accumulators read while their wgmma is in flight",
        "batch",
        SWAP,
        "ptx::wgmma_wait<kPending>();",
        "ptx::wgmma_wait<kInFlight - 1>();",
        "",
    ),
    Fault(
        "sums read before all are staged",
        "swap",
        SWAP,
        "stage(staging, acc);\n            ptx::sync_threads(1 + group, 128);",
        "stage(staging, acc);",
        "",
    ),
    Fault(
        "sums staged before the last tile was read",
        "batch",
        SWAP,
        "ptx::sync_threads(1 + group, 128);  // the previous tile has been read",
        "",
        RACE,
    ),
    Fault(
        "slices read before they have arrived",
        "split",
        SWAP,
        "ptx::barrier_wait(arrived, turn & 1);",
        "",
        "not ordered before|observed",
    ),
    Fault(
        "slices sent before the receiver has read the last ones",
        "split",
        SWAP,
        "ptx::barrier_wait(freed, (turn - 1) & 1);\n",
        "\n",
        "",
    ),
    Fault(
        "missing proxy fence before slices are sent",
        "split",
        SWAP,
        S_STAGED,
        S_STAGED.replace("ptx::fence_async_shared();\n", ""),
        "no fence.proxy.async",
    ),
    Fault(
        "slices sent before all are staged",
        "split",
        SWAP,
        S_STAGED,
        S_STAGED.replace("ptx::sync_threads(1 + group, 128);\n", ""),
        RACE,
    ),
    Fault(
        "slots given back before all have read them",
        "split",
        SWAP,
        "ptx::sync_threads(1 + group, 128);  // all reads done before the slots are given back",
        "",
        RACE,
    ),
    Fault(
        "one arrival too many expected for the slots",
        "split",
        SWAP,
        "ptx::barrier_init(smem.freed + 8 * g, kSplitK - 1);",
        "ptx::barrier_init(smem.freed + 8 * g, kSplitK);",
        "deadlock",
    ),
    Fault("slices sent to a block that has exited", "split", SWAP, G_EXIT, "", "exited"),
    Fault(
        "ring filled again before the sums are written",
        "reuse",
        SWAP,
        "if (kReuseRing && turn > 0) ptx::barrier_wait(smem.written, (turn - 1) & 1);",
        "",
        "",
    ),
    Fault(
        "ring filled again without a proxy fence",
        "reuse",
        SWAP,
        "ptx::fence_async_shared();  // the copy engine writes next where this warp read and wrote",
        "",
        "no fence.proxy.async",
    ),
    Fault(
        "sums staged over a ring that others still read",
        "reuse",
        SWAP,
        "if constexpr (kReuseRing) ptx::sync_threads(1 + kWarpgroups, 128 * kWarpgroups);",
        "",
        RACE,
    ),
    Fault(
        "slices sent into a ring that is still read",
        "reuse split",
        SWAP,
        "ptx::barrier_wait(ready, turn & 1);",
        "",
        RACE,
    ),
    Fault(
        "scales fetched of blocks past K",
        "bulk scales",
        SWAP,
        "kTileCols, args.m - token, first, count,",
        "kTileCols, args.m - token, first, kStageBlocks,",
        "outside every buffer|past the end",
    ),
    Fault(
        "own sums overwritten while slices are still sent from them",
        "reuse split",
        SWAP,
        "if (kReuseRing && !work.last()) ptx::barrier_wait(freed, turn & 1);",
        "",
        "",
    ),
    Fault(
        "stages given back by the consumers of one block",
        "cluster",
        GEMM,
        "ptx::barrier_init(smem.empty + 8 * s, 4 * kWarpgroups * kCluster);",
        "ptx::barrier_init(smem.empty + 8 * s, 4 * kWarpgroups);",
        "more arrivals|an earlier copy into it is not ordered",
    ),
    Fault(
        "a group of stores too many in flight",
        "gemm",
        GEMM,
        "ptx::wait_stores_read<0>();",
        "ptx::wait_stores_read<1>();",
        "is still read by",
    ),
    Fault(
        "stores waited for before they are committed",
        "gemm",
        GEMM,
        "ptx::commit_stores(); ptx::wait_stores_read<0>();",
        "ptx::wait_stores_read<0>(); ptx::commit_stores();",
        "is still read by|never committed",
    ),
    Fault(
        "full stage waited for by one lane",
        "gemm",
        MULTIPLY,
        G_FULL,
        "if (ptx::lane_index() == 0) " + G_FULL,
        "was not observed by a wait|brought the lanes together",
    ),
    Fault(
        "scales given back by a warp too few",
        "gemm",
        GEMM,
        "ptx::barrier_init(smem.scales_empty + 8 * s, 4 * kWarpgroups);",
        "ptx::barrier_init(smem.scales_empty + 8 * s, 4 * kWarpgroups - 1);",
        RACE,
    ),
    Fault(
        "skew of the first K block for all",
        "columns",
        SCALES,
        "+ row + kb * (u32)k) & 3",
        "+ row) & 3",
        "not a multiple of 16",
    ),
    Fault(
        "skew of a stage's first K block for all",
        "columns",
        SCALES,
        "ptx::hidden((at_skew + skew_step) % 16)",
        "ptx::hidden(at_skew % 16)",
        WRONG,
    ),
    Fault(
        "scales of the last rows fetched without their skew",
        "columns",
        SCALES,
        "(rows_left < rows ? rows_left : rows) + skew + 3",
        "(rows_left < rows ? rows_left : rows) + 3",
        WRONG,
    ),
    Fault(
        "rings that start anew with each tile",
        "gemm",
        GEMM,
        "tiles.locate(row, col);\n        float acc",
        "tiles.locate(row, col);\n        Rings rings;\n        float acc",
        "",
    ),
    Fault("products never committed", "gemm", MULTIPLY, "ptx::wgmma_commit();", "", "not waited for"),
    Fault(
        "cluster barrier by lanes that have diverged",
        "cluster",
        GEMM,
        G_EXIT,
        "ptx::sync_cluster();",
        "brought the lanes together",
    ),
    Fault(
        "registers raised by three of four warps",
        "gemm",
        GEMM,
        "if constexpr (kConsumerRegisters != 0) ptx::raise_registers",
        "if (warp % 4 != 3) ptx::raise_registers",
        "the same number of setmaxnreg",
    ),
    Fault("row of D in 32 bits", "far", GEMM, "(i64)row * args.ldd", "row * (u32)args.ldd", ""),
    Fault(
        "row of c in 32 bits",
        "far",
        OUTPUT,
        "(i64)row * args.ldc",
        "row * (u32)args.ldc",
        "",
    ),
    Fault("c of another column", "far", GEMM, "load_c(args, row, column)", "load_c(args, row, place)", WRONG),
    Fault("bias of another column", "bias", GEMM, "of_lane[0]), place + i)", "of_lane[0]), i)", WRONG),
    Fault(
        "sums read before the warp has stored them",
        "far",
        GEMM,
        G_STORED,
        "float bias[kValues]",
        "",
    ),
    Fault("sums overwritten before the warp has read them", "far", GEMM, G_AGAIN, "DGJ_UNROLL", ""),
    Fault("rows staged where others are read", "far", GEMM, "^ skew(lane / 4)", "^ skew(0)", WRONG),
    Fault(
        "row of the scales in 32 bits",
        "far",
        SCALES,
        "from.sfa + (i64)(row + lane) * from.m + (i64)kb * from.k",
        "from.sfa + (row + lane) * (u32)from.m + (i64)kb * from.k",
        "",
    ),
    Fault("row of D in 32 bits, tokens", "far swap", SWAP, "(i64)row * args.ldd", "row * (u32)args.ldd", ""),
    Fault(
        "slots freed with the parity of this turn",
        "split",
        SWAP,
        "ptx::barrier_wait(freed, (turn - 1) & 1); }",
        "ptx::barrier_wait(freed, turn & 1); }",
        "",
    ),
    Fault(
        "slices sent to the receiver's own slot",
        "split",
        SWAP,
        "received + rank * kSliceBytes, staging",
        "received + to * kSliceBytes, staging",
        "",
    ),
    Fault(
        "one group for all products of a batch",
        "batch",
        SWAP,
        "ptx::wgmma_commit(); }",
        "if (i == kInFlight - 1) ptx::wgmma_commit(); }",
        "",
    ),
    Fault(
        "ring said to be free before every lane has written",
        "reuse",
        SWAP,
        "ptx::sync_warp(); if (ptx::lane_index() == 0) ptx::barrier_arrive(smem.written);",
        "if (ptx::lane_index() == 0) ptx::barrier_arrive(smem.written);",
        RACE,
    ),
    Fault(
        "ready before the other warpgroups have read the ring",
        "reuse split",
        SWAP,
        "if constexpr (kReuseRing) ptx::sync_threads",
        "if constexpr (kReuseRing && kSplitK == 1) ptx::sync_threads",
        "",
    ),
]


def execute(which: str, seed: int, patch=None) -> None:
    c = CASES[which]
    o = problems.make(c.m, c.n, c.k, c.dtype, seed=7, scales=c.scales, c=c.far, bias=c.bias)
    o = problems.far_apart(o) if c.far else o
    launch.run_gemm(c.plan(), **o.as_dict(), sms=c.sms, seed=seed, patch=patch)
    problems.check(o)


@functools.cache
def rejection(fault: Fault) -> tuple[int, str] | None:
    for seed in SEEDS:
        try:
            execute(fault.case, seed, fault.patch)
        except AssertionError as error:
            return seed, str(error)
    return None


@pytest.mark.parametrize("which", CASES)
@pytest.mark.parametrize("seed", launch.seeds(SEEDS))
def test_the_kernel_without_faults_passes(which, seed):
    execute(which, seed)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.name)
def test_the_fault_is_rejected(fault):
    rejected = rejection(fault)
    assert rejected is not None, "no timing shows the fault"
    seed, text = rejected
    assert re.search(fault.reason, text), f"rejected for another reason (seed {seed}): {text}"


if __name__ == "__main__":
    import sys

    for f in FAULTS:
        if len(sys.argv) > 1 and sys.argv[1] not in f.name:
            continue
        print(f"--- {f.name}:", *(rejection(f) or ("NOT REJECTED",)))
