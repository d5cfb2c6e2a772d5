"""Warming up, the report, and scopes without compiles. No GPU; NVRTC compiles small kernels."""

import ctypes
import fcntl
import logging
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
from cpu.test_runtime import fake_driver  # noqa: F401  a fixture

import deep_gemm_jit as dg
from deep_gemm_jit import _core, ahead
from deep_gemm_jit.__main__ import main

PROBLEM = dg.GemmProblem(n=64, k=128)
OTHER = dg.GemmProblem(n=72, k=128)
PLANS = dg.all_plans(PROBLEM, "h200")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    """An empty cache of its own for each test."""
    monkeypatch.setenv("DGJ_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("DGJ_JIT", raising=False)
    _core.forget_memory_cache()
    yield tmp_path / "cache"
    _core.forget_memory_cache()


def entries(folder: Path) -> int:
    return len(list(folder.rglob("*.dgk")))


def warm(*arguments, **options) -> dg.WarmupReport:
    return dg.warmup(*arguments, **({"device": "h200", "casts": "none"} | options))


def start(code: str, **variables: str) -> subprocess.Popen:
    """A process that imports, says "ready", waits for a line, and runs code."""
    preamble = """
import sys
import deep_gemm_jit as dg
problem = dg.GemmProblem(n=64, k=128)
print("ready", flush=True)
sys.stdin.readline()
"""
    return subprocess.Popen(
        [sys.executable, "-c", preamble + code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | variables,
    )


def together(processes: list[subprocess.Popen]) -> list[str]:
    """Let them go at once, when all are ready; what each wrote."""
    assert [process.stdout.readline() for process in processes] == ["ready\n"] * len(processes)
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    written = [process.communicate(timeout=300)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes)
    return written


def test_after_a_warm_up_no_row_count_compiles(cache):
    report = warm(PROBLEM)
    assert (report.compiled, report.found, list(report.kernels)) == (len(PLANS), 0, PLANS)
    assert entries(cache) == len(PLANS) and report.compile_seconds > 0
    _core.forget_memory_cache()
    with dg.zero_jit():
        for m in [*range(1, 600), 1024, 4096, 16384, 1 << 20]:
            assert dg.compile(dg.plan(PROBLEM, m, "h200")).origin in ("disk", "memory")


def test_a_second_warm_up_finds_everything():
    warm(PROBLEM)
    again = warm([PROBLEM, PROBLEM])
    assert (again.compiled, again.found, again.compile_seconds) == (0, len(PLANS), 0)
    _core.forget_memory_cache()
    assert warm(PROBLEM).found == len(PLANS)


def test_the_report_says_what_is_missing(cache):
    few = dg.all_plans(PROBLEM, "h200", 8)
    assert 0 < len(few) < len(PLANS)
    warm(PROBLEM, max_rows=8)
    report = dg.plan_report(PROBLEM, "h200", casts="none")
    assert list(report.plans) == PLANS and report.casts == ()
    assert set(report.missing) == set(PLANS) - set(few)
    assert str(report).count("missing") == len(report.missing) and len(report) == len(PLANS)
    assert entries(cache) == len(few), "a report compiles nothing"


def test_each_problem_may_have_its_own_rows():
    report = dg.plan_report([PROBLEM, OTHER], "h200", [8, None], casts="none")
    own = [plan for plan in report.plans if plan.problem == PROBLEM]
    assert own == dg.all_plans(PROBLEM, "h200", 8)
    assert len(report.plans) - len(own) == len(dg.all_plans(OTHER, "h200"))


def test_an_architecture_is_all_of_its_profiles():
    problem = dg.GemmProblem(n=2112, k=7168)
    every = set(dg.plan_report(problem, "sm_90a", casts="none").plans)
    profiles = [row["name"] for row in _core.device_profiles() if row["arch"] == "sm_90a"]
    assert every == {p for name in profiles for p in dg.plan_report(problem, name, casts="none").plans}


def test_quantisation_kernels_go_with_the_problems():
    def casts(which, **problem):
        report = dg.plan_report(dg.GemmProblem(n=64, k=128, **problem), "h200", casts=which)
        return {(cast.x_dtype, cast.gran_rows, cast.gran_k, cast.scale) for cast in report.casts}

    of_bf16 = casts("operands")
    assert of_bf16 == {
        ("bfloat16", rows, 128, scale)
        for rows, scales in ((1, ("float32", "ue8m0", "ue8m0_packed")), (128, ("float32", "ue8m0")))
        for scale in scales
    }
    assert casts("operands", d_dtype="float16") > of_bf16
    assert casts("operands", d_dtype="float32") > of_bf16
    assert len(casts("all")) == 45 and casts("none") == set()


def test_a_quantisation_kernel_is_a_plan_like_others(cache):
    plan = _core.all_cast_plans()[0]
    assert plan == _core.all_cast_plans()[0] != _core.all_cast_plans()[1]
    assert hash(plan) == hash(_core.all_cast_plans()[0])
    assert dg.emit(plan).text.startswith(f"// {plan}\n")
    assert dg.compile(plan).origin == "compiled" and dg.compile(plan).origin == "memory"


# ---- zero JIT ------------------------------------------------------------------------------------


def refused(plan) -> str:
    with pytest.raises(dg.JitForbiddenError) as caught:
        dg.compile(plan)
    return str(caught.value)


def test_a_compile_in_a_zero_jit_scope_names_kernel_and_command():
    with dg.zero_jit():
        message = refused(PLANS[0])
    assert str(PLANS[0]) in message and "zero_jit" in message
    assert "warmup --device sm_90a --shape 64x128 --d-dtype bfloat16`" in message
    assert dg.compile(PLANS[0]).origin == "compiled", "after the scope compiles are allowed again"


def test_the_command_for_a_call_with_a_bias_names_it():
    plans = dg.all_plans(dg.GemmProblem(n=576, k=7168, extras=True), "h200")
    with dg.zero_jit():
        messages = {plan.family: refused(plan) for plan in plans}
    assert "--shape 576x7168 --d-dtype bfloat16 --extras`" in messages["gemm"]
    assert "--extras" not in messages["gemm_swap_ab"]


@pytest.mark.parametrize("batch_invariant", [False, True])
def test_the_command_of_the_message_ends_the_refusal(batch_invariant, capsys):
    problem = dg.GemmProblem(n=64, k=128, d_dtype="float16", batch_invariant=batch_invariant)
    plan = dg.plan(problem, 5, "h100")
    with dg.zero_jit():
        message = refused(plan)
    command = re.search(r"`python -m deep_gemm_jit (.*?)`", message).group(1)
    assert main([*shlex.split(command), "--casts", "none"]) == 0
    with dg.zero_jit():
        assert dg.compile(plan).origin in ("disk", "memory")


def test_the_message_for_a_cast_asks_for_all_casts():
    with dg.zero_jit():
        assert "warmup --device sm_90a --casts all`" in refused(_core.all_cast_plans()[7])


def test_the_variable_forbids_like_a_scope(monkeypatch):
    monkeypatch.setenv("DGJ_JIT", "forbid")
    assert "DGJ_JIT=forbid" in refused(PLANS[0])
    with pytest.raises(dg.JitForbiddenError, match=f"{len(PLANS)} of {len(PLANS)} kernels are not ready"):
        warm(PROBLEM)
    monkeypatch.setenv("DGJ_JIT", "allow")
    warm(PROBLEM)
    monkeypatch.setenv("DGJ_JIT", "forbid")
    assert warm(PROBLEM).found == len(PLANS)


def test_scopes_nest_and_overlap_between_threads():
    inside, leave = threading.Event(), threading.Event()

    def hold():
        with dg.zero_jit():
            inside.set()
            leave.wait(60)

    thread = threading.Thread(target=hold)
    with dg.zero_jit():
        thread.start()
        inside.wait(60)
        with pytest.raises(KeyError), dg.zero_jit():
            raise KeyError
        refused(PLANS[0])
    refused(PLANS[0])  # the other thread's scope is still there, and holds for this thread
    leave.set()
    thread.join()
    assert dg.compile(PLANS[0]).origin == "compiled"


def test_a_compile_at_run_time_is_one_warning_and_one_ahead_of_need_is_none(caplog):
    caplog.set_level(logging.DEBUG, "deep_gemm_jit")
    dg.compile(PLANS[0])
    dg.compile(PLANS[0])
    warnings = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert len(warnings) == 1 and re.search(rf"{re.escape(str(PLANS[0]))}.* in \d+ ms", warnings[0])
    caplog.clear()
    warm(PROBLEM)
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]
    assert sum("compiled" in r.getMessage() for r in caplog.records) == len(PLANS) - 1


# ---- several processes ---------------------------------------------------------------------------


def test_eight_processes_compile_each_kernel_once(cache):
    code = "print(dg.warmup(problem, 'h200', casts='none', jobs=2).compiled)"
    written = together([start(code) for _ in range(8)])
    assert sum(int(text) for text in written) == len(PLANS) == entries(cache)


def test_ranks_share_the_work_and_each_ends_with_everything(cache):
    code = """
report = dg.warmup(problem, 'h200', casts='none', jobs=1, rank=int(sys.argv[1]), world_size=3)
with dg.zero_jit():
    for plan in dg.all_plans(problem, 'h200'):
        dg.compile(plan)
print(report.compiled)
"""
    processes = [start(code.replace("sys.argv[1]", str(rank))) for rank in range(3)]
    assert sum(int(text) for text in together(processes)) == len(PLANS) == entries(cache)


def test_a_rank_whose_peers_never_come_compiles_their_shares_too():
    assert warm(PROBLEM, rank=1, world_size=4).compiled == len(PLANS)


def test_ranks_start_with_different_kernels():
    first = []
    for rank in range(3):
        order: list = []
        _core.forget_memory_cache()
        warm(PROBLEM, rank=rank, world_size=3, jobs=1, progress=lambda step, o=order: o.append(step.kernel))
        assert set(order) == set(PLANS)
        first.append(order[0])
    assert len(set(first)) == 3


def test_without_a_disk_every_process_compiles_for_itself(monkeypatch):
    monkeypatch.setenv("DGJ_CACHE_DIR", "")
    _core.forget_memory_cache()
    assert warm(PROBLEM).compiled == len(PLANS)
    assert warm(PROBLEM).found == len(PLANS)


def lock_of(plan, cache: Path) -> int:
    """Hold the lock of a plan's key as another process would, until the descriptor is closed."""
    key = bytes.fromhex(_core.cache_key(dg.emit(plan)))
    offset = int.from_bytes(key[16:24], "big") >> 2
    folder = cache / "v1"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    cache.chmod(0o700)
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)

    class Flock(ctypes.Structure):
        _fields_ = [("type", ctypes.c_short), ("whence", ctypes.c_short), ("start", ctypes.c_int64),
                    ("len", ctypes.c_int64), ("pid", ctypes.c_int)]  # fmt: skip

    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, bytes(Flock(fcntl.F_WRLCK, os.SEEK_SET, offset, 1, 0)))
    return descriptor


