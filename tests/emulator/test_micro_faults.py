"""Faults in small kernels: rules that the GEMM kernels do not come near. Each fault has a twin without it."""

import functools
import re
from dataclasses import dataclass

import pytest
from emulator import launch
from validation import cases, emulated

SEEDS = (1, 0, 2, 3, 4, 5)
CASES = {case.name: case for case in cases.all_cases()}


@dataclass(frozen=True)
class Fault:
    name: str
    reason: str
    body: str  # of a kernel with `args`, `thread`, `lane`, `base` (shared memory), `out` and `in` at hand
    right: str  # the same without the fault
    blocks: int = 1
    cluster: int = 1
    threads: int = 64
    prelude: str = "ptx::wait_for_prior_kernels();"


PRELUDE = """#pragma once
#include "kernels/common.cuh"
#include "ptx/cast.cuh"
#include "ptx/cluster.cuh"
#include "ptx/probe.cuh"
#include "ptx/wgmma.cuh"
DGJ_KERNEL(dgj::kThreads)
dgj_kernel(const DGJ_GRID_CONSTANT dgj::TensorMap x, const DGJ_GRID_CONSTANT dgj::TensorMap y,
           const DGJ_GRID_CONSTANT dgj::ProbeArgs args) {
    using namespace dgj;
    const u32 thread = ptx::thread_index(), lane = ptx::lane_index(), base = ptx::shared_base() + kData;
    const u32 barrier = ptx::shared_base(), block = ptx::block_index();
    u32* out = (u32*)args.out;
    const u32* in = (const u32*)args.in;
    (void)thread, (void)lane, (void)base, (void)barrier, (void)out, (void)in, (void)block;
"""
WHOLE = "0xffffffffu"
CLEAR = "if (thread == 0) ptx::store_shared_u32(base, 0);"
MESSAGE = """
    if (thread == 0) ptx::store_shared_u32(base, 100);
    ptx::sync_block();
    if (thread == 0) {{
        ptx::store_shared_u32(base + 64, 7);
        {release}
    }} else if (thread == 33) {{
        {acquire}
        ptx::store_global2(out, ptx::load_shared(base + 64), 0);
    }}
"""
ADD = "probe::shared_red_add(base, 1);"
SPIN = "while (probe::shared_or(base, 0) != 101) {}"
FENCE = "probe::fence_cta();"
REMOTE = """
    if (thread == 0) ptx::barrier_init(barrier, kThreads), ptx::fence_barrier_init();
    ptx::sync_cluster();
    const u32 peer = ptx::cluster_rank() ^ 1;
    probe::remote_store(base + 4 * thread, peer, thread);
    {arrive}(barrier, peer);
    {wait}(barrier, 0);
    ptx::store_global2(out + block * 128 + 2 * thread, ptx::load_shared(base + 4 * (thread ^ 1)), 0);
    {last}
"""
ARRIVE, WAIT, LAST = "probe::remote_arrive_release", "probe::wait_acquire_cluster", "ptx::sync_cluster();"
BULK = """
    for (u32 i = thread; i < 64; i += kThreads) ptx::store_shared_u32(base + 4 * i, i);
    {fence}
    ptx::sync_block();
    if (thread == 0) {{
        {store}
        ptx::commit_stores();
        ptx::wait_stores_done();
    }}
"""
STORE = "probe::store_bytes(out, base, 256);"
PROXY = "ptx::fence_async_shared();"
TILE = """
    if (thread == 0) ptx::barrier_init(barrier, 1), ptx::fence_barrier_init();
    ptx::sync_block();
    if (thread == 0) {{
        ptx::barrier_arrive_expect(barrier, 1024);
        {load}
    }}
    ptx::barrier_wait(barrier, 0);
"""
LOAD = "ptx::load_tile(base, &x, 0, 0, barrier);"
LONE_WAIT = """
    if (thread == 0) ptx::barrier_init(barrier, 1), ptx::fence_barrier_init(), ptx::barrier_arrive(barrier);
    ptx::sync_block();
    if (lane == 0) ptx::barrier_wait(barrier, 0);
    {meet}
    ptx::store_matrix4(base + thread / 32 * 512 + lane * 16, 1, 2, 3, 4);
"""
LATE = """
    if (thread == 0) {{
        ptx::barrier_init(barrier, 1), ptx::barrier_init(barrier + 8, 1), ptx::fence_barrier_init();
        ptx::barrier_arrive(barrier);
    }}
    ptx::sync_block();
    if (thread < 32) {{
        ptx::barrier_wait(barrier, 0);
        {meet}
        if (lane == 0) ptx::barrier_arrive(barrier + 8);
    }} else if (lane == 0) {{
        ptx::barrier_wait(barrier + 8, 0);
        ptx::barrier_arrive(barrier);
    }}
"""
GLOBAL = """
    if (thread == 0)
        emu::atomic_global({{emu::Combine::kAdd, emu::ElementType::kU32, emu::Order::kRelaxed,
                            emu::Scope::{scope}}}, out, 1, 0, {{}});
"""
MMA = """
    for (u32 i = thread; i < 4096; i += kThreads) ptx::store_shared_u32(base + 4 * i, 0);
    ptx::fence_async_shared();
    ptx::sync_block();
    {kind} d[{count}] = {{}};
    ptx::wgmma_fence();
    const u64 a = probe::descriptor(base, 512, 1024, 128), b = probe::descriptor(base + 8192, 512, 1024, 128);
    probe::wgmma<{form}>(d, a, b, 0);
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
"""

