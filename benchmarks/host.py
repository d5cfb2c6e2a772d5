"""Host time of a warm call, Python to enqueued launch, beside a bare driver launch of the same kernel.

Blocks of calls of each variant alternate in one process; each block starts on an idle device and is far
shorter than the launch queue, so nothing waits for the GPU. The weights and their scale are held as
frameworks hold them, in a Parameter subclass. Times are microseconds a call, the median of the blocks.
"""

from __future__ import annotations

import gc
import statistics
import time

import torch

import deep_gemm_jit as dg

from . import core_api
from .data import Operands, as_kind, random_operands

CALLS = 300  # a block; the driver queues about a thousand launches before it blocks
BLOCKS = 5
SHAPE = (1, 7168, 2048)


def _empty_op():
    """An operator with the schema of ours that does nothing: what the dispatcher alone costs."""
    schema = core_api.torch_op()._schema
    text = str(schema).split("(", 1)[1]
    library = torch.library.Library("deep_gemm_jit_bench", "FRAGMENT")
    library.define("empty(" + text)
    library.impl("empty", lambda *args, **kwargs: None, "CUDA")
    return torch.ops.deep_gemm_jit_bench.empty.default, library


def op_arguments(schema, o: Operands, d: torch.Tensor) -> tuple[list, dict]:
    """The operands by the names that the schema gives them; everything else at its default."""
    values = {"a": o.a, "sfa": o.sfa, "a_sf": o.sfa, "b": o.b, "sfb": o.sfb, "b_sf": o.sfb, "d": d}
    positional, keyword = [], {}
    for argument in schema.arguments:
        if argument.name in values:
            if argument.kwarg_only:
                keyword[argument.name] = values[argument.name]
            else:
                positional.append(values[argument.name])
        elif not argument.has_default_value() and not argument.kwarg_only:
            positional.append(1.0 if "float" in str(argument.type) else None)
    return positional, keyword


def _fresh_operands(o: Operands, count: int) -> list[tuple[tuple, torch.Tensor]]:
    """A, its scale and D at addresses that no earlier call used; values are copies."""
    m, n, k = o.shape
    a = torch.empty(count, m, k, dtype=torch.uint8, device="cuda")
    a[:] = o.a.view(torch.uint8)
    sfa = o.sfa.expand(count, *o.sfa.shape).contiguous()
    d = torch.empty(count, m, n, dtype=torch.bfloat16, device="cuda")
    a = a.view(o.a.dtype)
    return [((a[i], sfa[i]), d[i]) for i in range(count)]


def _block(call, arguments) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    for argument in arguments:
        call(argument)
    took = time.perf_counter() - start
    torch.cuda.synchronize()
    return took / len(arguments) * 1e6


def measure(shape=SHAPE, calls: int = CALLS, blocks: int = BLOCKS, peer=None) -> dict:
    m, n, k = shape
    o = random_operands(m, n, k)
    plain_rhs = (o.b, o.sfb)
    o.b, o.sfb = as_kind(o.b, "subclass"), as_kind(o.sfb, "subclass")
    d = torch.empty(m, n, dtype=torch.bfloat16, device="cuda")
    lhs, rhs = (o.a, o.sfa), (o.b, o.sfb)
    function = dg.fp8_gemm_nt
    ours, (empty, library) = core_api.torch_op(), _empty_op()
    positional, keyword = op_arguments(ours._schema, o, d)
    same = [None] * calls
    no_rows, no_d = (o.a[:0], o.sfa[:0]), d[:0]
    keep = []  # earlier operands stay alive, so that the allocator cannot hand out their addresses again

    def fresh_operands():
        keep.append(_fresh_operands(o, calls))
        return keep[-1]

    variants = {
        "eager": lambda: _block(lambda _: function(lhs, rhs, d), same),
        "eager_new_pointers": lambda: _block(lambda x: function(x[0], rhs, x[1]), fresh_operands()),
        # Where the time goes: without what a subclass of Parameter costs; all but the launch.
        "eager_plain_weights": lambda: _block(lambda _: function(lhs, plain_rhs, d), same),
        "eager_no_rows": lambda: _block(lambda _: function(no_rows, rhs, no_d), same),
        "torch_ops": lambda: _block(lambda _: ours(*positional, **keyword), same),
        "empty_op": lambda: _block(lambda _: empty(*positional, **keyword), same),
        "python_loop": lambda: _block(lambda _: None, same),
        "bare_launch": lambda: core_api.bare_launch_us(o, d, calls),
    }
    if peer is not None:
        from .data import mn_major

        peer_lhs, peer_rhs = (o.a, mn_major(o.sfa)), (o.b.data, o.sfb.data)
        variants["deep_gemm"] = lambda: _block(lambda _: peer.fp8_gemm_nt(peer_lhs, peer_rhs, d), same)

    samples: dict[str, list[float]] = {name: [] for name in variants}
    for run in variants.values():
        run()
    gc_was_on = gc.isenabled()
    gc.disable()
    try:
        for _ in range(blocks):
            for name, run in variants.items():
                samples[name].append(run())
                torch.cuda.synchronize()
    finally:
        if gc_was_on:
            gc.enable()
    del library
    return report(samples, shape)


def report(samples: dict[str, list[float]], shape) -> dict:
    loop = statistics.median(samples["python_loop"])
    us = {}
    for name, values in samples.items():
        own_loop = 0.0 if name in ("bare_launch", "python_loop") else loop  # the bare launches loop in C++
        us[name] = round(statistics.median(values) - own_loop, 3)
    bare = us["bare_launch"]
    return {
        "shape": list(shape),
        "asked_natively": core_api.native_torch(),
        "us": us,
        "blocks_us": {name: [round(value, 3) for value in values] for name, values in samples.items()},
        "ratios": {
            "eager_over_bare": round(us["eager"] / bare, 3),
            "eager_new_pointers_over_bare": round(us["eager_new_pointers"] / bare, 3),
            "torch_ops_extra_over_bare": round((us["torch_ops"] - us["empty_op"] - bare) / bare, 3),
        },
    }
