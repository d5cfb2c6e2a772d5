"""Calls of the public functions that reach a launch, without a GPU: what the driver is given, with torch
asked through its C++ functions and through Python. See tests/claimed_cuda.py."""

import os
import subprocess
import sys
from pathlib import Path

import claimed_cuda
import pytest
import torch

from deep_gemm_jit import ops

pytestmark = pytest.mark.skipif(
    not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"), reason="torch < 2.10 has no exchange table"
)

PROGRAM = """
import sys
from pathlib import Path
sys.path.append(sys.argv[1])
import claimed_cuda
fake, _ = claimed_cuda.attach(Path(sys.argv[2]), tuple(sys.argv[3:]))
import torch
import deep_gemm_jit as dg
from deep_gemm_jit import _core
assert not set(_core.native_torch()) & set(sys.argv[3:]), _core.native_torch()
assert len(_core.native_torch()) + len(sys.argv[3:]) >= 7
assert _core.native_operators() == (not sys.argv[3:])
ops = torch.ops.deep_gemm_jit

def fp8(*shape): return torch.zeros(*shape, dtype=torch.uint8).view(torch.float8_e4m3fn)

class Weight(torch.nn.Parameter):
    def __new__(cls, data): return super().__new__(cls, data=data, requires_grad=False)
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        raise AssertionError("a hook of a weight was called")

def check(launch, maps, pointers):
    assert launch.stream == claimed_cuda.STREAM and launch.device == 0
    for at, tensor in maps.items(): assert launch.maps[at].address == tensor.data_ptr(), at
    assert [launch.args[at] for at in range(len(pointers))] == [
        0 if tensor is None else tensor.data_ptr() for tensor in pointers]

m, n, k = 3, 1024, 512
b, sfb = fp8(n, k), torch.ones(n // 128, k // 128)
weights = Weight(b), Weight(sfb)
kept = []
for step in range(4):  # new addresses at each step; the second call of a step finds everything
    a, sfa = fp8(m, 2 * k)[:, k:], torch.ones(k // 128, m).t()
    d, c, bias = torch.empty(m, n), torch.empty(m, n), torch.empty(n)
    kept += [a, sfa, d, c, bias]
    for _ in range(2):
        before = fake.launches
        dg.fp8_gemm_nt((a, sfa), list(weights), d, c=c, bias=bias, alpha=0.5)
        assert fake.launches == before + 1
        # Which of A and B comes first and whether D has a map depends on the plan.
        addresses = {fake.last.maps[0].address, fake.last.maps[1].address}
        assert addresses == {a.data_ptr(), b.data_ptr()}
        check(fake.last, {}, [sfa, sfb, d, c, bias])
        dg.fp8_gemm_nt((a, sfa), weights, d)
        check(fake.last, {}, [sfa, sfb, d, None, None])
        ops.fp8_gemm_nt(a, sfa, b, sfb, d, c, bias, 0.5)
        check(fake.last, {}, [sfa, sfb, d, c, bias])
        ops.fp8_gemm_nt(a, sfa, b, sfb, d, bias=bias)
        check(fake.last, {}, [sfa, sfb, d, None, bias])
        assert fake.launches == before + 4
encodes = fake.encodes
for _ in range(3): dg.fp8_gemm_nt((a, sfa), weights, d)
assert fake.encodes == encodes

fake.maps, fake.args_bytes = 4, 120
groups, rows = 8, 256
b, sfb = fp8(groups, n, k), torch.ones(groups, n // 128, k // 128)
rhs = Weight(b), Weight(sfb)
for form, size in (("ids", rows), ("psum", groups), ("offsets", groups + 1), ("masked", groups)):
    planes = (groups,) if form == "masked" else ()
    for step in range(2):
        a, sfa = fp8(*planes, rows, k), torch.ones(*planes, rows, k // 128)
        d, index = torch.empty(*planes, rows, n, dtype=torch.bfloat16), torch.zeros(size, dtype=torch.int32)
        kept += [a, sfa, d, index]
        for _ in range(2):
            before = fake.launches
            lhs = a, sfa
            if form == "masked": dg.m_grouped_fp8_gemm_nt_masked(lhs, rhs, d, index, 4)
            elif form == "offsets": dg.m_grouped_fp8_gemm_nt_offsets(lhs, rhs, d, index)
            else: dg.m_grouped_fp8_gemm_nt_contiguous(lhs, rhs, d, index, use_psum_layout=form == "psum")
            assert fake.launches == before + 1
            check(fake.last, {0: a, 1: b, 2: a}, [sfa, sfb, d, index])
            arguments = a, sfa, b, sfb, d, index
            if form == "masked": ops.m_grouped_fp8_gemm_nt_masked(*arguments, 4)
            elif form == "offsets": ops.m_grouped_fp8_gemm_nt_offsets(*arguments)
            else: ops.m_grouped_fp8_gemm_nt_contiguous(*arguments, form == "psum")
            assert fake.launches == before + 2
            check(fake.last, {0: a, 1: b, 2: a}, [sfa, sfb, d, index])
assert fake.wrong_context == 0 and fake.unaligned_maps == 0
"""


