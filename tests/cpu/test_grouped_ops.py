"""The M-grouped GEMMs as torch operators and as direct calls: same bits, nothing of torch is bypassed; names,
spellings and settings as DeepGEMM's callers use them."""

import inspect
import pickle
import subprocess
import sys

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import deep_gemm_jit as dg
from benchmarks import core_api
from benchmarks.data import WeightParameter
from benchmarks.grouped_data import (
    FORMS,
    grouped_operands,
    ids_layout,
    masked_layout,
    offsets_layout,
    psum_layout,
    random_weights,
)
from deep_gemm_jit import _core

G, N, K = 3, 24, 272
COUNTS = [5, 0, 20]
OPS = torch.ops.deep_gemm_jit
NAMES = {
    "ids": "m_grouped_fp8_gemm_nt_contiguous",
    "psum": "m_grouped_fp8_gemm_nt_contiguous",
    "masked": "m_grouped_fp8_gemm_nt_masked",
    "offsets": "m_grouped_fp8_gemm_nt_offsets",
}


def make(form: str, counts=COUNTS, seed: int = 0):
    torch.manual_seed(seed)
    layout = {
        "ids": lambda: ids_layout(counts),
        "psum": lambda: psum_layout(counts),
        "masked": lambda: masked_layout(counts, 20),
        "offsets": lambda: offsets_layout(counts, first=1, tail=2),
    }[form]()
    return grouped_operands(layout, random_weights(G, N, K, "cpu"), device="cpu")


def fresh(case, dtype=torch.bfloat16):
    return torch.full((*case.a.shape[:-1], N), 7.0, dtype=dtype)


def direct(case, **options):
    d = fresh(case)
    core_api.grouped(case, d, **options)
    return d


def function(a, sfa, b, sfb, index, form: str):
    """A whole call, for torch.compile and torch.export."""
    d = torch.zeros(*a.shape[:-1], b.shape[1], dtype=torch.bfloat16)
    options = {"recipe": (1, 128, 128), "disable_ue8m0_cast": True}
    if form == "masked":
        dg.m_grouped_fp8_gemm_nt_masked((a, sfa), (b, sfb), d, index, 4, **options)
    elif form == "offsets":
        dg.m_grouped_fp8_gemm_nt_offsets((a, sfa), (b, sfb), d, index, **options)
    else:
        dg.m_grouped_fp8_gemm_nt_contiguous(
            (a, sfa), (b, sfb), d, m_indices=index, use_psum_layout=form == "psum",
            ensure_zero_padding=True, expected_m_for_psum_layout=3, **options,
        )  # fmt: skip
    return d + 1


# ---- names and spellings -------------------------------------------------------------------------


def test_signatures_are_those_of_deep_gemm():
    common = ["recipe", "recipe_a", "recipe_b", "compiled_dims", "disable_ue8m0_cast"]
    contiguous = inspect.signature(dg.m_grouped_fp8_gemm_nt_contiguous)
    assert list(contiguous.parameters) == [
        "a", "b", "d", "grouped_layout", *common, "use_psum_layout", "ensure_zero_padding",
        "expected_m_for_psum_layout", "epilogue", "b_is_constant", "m_indices",
    ]  # fmt: skip
    masked = inspect.signature(dg.m_grouped_fp8_gemm_nt_masked)
    assert list(masked.parameters) == [
        "a", "b", "d", "masked_m", "expected_m", *common, "epilogue", "b_is_constant",
    ]  # fmt: skip
    offsets = inspect.signature(dg.m_grouped_fp8_gemm_nt_offsets)
    assert list(offsets.parameters) == ["a", "b", "d", "offsets", *common, "epilogue", "b_is_constant"]
    for signature in (contiguous, masked, offsets):
        assert signature.parameters["b_is_constant"].kind is inspect.Parameter.KEYWORD_ONLY
        assert signature.parameters["b_is_constant"].default is False
    assert dg.fp8_m_grouped_gemm_nt_masked is dg.m_grouped_fp8_gemm_nt_masked