def test_a_kernel_that_another_process_is_at_comes_last(cache):
    held = max(PLANS, key=lambda plan: plan.tile_rows * plan.tile_cols)  # it would come first
    descriptor = lock_of(held, cache)
    order = []

    def progress(step):
        order.append(step.kernel)
        if len(order) == len(PLANS) - 1:
            os.close(descriptor)

    report = warm(PROBLEM, jobs=1, progress=progress)
    assert order[-1] == held and report.compiled == len(PLANS)


def test_a_call_beside_a_warm_up_waits_where_the_warm_up_does_not(cache):
    plan = PLANS[0]
    source, descriptor, outcomes = dg.emit(plan), lock_of(plan, cache), []

    def ahead_of_need():
        while (found := _core.compile_ahead(source, str(plan))) is None:
            pass
        outcomes.append(found[0])

    threads = [threading.Thread(target=ahead_of_need) for _ in range(2)]
    threads += [threading.Thread(target=lambda: outcomes.append(dg.compile(plan).origin)) for _ in range(4)]
    before = _core.compile_count()
    for thread in threads:
        thread.start()
    time.sleep(0.5)
    assert not outcomes
    os.close(descriptor)
    for thread in threads:
        thread.join(60)
    assert sorted(outcomes) == ["compiled"] + ["memory"] * 5 and _core.compile_count() == before + 1


