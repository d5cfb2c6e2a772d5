"""plan, all_plans, candidates, emit and compile from Python, without a GPU."""

import copy
import json
import math
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import deep_gemm_jit as dg
from deep_gemm_jit import _core

PROBLEM = dg.GemmProblem(n=576, k=7168)


def test_a_problem_is_plain_data():
    assert dg.GemmProblem(n=576, k=7168, d_dtype="bfloat16") == PROBLEM
    assert hash(dg.GemmProblem.from_dict(PROBLEM.to_dict())) == hash(PROBLEM)
    assert pickle.loads(pickle.dumps(PROBLEM)) == PROBLEM == copy.copy(PROBLEM)
    assert PROBLEM != dg.GemmProblem(n=576, k=7168, d_dtype="float16")
    assert PROBLEM != dg.GemmProblem(n=576, k=7168, batch_invariant=True)
    assert "576" in repr(PROBLEM) and "7168" in repr(PROBLEM)
    with pytest.raises(AttributeError):
        PROBLEM.n = 8


def test_alpha_bias_and_c_have_kernels_of_their_own_only_where_rows_are_many_and_d_has_16_bits():
    other = dg.GemmProblem(n=576, k=7168, extras=True)
    assert other != PROBLEM and hash(other) != hash(PROBLEM) and "extras" in repr(other)
    plans, others = (dg.all_plans(problem, "h200") for problem in (PROBLEM, other))
    assert len(plans) == len(others) and {plan.family for plan in plans} == {"gemm", "gemm_swap_ab"}
    for plan, extras in zip(plans, others, strict=True):
        assert extras.problem.extras == (extras.family == "gemm")
        assert (plan == extras) == (plan.family == "gemm_swap_ab")
        if plan.family != "gemm":
            continue
        assert "kExtras = 0;" in dg.emit(plan).text and "kExtras = 1;" in dg.emit(extras).text
        assert plan.shape["d_box_rows"] == 64 and extras.shape["d_box_rows"] == 0
        assert {**plan.shape, "d_box_rows": 0} == extras.shape
    wide = [dg.GemmProblem(n=576, k=7168, d_dtype="float32", extras=extras) for extras in (False, True)]
    assert wide[0] == wide[1] and not wide[1].extras
    with pytest.raises(NotImplementedError, match="extras is true, but M-grouped"):
        dg.GemmProblem(n=576, k=7168, layout="m_grouped", extras=True)


def test_a_problem_written_before_extras_has_none():
    values = PROBLEM.to_dict()
    del values["extras"]
    assert dg.GemmProblem.from_dict(values) == PROBLEM


def test_a_torch_dtype_names_the_dtype_of_d():
    torch = pytest.importorskip("torch")
    assert dg.GemmProblem(n=8, k=16, d_dtype=torch.float32).d_dtype == "float32"


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"n": 12, "k": 128}, ValueError, ("n is 12", "multiple of 8")),
        ({"n": 0, "k": 128}, ValueError, ("n is 0",)),
        ({"n": -8, "k": 128}, ValueError, ("n is -8",)),
        ({"n": 8, "k": 100}, ValueError, ("k is 100", "multiple of 16")),
        ({"n": 8, "k": 1 << 31}, ValueError, ("k is 2147483648",)),
        ({"n": 8, "k": 16, "d_dtype": "int8"}, ValueError, ("int8", "bfloat16")),
        ({"n": 8, "k": 16, "groups": 2}, ValueError, ("groups is 2",)),
        ({"n": 8, "k": 16, "layout": "masked"}, NotImplementedError, ("masked", "dense")),
        ({"n": 8, "k": 16, "recipe": "mx"}, NotImplementedError, ("mx", "block128")),
        ({"n": 8}, TypeError, ("incompatible",)),
    ],
)
def test_a_wrong_problem_says_what_is_wrong(arguments, error, words):
    with pytest.raises(error) as caught:
        dg.GemmProblem(**arguments)
    assert all(word in str(caught.value) for word in words), caught.value