@pytest.mark.parametrize("name", sorted(set(NAMES.values())))
def test_functions_are_of_the_package(name):
    public = getattr(dg, name)
    assert public.__module__ == "deep_gemm_jit" and public.__name__ == name and len(public.__doc__) > 300
    assert pickle.loads(pickle.dumps(public)) is public


def test_call_forms_of_frameworks():
    ids, masked = make("ids"), make("masked")
    want, want_masked = direct(ids), direct(masked)
    calls = [  # as vLLM, SGLang (now and in 2025), torchao and DeepGEMM's own callers write them
        lambda d: dg.m_grouped_fp8_gemm_nt_contiguous(
            ids.lhs, ids.rhs, d, ids.index, disable_ue8m0_cast=False
        ),
        lambda d: dg.m_grouped_fp8_gemm_nt_contiguous(ids.lhs, ids.rhs, d, ids.index),
        lambda d: dg.m_grouped_fp8_gemm_nt_contiguous(list(ids.lhs), list(ids.rhs), d, m_indices=ids.index),
        lambda d: dg.m_grouped_fp8_gemm_nt_contiguous(
            ids.lhs, ids.rhs, d, ids.index, recipe_a=(1, 128), recipe_b=(128, 128), disable_ue8m0_cast=True
        ),
        lambda d: dg.m_grouped_fp8_gemm_nt_contiguous(
            ids.lhs, ids.rhs, d, ids.index, None, None, None, "nk", False, False, False, None, None
        ),
    ]
    for call in calls:
        d = fresh(ids)
        assert call(d) is None
        assert torch.equal(d, want)
    for call in (
        lambda d: dg.m_grouped_fp8_gemm_nt_masked(
            masked.lhs, masked.rhs, d, masked.index, 16, disable_ue8m0_cast=False
        ),
        lambda d: dg.fp8_m_grouped_gemm_nt_masked(masked.lhs, masked.rhs, d, masked.index, 16),
        lambda d: dg.fp8_m_grouped_gemm_nt_masked(
            masked.lhs, masked.rhs, d, masked_m=masked.index, expected_m=16
        ),
    ):
        d = fresh(masked)
        assert call(d) is None
        assert torch.equal(d, want_masked)


# ---- the alignment -------------------------------------------------------------------------------


def test_the_alignment_is_what_calls_use_when_two_threads_set_it_at_once(monkeypatch):
    class Interrupted:
        """_core, where another thread sets 64 between what this one does and what it makes of that."""

        set_mk_alignment = staticmethod(_core.set_mk_alignment)
        interrupted = False

        def get_mk_alignment(self):
            before = _core.get_mk_alignment()
            if not self.interrupted:
                self.interrupted = True
                dg.set_mk_alignment_for_contiguous_layout(64)
            return before

    monkeypatch.setattr(dg.settings, "_core", Interrupted())
    try:
        dg.set_mk_alignment_for_contiguous_layout(8)
        assert dg.get_mk_alignment_for_contiguous_layout() == _core.get_mk_alignment() == 64
    finally:
        monkeypatch.undo()
        dg.set_mk_alignment_for_contiguous_layout(128)


def test_the_alignment_is_128_until_it_is_set_and_is_read_at_the_call():
    assert dg.get_mk_alignment_for_contiguous_layout() == 128
    torch.manual_seed(0)
    layout = psum_layout([5, 3], 8)
    case = grouped_operands(layout, random_weights(2, N, K, "cpu"), device="cpu")
    d = torch.zeros(layout.rows, N)
    dg.set_mk_alignment_for_contiguous_layout(8)
    try:
        assert dg.get_mk_alignment_for_contiguous_layout() == 8
        dg.m_grouped_fp8_gemm_nt_contiguous(case.lhs, case.rhs, d, case.index, use_psum_layout=True)
        assert d[8:11].any(dim=1).all() and not d[5:8].any()
        dg.set_mk_alignment_for_contiguous_layout(4)  # the second group would start at row 8 all the same
        dg.set_mk_alignment_for_contiguous_layout(16)
        with pytest.raises(ValueError, match=r"grouped_layout\[1\] is 11.*starts at row 16"):
            dg.m_grouped_fp8_gemm_nt_contiguous(case.lhs, case.rhs, d, case.index, use_psum_layout=True)
    finally:
        dg.set_mk_alignment_for_contiguous_layout(128)