def test_an_interrupted_warm_up_goes_on_where_it_stopped(cache):
    def interrupt(step):
        raise KeyboardInterrupt

    before = _core.compile_count()
    with pytest.raises(KeyboardInterrupt):
        warm(PROBLEM, jobs=1, progress=interrupt)
    first = _core.compile_count() - before
    assert 1 <= first < len(PLANS) and entries(cache) == first
    assert not list((cache / "v1" / "tmp").glob("*"))
    assert not [thread for thread in threading.enumerate() if "_work" in thread.name]
    _core.forget_memory_cache()
    assert warm(PROBLEM).compiled == len(PLANS) - first


def test_control_c_ends_the_command_cleanly(cache):
    # A run in the background has SIGINT ignored, and hands that on.
    code = """
import signal, sys
from deep_gemm_jit.__main__ import main
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.exit(main(sys.argv[1:]))
"""
    command = [sys.executable, "-c", code, "warmup", "--device", "h200", "--jobs", "1"]
    shapes = [word for n in range(64, 128, 8) for word in ("--shape", f"{n}x128")]
    process = subprocess.Popen([*command, *shapes], stderr=subprocess.PIPE, text=True)
    assert "ms" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130 and "Traceback" not in said and "interrupted" in said
    assert entries(cache) >= 1 and not list((cache / "v1" / "tmp").glob("*"))


