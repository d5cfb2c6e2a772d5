"""fp8_gemm_nt as a torch operator and as a direct call: same bits, and nothing of torch is bypassed."""

import inspect
import pickle
import subprocess
import sys
import weakref

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import deep_gemm_jit as dg
from deep_gemm_jit import _core, ops

ops.register()  # done at import, unless another test imported the package before torch
OP = torch.ops.deep_gemm_jit.fp8_gemm_nt.default
M, N, K = 5, 24, 272


class WeightParameter(torch.nn.Parameter):
    """As serving frameworks hold weights: a Parameter whose __torch_function__ is Python code."""

    def __new__(cls, data):
        return super().__new__(cls, data=data, requires_grad=False)

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return super().__torch_function__(func, types, args, kwargs or {})


def operands(m=M, n=N, k=K, seed=0):
    generator = torch.Generator().manual_seed(seed)
    a = dg.per_token_cast_to_fp8(torch.randn(m, k, generator=generator))
    b = dg.per_block_cast_to_fp8(torch.randn(n, k, generator=generator))
    return a, b


def fresh(m=M, n=N, dtype=torch.bfloat16):
    return torch.full((m, n), float("nan"), dtype=dtype)


def direct(a, b, **options):
    d = fresh()
    assert dg.fp8_gemm_nt(a, b, d, **options) is None
    return d


