"""Tuning: winners that a timer measured, the table they stand in, and what the planner makes of it."""

import json
import logging
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

import deep_gemm_jit as dg
from deep_gemm_jit import _core

PROBLEM = dg.GemmProblem(n=4096, k=7168)
PLANS = dg.all_plans(PROBLEM, "h200")
PREDICTED = {m: dg.plan(PROBLEM, m, "h200") for m in (1, 8, 64, 65, 128, 256, 1024, 4096, 8192)}


@pytest.fixture(autouse=True)
def table(tmp_path, monkeypatch) -> Path:
    path = tmp_path / "tuning.json"
    monkeypatch.setenv("DGJ_TUNING", str(path))
    _core.forget_tuning()
    yield path
    monkeypatch.undo()
    _core.forget_tuning()


def prefers(wanted):
    """A timer for which one plan is twice as fast as all others; every contestant is listed."""
    return lambda plans, m: [5.0 if plan == wanted else 10.0 for plan in plans]


def plan(m: int, problem=PROBLEM, device: str = "h200"):
    return dg.plan(problem, m, device)


def tune(ms, timer, problem=PROBLEM, **options):
    return dg.tune(problem, ms, **({"device": "h200", "top": 20, "timer": timer} | options))


def another_than(*chosen):
    return next(p for p in PLANS if p not in chosen)


def test_the_winner_is_what_the_planner_takes(table):
    wanted = another_than(PREDICTED[64])
    (row,) = tune([64], prefers(wanted))
    assert (row.m, row.plan, row.us, row.planned_us) == (64, wanted, 5.0, 10.0)
    assert plan(64) == wanted and plan(60) == wanted  # one step of the planner
    assert plan(65) == PREDICTED[65]
    stored = json.loads(table.read_text())
    assert stored["package"] == dg.__version__ and stored["winners"][0]["plan"] == str(wanted)
    assert (table.stat().st_mode & 0o777) == 0o644
    assert [path.name for path in table.parent.iterdir()] == [table.name], "no temporary file is left"


def test_an_fp32_table_holds_for_calls_with_options_and_without():
    plain, other = (dg.GemmProblem(n=4096, k=7168, d_dtype="float32", extras=x) for x in (False, True))
    wanted = next(p for p in dg.all_plans(plain, "h200") if p != plan(64, plain))
    tune([64], prefers(wanted), other)
    assert plan(64, plain) == plan(64, other) == wanted


def test_a_fresh_process_finds_the_winner(table):
    wanted = another_than(PREDICTED[64])
    tune([64], prefers(wanted))
    code = "import deep_gemm_jit as dg; print(dg.plan(dg.GemmProblem(n=4096, k=7168), 64, 'h200'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(wanted)


def test_steps_between_two_equal_winners_take_it_too():
    wanted = another_than(*PREDICTED.values()) if set(PREDICTED.values()) < set(PLANS) else PLANS[0]
    tune([128, 4096], prefers(wanted))
    assert {plan(m) for m in (128, 200, 256, 1000, 4095, 4096)} == {wanted}
    assert plan(8192) == PREDICTED[8192] and plan(8) == PREDICTED[8]


def test_steps_between_different_winners_stay_as_predicted():
    first, second = PLANS[0], PLANS[-1]
    tune([8], prefers(second))
    tune([8192], prefers(first))
    assert (plan(8), plan(8192)) == (second, first)
    for m in (64, 256, 1024, 4096):
        assert plan(m) == PREDICTED[m]


def test_a_difference_within_the_noise_changes_nothing():
    (row,) = tune([64], lambda plans, m: [10.0] + [9.95] * (len(plans) - 1))
    assert row.plan == PREDICTED[64] == plan(64)


def test_the_planners_choice_is_always_among_the_contestants():
    seen = []

    def timer(plans, m):
        seen.append(list(plans))
        return [1.0] * len(plans)

    tune([64], timer, top=1)
    tune([64], timer, top=3)
    assert [len(plans) for plans in seen] == [1, 3] and {p[0] for p in seen} == {PREDICTED[64]}
    assert all(set(plans) <= set(PLANS) for plans in seen)


def test_winners_are_added_and_replaced():
    first, second = another_than(PREDICTED[64]), PREDICTED[64]
    tune([64, 1024], prefers(first))
    tune([64], prefers(second))
    assert plan(64) == second and plan(1024) == first


def test_other_problems_devices_and_dtypes_are_left_alone():
    wanted = another_than(PREDICTED[64])
    before = plan(64, device="h20"), plan(64, dg.GemmProblem(n=4096, k=7168, d_dtype="float32"))
    tune([64], prefers(wanted))
    assert (plan(64, device="h20"), plan(64, dg.GemmProblem(n=4096, k=7168, d_dtype="float32"))) == before