def test_a_baked_cache_serves_another_user_who_may_not_compile(cache):
    # As docs/serving.md has it: warmed up by root, then made readable, then a seed of a server.
    warm(PROBLEM)
    with tempfile.TemporaryDirectory() as folder:
        seed = shutil.copytree(cache, Path(folder) / "kernels")
        for path in [Path(folder), seed, *seed.rglob("*")]:
            path.chmod(0o755 if path.is_dir() else 0o644)
        # The packages may lie where only root can look: become somebody else after the imports.
        become = "import logging, os; os.setgid(65534); os.setuid(65534)" if os.geteuid() == 0 else ""
        code = f"""
{become}
for plan in dg.all_plans(problem, "h200"):
    assert dg.compile(plan).origin == "disk"
"""
        before = {path: path.stat().st_mtime_ns for path in seed.rglob("*")}
        together([start(code, DGJ_CACHE_DIR=f":{seed}", DGJ_JIT="forbid")])
        assert {path: path.stat().st_mtime_ns for path in seed.rglob("*")} == before


# ---- failures ------------------------------------------------------------------------------------


def test_a_kernel_that_does_not_compile_keeps_none_of_the_others_back(monkeypatch, cache):
    broken = _core.make_source("no program;", {}, "dgj_kernel", "sm_90a")
    monkeypatch.setattr(ahead, "emit", lambda plan: broken if plan == PLANS[1] else dg.emit(plan))
    with pytest.raises(dg.CompileError) as caught:
        warm(PROBLEM)
    assert f"1 of {len(PLANS)}" in str(caught.value) and str(PLANS[1]) in str(caught.value)
    assert entries(cache) == len(PLANS) - 1


