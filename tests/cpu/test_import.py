"""What importing the package does not do, and what still works in a forked child."""

import json
import os
import subprocess
import sys

import pytest

PREAMBLE = "import sys, os\n"


def run(code: str, tmp_path, **variables: str) -> str:
    """Run code in a fresh Python with an empty HOME and no cache configured; returns what it wrote."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("DGJ_", "DG_", "XDG_"))
    }
    environment |= {"HOME": str(tmp_path / "home")} | variables
    done = subprocess.run(
        [sys.executable, "-c", PREAMBLE + code], capture_output=True, text=True, env=environment, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_makes_no_file_and_loads_no_library(tmp_path):
    (tmp_path / "home").mkdir()
    code = """
import deep_gemm_jit
maps = open("/proc/self/maps").read()
loaded = [name for name in ("libcuda.so", "libnvrtc", "libtorch", "libcudart") if name in maps]
assert not loaded, loaded
assert "torch" not in sys.modules and "numpy" not in sys.modules
"""
    run(code, tmp_path, PYTHONDONTWRITEBYTECODE="1")
    assert list((tmp_path / "home").rglob("*")) == []
    assert [path.name for path in tmp_path.iterdir()] == ["home"]


def test_import_reads_no_environment_variable_of_ours(tmp_path):
    # Set after the import, the folder is used all the same: nothing was read before first use.
    code = """
import deep_gemm_jit as dg
os.environ["DGJ_CACHE_DIR"] = os.path.join(os.getcwd(), "late")
plan = dg.plan(dg.GemmProblem(n=64, k=128), 8, "h200")
assert dg.compile(plan).origin == "compiled"
assert dg._core.cache_root().startswith(os.environ["DGJ_CACHE_DIR"]), dg._core.cache_root()
assert "torch" not in sys.modules
"""
    run(code, tmp_path)
    assert any(path.is_file() for path in (tmp_path / "late").rglob("*"))


@pytest.mark.parametrize("command", [["env", "--json"], ["env"], ["explain", "8", "576", "512"]])
def test_the_command_line_leaves_torch_alone(command, tmp_path):
    code = f"""
import runpy
sys.argv = ["deep_gemm_jit", *{command!r}]
try:
    runpy.run_module("deep_gemm_jit", run_name="__main__")
except SystemExit as stop:
    assert stop.code == 0, stop.code
assert "torch" not in sys.modules
"""
    written = run(code, tmp_path)
    if "--json" in command:
        values = json.loads(written)
        assert values["nvrtc"]["major"] >= 12 and values["torch"]
        assert "DGJ_CACHE_DIR" in {row["name"] for row in values["variables"]}
    else:
        assert ("nvrtc" in written) or ("all plans of this problem" in written)


def test_a_wrong_shape_on_the_command_line_is_a_short_message():
    done = subprocess.run(
        [sys.executable, "-m", "deep_gemm_jit", "explain", "8", "577", "512"], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "577" in done.stderr and "multiple of 8" in done.stderr and "Traceback" not in done.stderr


def test_operators_are_registered_at_once_when_torch_is_there(tmp_path):
    run("import torch, deep_gemm_jit; torch.ops.deep_gemm_jit.fp8_gemm_nt.default", tmp_path)


def test_operators_are_registered_at_first_use_when_torch_comes_later(tmp_path):
    code = """
import deep_gemm_jit as dg
import torch
assert not dg._core.torch_attached()
a = dg.per_token_cast_to_fp8(torch.ones(2, 128))
b = dg.per_block_cast_to_fp8(torch.ones(8, 128))
d = torch.empty(2, 8)
dg.fp8_gemm_nt(a, b, d)
assert dg._core.torch_attached()
torch.ops.deep_gemm_jit.fp8_gemm_nt.default
assert torch.allclose(d, torch.full((2, 8), 128.0), rtol=1e-3), d
"""
    run(code, tmp_path)


@pytest.mark.parametrize(
    "first", ["import deep_gemm_jit as dg\nimport torch", "import torch\nimport deep_gemm_jit as dg"]
)
def test_torch_compile_sees_the_operators_before_any_call_whichever_import_is_first(first, tmp_path):
    code = f"""
{first}
def step(x, b, d, grouped):
    a = dg.per_token_cast_to_fp8(x)
    dg.fp8_gemm_nt(a, b, d)
    q, sf = dg.per_block_cast_to_fp8(x)
    dg.m_grouped_fp8_gemm_nt_contiguous(a, (b[0][None], b[1][None]), grouped, ids)
    return d + 1, q