def test_a_plan_survives_a_round_trip_and_nothing_else_is_taken_for_one():
    plan = dg.plan(PROBLEM, 64, "h200")
    values = plan.to_dict()
    assert dg.KernelPlan.from_dict(values) == plan == pickle.loads(pickle.dumps(plan))
    assert hash(dg.KernelPlan.from_dict(values)) == hash(plan)
    assert values == plan.to_dict(), "from_dict must not change its argument"
    assert "\n" not in str(plan)
    with pytest.raises(ValueError, match="'stages' is missing"):
        dg.KernelPlan.from_dict({key: value for key, value in values.items() if key != "stages"})
    with pytest.raises(ValueError, match="unknown keys.*colour"):
        dg.KernelPlan.from_dict(values | {"colour": 3})
    with pytest.raises(AttributeError):
        plan.stages = 1


@pytest.mark.parametrize("batch_invariant", [False, True])
@pytest.mark.parametrize(("n", "k"), [(8, 16), (576, 7168), (7168, 2048)])
def test_all_plans_are_the_values_of_plan(n, k, batch_invariant):
    problem = dg.GemmProblem(n=n, k=k, batch_invariant=batch_invariant)
    rows = [*range(1, 260), 384, 512, 1000, 1024, 2048, 4096, 8192, 65536]
    chosen = list(dict.fromkeys(dg.plan(problem, m, "h200") for m in rows))
    every = dg.all_plans(problem, "h200")
    assert len(set(every)) == len(every)
    assert set(chosen) <= set(every)
    assert every[0] == dg.plan(problem, 1, "h200")
    few = dg.all_plans(problem, "h200", max_rows=64)
    assert few == list(dict.fromkeys(dg.plan(problem, m, "h200") for m in range(1, 65)))
    assert set(every) <= set(dg.all_plans(problem, "sm_90a"))


def test_the_plan_is_close_to_the_best_candidate():
    # Few plans serve every m, so the chosen one may be predicted a little slower than the best for this m.
    for m in (1, 8, 64, 300, 4096):
        rows = dg.candidates(PROBLEM, m, "h100")
        chosen = {row.plan: row.predicted_us for row in rows}[dg.plan(PROBLEM, m, "h100")]
        assert chosen <= 1.1 * rows[0].predicted_us
        times = [row.predicted_us for row in rows]
        assert times[0] > 0 and times == sorted(times)
        assert all(row.why for row in rows)


def test_a_grid_is_whole_clusters_and_no_larger_than_asked():
    for m in (1, 64, 129, 5000):
        plan = dg.plan(PROBLEM, m, "h200")
        cluster = plan.shape["cluster"]
        for num_sms in (cluster, 20, 132):
            blocks = plan.grid_blocks(m, num_sms)
            assert blocks % cluster == 0 and cluster <= blocks <= max(num_sms, cluster)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: dg.plan(PROBLEM, 0, "h200"), ("m is 0",)),
        (lambda: dg.plan(PROBLEM, 8, "gtx1080"), ("gtx1080", "h200")),
        (lambda: dg.plan(PROBLEM, 8, "sm_90a"), ("sm_90a", "profiles", "h200")),
        (lambda: dg.all_plans(PROBLEM, "h200", 0), ("max_rows is 0",)),
    ],
)
def test_wrong_arguments_of_the_planner(call, words):
    with pytest.raises(ValueError) as caught:
        call()
    assert all(word in str(caught.value) for word in words), caught.value


def test_source_stands_alone_and_names_its_constants():
    plan = dg.plan(PROBLEM, 8, "h200")
    source = dg.emit(plan)
    assert f"kN = {PROBLEM.n}" in source.text and f"kK = {PROBLEM.k}" in source.text
    assert source.entry in source.text and source.arch == "sm_90a"
    included = {
        line.split('"')[1]
        for text in (source.text, *source.headers.values())
        for line in text.splitlines()
        if line.startswith('#include "')
    }
    assert included and included <= set(source.headers)
    assert dg.emit(plan).text == source.text