def test_the_theoretical_alignment():
    get = dg.get_theoretical_mk_alignment_for_contiguous_layout
    assert get() == get(1024, 32) == get(16, 256) == get(num_groups=8) == 128
    assert [get(rows) for rows in (0, 1, 64, 127, 128, 256, 512, 1023, 1024, 10**6)] == [
        8, 8, 8, 8, 16, 32, 64, 64, 128, 128,
    ]  # fmt: skip


# ---- both paths ----------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_both_paths_give_the_same_bits(form, dtype):
    case = make(form)
    one, two, three = (fresh(case, dtype) for _ in range(3))
    core_api.grouped(case, one)
    core_api.grouped_op(case, two)
    with Recorder() as seen:
        core_api.grouped(case, three)
    assert torch.equal(one, two) and torch.equal(one, three) and (one != 7).any()
    assert f"deep_gemm_jit.{NAMES[form]}.default" in seen.names


class Recorder(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def test_options_reach_the_operator():
    case = make("psum")
    with Recorder():
        d = direct(case, ensure_zero_padding=True)
    assert torch.equal(d, direct(case, ensure_zero_padding=True))
    assert (d == 0).any() and not (d == 7).any()


@pytest.mark.parametrize("form", FORMS)
def test_weights_may_be_parameters(form):
    case = make(form)
    want = direct(case)
    b, sfb = case.rhs
    for wrap in (lambda t: torch.nn.Parameter(t, requires_grad=False), WeightParameter):
        case.weights.b, case.weights.sfb = wrap(b), wrap(sfb)
        for _ in range(2):
            assert torch.equal(direct(case), want)


def test_a_direct_call_does_not_touch_the_dispatcher():
    code = """
import deep_gemm_jit as dg  # before torch, so that nothing is registered yet
import torch
from deep_gemm_jit import ops
def refuse(*args): raise AssertionError("the dispatcher was called")
parts = ops._torch_parts
def changed():
    found = parts()
    if found["exchange_capsule"] is None: raise SystemExit(0)  # torch < 2.10: there is no fast path
    for name in found:
        if name.startswith("m_grouped"): found[name] = refuse
    return found
ops._torch_parts = changed
fp8 = lambda *shape: torch.ones(shape).to(torch.float8_e4m3fn)
index = lambda *values: torch.tensor(values, dtype=torch.int32)
b = (fp8(2, 8, 128), torch.ones(2, 1, 1))
weights = tuple(torch.nn.Parameter(t, requires_grad=False) for t in b)
a = (fp8(3, 128), torch.ones(3, 1))
masked = (fp8(2, 3, 128), torch.ones(2, 3, 1))
for rhs in (b, weights):
    d = torch.zeros(3, 8)
    dg.m_grouped_fp8_gemm_nt_contiguous(a, rhs, d, index(1, 1, -1))
    assert d[:2].eq(128).all() and d[2].eq(0).all()
    dg.m_grouped_fp8_gemm_nt_contiguous(a, rhs, d, index(3, 128), use_psum_layout=True)
    dg.m_grouped_fp8_gemm_nt_offsets(a, rhs, d, index(0, 1, 3))
    dg.m_grouped_fp8_gemm_nt_masked(masked, rhs, torch.zeros(2, 3, 8), index(0, 3), 2)
try:
    with torch.device("cpu"): dg.m_grouped_fp8_gemm_nt_offsets(a, b, d, index(0, 1, 3))
except AssertionError: pass
else: raise SystemExit("the dispatcher was bypassed under a mode")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_an_older_torch_gives_the_same_bits(tmp_path):
    cases = {form: make(form) for form in FORMS}
    saved = {form: (c.lhs, c.rhs, c.index, fresh(c), direct(c)) for form, c in cases.items()}
    torch.save(saved, tmp_path / "cases.pt")
    code = f"""
import torch
if hasattr(torch.Tensor, "__dlpack_c_exchange_api__"): del torch.Tensor.__dlpack_c_exchange_api__
import deep_gemm_jit as dg
from deep_gemm_jit import _core
for form, (lhs, rhs, index, d, expected) in torch.load({str(tmp_path / "cases.pt")!r}).items():
    if form == "masked": dg.m_grouped_fp8_gemm_nt_masked(lhs, rhs, d, index, 4)
    elif form == "offsets": dg.m_grouped_fp8_gemm_nt_offsets(lhs, rhs, d, index)
    else: dg.m_grouped_fp8_gemm_nt_contiguous(lhs, rhs, d, index, use_psum_layout=form == "psum")
    assert torch.equal(d, expected), form
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# ---- what has to see the operator ----------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_the_profiler_sees_the_operator(form):
    case = make(form)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        direct(case)
    assert f"deep_gemm_jit::{NAMES[form]}" in {event.key for event in profile.key_averages()}


@pytest.mark.parametrize("form", FORMS)
def test_fake_and_meta_tensors_check_shapes_only(form):
    from torch._subclasses.fake_tensor import FakeTensorMode

    case = make(form)
    tensors = (*case.lhs, *case.rhs, fresh(case), case.index)
    with FakeTensorMode() as mode:
        fake = [mode.from_tensor(t) for t in tensors]
    for a, sfa, b, sfb, d, index in (fake, [t.to("meta") for t in tensors]):

        def call(a, d, index, sfa=sfa, b=b, sfb=sfb):
            if form == "masked":
                dg.m_grouped_fp8_gemm_nt_masked((a, sfa), (b, sfb), d, index, 4)
            elif form == "offsets":
                dg.m_grouped_fp8_gemm_nt_offsets((a, sfa), (b, sfb), d, index)
            else:
                psum = form == "psum"
                dg.m_grouped_fp8_gemm_nt_contiguous((a, sfa), (b, sfb), d, index, use_psum_layout=psum)

        call(a, d, index)
        for wrong in ((a, d, index[:-1]), (a, d[..., :-1], index), (a[..., :-16], d, index)):
            with pytest.raises(RuntimeError, match=NAMES[form]):
                call(*wrong)
        with pytest.raises(TypeError, match="int32"):
            call(a, d, index.long())
        with pytest.raises((ValueError, RuntimeError), match=NAMES[form]):
            call(a, d[0], index)


def test_a_lazily_negated_scale_counts_negated():
    case = make("offsets")
    want = direct(case)
    b, sfb = case.rhs
    case.weights.sfb = torch._neg_view(sfb)
    live = slice(1, 1 + sum(COUNTS))
    assert torch.equal(direct(case)[live], -want[live])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("backend", "dynamic"), [("aot_eager", False), ("aot_eager", True), ("inductor", None)]
)
def test_torch_compile_takes_the_whole_graph(form, backend, dynamic):
    torch.compiler.reset()
    if backend == "inductor" and form != "psum":
        pytest.skip("one form is enough")
    compiled = torch.compile(function, fullgraph=True, backend=backend, dynamic=dynamic)
    for counts in ([5, 0, 20], [130, 1, 7]):
        case = make(form, counts)
        arguments = (*case.lhs, *case.rhs, case.index)
        assert torch.equal(compiled(*arguments, form), function(*arguments, form))