FAULTS = [
    Fault(
        "aligned instruction in both branches",
        "have diverged",
        """
        const u32 row = base + thread / 32 * 512 + lane * 16;
        if (lane < 16) ptx::store_matrix4(row, 1, 2, 3, 4);
        else ptx::store_matrix4(row, 1, 2, 3, 5);
        """,
        """
        const u32 row = base + thread / 32 * 512 + lane * 16;
        ptx::store_matrix4(row, 1, 2, 3, lane < 16 ? 4 : 5);
        """,
    ),
    Fault("barrier for half a warp", "deadlock", "if (lane < 16) ptx::sync_block();", "ptx::sync_block();"),
    Fault(
        "barrier executed by half a warp twice",
        "have diverged|deadlock",
        "if (lane < 16) ptx::sync_threads(1, 64);\nelse ptx::sync_threads(1, 64);",
        "ptx::sync_threads(1, 64);",
    ),
    Fault(
        "shuffle from a lane that takes no part",
        "does not take part",
        "if (lane < 31) probe::shuffle_down(lane, 1, 31, 0x7fffffffu);",
        "probe::shuffle_down(lane, 1, 31, 0xffffffffu);",
    ),
    Fault(
        "two member masks",
        "name the member masks",
        "probe::ballot(1, lane < 16 ? 0xffffffffu : 0xffff0000u);",
        "probe::ballot(1, lane < 16 ? 0x0000ffffu : 0xffff0000u);",
    ),
    Fault(
        "lane outside its mask",
        "not in its member mask",
        "probe::ballot(1, 0x7fffffffu);",
        "if (lane < 31) probe::ballot(1, 0x7fffffffu);",
    ),
    Fault(
        "collectives of two kinds",
        "while others wait in",
        f"if (lane < 16) probe::ballot(1, {WHOLE});\nelse probe::match_any(1, {WHOLE});",
        f"probe::ballot(1, {WHOLE});\nprobe::match_any(1, {WHOLE});",
    ),
    Fault(
        "leader assumed to be lane 0",
        "not ordered before this read",
        f"if (probe::elect({WHOLE}) == lane) ptx::store_shared_u32(base + thread / 32 * 4, 1);\n"
        "if (lane == 0) ptx::load_shared(base + thread / 32 * 4);",
        f"if (probe::elect({WHOLE}) == lane) ptx::store_shared_u32(base + thread / 32 * 4, 1);\n"
        "ptx::sync_warp(); if (lane == 0) ptx::load_shared(base + thread / 32 * 4);",
    ),
    Fault(
        "shuffle in place of a warp barrier",
        "not ordered before this read",
        f"ptx::store_shared_u32(base + 4 * thread, 1); probe::shuffle_idx(1, 0, 31, {WHOLE});\n"
        "ptx::load_shared(base + 4 * (thread ^ 1));",
        "ptx::store_shared_u32(base + 4 * thread, 1); ptx::sync_warp();\n"
        "ptx::load_shared(base + 4 * (thread ^ 1));",
    ),
    Fault(
        "ldmatrix before the warp's stores are ordered",
        "not ordered before this read",
        "u32 t[4]; ptx::store_shared_u32(base + 4 * thread, 1);\n"
        "probe::load_matrix<1, false>(t, base + thread / 32 * 128 + lane % 8 * 16);",
        "u32 t[4]; ptx::store_shared_u32(base + 4 * thread, 1); ptx::sync_warp();\n"
        "probe::load_matrix<1, false>(t, base + thread / 32 * 128 + lane % 8 * 16);",
    ),
    Fault(
        "sum of atomics read without a barrier",
        "an atomic is not ordered|not ordered before",
        f"{CLEAR} ptx::sync_block(); probe::shared_red_add(base, 1);\n"
        "ptx::sync_warp(); if (thread == 0) ptx::load_shared(base);",
        f"{CLEAR} ptx::sync_block(); probe::shared_red_add(base, 1);\n"
        "ptx::sync_block(); if (thread == 0) ptx::load_shared(base);",
    ),
    Fault(
        "atomic on a word that a plain store clears at the same time",
        "not ordered before",
        f"{CLEAR} probe::shared_red_add(base, 1);",
        f"{CLEAR} ptx::sync_block(); probe::shared_red_add(base, 1);",
    ),
    Fault(
        "message without a release",
        "not ordered before this read",
        MESSAGE.format(release=ADD, acquire="while (probe::shared_read_acquire(base) != 101) {}"),
        MESSAGE.format(
            release="probe::shared_add_release(base, 1);",
            acquire="while (probe::shared_read_acquire(base) != 101) {}",
        ),
    ),
    Fault(
        "message without a fence where it is read",
        "not ordered before this read",
        MESSAGE.format(release=FENCE + ADD, acquire=SPIN),
        MESSAGE.format(release=FENCE + ADD, acquire=SPIN + FENCE),
    ),
    Fault(
        "message with the fence behind the flag",
        "not ordered before this read",
        MESSAGE.format(release=ADD + FENCE, acquire=SPIN + FENCE),
        MESSAGE.format(release=FENCE + ADD, acquire=SPIN + FENCE),
    ),
    Fault(
        "flag that nobody sets",
        "strong reads in a row",
        MESSAGE.format(release="", acquire=SPIN),
        MESSAGE.format(release=FENCE + ADD, acquire=SPIN + FENCE),
    ),
    Fault(
        "remote data behind an arrive of block scope",
        "not ordered before this read",
        REMOTE.format(arrive="ptx::barrier_arrive_remote", wait=WAIT, last=LAST),
        REMOTE.format(arrive=ARRIVE, wait=WAIT, last=LAST),
        blocks=2,
        cluster=2,
    ),
    Fault(
        "remote data behind a wait of block scope",
        "not ordered before this read",
        REMOTE.format(arrive=ARRIVE, wait="ptx::barrier_wait", last=LAST),
        REMOTE.format(arrive=ARRIVE, wait=WAIT, last=LAST),
        blocks=2,
        cluster=2,
    ),
    Fault(
        "remote store into a block that has exited",
        "has exited",
        "if (ptx::cluster_rank() == 0) return;\nprobe::remote_store(base + 4 * thread, 0, 1);",
        "if (ptx::cluster_rank() == 1) probe::remote_store(base + 4 * thread, 0, 1);\nptx::sync_cluster();",
        blocks=2,
        cluster=2,
    ),
    Fault(
        "bulk store without a proxy fence",
        "no fence.proxy.async",
        BULK.format(fence="", store=STORE),
        BULK.format(fence=PROXY, store=STORE),
    ),
    Fault(
        "bulk store of a size that is no multiple of 16",
        "not a multiple of 16",
        BULK.format(fence=PROXY, store="probe::store_bytes(out, base, 248);"),
        BULK.format(fence=PROXY, store=STORE),
    ),
    Fault(
        "reduction onto what the kernel also stores",
        "is written twice",
        BULK.format(fence=PROXY, store=STORE + "probe::add_bytes(out, base, 16);"),
        BULK.format(fence=PROXY, store="probe::add_bytes(out, base, 256); probe::add_bytes(out, base, 16);"),
    ),
    Fault(
        "coordinates of another rank than the map's",
        "3 coordinates for a map of 2 dimensions",
        TILE.format(load="probe::load_tile<3>(base, &x, {0, 0, 0}, barrier);"),
        TILE.format(load=LOAD),
    ),
    Fault(
        "map whose tensor wraps around the end of memory",
        "wraps around 64-bit addresses",
        TILE.format(load=LOAD.replace("&x", "&y")),
        TILE.format(load=LOAD),
    ),
    Fault(
        "tile at an address that is no multiple of 128",
        "not a multiple of 128",
        TILE.format(load=LOAD.replace("base,", "base + 64,")),
        TILE.format(load=LOAD.replace("base,", "base + 128,")),
    ),
    Fault(
        "prefetch of what is not there",
        "outside every buffer",
        "if (thread == 0) probe::prefetch_bytes(in, 1 << 20);",
        "if (thread == 0) probe::prefetch_bytes(in, 256);",
    ),
    Fault(
        "read-only load of what the kernel may write",
        "may write to what it loads as read-only",
        "ptx::load_once_word4(out);",
        "ptx::load_once_word4(in);",
    ),
    Fault(
        "atomics of block scope from two blocks",
        "the scope of one of both ends before",
        GLOBAL.format(scope="kCta"),
        GLOBAL.format(scope="kGpu"),
        blocks=3,
    ),
    Fault(
        "prior kernels waited for by one warp, memory read by another",
        "before griddepcontrol.wait",
        "if (thread < 32) ptx::wait_for_prior_kernels();\nptx::load_global_u32(in);",
        "if (thread < 32) ptx::wait_for_prior_kernels();\nptx::sync_block(); ptx::load_global_u32(in);",
        prelude="",
    ),
    Fault(
        "prior kernels waited for by nobody",
        "no thread has executed griddepcontrol.wait",
        "if (lane == 32) ptx::wait_for_prior_kernels();",
        "if (lane == 31) ptx::wait_for_prior_kernels();",
        prelude="",
    ),
    Fault(
        "registers lowered by three of four warps",
        "not executed the same number of setmaxnreg",
        "if (thread < 96) ptx::lower_registers<40>();",
        "ptx::lower_registers<40>();",
        threads=128,
    ),
    Fault(
        "warps of a warpgroup that ask for different registers",
        "ask for 48 and 40 registers|ask for 40 and 48 registers",
        "if (thread < 96) ptx::lower_registers<40>(); else ptx::lower_registers<48>();",
        "ptx::lower_registers<40>();",
        threads=128,
    ),
    Fault(
        "registers changed twice without a barrier in between",
        "has not met",
        "ptx::lower_registers<80>(); ptx::lower_registers<40>();",
        "ptx::lower_registers<80>(); ptx::sync_block(); ptx::lower_registers<40>();",
        threads=128,
    ),
    Fault(
        "product of three of four warps",
        "not executed the same number of wgmma",
        MMA.format(kind="float", count=16, form="0, 0, 0, 0").replace(
            "ptx::wgmma_fence();", "if (thread >= 96) return; ptx::wgmma_fence();"
        ),
        MMA.format(kind="float", count=16, form="0, 0, 0, 0"),
        threads=128,
    ),
    Fault(
        "stmatrix after one lane has waited alone",
        "brought the lanes together",
        LONE_WAIT.format(meet=""),
        LONE_WAIT.format(meet="ptx::sync_warp();"),
    ),
    Fault(
        "lane that goes ahead of others that have not seen the phase",
        "might wait for that for ever",
        LATE.format(meet=""),
        LATE.format(meet="ptx::sync_warp();"),
    ),
    Fault(
        "8-bit operand along M",
        "8-bit types must be K-major",
        MMA.format(kind="float", count=16, form="0, 0, 1, 0"),
        MMA.format(kind="float", count=16, form="0, 0, 0, 0"),
        threads=128,
    ),
    Fault(
        "operands of two widths",
        "do not go together",
        MMA.format(kind="float", count=16, form="2, 0, 0, 0"),
        MMA.format(kind="float", count=16, form="2, 2, 0, 0"),
        threads=128,
    ),
    Fault(
        "N that integers do not have",
        "N is 40",
        MMA.format(kind="i32", count=20, form="4, 4, 0, 0"),
        MMA.format(kind="i32", count=24, form="4, 4, 0, 0"),
        threads=128,
    ),
]


