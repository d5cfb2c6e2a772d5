"""The commands env, explain, warmup and bench: what they say and their exit codes; none needs torch."""

import fcntl
import io
import json
import os
import pty
import struct
import subprocess
import sys
import termios

import pytest
from model_configs import DEEPSEEK_V3, GPT_OSS_120B

import deep_gemm_jit as dg
from deep_gemm_jit import _core
from deep_gemm_jit.__main__ import main
from deep_gemm_jit.cli.warmup import Progress

SMALL = ("--device", "h200", "--casts", "none")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("DGJ_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("DGJ_JIT", raising=False)
    _core.forget_memory_cache()
    yield tmp_path / "cache"
    _core.forget_memory_cache()


@pytest.fixture
def command(capsys):
    def run(*arguments: object) -> tuple[int, str, str]:
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as stop:  # argparse
            code = stop.code
        return code, *capsys.readouterr()

    return run


def write(path, values):
    path.write_text(values if isinstance(values, str) else json.dumps(values))
    return path


@pytest.mark.parametrize(
    "arguments",
    [
        ["env", "--json"],
        ["explain", "8", "576", "512"],
        ["warmup", *SMALL, "--shape", "64x128", "--max-rows", "8"],
        ["warmup", *SMALL, "--shape", "64x128", "--dry-run"],
        ["--help"],
    ],
)
def test_a_command_imports_no_torch_and_leaves_no_file_beside_the_cache(arguments, tmp_path):
    code = f"""
import runpy, sys
sys.argv = ["deep_gemm_jit", *{arguments!r}]
try:
    runpy.run_module("deep_gemm_jit", run_name="__main__")
except SystemExit as stop:
    assert stop.code in (0, 1, None), stop.code
assert "torch" not in sys.modules and "numpy" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-B", "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in tmp_path.iterdir()} <= {"cache"}


def test_env_as_text_and_as_json_say_the_same(command):
    code, text, _ = command("env")
    values = json.loads(command("env", "--json")[1])
    assert code == 0 and values["deep_gemm_jit"] in text and values["cache_root"] in text
    for row in values["variables"]:
        assert row["name"] in text and row["meaning"] in text


def test_a_variable_that_is_no_utf_8_is_shown_and_named_in_errors(command, monkeypatch):
    monkeypatch.setenv("DGJ_JIT", "\udcff")  # the byte 0xff
    assert r"'\\xff'" in command("env")[1]
    code, _, err = command("warmup", *SMALL, "--shape", "64x128", "--max-rows", 8)
    assert code == 2 and r"DGJ_JIT is '\xff'" in err


@pytest.mark.parametrize(
    "words",
    [
        ["env"],
        ["explain", "64", "4096", "7168"],
        ["warmup", *SMALL, "--shape", "64x128", "--max-rows", "8"],
        ["warmup", *SMALL, "--shape", "64x128", "--max-rows", "8", "--dry-run"],
        ["warmup", "--model-config", "\u03bb \udcff.json"],
        ["cache", "\u03bb \udcff"],
    ],
)
def test_commands_go_to_streams_that_lack_characters(words, tmp_path):
    folder = os.fsdecode(bytes(tmp_path) + b"/\xce\xbb \xff")
    variables = {"PYTHONIOENCODING": "ascii:strict", "DGJ_CACHE_DIR": folder, "DGJ_TUNING": folder}
    for more in ({}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}):
        done = subprocess.run(
            [sys.executable, "-m", "deep_gemm_jit", *words],
            env=os.environ | variables | more,
            cwd=tmp_path,
            capture_output=True,
        )
        text = done.stdout + done.stderr
        assert done.returncode in (0, 1, 2) and text and b"Traceback" not in text, text
        assert b"codec" not in text, text


# ---- explain -------------------------------------------------------------------------------------


def test_explain_shows_the_choice_the_alternatives_and_their_times(command):
    code, text, _ = command("explain", 64, 4096, 7168, "--top", 4)
    problem = dg.GemmProblem(n=4096, k=7168)
    plan, considered = dg.plan(problem, 64, "h200"), dg.candidates(problem, 64, "h200")
    assert code == 0 and f"plan      {plan}" in text
    for row in considered[:4]:
        assert f"{row.predicted_us:.2f}  {str(row.plan).split('| ')[1]}" in text and row.why in text
    assert f"4 of {len(considered)}" in text
    assert f"any m ({len(dg.all_plans(problem, 'h200'))}; * chosen)" in text
    assert str(plan).split("| ")[1] in [line[2:] for line in text.splitlines() if line.startswith("* ")]


def test_explain_of_an_architecture_has_a_part_for_each_profile(command):
    _, text, _ = command("explain", 8, 4096, 7168, "--arch", "sm_90a")
    assert text.count("problem   ") == len(_core.device_profiles())


def test_explain_of_groups_and_of_options(command):
    code, text, _ = command("explain", 512, 4096, 7168, "--groups", 32)
    assert code == 0 and "m_grouped groups=32, m=512" in text
    assert "float32" in command("explain", 8, 64, 128, "--d-dtype", "float32", "--batch-invariant")[1]
    assert "dgj_kernel" in command("explain", 8, 64, 128, "--source")[1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["explain", 8, 577, 512], ("577", "multiple of 8")),
        (["explain", 0, 576, 512], ("m is 0",)),
        (["explain", 8, 576, 512, "--device", "gtx"], ("'gtx'", "h200")),
        (["explain", 8, 576, 512, "--top", 0], ("--top is 0",)),
        (["explain", 8, 576, 512, "--layout", "dense", "--groups", 3], ("groups is 3",)),
        (["explain", 8, 576], ("required: K",)),
        (["explain", "eight", 576, 512], ("invalid int",)),
        ([], ("COMMAND",)),
        (["no-such"], ("no-such",)),
        (["warmup"], ("nothing to do", "--shape")),
        (["warmup", *SMALL, "--shape", "64"], ("'64'", "NxK")),
        (["warmup", *SMALL, "--shape", "-64x128"], ("argument",)),
        (["warmup", *SMALL, "--shape", "60x128"], ("n is 60",)),
        (["warmup", *SMALL, "--shape", "64x128", "--jobs", 0], ("jobs is 0",)),
        (["warmup", *SMALL, "--shape", "64x128", "--rank", 1], ("rank is 1 of 1",)),
        (["warmup", "--dry-run", "--shape", "64x128"], ("needs --device",)),
        (["warmup", "--device", "gtx", "--shape", "64x128"], ("'gtx'", "h200")),
        (["warmup", *SMALL, "--problems", "/no/such.json"], ("/no/such.json",)),
        (["warmup", *SMALL, "--model-config", "/no/such.json"], ("/no/such.json",)),
    ],
)
def test_a_wrong_use_is_exit_code_2_and_one_message(arguments, words, command, cache):
    code, out, err = command(*arguments)
    assert code == 2 and out == "" and all(word in err for word in words), err
    assert "Traceback" not in err and not cache.exists()


# ---- warmup --------------------------------------------------------------------------------------


def test_warmup_compiles_and_says_so_in_plain_lines(command, cache):
    plans = dg.all_plans(dg.GemmProblem(n=64, k=128), "h200")
    code, out, err = command("warmup", *SMALL, "--shape", "64x128", "--shape", "64x128")
    assert code == 0 and f"{len(plans)} kernels for h200 are ready: {len(plans)} compiled" in out
    assert str(cache) in out
    lines = err.splitlines()
    assert len(lines) == len(plans) and lines[-1].startswith(f"{len(plans)}/{len(plans)} ")
    assert "\r" not in err and "\x1b" not in err
    code, out, err = command("warmup", *SMALL, "--shape", "64x128")
    assert (code, err) == (0, "") and "0 compiled" in out


def test_a_dry_run_has_a_finding_until_everything_is_there(command, cache):
    arguments = ("warmup", *SMALL, "--shape", "64x128", "--max-rows", 8)
    code, out, _ = command(*arguments, "--dry-run")
    assert code == 1 and "missing" in out and not list(cache.rglob("*.dgk"))
    assert command(*arguments)[0] == 0
    code, out, _ = command(*arguments, "--dry-run")
    assert code == 0 and "0 of them not compiled yet" in out


def test_a_warm_up_that_keeps_nothing_is_a_finding(command, monkeypatch):
    monkeypatch.setenv("DGJ_CACHE_DIR", "")
    _core.forget_memory_cache()
    code, out, _ = command("warmup", *SMALL, "--shape", "64x128", "--max-rows", 8)
    assert code == 1 and "nothing is kept" in out


def test_a_warm_up_whose_folder_cannot_be_written_is_a_finding(command, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("DGJ_CACHE_DIR", str(tmp_path / "file" / "cache"))
    _core.forget_memory_cache()
    plans = dg.all_plans(dg.GemmProblem(n=64, k=128), "h200", 8)
    code, out, _ = command("warmup", *SMALL, "--shape", "64x128", "--max-rows", 8)
    assert code == 1 and f"{len(plans)} of the kernels compiled now are not in it" in out


def test_a_warm_up_of_more_than_the_bound_is_a_finding(command, monkeypatch):
    monkeypatch.setenv("DGJ_CACHE_MAX_SIZE", "50K")
    _core.forget_memory_cache()
    code, out, _ = command("warmup", *SMALL, "--shape", "64x128")
    assert code == 1 and "are not in it" in out


def test_a_seed_that_has_everything_is_a_warm_cache(command, monkeypatch, cache):
    arguments = ("warmup", *SMALL, "--shape", "64x128", "--max-rows", 8)
    assert command(*arguments)[0] == 0
    monkeypatch.setenv("DGJ_CACHE_DIR", f":{cache}")
    _core.forget_memory_cache()
    code, out, _ = command(*arguments)
    assert code == 0 and "0 compiled" in out and "in a seed" in out
    code, out, _ = command("env")
    assert f"seed           {cache}\n" in out
    assert json.loads(command("env", "--json")[1])["cache_seeds"] == [str(cache)]


def shell(line: str, tmp_path) -> subprocess.CompletedProcess:
    """Run it in bash, with $dgj as the command line; a pipeline has the exit code of its first command."""
    script = f"dgj='{sys.executable} -m deep_gemm_jit'; {line}; exit ${{PIPESTATUS[0]}}"
    return subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True)


WARM = "$dgj warmup --device h200 --casts none --jobs 1 --shape 64x128 --shape 72x128"


@pytest.mark.parametrize(
    "redirection", ["2>&1 | true", "2>&1 >/dev/null | head -n 1", "2>/dev/full", "2>&-", "| true", ">&-"]
)
def test_a_warm_up_that_nobody_watches_goes_on_to_its_end(redirection, cache, tmp_path):
    done = shell(f"{WARM} {redirection}", tmp_path)
    assert done.returncode == 0 and "Error" not in done.stderr, done
    plans = [plan for n in (64, 72) for plan in dg.all_plans(dg.GemmProblem(n=n, k=128), "h200")]
    assert len(list(cache.rglob("*.dgk"))) == len(plans)


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("shapes", [1, 40])  # some lines, and more than any buffer takes
@pytest.mark.parametrize("reader", ["| true", "| head -n 1 >/dev/null", ">&-"])
def test_the_exit_code_tells_of_findings_whoever_reads(shapes, reader, unbuffered, tmp_path):
    more = " ".join(f"--shape {8 * n}x128" for n in range(8, 8 + shapes))
    command = f"PYTHONUNBUFFERED={unbuffered} $dgj warmup --device h200 {more} --dry-run"
    done = shell(f"{command} {reader}", tmp_path)
    assert done.returncode == 1 and done.stderr == "", done


def test_a_full_disk_below_the_output_is_a_failure_with_a_message(tmp_path):
    for command in ("env", "explain 8 64 128", "cache stats"):
        done = shell(f"$dgj {command} > /dev/full", tmp_path)
        assert done.returncode == 1 and done.stderr == "[Errno 28] No space left on device\n", done


def test_a_forbidden_warm_up_is_a_failure(command, monkeypatch):
    monkeypatch.setenv("DGJ_JIT", "forbid")
    code, out, err = command("warmup", *SMALL, "--shape", "64x128", "--max-rows", 8)
    assert code == 1 and out == "" and "DGJ_JIT=forbid" in err


def listed(out: str) -> set[str]:
    return {line.split("  ", 2)[2].strip() for line in out.splitlines()[1:]}


def test_problems_come_from_a_file(command, tmp_path):
    rows = [
        {"n": 64, "k": 128, "max_rows": 8},
        {"n": 72, "k": 128, "d_dtype": "float16", "batch_invariant": True},
        dg.GemmProblem(n=80, k=128).to_dict(),
    ]
    _, out, _ = command("warmup", *SMALL, "--problems", write(tmp_path / "p.json", rows), "--dry-run")
    wanted = {str(plan) for plan in dg.all_plans(dg.GemmProblem(n=64, k=128), "h200", 8)}
    other = dg.GemmProblem(n=72, k=128, d_dtype="float16", batch_invariant=True)
    for problem in (other, dg.GemmProblem(n=80, k=128)):
        wanted |= {str(plan) for plan in dg.all_plans(problem, "h200")}
    assert listed(out) == wanted


def test_options_hold_for_what_a_file_of_problems_leaves_out(command, tmp_path):
    path = write(tmp_path / "p.json", [{"n": 64, "k": 128}, {"n": 72, "k": 128, "d_dtype": "bfloat16"}])
    options = ("--d-dtype", "float16", "--batch-invariant", "--dry-run")
    _, out, _ = command("warmup", *SMALL, "--problems", path, *options)
    first = dg.GemmProblem(n=64, k=128, d_dtype="float16", batch_invariant=True)
    second = dg.GemmProblem(n=72, k=128, batch_invariant=True)
    assert listed(out) == {str(p) for problem in (first, second) for p in dg.all_plans(problem, "h200")}


def test_extras_add_to_every_dense_problem_and_to_no_other(command, tmp_path):
    def kernels(*arguments):
        return listed(command("warmup", *SMALL, "--dry-run", "--max-rows", 4096, *arguments)[1])

    file = write(tmp_path / "p.json", [{"n": 64, "k": 128}, {"n": 64, "k": 128, "layout": "m_grouped"}])
    config = write(tmp_path / "config.json", DEEPSEEK_V3)
    shapes = ("--shape", "576x7168", "--shape", "576x7168x8")
    for source in (("--problems", file), ("--model-config", config), shapes):
        plain = {kernel for kernel in kernels(*source) if " gemm " in kernel}
        added = kernels(*source, "--extras") - kernels(*source)
        assert plain and added == {kernel.replace(" dense", " dense extras") for kernel in plain}, source


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", ("no JSON file",)),
        ({"n": 64}, ("must be a list",)),
        ([{"n": 64}], ("problem 0", "must have n and k")),
        ([{"n": 64, "k": 128}, {"n": 64, "k": 128, "colour": 3}], ("problem 1", "colour")),
        ([{"n": 64, "k": 128, "max_rows": "many"}], ("problem 0", "'many'")),
        ([{"n": 60, "k": 128}], ("n is 60",)),
        ([{"n": 64, "k": 128, "max_rows": True}], ("max_rows of problem 0", "True")),
        ([{"n": 64, "k": 128, "batch_invariant": None}], ("batch_invariant of problem 0", "None")),
        ([{"n": 64, "k": 128, "batch_invariant": 1}], ("batch_invariant of problem 0", "true or false")),
        ([{"n": 64, "k": 128}, {"n": "64", "k": 128}], ("n of problem 1", "'64'")),
        ([{"n": 64.0, "k": 128}], ("n of problem 0", "64.0")),
        ([{"n": 64, "k": True}], ("k of problem 0", "True")),
        ([{"n": 64, "k": 128, "layout": ["dense"]}], ("layout of problem 0", "text")),
        ("[" * 100000, ("nested too deeply",)),
    ],
)
def test_a_wrong_file_of_problems_says_where(content, words, command, tmp_path):
    code, _, err = command("warmup", *SMALL, "--problems", write(tmp_path / "p.json", content), "--dry-run")
    assert code == 2 and all(word in err for word in words), err


def test_a_model_config_is_enough(command, tmp_path):
    path = write(tmp_path / "config.json", DEEPSEEK_V3)
    arguments = ("warmup", "--device", "h200", "--model-config", path, "--dry-run", "--max-tokens", 8192)
    code, out, _ = command(*arguments, "--ep", 8)
    assert code == 1 and len(listed(out)) <= 150
    for part in ("n=2112 k=7168", "n=36864 k=7168", "n=4096 k=7168 d=bfloat16 scales=block128 m_grouped"):
        assert any(line.startswith(part) for line in listed(out)), part
    _, out, _ = command(*arguments, "--tp", 8, "--d-dtype", "float16")
    assert any(line.startswith("n=512 k=7168 d=float16") for line in listed(out))
    code, _, err = command(*arguments, "--tp", 3)
    assert code == 2 and "3 ranks" in err
    other = write(tmp_path / "other.json", GPT_OSS_120B)
    assert command("warmup", *SMALL, "--model-config", other, "--dry-run")[0] == 1


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ([], ("config is []",)),
        ("5", ("config is 5",)),
        ("null", ("config is None",)),
        ('"x"', ("config is 'x'",)),
        ({"text_config": 5}, ("text_config is 5",)),
        ({"model_type": ["qwen3_moe"]}, ("model_type is ['qwen3_moe']", "qwen3_moe")),
        ("[" * 100000, ("nested too deeply",)),
    ],
)
def test_a_model_config_that_is_none_is_a_wrong_use(content, words, command, tmp_path):
    path = write(tmp_path / "config.json", content)
    code, out, err = command("warmup", *SMALL, "--model-config", path, "--dry-run")
    assert code == 2 and out == "" and all(word in err for word in words), err


def test_groups_are_part_of_a_shape_or_any(command):
    _, out, _ = command("warmup", *SMALL, "--shape", "4096x7168x32", "--dry-run")
    problem = dg.GemmProblem(n=4096, k=7168, layout="m_grouped", groups=32)
    assert listed(out) == {str(plan) for plan in dg.all_plans(problem, "h200")}
    _, out, _ = command("warmup", *SMALL, "--shape", "4096x7168", "--layout", "m_grouped", "--dry-run")
    assert {str(plan) for plan in dg.all_plans(problem, "h200")} <= listed(out)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def step(done: int, origin: str = "compiled") -> dg.WarmupStep:
    return dg.WarmupStep(dg.all_plans(dg.GemmProblem(n=64, k=128), "h200")[0], origin, 12.0, done, 4)


def test_a_terminal_gets_a_bar_that_goes_away(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    with Progress(stream) as progress:
        progress(step(1))
        progress(step(2, "disk"))
        assert progress.bar(step(2), 10.0).endswith("2/4 kernels, 1 compiled, about 10 s left")
    bars = stream.getvalue().split("\r\x1b[K")
    assert bars[1].startswith("[#######...") and "1/4 kernels, 1 compiled" in bars[1]
    assert "2/4 kernels, 1 compiled" in bars[2] and bars[3] == "" and "\n" not in stream.getvalue()


@pytest.mark.parametrize("columns", [0, 20, 60, 200])
def test_the_bar_never_fills_a_line_of_the_terminal(columns, monkeypatch):
    """A line that wraps would stay: only the last one of it is cleared."""
    monkeypatch.setenv("TERM", "xterm")
    main_end, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    with os.fdopen(terminal, "w") as stream, Progress(stream) as progress:
        progress(step(4))
        start, bar = os.read(main_end, 4096).decode().split("\r\x1b[K")
    os.close(main_end)
    assert start == "" and 0 < len(bar) < (columns or 80), bar
    assert columns < 100 or bar.endswith("about 0 s left")


@pytest.mark.parametrize("kind", ["dumb", None])
def test_a_dumb_terminal_gets_lines(kind, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    if kind is None:
        monkeypatch.delenv("TERM")
    stream = Terminal()
    with Progress(stream) as progress:
        progress(step(1))
        progress(step(2, "disk"))
    assert stream.getvalue().startswith("1/4 ") and stream.getvalue().count("\n") == 1


def test_bench_without_a_driver_fails_with_a_message(command):
    if _core.driver_version() != 0:
        pytest.skip("this machine has a driver")
    code, _, err = command("bench", 8, 64, 128)
    assert code == 1 and "no CUDA driver" in err