@pytest.mark.filterwarnings("error")
def test_a_compiled_graph_knows_the_alignment_that_is_set():
    torch.compiler.reset()
    compiled = torch.compile(
        lambda x: x * dg.get_mk_alignment_for_contiguous_layout(), fullgraph=True, backend="eager"
    )
    try:
        for alignment in (128, 16, 128, 1):
            dg.set_mk_alignment_for_contiguous_layout(alignment)
            assert compiled(torch.ones(1)).item() == alignment
        with pytest.raises(ValueError, match="129"):
            dg.set_mk_alignment_for_contiguous_layout(129)
        assert compiled(torch.ones(1)).item() == 1
    finally:
        dg.set_mk_alignment_for_contiguous_layout(128)


def test_a_compiled_graph_reads_the_alignment_when_it_runs():
    torch.compiler.reset()
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    for alignment in (8, 16):
        torch.manual_seed(0)
        layout = psum_layout([5, 3, 9], alignment)
        layout.rows = 48
        case = grouped_operands(layout, random_weights(G, N, K, "cpu"), device="cpu")
        with core_api.alignment(alignment):
            arguments = (*case.lhs, *case.rhs, case.index, "psum")
            assert torch.equal(compiled(*arguments), function(*arguments))


@pytest.mark.parametrize("form", ["psum", "masked", "offsets"])
def test_torch_export_keeps_the_operator(form):
    class Layer(torch.nn.Module):
        def forward(self, *arguments):
            return function(*arguments, form)

    case = make(form)
    arguments = (*case.lhs, *case.rhs, case.index)
    program = torch.export.export(Layer(), arguments)
    assert any(NAMES[form] in str(node.target) for node in program.graph.nodes)
    assert torch.equal(program.module()(*arguments), function(*arguments, form))


