"""Operators that torch calls without Python do what the Python implementation does, which stands in where
torch lacks the means: results, errors, version counters, references."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import claimed_cuda
import pytest
import torch

import deep_gemm_jit as dg
from deep_gemm_jit import _core, ops

ops.register()
OP = torch.ops.deep_gemm_jit.fp8_gemm_nt.default
NATIVE = hasattr(torch.Tensor, "__dlpack_c_exchange_api__")  # torch >= 2.10
natively = pytest.mark.skipif(not NATIVE, reason="torch < 2.10 has no such interface")

# Prints what each call gives. Python: nothing of torch's interface is found.
CALLS = """
import sys
import deep_gemm_jit as dg  # before torch, so that nothing is registered yet
import torch
from deep_gemm_jit import _core, ops

if sys.argv[1] == "python": ops._operator_functions = dict
ops.register()
assert _core.native_operators() == (sys.argv[1] == "native")
f, ids_f, masked_f, offsets_f = (getattr(torch.ops.deep_gemm_jit, name) for name in (
    "fp8_gemm_nt", "m_grouped_fp8_gemm_nt_contiguous", "m_grouped_fp8_gemm_nt_masked",
    "m_grouped_fp8_gemm_nt_offsets"))

class Wrapper(torch.Tensor):
    @staticmethod
    def __new__(cls, x): return torch.Tensor._make_wrapper_subclass(cls, x.shape, dtype=x.dtype)
    def __init__(self, x): self.x = x
    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return func(*[t.x if isinstance(t, Wrapper) else t for t in args], **(kwargs or {}))

class Subclass(torch.Tensor): pass

torch.manual_seed(0)
m, n, k, groups = 5, 24, 272, 3
a, sa = dg.per_token_cast_to_fp8(torch.randn(m, k))
b, sb = dg.per_block_cast_to_fp8(torch.randn(n, k))
eb, esb = b.expand(groups, n, k).contiguous(), sb.expand(groups, *sb.shape).contiguous()
planes = a.expand(groups, m, k).contiguous(), sa.expand(groups, *sa.shape).contiguous()
ids = torch.zeros(m, dtype=torch.int32)
ints = lambda *values: torch.tensor(values, dtype=torch.int32)
c, bias, d = torch.ones(m, n), torch.ones(n), None

def freed(t):
    t = t.clone()
    t.untyped_storage().resize_(0)
    return t

def under(context, call):
    with context: return call()

calls = [
    lambda: f(a, sa, b, sb, d),
    lambda: f(a, sa, b, sb, d, c),
    lambda: f(a, sa, b, sb, d, None, bias),
    lambda: f(a, sa, b, sb, d, c, bias, 0.5),
    lambda: f(a, sa, b, sb, d, alpha=2, bias=bias),
    *(lambda alpha=alpha: f(a, sa, b, sb, d, alpha=alpha) for alpha in (
        True, -0.0, float("nan"), 1e300, torch.tensor(2.0), "2")),
    lambda: f(3, sa, b, sb, d),
    lambda: f(None, None, None, None, None),
    lambda: f(a.float(), sa, b, sb, d),
    lambda: f(a, sa.double(), b, sb, d),
    lambda: f(a, sa.to(torch.complex64).conj(), b, sb, d),
    lambda: f(a, sa, b, sb, d.long()),
    lambda: f(a, sa, b, sb, d[:3]),
    lambda: f(a.view(*[1] * 12, m, k), sa, b, sb, d),
    lambda: f(a, sa, b, sb.to_sparse(), d),
    lambda: f(a, sa.to("meta"), b, sb, d),
    lambda: f(a.to("meta"), sa, b, sb, d),
    lambda: f(a, sa, b, sb, d.requires_grad_()),
    lambda: under(torch.no_grad(), lambda: f(a, sa, b, sb, d.requires_grad_())),
    lambda: under(torch.inference_mode(), lambda: f(a, sa, b, sb, d)),
    lambda: f(a, sa.clone().requires_grad_(), b, sb, d),
    lambda: f(a, torch._neg_view(sa), b, sb, d),
    lambda: f(a, sa, b, sb, torch._neg_view(d)),
    lambda: f(a, Wrapper(sa), Wrapper(b), sb, d),
    lambda: f(a, Wrapper(sa.double()), Wrapper(b), sb, d),
    lambda: f(a, sa.as_subclass(Subclass), b, sb, d),
    lambda: f(a, sa, b, sb, freed(d)),
    lambda: f(freed(a), sa, b, sb, d),
    lambda: f(a[:0], sa[:0], b, sb, d[:0]),
    lambda: f(a[:, :0], sa[:, :0], b[:, :0], sb[:, :0], d),
    lambda: f(a, sa, b, sb, torch.zeros(1, n).expand(m, n)),
    lambda: f(a, sa, b.t().contiguous().t(), sb, d),
    lambda: f(a, sa, b, sb),
    lambda: ids_f(a, sa, eb, esb, d, ids),
    lambda: ids_f(a, sa, eb, esb, d, ids - 1),
    lambda: ids_f(a, sa, eb, esb, d, ids - 1, False, True, 7, True),
    lambda: ids_f(a, sa, eb, esb, d, ids, False, False, -5),
    lambda: ids_f(a, sa, eb, esb, d, ids + 9),
    lambda: ids_f(a, sa, eb, esb, d, ints(m, 128, 128), True),
    lambda: ids_f(a, sa, eb, esb, d, ids, True),
    lambda: ids_f(a, sa, eb, esb, torch._neg_view(d), ids),
    lambda: offsets_f(a, sa, eb, esb, d, ints(0, 1, 1, m), True),
    lambda: offsets_f(a, sa, eb, esb, d, torch.tensor([0, 1, 1, m])),
    lambda: masked_f(*planes, eb, esb, d.expand(groups, m, n).contiguous(), ints(1, 0, 5), 4, True),
    lambda: masked_f(*planes, eb, esb, d, ints(1, 0, 5)),
]
for i, call in enumerate(calls):
    d = torch.full((m, n), 7.0)
    base = d
    try: end = call()
    except Exception as error: end = f"{type(error).__module__}.{type(error).__name__}: {error}"
    print(i, base.double().sum().item(), base._version, str(end).splitlines()[0])