def test_compile_reports_and_remembers(tmp_path, monkeypatch):
    monkeypatch.setenv("DGJ_CACHE_DIR", str(tmp_path))
    code = """
import deep_gemm_jit as dg
plan = dg.plan(dg.GemmProblem(n=136, k=256), 8, "h200")
first = dg.compile(plan)
assert first.cubin[:4] == b"\\x7fELF" and first.origin == "compiled" and len(first.key) == 64
assert first.report.registers > 0 and first.report.spill_stores == 0 and first.report.advisories == ()
assert "registers" in first.log
again = dg.compile(dg.emit(plan))
assert (again.origin, again.key, again.cubin) == ("memory", first.key, first.cubin)
dg._core.forget_memory_cache()
third = dg.compile(plan)
assert (third.origin, third.cubin, third.log) == ("disk", first.cubin, first.log)
assert dg._core.compile_count() == 1
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_source_that_is_no_program_raises_with_the_log(tmp_path, monkeypatch):
    monkeypatch.setenv("DGJ_CACHE_DIR", str(tmp_path))
    _core.forget_memory_cache()  # and which folder it was
    source = _core.make_source("this is no program;", {}, "dgj_kernel", "sm_90a")
    with pytest.raises(dg.CompileError) as caught:
        dg.compile(source)
    assert isinstance(caught.value, RuntimeError)
    assert "sm_90a" in str(caught.value) and "error" in str(caught.value)
    assert len(list((tmp_path / "failed").iterdir())) == 1
    monkeypatch.undo()
    _core.forget_memory_cache()


def test_compile_of_something_else_is_a_type_error():
    with pytest.raises(TypeError, match="KernelPlan, CastPlan or KernelSource"):
        dg.compile("sm_90a")


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: dg.plan("x", 8, "h200"), "plan: problem is a str; it must be a GemmProblem"),
        (lambda: dg.plan(PROBLEM, 8, None), "plan: device is a NoneType; it must be a str"),
        (lambda: dg.all_plans(PROBLEM.to_dict(), "h200"), "all_plans: problem is a dict"),
        (lambda: dg.all_plans(PROBLEM, b"h200"), "all_plans: device is a bytes"),
        (lambda: dg.candidates(None, 8, "h200"), "candidates: problem is a NoneType"),
        (lambda: dg.candidates(PROBLEM, 8, 90), "candidates: device is a int"),
        (lambda: dg.emit(PROBLEM), "emit: plan is a GemmProblem; it must be a KernelPlan or CastPlan"),
        (lambda: dg.load(PROBLEM), "load: plan is a GemmProblem"),
        (lambda: dg.load(dg.plan(PROBLEM, 8, "h200"), "0"), "load: device is a str"),
        (lambda: dg.plan_report(None, "h200"), "warmup: problems is a NoneType"),
        (lambda: dg.plan_report(PROBLEM, ["h200"]), "warmup: device is ['h200']"),
    ],
)
def test_an_argument_of_the_wrong_kind_is_named_in_one_line(call, words):
    with pytest.raises(TypeError) as caught:
        call()
    assert str(caught.value).startswith(words) and "\n" not in str(caught.value)


@pytest.mark.parametrize("device", [-1, 2**31, 2**70])
def test_a_device_to_load_into_that_is_no_index_is_named(device):
    with pytest.raises(ValueError, match=f"load: device is {device}; it must be the index"):
        dg.load(dg.plan(PROBLEM, 8, "h200"), device)


def test_a_forbidden_compile_says_so(tmp_path):
    code = """
import deep_gemm_jit as dg
try:
    dg.compile(dg.plan(dg.GemmProblem(n=144, k=256), 8, "h200"))
except dg.JitForbiddenError as error:
    assert "DGJ_JIT" in str(error), error
else:
    raise SystemExit("it compiled")