@pytest.mark.parametrize("form", FORMS)
def test_opcheck(form):
    case = make(form)
    op = getattr(OPS, NAMES[form]).default
    utils = ("test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    extra = {"ids": (False, True, 3), "psum": (True, False, 0, True), "masked": (5,), "offsets": (True,)}
    a, sfa = (t.nan_to_num() if t.dtype == torch.float32 else t for t in case.lhs)
    d = fresh(case)
    torch.library.opcheck(op, (a, sfa, *case.rhs, d, case.index, *extra[form]), test_utils=utils)


@pytest.mark.parametrize("form", FORMS)
def test_forward_only(form):
    case = make(form)
    for call in (core_api.grouped, core_api.grouped_op):
        d = torch.zeros(*case.a.shape[:-1], N, requires_grad=True)
        with pytest.raises(RuntimeError, match="d requires grad.*forward only.*no_grad"):
            call(case, d)
        with torch.no_grad():
            call(case, d)
        assert d.abs().sum() > 0


# ---- threads, lifetime ---------------------------------------------------------------------------


def test_calls_from_many_threads_agree():
    from concurrent.futures import ThreadPoolExecutor

    cases = [make(form, seed=i) for i, form in enumerate(("masked", "offsets") * 3)]
    wanted = [direct(case) for case in cases]

    def work(index):
        return torch.equal(direct(cases[index % 6]), wanted[index % 6])

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(work, range(120)))


@pytest.mark.parametrize("form", FORMS)
def test_no_reference_is_lost_or_kept(form):
    case = make(form)
    case.weights.b, case.weights.sfb = map(WeightParameter, case.rhs)
    d = fresh(case)
    objects = (*case.lhs, *case.rhs, case.index, d)
    for _ in range(3):
        core_api.grouped(case, d)
    before = [sys.getrefcount(x) for x in objects]
    for _ in range(30):
        core_api.grouped(case, d)
        core_api.grouped_op(case, d)
        with pytest.raises(ValueError):
            core_api.grouped(case, d[:1])
    assert [sys.getrefcount(x) for x in objects] == before


@pytest.mark.parametrize("form", FORMS)
def test_operands_stay_as_they_are(form):
    case = make(form)
    tensors = (*case.lhs, *case.rhs, case.index)
    before = [t.clone() for t in tensors]
    direct(case)
    core_api.grouped_op(case, fresh(case))
    for now, then in zip(tensors, before, strict=True):
        assert torch.equal(now.contiguous().view(torch.uint8), then.contiguous().view(torch.uint8))