def test_what_a_stopped_process_holds_is_compiled_here_in_the_end(monkeypatch, cache):
    taken = []

    def get_or_compile(source, line):
        taken.append(line)
        return {"origin": "compiled", "milliseconds": 1.0}

    monkeypatch.setattr(ahead, "PATIENCE_S", 0.2)
    monkeypatch.setattr(_core, "get_or_compile", get_or_compile)
    descriptor = lock_of(PLANS[0], cache)
    try:
        assert warm(PROBLEM).compiled == len(PLANS)
    finally:
        os.close(descriptor)
    assert taken == [str(PLANS[0])]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rank": 2, "world_size": 2}, ("rank is 2 of 2",)),
        ({"rank": -1}, ("rank is -1",)),
        ({"jobs": 0}, ("jobs is 0",)),
        ({"device": "gtx1080"}, ("gtx1080", "h200")),
        ({"max_rows": 0}, ("max_rows is 0",)),
        ({"max_rows": [8, 8]}, ("2 values for 1 problems",)),
        ({"casts": "some"}, ("'some'", "operands, all, none")),
    ],
)
def test_wrong_arguments(options, words, cache):
    with pytest.raises(ValueError) as caught:
        warm(PROBLEM, **options)
    assert all(word in str(caught.value) for word in words), caught.value
    assert not cache.exists()


@pytest.mark.parametrize("casts", ["none", "operands", "all"])
def test_an_unknown_device_is_an_error_without_problems_too(casts, cache):
    for ask in (dg.warmup, dg.plan_report):
        with pytest.raises(ValueError, match="device 'garbage' is not known; allowed: .*h200.*sm_90a"):
            ask([], "garbage", casts=casts)
    assert not cache.exists()


def test_numbers_may_be_any_kind_of_whole_number(cache):
    numpy = pytest.importorskip("numpy")
    numbers = {"rank": numpy.int64(1), "world_size": numpy.int64(2), "jobs": numpy.int32(1)}
    report = warm([PROBLEM, PROBLEM], max_rows=numpy.array([8, 8]), **numbers)
    assert report.compiled == len(report.kernels) > 0
    assert warm(PROBLEM, max_rows=numpy.int64(8)).found == report.compiled


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"world_size": "2"}, "rank is 0 of '2'"),
        ({"jobs": "2"}, "jobs is '2'"),
        ({"jobs": 1.5}, "jobs is 1.5"),
        ({"max_rows": "8"}, "max_rows is '8'"),
        ({"max_rows": 8.0}, "max_rows is 8.0"),
        ({"max_rows": ["8"]}, r"max_rows is \['8'\]"),
        ({"problems": "64x128"}, "problems holds '6'"),
        ({"problems": [PROBLEM, (64, 128)]}, r"problems holds \(64, 128\)"),
    ],
)
def test_what_is_no_number_or_problem_is_named(options, words, cache):
    with pytest.raises(TypeError, match=f"warmup: .*{words}"):
        warm(**({"problems": PROBLEM} | options))
    assert not cache.exists()


# ---- with a driver -------------------------------------------------------------------------------


def test_without_a_device_the_current_gpu_is_meant_and_load_loads_into_it(fake_driver):  # noqa: F811
    code = """
report = dg.warmup(problem, load=True, max_rows=8)
assert report.device == "h200", report
assert len(report.kernels) == len(dg.all_plans(problem, "h200", 8)) + 5
for device in ("h200", "sm_90a"):
    assert dg.warmup(problem, device, load=True, casts="none", max_rows=8).compiled == 0
try:
    dg.warmup(problem, "h20", load=True)
except ValueError as error:
    assert "'h20'" in str(error) and "'h200'" in str(error)
else:
    raise SystemExit("it loaded kernels of another device")
"""
    together([start(code, LD_LIBRARY_PATH=str(fake_driver))])


def test_without_a_driver_a_device_must_be_named():
    if _core.driver_version() != 0:
        pytest.skip("this machine has a driver")
    with pytest.raises(NotImplementedError, match="no CUDA driver"):
        dg.warmup(PROBLEM)


def test_a_warm_start_is_quick():
    warm([PROBLEM, OTHER])
    _core.forget_memory_cache()
    started = time.perf_counter()
    report = warm([PROBLEM, OTHER])
    assert report.compiled == 0
    # 110 kernels of a large model are to take at most 1 s; here with room for a busy machine.
    assert (time.perf_counter() - started) / len(report.kernels) < 0.05