"""


def run(*arguments: str, program: str = CALLS, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env=os.environ | environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@natively
def test_this_torch_calls_the_operators_without_python():
    assert _core.native_operators()


@natively
def test_native_and_python_implementations_agree():
    native, python = run("native").splitlines(), run("python").splitlines()
    assert len(native) == len(python) == 50
    assert [(x, y) for x, y in zip(native, python, strict=True) if x != y] == []


@natively
def test_an_absent_tensor_is_named():
    a, b = dg.per_token_cast_to_fp8(torch.ones(3, 128)), dg.per_block_cast_to_fp8(torch.ones(8, 128))
    for at, name in enumerate(("a[0]", "a[1]", "b[0]", "b[1]", "d")):
        operands = [*a, *b, torch.zeros(3, 8)]
        operands[at] = None
        with pytest.raises(RuntimeError) as error:
            OP(*operands)
        assert str(error.value).startswith(f"fp8_gemm_nt: {name} cannot be read: ")
        assert "\n" not in str(error.value)


# What torch may lack, and what may go wrong: the operators are then implemented in Python.
WITHOUT = """
import ctypes, sys
import deep_gemm_jit as dg
import torch
from deep_gemm_jit import _core, ops

what = sys.argv[1]
find, natives = ops._operator_functions, ops._native_functions
version = ctypes.CFUNCTYPE(ctypes.c_uint64)(lambda: int(what[8:], 16) << 48) if "version" in what else None
if version:
    ops._operator_functions = lambda: find() | {
        "abi_version": ctypes.cast(version, ctypes.c_void_p).value}
elif what == "modes":
    import torch.utils._python_dispatch
    del torch.utils._python_dispatch._disable_current_modes
elif what in ops._SYMBOLS:
    ops._native_functions = lambda: {name: at for name, at in natives().items() if name != what}
else:
    ops._operator_functions = lambda: {name: at for name, at in find().items() if name != what}