ids = torch.zeros(128, dtype=torch.int32)
b = torch.ones(8, 128).to(torch.float8_e4m3fn), torch.ones(1, 1)
d, grouped = torch.empty(128, 8), torch.empty(128, 8, dtype=torch.bfloat16)
torch.compile(step, fullgraph=True, backend="eager")(torch.ones(128, 128), b, d, grouped)
assert torch.allclose(d, torch.full((128, 8), 128.0), rtol=1e-3), d
assert torch.allclose(grouped.float(), d, rtol=1e-2), grouped
"""
    run(code, tmp_path)


def test_a_forked_child_plans_compiles_and_runs(tmp_path):
    code = """
import torch
import deep_gemm_jit as dg
torch.manual_seed(0)
a = dg.per_token_cast_to_fp8(torch.randn(70, 512))
b = dg.per_block_cast_to_fp8(torch.randn(264, 512))
before = torch.empty(70, 264)
dg.fp8_gemm_nt(a, b, before)            # our threads exist from here on
dg.compile(dg.plan(dg.GemmProblem(n=264, k=512), 64, "h200"))
assert not torch.cuda.is_initialized()
child = os.fork()
if child == 0:
    status = 1
    try:
        after = torch.full((70, 264), float("nan"))
        dg.fp8_gemm_nt(a, b, after)
        kernel = dg.compile(dg.plan(dg.GemmProblem(n=272, k=512), 64, "h200"))
        status = 0 if torch.equal(before, after) and kernel.origin == "compiled" else 2
    finally:
        os._exit(status)
import time
deadline = time.monotonic() + 60
while time.monotonic() < deadline:
    done, status = os.waitpid(child, os.WNOHANG)
    if done:
        break
    time.sleep(0.05)
else:
    os.kill(child, 9)
    raise SystemExit("the child hangs")
assert os.waitstatus_to_exitcode(status) == 0, status
"""
    run(code, tmp_path, DGJ_CACHE_DIR=str(tmp_path / "cache"))


def test_nothing_is_printed_and_warnings_reach_the_logger(tmp_path):
    code = """
import logging
import deep_gemm_jit as dg
dg._core.log(30, "100% nobody listens")  # no handler is set: must stay silent
lines = []
class Collect(logging.Handler):
    def emit(self, record):
        lines.append((record.levelno, record.name, record.getMessage()))
logging.getLogger("deep_gemm_jit").addHandler(Collect())
dg._core.log(30, "100% %s")
assert lines == [(30, "deep_gemm_jit", "100% %s")], lines
"""
    command = [sys.executable, "-c", PREAMBLE + code]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "" and done.stderr == ""


def test_threads_can_log_while_another_thread_compiles(tmp_path):
    # A compile gives the GIL back; a log handler needs it. Neither may wait for the other.
    code = """
import logging, threading
import deep_gemm_jit as dg
class Slow(logging.Handler):
    def emit(self, record):
        record.getMessage()
logger = logging.getLogger("deep_gemm_jit")
logger.setLevel(10)
logger.addHandler(Slow())
plans = dg.all_plans(dg.GemmProblem(n=64, k=256), "h200", 64)
threads = [threading.Thread(target=dg.compile, args=(plan,)) for plan in plans for _ in range(3)]
for thread in threads: thread.start()
for thread in threads: thread.join(120)
assert not any(thread.is_alive() for thread in threads)
assert dg._core.compile_count() == len(plans), (dg._core.compile_count(), len(plans))
"""
    run(code, tmp_path, DGJ_CACHE_DIR=str(tmp_path / "cache"))