@pytest.fixture
def seen():
    """Names of the operators that go through torch's dispatcher inside `with seen:`."""

    class Recorder(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.names = []

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.names.append(str(func))
            return func(*args, **(kwargs or {}))

    return Recorder()


# ---- signature -----------------------------------------------------------------------------------


def test_the_signature_is_that_of_deep_gemm_plus_bias():
    parameters = inspect.signature(dg.fp8_gemm_nt).parameters
    assert list(parameters) == [
        "a", "b", "d", "c", "recipe", "recipe_a", "recipe_b", "compiled_dims", "disable_ue8m0_cast", "alpha",
        "epilogue", "bias",
    ]  # fmt: skip
    assert parameters["compiled_dims"].default == "nk"
    assert parameters["bias"].kind is inspect.Parameter.KEYWORD_ONLY
    assert dg.fp8_gemm_nt.__module__ == "deep_gemm_jit"
    assert pickle.loads(pickle.dumps(dg.fp8_gemm_nt)) is dg.fp8_gemm_nt


@pytest.mark.parametrize(
    "options",
    [
        {"recipe": (1, 128, 128)},
        {"recipe": [1, 128, 128]},
        {"recipe_a": (1, 128), "recipe_b": (128, 128)},
        {"compiled_dims": "mn"},
        {"compiled_dims": ""},
        {"disable_ue8m0_cast": True},
        {"alpha": None, "epilogue": None, "c": None, "bias": None},
        {"alpha": 1},
        {"".join(["disable_", "ue8m0_cast"]): False},  # a keyword that is not interned
    ],
)
def test_options_without_effect(options):
    a, b = operands()
    assert torch.equal(direct(a, b, **options), direct(a, b))


def test_operands_may_be_lists_and_positional_options_mean_what_they_say():
    a, b = operands()
    d, c = fresh(), torch.randn(M, N).bfloat16()
    dg.fp8_gemm_nt(list(a), list(b), d, c, (1, 128, 128), None, None, "nk", False, 0.5, None)
    assert torch.equal(d, direct(a, b, c=c, alpha=0.5))
    assert not torch.equal(d, direct(a, b))


# ---- both paths ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("with_c", [False, True])
@pytest.mark.parametrize("bias_dtype", [None, torch.float32, "d"])
def test_both_paths_give_the_same_bits(dtype, with_c, bias_dtype):
    a, b = operands()
    c = torch.randn(M, N).to(dtype) if with_c else None
    bias = None
    if bias_dtype is not None:
        bias = torch.randn(N).to(dtype if bias_dtype == "d" else bias_dtype)
    one, two = fresh(dtype=dtype), fresh(dtype=dtype)
    dg.fp8_gemm_nt(a, b, one, c=c, alpha=0.75, bias=bias)
    OP(*a, *b, two, c, bias, 0.75)
    assert torch.equal(one, two) and not one.isnan().any()
    reference = 0.75 * dg.cast_back_from_fp8(*a).double() @ dg.cast_back_from_fp8(*b).double().T
    for addend in (c, bias):
        reference = reference + (addend.double() if addend is not None else 0)
    assert torch.allclose(one.double(), reference, rtol=2**-7, atol=2**-6)


@pytest.mark.parametrize("wrap", [torch.nn.Parameter, WeightParameter])
def test_parameters_are_operands_like_any_other(wrap):
    a, b = operands()
    expected = direct(a, b)
    kwargs = {} if wrap is WeightParameter else {"requires_grad": False}
    weights = tuple(wrap(t, **kwargs) for t in b)
    for _ in range(3):  # the second time the weights are known
        assert torch.equal(direct(a, weights), expected)
    d = fresh()
    OP(*a, *weights, d)
    assert torch.equal(d, expected)


def test_a_direct_call_does_not_touch_the_dispatcher():
    # The proof that the fast path is taken at all: an operator that would fail is not called.
    code = """
import deep_gemm_jit as dg  # before torch, so that nothing is registered yet
import torch
from deep_gemm_jit import ops
def refuse(*args): raise AssertionError("the dispatcher was called")
parts = ops._torch_parts
def changed():
    found = parts()
    if found["exchange_capsule"] is None: raise SystemExit(0)  # torch < 2.10: there is no fast path
    found["fp8_gemm_nt"] = refuse
    return found
ops._torch_parts = changed
a = dg.per_token_cast_to_fp8(torch.randn(3, 128))
b = dg.per_block_cast_to_fp8(torch.randn(8, 128))
d = torch.empty(3, 8)
with torch.no_grad(): dg.fp8_gemm_nt(a, b, d)
with torch.enable_grad(): dg.fp8_gemm_nt(a, b, d)
with torch.inference_mode(): dg.fp8_gemm_nt(a, b, d)
dg.fp8_gemm_nt(a, (torch.nn.Parameter(b[0], requires_grad=False), torch.nn.Parameter(b[1])), d)
try:
    with torch.device("cpu"): dg.fp8_gemm_nt(a, b, d)  # a torch-function mode
except AssertionError: pass
else: raise SystemExit("the dispatcher was bypassed under a mode")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("hide", ["exchange table", "a probe"])
def test_an_older_torch_gives_the_same_bits(hide, tmp_path):
    # What torch < 2.10 lacks is hidden before the package first looks.
    a, b = operands()
    c, bias = torch.randn(M, N).bfloat16(), torch.randn(N)
    torch.save((a, b, c, bias, direct(a, b, c=c, bias=bias, alpha=-2.0)), tmp_path / "case.pt")
    code = f"""
import torch
hide = {hide!r}
if hide == "a probe": del torch._C._len_torch_function_stack
elif hasattr(torch.Tensor, "__dlpack_c_exchange_api__"): del torch.Tensor.__dlpack_c_exchange_api__
import deep_gemm_jit as dg
a, b, c, bias, expected = torch.load({str(tmp_path / "case.pt")!r})
assert hide == "a probe" or not hasattr(torch.Tensor, "__dlpack_c_exchange_api__")
for weights in (b, tuple(torch.nn.Parameter(t, requires_grad=False) for t in b)):
    d = torch.full_like(expected, float("nan"))
    dg.fp8_gemm_nt(a, weights, d, c=c, bias=bias, alpha=-2.0)
    assert torch.equal(d, expected)
try: dg.fp8_gemm_nt(a, b, d.double())
except TypeError as error: assert "float64" in str(error), error
else: raise SystemExit("no error")
q, sf = dg.per_token_cast_to_fp8(torch.randn(3, 256), use_ue8m0=True, use_packed_ue8m0=True)
assert sf.dtype == torch.int32
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_c_may_be_d_itself_on_both_paths():
    a, b = operands()
    start = torch.randn(M, N).bfloat16()
    one, two = start.clone(), start.clone()
    dg.fp8_gemm_nt(a, b, one, c=one)
    OP(*a, *b, two, two)
    assert torch.equal(one, two) and torch.equal(one, direct(a, b, c=start))


def test_operands_stay_as_they_are():
    # opcheck compares mutated arguments with allclose, which FP8 lacks; so their bytes are compared here.
    (a, sfa), (b, sfb) = operands()
    c, bias = torch.randn(M, N).bfloat16(), torch.randn(N)
    before = [t.clone() for t in (a, sfa, b, sfb, c, bias)]
    for call in (dg.fp8_gemm_nt, lambda x, y, d, c, bias: OP(*x, *y, d, c, bias)):
        call((a, sfa), (b, sfb), fresh(), c=c, bias=bias)
        for now, then in zip((a, sfa, b, sfb, c, bias), before, strict=True):
            assert torch.equal(now.view(torch.uint8), then.view(torch.uint8))


@pytest.mark.parametrize(("m", "n", "k"), [(0, 24, 272), (5, 0, 272), (0, 0, 0), (5, 24, 0)])
def test_empty_extents(m, n, k):
    a = (torch.empty(m, k).to(torch.float8_e4m3fn), torch.ones(m, -(-k // 128)))
    b = (torch.empty(n, k).to(torch.float8_e4m3fn), torch.ones(-(-n // 128), -(-k // 128)))
    for call in (dg.fp8_gemm_nt, lambda x, y, d: OP(*x, *y, d)):
        d = torch.full((m, n), 3.0)
        call(a, b, d)
        assert torch.equal(d, torch.zeros(m, n))


# ---- what has to see the operator ----------------------------------------------------------------


def test_a_dispatch_mode_sees_the_operator(seen):
    a, b = operands()
    with seen:
        d = direct(a, b)
    assert "deep_gemm_jit.fp8_gemm_nt.default" in seen.names
    assert torch.equal(d, direct(a, b))


def test_a_function_mode_sees_the_operator():
    names = []

    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            names.append(str(func))
            return func(*args, **(kwargs or {}))

    a, b = operands()
    with Mode():
        direct(a, b)
    assert "deep_gemm_jit.fp8_gemm_nt.default" in names


def test_a_tensor_subclass_sees_the_operator():
    names = []

    class Logging(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            names.append(str(func))
            return super().__torch_function__(func, types, args, kwargs or {})

    a, b = operands()
    d = direct(a, (b[0].as_subclass(Logging), b[1]))
    assert any("fp8_gemm_nt" in name for name in names)
    assert torch.equal(d, direct(a, b))


def test_the_profiler_sees_the_operator():
    a, b = operands()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        direct(a, b)
    assert "deep_gemm_jit::fp8_gemm_nt" in {event.key for event in profile.key_averages()}


@pytest.mark.parametrize("how", ["setattr", "globals", "missing"])
def test_flags_of_torchs_modules_are_seen_at_each_change(how, monkeypatch):
    """A profiler runs, something is compiled: remembered between calls, so each change has to be noticed."""
    flags = [(torch.autograd.profiler, "_is_profiler_enabled"), (torch.compiler, "_is_compiling_flag")]
    a, b = operands()

    def change(module, name, value):
        if how == "setattr":
            setattr(module, name, value)
        elif how == "missing" and value:  # what torch does not say may be true
            delattr(module, name)
        else:
            vars(module).update({name: value})

    def sees_the_operator() -> bool:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            for (module, name), value in zip(flags, values, strict=True):
                change(module, name, value)
            direct(a, b)
            for module, name in flags:
                change(module, name, False)
        return "deep_gemm_jit::fp8_gemm_nt" in {event.key for event in profile.key_averages()}

    for module, name in flags:
        monkeypatch.setattr(module, name, False)
    for values in [(False, False), (True, False), (False, False), (False, True), (False, False)]:
        for _ in range(2):
            assert sees_the_operator() == any(values), values


def test_fake_tensors_run_no_arithmetic():
    from torch._subclasses.fake_tensor import FakeTensorMode

    a, b = operands()
    with FakeTensorMode() as mode:
        fake = [mode.from_tensor(t) for t in (*a, *b)]
        d = torch.empty(M, N, dtype=torch.bfloat16)
        dg.fp8_gemm_nt(tuple(fake[:2]), tuple(fake[2:]), d)
    # Outside of the mode a fake tensor still brings it along.
    dg.fp8_gemm_nt(tuple(fake[:2]), tuple(fake[2:]), d)
    with pytest.raises((RuntimeError, ValueError), match="fp8_gemm_nt"):
        dg.fp8_gemm_nt(tuple(fake[:2]), tuple(fake[2:]), d.t())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"bias": torch.zeros(N - 1, device="meta")}, "bias is"),
        ({"bias": torch.zeros(N, dtype=torch.float64, device="meta")}, "bias has dtype"),
        ({"c": torch.zeros(M + 1, N, dtype=torch.bfloat16, device="meta")}, "c is"),
        ({"c": torch.zeros(M, N, device="meta")}, "c has dtype"),
    ],
)
def test_a_wrong_bias_or_c_is_refused_without_data(options, words):
    a, b = (tuple(t.to("meta") for t in pair) for pair in operands())
    d = torch.empty(M, N, dtype=torch.bfloat16, device="meta")
    with pytest.raises((RuntimeError, TypeError), match=f"fp8_gemm_nt: {words}"):
        dg.fp8_gemm_nt(a, b, d, **options)


def test_meta_tensors_check_shapes_only():
    a, b = operands()
    meta = [t.to("meta") for t in (*a, *b)]
    dg.fp8_gemm_nt(tuple(meta[:2]), tuple(meta[2:]), torch.empty(M, N, device="meta"))
    with pytest.raises(RuntimeError, match="fp8_gemm_nt"):
        dg.fp8_gemm_nt(tuple(meta[:2]), tuple(meta[2:]), torch.empty(M, N + 1, device="meta"))


def test_a_trace_records_the_operator():
    a, b = operands()

    def function(x, sx, y, sy):
        d = torch.zeros(M, N, dtype=torch.bfloat16)
        dg.fp8_gemm_nt((x, sx), (y, sy), d)
        return d

    traced = torch.jit.trace(function, (*a, *b), check_trace=False)
    assert "fp8_gemm_nt" in str(traced.graph)
    other_a, other_b = operands(seed=1)
    assert torch.equal(traced(*other_a, *other_b), direct(other_a, other_b))


@pytest.mark.parametrize("transform", ["vmap", "grad", "functionalize"])
def test_functorch_wrappers_never_reach_the_memory_behind_them(transform):
    (a, sfa), b = operands()
    d = fresh()
    if transform == "vmap":
        with pytest.raises(RuntimeError):
            torch.func.vmap(lambda scales: dg.fp8_gemm_nt((a, scales), b, d))(torch.stack([sfa, 2 * sfa]))
        assert d.isnan().all()
    elif transform == "grad":

        def loss(scales):
            out = torch.zeros(M, N)
            dg.fp8_gemm_nt((a, scales), b, out)
            return out.sum() + 0 * scales.sum()

        try:
            gradient = torch.func.grad(loss)(sfa)
        except RuntimeError:
            return  # a clear refusal is as good
        assert not gradient.any()
    else:
        # torch functionalizes custom operators that write an argument under torch.compile only.
        with pytest.raises(RuntimeError, match="fp8_gemm_nt"):
            torch.func.functionalize(lambda scales: dg.fp8_gemm_nt((a, scales), b, d))(sfa)
        assert d.isnan().all()


def test_a_lazily_negated_scale_counts_negated():
    a, (b, sfb) = operands()
    expected = -direct(a, (b, sfb))
    negated = torch._neg_view(sfb)
    assert torch.equal(direct(a, (b, negated)), expected)
    assert torch.equal(direct((a[0], torch._neg_view(a[1])), (b, sfb)), expected)
    assert torch.equal(direct(a, (b, torch.nn.Parameter(negated, requires_grad=False))), expected)
    assert torch.equal(direct(a, (b, WeightParameter(negated))), expected)


def test_a_lazily_negated_output_is_written_negated():
    # torch's own fallback would take it back from an output of the operator, which has none.
    a, (b, sfb) = operands()
    expected = -direct(a, (b, sfb)).float()
    for write in (dg.fp8_gemm_nt, lambda a, b, d: OP(*a, *b, d)):
        memory = torch.full((M, 2 * N), float("nan"))
        d, version = torch._neg_view(memory[:, :N]), memory._version
        write(a, (b, sfb), d)
        assert torch.equal(memory[:, :N].bfloat16(), expected.bfloat16())
        assert memory[:, N:].isnan().all() and memory._version == version + 1
    d = torch._neg_view(torch.ones(M, N))  # all -1
    dg.fp8_gemm_nt(a, (b, torch._neg_view(sfb)), d, c=d)
    torch.testing.assert_close(d.float(), expected - 1, rtol=0.01, atol=0.01)
    with pytest.raises(ValueError, match="d has shape"):
        OP(*a, b, sfb, torch._neg_view(torch.zeros(M - 1, N)))


def frozen(t):
    return torch.nn.Parameter(t, requires_grad=False)


@pytest.mark.parametrize("make", [torch.clone, frozen, WeightParameter])
def test_a_scale_that_becomes_a_negated_view_after_a_call_counts_negated(make):
    a, (b, sfb) = operands()
    expected = direct(a, (b, sfb))
    held = make(sfb.clone())
    assert torch.equal(direct(a, (b, held)), expected)
    held.data = torch._neg_view(held.data)
    assert torch.equal(direct(a, (b, held)), -expected)
    held.data = sfb.clone()
    assert torch.equal(direct(a, (b, held)), expected)


@pytest.mark.parametrize("make", [frozen, WeightParameter])
def test_operands_of_a_call_can_be_swapped_and_keep_no_weak_reference(make):
    a, (b, sfb) = operands()
    module = torch.nn.Module()
    module.scale = make(sfb.clone())
    expected = direct(a, (b, module.scale))
    assert weakref.getweakrefcount(module.scale) == 0
    torch.utils.swap_tensors(module.scale, make(sfb * 2))
    assert torch.equal(direct(a, (b, module.scale)), 2 * expected)
    before = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        module.load_state_dict({"scale": sfb})
    finally:
        torch.__future__.set_swap_module_params_on_conversion(before)
    assert torch.equal(direct(a, (b, module.scale)), expected)


# ---- torch.compile, torch.export, opcheck --------------------------------------------------------


def module_under_test(a, sfa, b, sfb):
    d = torch.empty(a.shape[0], b.shape[0], dtype=torch.bfloat16)
    dg.fp8_gemm_nt((a, sfa), (b, sfb), d, recipe=(1, 128, 128), alpha=0.5)
    return d + 1


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_torch_compile_takes_the_whole_graph(backend, dynamic):
    torch.compiler.reset()
    compiled = torch.compile(module_under_test, fullgraph=True, backend=backend, dynamic=dynamic)
    for m in (M, 7, 9):
        a, b = operands(m=m)
        assert torch.equal(compiled(*a, *b), module_under_test(*a, *b))


def test_torch_compile_with_inductor():
    torch.compiler.reset()
    a, b = operands()
    compiled = torch.compile(module_under_test, fullgraph=True)
    assert torch.equal(compiled(*a, *b), module_under_test(*a, *b))


def test_torch_compile_when_dynamo_was_imported_before_the_package():
    code = """
import torch, torch._dynamo
import deep_gemm_jit as dg
@torch.compile(fullgraph=True, backend="eager")
def f(a, sfa, b, sfb):
    d = torch.empty(3, 8)
    dg.fp8_gemm_nt((a, sfa), (b, sfb), d)
    return d
a, b = dg.per_token_cast_to_fp8(torch.ones(3, 128)), dg.per_block_cast_to_fp8(torch.ones(8, 128))
assert torch.allclose(f(*a, *b), torch.full((3, 8), 128.0), rtol=1e-3)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_using_the_package_does_not_import_dynamo():
    code = """
import sys, torch
before = "torch._dynamo" in sys.modules
import deep_gemm_jit as dg
a, b = dg.per_token_cast_to_fp8(torch.ones(3, 128)), dg.per_block_cast_to_fp8(torch.ones(8, 128))
dg.fp8_gemm_nt(a, b, torch.empty(3, 8))
assert before or "torch._dynamo" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("strict", [False, True])
def test_torch_export_keeps_the_operator(strict):
    class Layer(torch.nn.Module):
        def __init__(self, weights):
            super().__init__()
            self.w = torch.nn.Parameter(weights[0], requires_grad=False)
            self.s = torch.nn.Parameter(weights[1], requires_grad=False)

        def forward(self, x, s):
            return module_under_test(x, s, self.w, self.s)

    a, b = operands()
    program = torch.export.export(Layer(b), a, strict=strict)
    assert any("fp8_gemm_nt" in str(node.target) for node in program.graph.nodes)
    other, _ = operands(seed=3)
    assert torch.equal(program.module()(*other), module_under_test(*other, *b))


def test_opcheck():
    a, b = operands()
    utils = ("test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    c, bias = torch.randn(M, N).bfloat16(), torch.randn(N)
    for extra in ((), (c, bias, 0.5)):
        torch.library.opcheck(OP, (*a, *b, torch.zeros(M, N, dtype=torch.bfloat16), *extra), test_utils=utils)


# ---- autograd ------------------------------------------------------------------------------------


def test_forward_only():
    a, b = operands()
    weights = (b[0], torch.nn.Parameter(b[1]))  # requires grad, as loaded checkpoints often do
    d = direct(a, weights)
    assert not d.requires_grad and torch.equal(d, direct(a, b))
    for call in (lambda d: dg.fp8_gemm_nt(a, b, d), lambda d: OP(*a, *b, d)):
        out = torch.zeros(M, N, requires_grad=True)
        with pytest.raises(RuntimeError, match="d requires grad.*forward only.*no_grad"):
            call(out)
        with torch.no_grad():
            call(out)
        assert out.abs().sum() > 0


# ---- threads, lifetime ---------------------------------------------------------------------------


def test_calls_from_many_threads_agree():
    from concurrent.futures import ThreadPoolExecutor

    cases = [operands(m=m, seed=m) for m in range(1, 9)]
    expected = []
    for a, b in cases:
        d = fresh(a[0].shape[0])
        dg.fp8_gemm_nt(a, b, d)
        expected.append(d)

    def work(index):
        (a, b), d = cases[index % 8], fresh(cases[index % 8][0][0].shape[0])
        dg.fp8_gemm_nt(list(a), list(b), d)
        return torch.equal(d, expected[index % 8])

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(200)))


def test_no_reference_is_lost_or_kept():
    a, b = operands()
    weights = tuple(WeightParameter(t) for t in b)
    d, c, bias = fresh(), torch.zeros(M, N).bfloat16(), torch.zeros(N)
    objects = (*a, *weights, d, c, bias)
    for _ in range(3):
        dg.fp8_gemm_nt(a, weights, d, c=c, bias=bias)
    before = [sys.getrefcount(x) for x in objects]
    for _ in range(50):
        dg.fp8_gemm_nt(a, weights, d, c=c, bias=bias)
        with pytest.raises(ValueError):
            dg.fp8_gemm_nt(a, weights, d[:1], c=c, bias=bias)
    assert [sys.getrefcount(x) for x in objects] == before


def test_the_internal_function_takes_what_the_operator_gives():
    a, b = operands()
    d = fresh()
    _core.run_fp8_gemm_nt(*a, *b, d, bias=None, alpha=1.0)
    assert torch.equal(d, direct(a, b))