@pytest.mark.parametrize("seed", range(3))
def test_whatever_wins_a_sweep_under_zero_jit_finds_every_kernel(seed, tmp_path, monkeypatch):
    problem = dg.GemmProblem(n=64, k=128)
    monkeypatch.setenv("DGJ_CACHE_DIR", str(tmp_path / "cache"))
    _core.forget_memory_cache()
    untuned = dg.all_plans(problem, "h200")
    order = random.Random(seed)
    tune([*range(1, 300, 7), 1000, 5000, 1 << 20], lambda plans, m: [order.random() for _ in plans], problem)
    assert set(dg.all_plans(problem, "h200")) == set(untuned), "tuning adds and removes nothing"
    dg.warmup(problem, "h200", casts="none")
    few = set(dg.all_plans(problem, "h200", 40))
    with dg.zero_jit():
        for m in [*range(1, 600), 1024, 5000, 16384, 1 << 20]:
            dg.compile(plan(m, problem))
            assert m > 40 or plan(m, problem) in few
    _core.forget_memory_cache()


def test_tuned_plans_count_for_a_limited_number_of_rows_too():
    rarely = PLANS[-1]
    assert rarely not in dg.all_plans(PROBLEM, "h200", 8)
    tune([8], prefers(rarely))
    assert set(dg.all_plans(PROBLEM, "h200", 8)) == {rarely, PREDICTED[1], PREDICTED[8]}


# ---- tables of all kinds -------------------------------------------------------------------------


def winner(**changed) -> dict:
    row = {"device": "h200", "problem": _core.problem_line(PROBLEM), "m": 64, "plan": str(PLANS[0]), "us": 1}
    return row | changed


def document(*rows, **changed) -> str:
    whole = {"format": _core.TUNING_FORMAT, "package": dg.__version__, "winners": list(rows)}
    return json.dumps(whole | changed)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "ends where a value"),
        ("not JSON", "no value starts"),
        ("[1, 2", "']' is missing"),
        ('{"format": 1, "package": "0.1.0", "winners": [', "ends where a value"),
        ("[]", "no tuning table"),
        ('{"some": "file"}', "no tuning table"),
        (document(format=99), "its format is 99"),
        (document(package="0.0.1"), "of version 0.0.1"),
        (document(winners=7), "no list 'winners'"),
        (document("text"), "a winner lacks"),
        (document(winner(m=0)), "a winner lacks"),
        (document(winner(m=1.5)), "a winner lacks"),
        (document(winner(m="64")), "a winner lacks"),
        (document(winner(m=1e300)), "a winner lacks"),
        (document(winner(plan=None)), "a winner lacks"),
        (document(winner(plan="gemm 1x1")), "a plan that its problem does not have"),
        ("[" * 100000, "nested too deeply"),
        ('{"a": "\\x"}', "escape"),
        ('{"a": "\\ud800"}', "escape"),
        ('{"a": inf}', "no value starts"),
        (b'{"format": 1, "package": "\xff", "winners": []}', "version \\xff"),
        (document() + "x", "something follows"),
    ],
)
def test_a_table_that_is_none_is_left_aside_with_one_warning(text, reason, table, caplog):
    caplog.set_level(logging.WARNING, "deep_gemm_jit")
    table.write_bytes(text.encode() if isinstance(text, str) else text)
    _core.forget_tuning()
    for m, predicted in PREDICTED.items():
        assert plan(m) == predicted
    dg.plan(dg.GemmProblem(n=64, k=128), 8, "h200")
    assert len(caplog.messages) == 1 and reason in caplog.messages[0], caplog.messages


def test_a_good_row_beside_a_foreign_one_counts(table, caplog):
    wanted = another_than(PREDICTED[64])
    table.write_text(document(winner(plan="gemm 1x1", m=8), winner(plan=str(wanted))))
    _core.forget_tuning()
    assert plan(64) == wanted and plan(8) == PREDICTED[8] and len(caplog.messages) == 1


def test_a_missing_table_is_one_warning_and_an_empty_name_is_none(table, caplog, monkeypatch):
    assert plan(64) == PREDICTED[64]
    assert len(caplog.messages) == 1 and "cannot be opened" in caplog.messages[0]
    monkeypatch.setenv("DGJ_TUNING", "")
    _core.forget_tuning()
    caplog.clear()
    assert plan(64) == PREDICTED[64] and not caplog.messages


def test_no_damaged_table_is_more_than_a_warning(table):
    good = document(*(winner(m=m, plan=str(p)) for m, p in zip((8, 64, 512), PLANS, strict=False)))
    source = random.Random(7)
    for _ in range(100):
        data = bytearray(good.encode())
        for _ in range(source.randint(1, 4)):
            at = source.randrange(len(data))
            data[at : at + source.randint(0, 3)] = source.randbytes(source.randint(0, 3))
        table.write_bytes(bytes(data))
        _core.forget_tuning()
        assert {plan(m) for m in (8, 64, 512)} <= set(PLANS)


def test_tuning_over_a_table_of_another_version_or_an_empty_file_starts_a_new_one(table):
    wanted = another_than(PREDICTED[64])
    for text in ("", document(winner(), package="0.0.1"), document(winner(), format=99), document("text")):
        table.write_text(text)
        tune([64], prefers(wanted))
        assert len(json.loads(table.read_text())["winners"]) == 1