# What warm-ups call (ids, row-major zeros), then what serving calls.
SERVING = """
import sys
from pathlib import Path
sys.path.append(sys.argv[1])
import claimed_cuda
fake, _ = claimed_cuda.attach(Path(sys.argv[2]), ())
import torch
import deep_gemm_jit as dg
from deep_gemm_jit import _core

groups, n, k = 8, 1024, 512
rows = groups * 128
a = torch.zeros(rows, k, dtype=torch.uint8).view(torch.float8_e4m3fn)
b = torch.zeros(groups, n, k, dtype=torch.uint8).view(torch.float8_e4m3fn)
b, first = (b, torch.ones(groups, n // 128, k // 128)), (b[0], torch.ones(n // 128, k // 128))
d, zeros = torch.empty(rows, n, dtype=torch.bfloat16), torch.zeros(rows, k // 128)
ids = torch.arange(groups, dtype=torch.int32).repeat_interleave(128)
dg.fp8_gemm_nt((a, zeros), first, d)
fake.maps, fake.args_bytes = 4, 120
dg.m_grouped_fp8_gemm_nt_contiguous((a, zeros), b, d, ids)
compiled, loaded, launched = _core.compile_count(), fake.loads, fake.launches
assert compiled >= 2 and loaded >= 2 and launched == 2

ends = ids.new_tensor([128 * group + 1 for group in range(groups)])
serving = (torch.ones(k // 128, rows).t(), torch.ones(k // 128, rows + 3).t()[:rows], zeros)
for scales in serving:  # MN-major, with an odd pitch, row-major
    dg.m_grouped_fp8_gemm_nt_contiguous((a, scales), b, d, ends, use_psum_layout=True)
    dg.m_grouped_fp8_gemm_nt_contiguous((a, scales), b, d, ids)
fake.maps, fake.args_bytes = 3, 120
for scales in serving:
    dg.fp8_gemm_nt((a, scales), first, d)
assert (_core.compile_count(), fake.loads, fake.launches) == (compiled, loaded, launched + 9)
"""