"""
    environment = os.environ | {"DGJ_JIT": "forbid", "DGJ_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr


def test_settings_are_process_wide_and_checked():
    assert dg.get_pdl() is False
    dg.set_pdl(True)
    try:
        assert dg.get_pdl() is True
    finally:
        dg.set_pdl(False)
    before = dg.get_batch_invariant()
    dg.set_batch_invariant(not before)
    try:
        assert dg.get_batch_invariant() is not before
    finally:
        dg.set_batch_invariant(before)
    with pytest.raises(ValueError, match="num_sms is -1"):
        dg.set_num_sms(-1)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, False),
        ({"DGJ_BATCH_INVARIANT": "1"}, True),
        ({"VLLM_BATCH_INVARIANT": "1"}, True),
        ({"VLLM_BATCH_INVARIANT": "1", "DGJ_BATCH_INVARIANT": "0"}, False),
        ({"DGJ_BATCH_INVARIANT": " Yes "}, True),
        ({"DGJ_BATCH_INVARIANT": "OFF"}, False),
        ({"VLLM_BATCH_INVARIANT": "2"}, True),
        ({"VLLM_BATCH_INVARIANT": " -1_0 "}, True),
        ({"VLLM_BATCH_INVARIANT": "+00"}, False),
        ({"VLLM_BATCH_INVARIANT": ""}, False),
    ],
)
def test_the_environment_sets_batch_invariance(variables, expected):
    assert batch_invariance(variables) == f"{expected}\n"


@pytest.mark.parametrize("value", ["2", "maybe", "tru", "1 1", "-1", b"\xff"])
def test_a_switch_that_is_no_boolean_is_an_error_at_each_use(value):
    said = batch_invariance({"DGJ_BATCH_INVARIANT": value}, twice=True)
    assert said.count("ValueError DGJ_BATCH_INVARIANT='") == said.count("allowed: 1, true, yes, on, 0") == 2


@pytest.mark.parametrize("value", ["true", "1.0", "_1", "1__0", "0x1", "+", b"1\xff"])
def test_what_vllm_cannot_read_as_an_integer_is_off_with_a_warning(value):
    said = batch_invariance({"VLLM_BATCH_INVARIANT": value})
    assert said.endswith("False\n") and said.startswith("VLLM_BATCH_INVARIANT='") and "allowed: 0, 1" in said


def batch_invariance(variables, twice=False):
    """What a new process says, warnings before."""
    code = """
import logging, sys
import deep_gemm_jit as dg
logging.basicConfig(stream=sys.stdout, format="%(message)s")
for _ in range(int(sys.argv[1])):
    try:
        print(dg.get_batch_invariant())
    except ValueError as error:
        print("ValueError", error)