def execute(fault: Fault, body: str, seed: int) -> None:
    whole = cases.MapSpec((128, 8), (128,), (128, 8), swizzle=0)
    wrapping = cases.MapSpec((128, 1 << 25), ((1 << 40) - 16,), (128, 8), swizzle=0, buffer="y")
    emulated.run(
        cases.Case(
            fault.name,
            "inline",
            bytes(4096),
            data=bytes(4096),
            x=bytes(1024),
            y=bytes(1024),
            maps=(whole, wrapping),
            threads=fault.threads,
            blocks=fault.blocks,
            cluster=fault.cluster,
            headers=(("kernels/inline.cuh", PRELUDE + fault.prelude + body + "}\n"),),
        ),
        seed,
    )


@functools.cache
def rejection(fault: Fault) -> tuple[int, str] | None:
    for seed in SEEDS:
        try:
            execute(fault, fault.body, seed)
        except launch.EmulatorFault as error:
            return seed, str(error)
    return None


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.name)
def test_the_fault_is_rejected_and_its_twin_passes(fault):
    rejected = rejection(fault)
    assert rejected is not None, "no timing shows the fault"
    seed, text = rejected
    assert re.search(fault.reason, text), f"rejected for another reason (seed {seed}): {text}"
    for seed in launch.seeds(SEEDS):
        execute(fault, fault.right, seed)
