"""What a direct call asks of torch through C++ functions of torch's libraries, and through Python where those
are missing or contradict Python: what it then finds out is the same."""

import subprocess
import sys

import pytest
import torch

from deep_gemm_jit import _core, ops

ops.register()  # done at import, unless another test imported the package before torch

# Attaches torch with `hide` taken from the functions and `put` put in their place, and runs every question.
PROGRAM = """
import sys
import deep_gemm_jit as dg  # before torch, so that nothing is registered yet
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from deep_gemm_jit import _core, ops

hide, put, samples, used = map(eval, sys.argv[1:])
parts, asked = ops._torch_parts, []

def changed():
    found = parts()
    native, known = found["native"], dict(found["native"])
    for name in hide: native.pop(name, None)
    for name, other in put.items(): native[name] = known[other]
    if not samples: found["samples"] = ()
    op = found["fp8_gemm_nt"]
    def counted(*args):
        asked.append(args)
        return op(*args)
    found["fp8_gemm_nt"] = counted
    return found

ops._torch_parts = changed

class Weight(torch.nn.Parameter):
    def __new__(cls, data): return super().__new__(cls, data=data, requires_grad=False)
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        raise AssertionError("a hook of a weight was called")

class Function(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None): return func(*args, **(kwargs or {}))

class Dispatch(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None): return func(*args, **(kwargs or {}))

a = dg.per_token_cast_to_fp8(torch.randn(5, 272))
b = dg.per_block_cast_to_fp8(torch.randn(24, 272))

def run(a=a, b=b):
    d = torch.full((5, 24), float("nan"))
    dg.fp8_gemm_nt(a, b, d)
    return d

expected = run()
assert _core.native_torch() == used, _core.native_torch()
assert torch.equal(run(b=(Weight(b[0]), Weight(b[1]))), expected)
assert not asked, "a direct call was dispatched"

negated = torch._neg_view(b[1])
assert torch.equal(run(b=(b[0], negated)), -expected) and len(asked) == 1
with Function(): assert torch.equal(run(), expected) and len(asked) == 2
with Dispatch(): assert torch.equal(run(), expected) and len(asked) == 3
def traced(x):
    d = torch.zeros(5, 24)
    dg.fp8_gemm_nt((a[0], x), b, d)
    return d
assert "fp8_gemm_nt" in str(torch.jit.trace(traced, a[1], check_trace=False).graph) and len(asked) == 4

d = torch.zeros(5, 24, requires_grad=True)
with torch.no_grad(): dg.fp8_gemm_nt(a, b, d)
assert torch.equal(d, expected) and len(asked) == 4
try: dg.fp8_gemm_nt(a, b, d)
except RuntimeError as error: assert "requires grad" in str(error), error
else: raise SystemExit("d that requires grad was written")

wide = torch.zeros(24, 400).to(torch.float8_e4m3fn)
wide.view(torch.uint8)[:, 16:288] = b[0].view(torch.uint8)
assert torch.equal(run(b=(wide[:, 16:288], b[1].t().contiguous().t())), expected)
try: dg.fp8_gemm_nt((a[0].to_sparse(), a[1]), b, d)
except (RuntimeError, ValueError, TypeError, NotImplementedError): pass
else: raise SystemExit("a sparse operand was taken")
for wrong in (None, 3, object()):
    try: _core.run_fp8_gemm_nt(wrong, a[1], *b, d.detach())
    except (RuntimeError, ValueError, TypeError, NotImplementedError): pass
    else: raise SystemExit("no tensor was taken")
assert torch.equal(run(), expected)
"""

HAS_TABLE = hasattr(torch.Tensor, "__dlpack_c_exchange_api__")
# A torch has one of the two functions that describe tensors.
EVERY = tuple(n for n in ops._SYMBOLS if not n.startswith("describe") or n in _core.native_torch())
pytestmark = pytest.mark.skipif(not HAS_TABLE, reason="torch < 2.10 has no fast path")


def check(hide: tuple = (), put: dict | None = None, samples: bool = True, unused: tuple = ()) -> None:
    used = tuple(name for name in EVERY if name not in hide + unused)
    arguments = map(repr, (hide, put or {}, samples, used))
    done = subprocess.run([sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_this_torch_has_every_function():
    # A torch that lacks one is served all the same, at a price that somebody should see.
    assert _core.native_torch() == EVERY and len(EVERY) == len(ops._SYMBOLS) - 1


@pytest.mark.parametrize(
    "hide",
    [(), EVERY, EVERY[::2], EVERY[1::2]],
    ids=["nothing hidden", "everything hidden", "every other", "the others"],
)
def test_missing_functions_are_replaced_by_python(hide):
    check(hide)


def test_a_function_that_contradicts_python_is_not_used():
    # Addresses of functions that exist and answer something else: yes instead of no, no instead of yes.
    put = {
        "dispatch_depth": "grad_enabled", "function_depth": "grad_enabled", "is_neg": "grad_enabled",
        "requires_grad": "grad_enabled", "grad_enabled": "dispatch_depth",
    }  # fmt: skip
    check(put=put, unused=tuple(put))


def test_without_samples_no_function_of_tensors_is_used():
    check(samples=False, unused=("is_neg", "requires_grad", "describe", "describe_as"))