"""
    ours = ("DGJ_BATCH_INVARIANT", "VLLM_BATCH_INVARIANT")
    environment = {name: value for name, value in os.environ.items() if name not in ours} | variables
    command = [sys.executable, "-c", code, "2" if twice else "1"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


def test_every_public_name_exists_and_is_documented():
    for name in dg.__all__:
        value = getattr(dg, name)
        assert name == "__version__" or (value.__doc__ and len(value.__doc__) > 20), name
    with pytest.raises(AttributeError, match="no_such_name"):
        dg.no_such_name  # noqa: B018


@pytest.mark.parametrize("rows", [16384, 16385, 2**31, 2**63 - 63, 2**63 - 1])
def test_plans_for_very_many_rows_do_not_overflow(rows):
    problem = dg.GemmProblem(n=64, k=128)
    assert dg.all_plans(problem, "h200", rows) == dg.all_plans(problem, "h200") != []
    assert dg.plan(problem, rows, "h200") == dg.plan(problem, 16384, "h200")
    assert dg.candidates(problem, rows, "h200") == dg.candidates(problem, 16384, "h200")


@pytest.mark.parametrize(
    ("field", "value", "error"),
    [
        ("n", "64", TypeError),
        ("n", None, TypeError),
        ("k", 1.5, TypeError),
        ("k", 2**70, ValueError),
        ("groups", [], TypeError),
        ("groups", True, TypeError),
        ("batch_invariant", "no", TypeError),
        ("batch_invariant", None, TypeError),
        ("batch_invariant", 1, TypeError),
        ("batch_invariant", float("nan"), TypeError),
        ("layout", 5, TypeError),
        ("layout", b"dense", TypeError),
        ("recipe", None, TypeError),
    ],
)
def test_a_problem_from_a_field_of_the_wrong_type_names_the_field(field, value, error):
    fields = {**PROBLEM.to_dict(), field: value}
    with pytest.raises(error, match=rf"GemmProblem\.from_dict: {field} is .*; it must be"):
        dg.GemmProblem.from_dict(fields)
    with pytest.raises(error, match=rf"GemmProblem: {field} is .*; it must be"):
        dg.GemmProblem(**fields)


@pytest.mark.parametrize("value", [5, None, "x", 1.5, [], (1,), [("n", 64)]])
@pytest.mark.parametrize("kind", [dg.GemmProblem, dg.KernelPlan])
def test_what_is_no_dict_is_named(kind, value):
    with pytest.raises(TypeError, match=rf"{kind.__name__}\.from_dict: values is .*; it must be a dict"):
        kind.from_dict(value)


@pytest.mark.parametrize(
    ("field", "value", "error"),
    [
        ("problem", 5, TypeError),
        ("problem", None, TypeError),
        ("problem", "x", TypeError),
        ("problem", list(PROBLEM.to_dict().items()), TypeError),
        ("family", None, TypeError),
        ("family", b"gemm", TypeError),
        ("stages", "4", TypeError),
        ("stages", True, TypeError),
        ("stages", -1, ValueError),
        ("raster", 2**32, ValueError),
    ],
)
def test_a_plan_from_a_field_of_the_wrong_type_names_the_field(field, value, error):
    values = dg.plan(PROBLEM, 64, "h200").to_dict()
    with pytest.raises(error, match=rf"KernelPlan\.from_dict: {field} is .*; it must be"):
        dg.KernelPlan.from_dict({**values, field: value})


@pytest.mark.parametrize(
    ("num_sms", "error"), [(0, ValueError), (-1, ValueError), (2**32, ValueError), ("8", TypeError)]
)
def test_multiprocessors_of_a_grid_that_are_no_count_are_named(num_sms, error):
    with pytest.raises(error, match=f"grid_blocks: num_sms is {num_sms!r}; "):
        dg.plan(PROBLEM, 8, "h200").grid_blocks(8, num_sms)


@pytest.mark.parametrize("ask", ["plan", "candidates", "all_plans", "grid_blocks"])
@pytest.mark.parametrize(
    ("rows", "error"), [(2**70, ValueError), (-(2**70), ValueError), (1.5, TypeError), ("8", TypeError)]
)
def test_rows_that_are_no_64_bit_number_are_named(ask, rows, error):
    problem = dg.GemmProblem(n=64, k=128)
    calls = {
        "all_plans": lambda: dg.all_plans(problem, "h200", rows),
        "grid_blocks": lambda: dg.plan(problem, 8, "h200").grid_blocks(rows, 132),
    }
    call = calls.get(ask, lambda: getattr(dg, ask)(problem, rows, "h200"))
    name = "max_rows" if ask == "all_plans" else "m"
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value).startswith(f"{ask}: {name} is {rows!r}; it must be an integer")


@pytest.mark.parametrize("rows", [-(2**70), -(2**40), 0, 129, 2**40, 2**70])
def test_an_alignment_that_fits_no_c_integer_is_a_value_error(rows):
    with pytest.raises(ValueError, match=r"allowed: 1\.\.128 rows"):
        dg.set_mk_alignment_for_contiguous_layout(rows)
    with pytest.raises(TypeError):
        dg.set_mk_alignment_for_contiguous_layout("128")


def test_more_multiprocessors_than_a_c_integer_holds_mean_all():
    try:
        dg.set_num_sms(2**40)
        with pytest.raises(ValueError, match="num_sms"):
            dg.set_num_sms(-(2**70))
    finally:
        dg.set_num_sms(0)


@pytest.mark.parametrize("table", ["contiguous", "masked"])
def test_predicted_times_of_grouped_problems_are_near_the_measured_ones(table):
    results = Path(__file__).parents[2] / "benchmarks" / "results"
    rows = json.loads(max(results.glob(f"*-grouped-{table}.json")).read_text())["grouped"]["rows"]
    errors = []
    for row in rows:
        groups, m, n, k = row["shape"]
        problem = dg.GemmProblem(n=n, k=k, layout="m_grouped", groups=groups)
        (candidate,) = dg.candidates(problem, m, "h200")
        errors.append(math.log(candidate.predicted_us / row["burst"]["deep_gemm_jit"]["us"]))
    assert max(map(abs, errors)) < 0.25 and sum(map(abs, errors)) / len(errors) < 0.1