ops.register()
print(_core.native_operators())
a, b = dg.per_token_cast_to_fp8(torch.ones(3, 128)), dg.per_block_cast_to_fp8(torch.ones(8, 128))
d = torch.zeros(3, 8)
torch.ops.deep_gemm_jit.fp8_gemm_nt(*a, *b, d)
expected = torch.zeros(3, 8)
dg.fp8_gemm_nt(a, b, expected)
assert torch.equal(d, expected) and d.min() > 127 and d._version == 1
try: torch.ops.deep_gemm_jit.fp8_gemm_nt(*a, *b, d[:1])
except ValueError as error: assert "d has shape [1, 8]" in str(error)
else: raise SystemExit("wrong shapes were taken")
"""


@natively
@pytest.mark.parametrize(
    "what",
    [*ops._OPERATOR_SYMBOLS, "requires_grad", "bump_version", "modes", "version 0209", "version 030a"],
)
def test_a_torch_without_the_means_gets_the_python_implementation(what):
    assert run(what, program=WITHOUT) == "False\n"


@natively
@pytest.mark.parametrize("what", ["version 020a", "version 0263", "is_neg"])
def test_newer_versions_and_what_is_not_needed(what):
    assert run(what, program=WITHOUT) == "True\n"


def test_tensors_of_a_call_are_given_back():
    a, b = dg.per_token_cast_to_fp8(torch.ones(3, 128)), dg.per_block_cast_to_fp8(torch.ones(8, 128))
    tensors = (*a, *b, torch.zeros(3, 8), torch.ones(3, 8), torch.ones(8))
    short = torch.zeros(2, 8)
    before = [t._use_count() for t in (*tensors, short)]
    for _ in range(20):
        OP(*tensors, 0.5)
        with pytest.raises(ValueError):
            OP(*tensors[:4], short, *tensors[5:])
        with pytest.raises(RuntimeError, match="requires grad"):
            OP(*tensors[:4], torch.zeros(3, 8, requires_grad=True), *tensors[5:])
    assert [t._use_count() for t in (*tensors, short)] == before


def test_calls_and_errors_from_many_threads():
    b = dg.per_block_cast_to_fp8(torch.ones(64, 256))

    def work(index: int) -> bool:
        rows = index % 7 + 1
        a, d = dg.per_token_cast_to_fp8(torch.ones(rows, 256)), torch.zeros(rows, 64)
        OP(*a, *b, d)
        with pytest.raises(ValueError, match=f"it must be .* = \\[{rows}, 64\\]"):
            OP(*a, *b, torch.zeros(rows + 1, 64))
        return bool(((d - 256).abs() < 1).all())

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(200)))


# Errors with types of this package, from a call that would compile.
COMPILING = """
import sys
from pathlib import Path
sys.path.append(sys.argv[1])
import claimed_cuda
claimed_cuda.attach(Path(sys.argv[2]))
import torch
import deep_gemm_jit as dg
from deep_gemm_jit import _core
assert _core.native_operators()
def fp8(*shape): return torch.zeros(*shape, dtype=torch.uint8).view(torch.float8_e4m3fn)
try:
    torch.ops.deep_gemm_jit.fp8_gemm_nt(
        fp8(3, 128), torch.ones(3, 1), fp8(64, 128), torch.ones(1, 1), torch.zeros(3, 64))
except Exception as error:
    print(type(error).__name__, error)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("claimed_cuda")
    claimed_cuda.build_driver(made)
    claimed_cuda.build_claim(made)
    return made


@natively
@pytest.mark.parametrize(
    ("error", "environment"),
    [("JitForbiddenError", {"DGJ_JIT": "forbid"}), ("CompileError", {"DGJ_NVRTC": "/nowhere/libnvrtc.so"})],
)
def test_errors_of_this_package_keep_their_types(error, environment, folder, tmp_path):
    places = {"LD_LIBRARY_PATH": str(folder), "DGJ_CACHE_DIR": str(tmp_path)}
    tests = os.path.dirname(claimed_cuda.__file__)
    said = run(tests, str(folder), program=COMPILING, **places, **environment)
    assert said.startswith(f"{error} ") and isinstance(getattr(dg, error), type)


def test_operators_run_where_there_was_a_subinterpreter():
    """From then on PyGILState_Check says of every thread that it holds the GIL, which torch gives back."""
    code = """
try:
    import _interpreters as interpreters  # Python >= 3.13
except ImportError:
    import _xxsubinterpreters as interpreters
import torch
import deep_gemm_jit as dg
interpreters.destroy(interpreters.create())
a = dg.per_token_cast_to_fp8(torch.randn(5, 272))
b = dg.per_block_cast_to_fp8(torch.randn(24, 272))
d, same = torch.zeros(5, 24), torch.ones(5, 24)
dg.fp8_gemm_nt(a, b, d)
torch.ops.deep_gemm_jit.fp8_gemm_nt(*a, *b, same)
assert torch.equal(d, same)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