@pytest.mark.parametrize(
    "text", ["not JSON", "[]", '{"mine": 1}', '{"winners": 5}', "[" * 100000, b"\xff\xfe"]
)
def test_a_foreign_file_is_refused_before_anything_is_timed_and_stays(text, table):
    data = text if isinstance(text, bytes) else text.encode()
    table.write_bytes(data)
    with pytest.raises(ValueError, match="no tuning table and stays"):
        tune([64], lambda plans, m: pytest.fail("timed"))
    assert table.read_bytes() == data


def test_a_link_to_a_table_stays_a_link(table, tmp_path):
    table.symlink_to(tmp_path / "real.json")
    tune([64], prefers(PLANS[0]))
    assert table.is_symlink() and json.loads((tmp_path / "real.json").read_text())["winners"]
    with pytest.raises(ValueError, match="is no file"):
        tune([64], prefers(None), path=tmp_path)


@pytest.mark.parametrize(
    "bad",
    [
        {"m": [1]}, {"m": "64"}, {"m": True}, {"m": 1.5}, {"m": 2**53 + 1}, {"m": 0}, {"device": ["h200"]},
        {"problem": {}}, {"plan": None}, {"us": float("inf")}, {"us": float("nan")}, {"us": None},
        {"us": 10**400},
    ],
)  # fmt: skip
def test_rows_that_the_planner_would_refuse_are_dropped(bad, table):
    table.write_text(document(winner(**{"m": 8} | bad), winner(m=512.0)))
    tune([64], prefers(another_than(PREDICTED[64])))
    assert [row["m"] for row in json.loads(table.read_text())["winners"]] == [64, 512]
    assert "Infinity" not in table.read_text() and "NaN" not in table.read_text()


def test_row_counts_may_be_any_kind_of_whole_number(table):
    numpy = pytest.importorskip("numpy")
    tune(numpy.array([64, 8]), lambda plans, m: numpy.ones(len(plans), "float32"))
    assert [row["m"] for row in json.loads(table.read_text())["winners"]] == [8, 64]


def test_processes_that_tune_into_one_table_lose_no_row(table):
    code = """
import sys
import deep_gemm_jit as dg
problem = dg.GemmProblem(n=64, k=128)
for m in range(int(sys.argv[1]), 160, 4):
    dg.tune(problem, [m], "h200", top=1, timer=lambda plans, m: [1.0] * len(plans))
"""
    running = [subprocess.Popen([sys.executable, "-c", code, str(i)]) for i in range(1, 5)]
    assert [process.wait(120) for process in running] == [0] * 4
    assert [row["m"] for row in json.loads(table.read_text())["winners"]] == list(range(1, 160))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"ms": []}, ("ms is []",)),
        ({"ms": [0]}, ("ms is [0]",)),
        ({"ms": [2**53 + 1]}, (str(2**53 + 1), "at most")),
        ({"top": 0}, ("top is 0",)),
        ({"device": "gtx"}, ("gtx", "h200")),
        ({"timer": lambda plans, m: [1.0]}, ("each needs a time",)),
        ({"timer": lambda plans, m: [0.0] * len(plans)}, ("each needs a time",)),
        ({"timer": lambda plans, m: [float("inf")] * len(plans)}, ("each needs a time",)),
    ],
)
def test_wrong_arguments(arguments, words, table):
    with pytest.raises(ValueError) as caught:
        tune(**({"ms": [64], "timer": prefers(None)} | arguments))
    assert all(word in str(caught.value) for word in words), caught.value
    assert not table.exists()


def test_a_row_count_that_is_no_whole_number_is_a_type_error(table):
    for ms in ([1.5], ["8"], 5):
        with pytest.raises(TypeError, match="tune: ms is"):
            tune(ms, prefers(None))
    assert not table.exists()


def test_without_a_table_there_is_nothing_to_write(monkeypatch, tmp_path):
    monkeypatch.delenv("DGJ_TUNING")
    with pytest.raises(ValueError, match="DGJ_TUNING"):
        tune([64], prefers(None))
    tune([64], prefers(None), path=tmp_path / "deep" / "table.json")
    assert (tmp_path / "deep" / "table.json").is_file()


def test_without_a_gpu_a_timer_must_be_given():
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(NotImplementedError, match="no CUDA device"):
        tune([64], None)
    with pytest.raises(NotImplementedError, match="'dense' alone"):
        tune([64], None, dg.GemmProblem(n=64, k=128, layout="m_grouped", groups=4))


def test_a_gpu_is_not_timed_for_another_device(monkeypatch, table):
    timing = pytest.importorskip("deep_gemm_jit.timing")

    def timer(problem, rows):
        return lambda plans, m: pytest.fail("timed")

    monkeypatch.setattr(timing, "GpuTimer", timer)
    monkeypatch.setattr(_core, "device_profile_name", lambda index: "h200")
    with pytest.raises(ValueError, match="device is 'h20', but the GPU to be timed is 'h200'"):
        tune([64], None, device="h20")
    assert not table.exists()


def test_a_table_that_cannot_be_written_is_an_error():
    if os.geteuid() == 0:
        path = "/proc/no/such/table.json"
    else:
        path = "/root/table.json"
    with pytest.raises(OSError):
        tune([64], prefers(None), path=path)