OPTIONS = """
import re, shlex, sys
from pathlib import Path
sys.path.append(sys.argv[1])
import claimed_cuda
fake, _ = claimed_cuda.attach(Path(sys.argv[2]), ())
import torch
import deep_gemm_jit as dg
from deep_gemm_jit import _core
from deep_gemm_jit.__main__ import main

m, n, k = 4096, 768, 640
a = torch.zeros(m, k, dtype=torch.uint8).view(torch.float8_e4m3fn), torch.ones(m, 5)
b = torch.zeros(n, k, dtype=torch.uint8).view(torch.float8_e4m3fn), torch.ones(6, 5)
d, wide, bias = torch.full((m, n), 7.0, dtype=torch.bfloat16), torch.empty(m, n), torch.ones(n)

def refused(kind, words, call):
    launches = fake.launches
    try: call()
    except kind as error:
        assert type(error) is kind and words in str(error), repr(error)
        assert fake.launches == launches and (d == 7).all()
        return str(error)
    raise AssertionError(f"taken: {words}")

problems = [dg.GemmProblem(n=n, k=k, d_dtype=name) for name in ("bfloat16", "float32")]
dg.warmup(problems, "h200", casts="none")
message = ""
with dg.zero_jit():
    dg.fp8_gemm_nt(a, b, d)
    dg.fp8_gemm_nt(a, b, d, alpha=1)
    dg.fp8_gemm_nt(a, b, wide, bias=bias)
    dg.fp8_gemm_nt((a[0][:9], a[1][:9]), b, d[:9], c=d[:9], bias=bias)
    for options in ({"bias": bias}, {"c": d}, {"alpha": 2}, {"alpha": float("nan")}):
        message = refused(dg.JitForbiddenError, "--extras`", lambda: dg.fp8_gemm_nt(a, b, d, **options))
    dg.fp8_gemm_nt(a, b, d)
assert main([*shlex.split(re.search(r"`python -m deep_gemm_jit (.*?)`", message)[1]), "--casts", "none"]) == 0
with dg.zero_jit():
    dg.fp8_gemm_nt(a, b, d, c=d, bias=bias, alpha=2)
assert fake.launches == 6

plan = dg.plan(problems[0], m, "h200")
_core.launch_with_plan(plan, *a, *b, d, d, bias, 2.0)
grouped = dg.plan(dg.GemmProblem(n=n, k=k, layout="m_grouped", groups=2), m, "h200")
refused(ValueError, "must be for a dense problem", lambda: _core.launch_with_plan(grouped, *a, *b, d))
refused(ValueError, "n=64", lambda: _core.launch_with_plan(
    dg.plan(dg.GemmProblem(n=64, k=k), m, "h200"), *a, *b, d))
refused(TypeError, "plan is a NoneType", lambda: _core.launch_with_plan(None, *a, *b, d))
"""

CASTS = """
import sys
from pathlib import Path
sys.path.append(sys.argv[1])
import claimed_cuda
fake, _ = claimed_cuda.attach(Path(sys.argv[2]), ())
fake.maps, fake.args_bytes = 0, 88
import torch
import deep_gemm_jit as dg

rows, cols = 1000, 7168
x = torch.zeros(rows, cols, dtype=torch.bfloat16)
casts = {
    "token": (lambda: dg.per_token_cast_to_fp8(x), -(-rows * cols * 2 // (256 * 64))),
    "packed": (lambda: dg.per_token_cast_to_fp8(x, True, 128, True), -(-rows * cols * 2 // (256 * 64))),
    "block": (lambda: dg.per_block_cast_to_fp8(x), -(-rows // 128) * (cols // 128)),
}
for name, (cast, tiles) in casts.items():
    for sms in (0, 4, 1, 131, 132, 1000, 0):
        dg.set_num_sms(sms)
        cast()
        grid = tiles if sms in (0, 132, 1000) else min(tiles, sms)
        assert list(fake.last.shape[:3]) == [grid, 1, 1], (name, sms, list(fake.last.shape[:3]))
        assert fake.last.args[0] == x.data_ptr() and fake.last.args[10] & 0xffffffff == tiles, name
dg.set_num_sms(4)
x = x[:1, :128]
dg.per_token_cast_to_fp8(x)
assert fake.last.shape[0] == 1
assert fake.launches == 3 * 7 + 1 and fake.loads == 3
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("claimed_cuda")
    claimed_cuda.build_driver(made)
    claimed_cuda.build_claim(made)
    return made


def run(program: str, folder: Path, *arguments: str) -> None:
    tests = str(Path(claimed_cuda.__file__).parent)
    env = os.environ | {"LD_LIBRARY_PATH": str(folder), "DGJ_CACHE_DIR": str(folder / "cache")}
    command = [sys.executable, "-P", "-c", program, tests, str(folder), *arguments]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_T14_a_serving_call_after_a_warm_up_call_compiles_and_loads_nothing(folder):
    run(SERVING, folder)


def test_a_call_with_options_after_a_warm_up_without_is_refused_and_a_plan_of_another_problem_too(folder):
    run(OPTIONS, folder)


def test_a_cast_takes_no_more_blocks_than_set_num_sms_allows(folder):
    """All of its tiles, one block each, where all 132 SMs of the device may be used."""
    run(CASTS, folder)


@pytest.mark.parametrize("hide", [(), tuple(ops._SYMBOLS)], ids=["natively", "through Python"])
def test_the_driver_is_given_the_tensors_of_each_call(hide, folder):
    run(PROGRAM, folder, *hide)
