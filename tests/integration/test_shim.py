"""The distribution deep-gemm-jit-shim: what it installs, when it refuses, and the contract of its callers."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
NAME = "deep-gemm-jit-shim"


def run(code: str, path: Path, tmp_path: Path, **variables: str) -> subprocess.CompletedProcess:
    keep = {name: value for name, value in os.environ.items() if not name.startswith(("DGJ_", "DG_", "XDG_"))}
    variables = {"PYTHONPATH": str(path), "HOME": str(tmp_path / "home")} | variables
    return subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, env=keep | variables, cwd=tmp_path
    )


def checked(*args, **kwargs) -> str:
    done = run(*args, **kwargs)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_contract_is_kept_and_what_lacks_is_listed_in_the_readme(shim, tmp_path):
    script = (HERE / "shim_contract.py").read_text()
    written = checked(script, shim, tmp_path)
    wrong = [line for line in written.splitlines() if " optional " not in line]
    assert wrong == []
    missing = {line.split(":")[0].split()[-1] for line in written.splitlines()}
    section = (ROOT / "README.md").read_text().split("## Not built yet")[1].split("\n## ")[0]
    parameters = {"enable_overlap", "max_block_n", "signal"}
    assert missing == set(re.findall(r"`(\w+)`", section)) - parameters


def test_T8_import_makes_no_context_and_no_file_and_needs_no_home(shim, tmp_path):
    code = """
import os, sys
import deep_gemm, deep_gemm.utils, deep_gemm.utils.layout, deep_gemm.utils.math, deep_gemm.testing
assert deep_gemm.__spec__ is not None and deep_gemm.__version__
deep_gemm.get_mk_alignment_for_contiguous_layout(), deep_gemm.set_compile_mode(0), deep_gemm.fp8_gemm_nt
assert not hasattr(deep_gemm, "mega_mhc")
assert "torch" not in sys.modules
maps = open("/proc/self/maps").read()
assert not [name for name in ("libcuda.so", "libnvrtc", "libcudart") if name in maps]
import torch
from deep_gemm.utils.layout import get_mn_major_tma_aligned_tensor
a = deep_gemm.per_token_cast_to_fp8(torch.ones(3, 128))
b = deep_gemm.per_block_cast_to_fp8(torch.ones(8, 128))
child = os.fork()                                  # as frameworks start their workers
d = torch.empty(3, 8)
deep_gemm.fp8_gemm_nt(a, b, d)
import deep_gemm_jit as dg
plan = dg.plan(dg.GemmProblem(n=64, k=128), 8, "h200")
assert torch.allclose(d, torch.full((3, 8), 128.0), rtol=1e-3) and not torch.cuda.is_initialized()
if child == 0:
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""
    (tmp_path / "home").mkdir(mode=0o555)
    checked(code, shim, tmp_path, PYTHONDONTWRITEBYTECODE="1")
    assert list((tmp_path / "home").iterdir()) == []
    assert [path.name for path in tmp_path.iterdir()] == ["home"]


def test_a_test_file_written_for_deep_gemm_runs(shim, tmp_path):
    code = """
import torch
import deep_gemm
from deep_gemm.testing import bench_kineto, calc_diff, count_bytes, get_arch_major, ignore_env, test_filter
from deep_gemm.utils import align, ceil_div, per_block_cast_to_fp8, per_token_cast_to_fp8
from deep_gemm.utils.math import *

@test_filter(lambda: True)
def test_gemm():
    x, w = torch.randn(33, 256, dtype=torch.bfloat16), torch.randn(192, 256, dtype=torch.bfloat16)
    a, b = per_token_cast_to_fp8(x, use_ue8m0=False), per_block_cast_to_fp8(w, use_ue8m0=False)
    d = torch.empty(33, 192, dtype=torch.bfloat16)
    deep_gemm.fp8_gemm_nt(a, b, d, disable_ue8m0_cast=True)
    diff = calc_diff(d, x.float() @ w.float().T)
    assert diff < 0.001, f"{diff:.5f}"
    print(f"{count_bytes(a, b, d)} bytes, {diff:.5f}, {align(5, 4)} {ceil_div(5, 4)}")
test_gemm()
"""
    assert "bytes" in checked(code, shim, tmp_path)


def add_distribution(folder: Path, name: str, *files: str) -> None:
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "RECORD").write_text("".join(f"{file},,\n" for file in files))


@pytest.mark.parametrize("name", ["sgl_deep_gemm", "deep_gemm"])
def test_import_is_refused_where_another_distribution_has_files_there(shim, tmp_path, name):
    site = tmp_path / "site"
    shutil.copytree(shim, site)
    add_distribution(site, "unrelated", "deep_gemm_extras/__init__.py", "unrelated/deep_gemm/x.py")
    checked("import deep_gemm; deep_gemm.fp8_gemm_nt", site, tmp_path)
    add_distribution(site, name, "deep_gemm/__init__.py", "deep_gemm/_C.so")
    done = run("import deep_gemm", site, tmp_path)
    assert done.returncode == 1 and "ImportError" in done.stderr
    other = name.replace("_", "-")
    assert f"Remedy: pip uninstall {NAME} {other}" in done.stderr and "DGJ_BACKEND=1" in done.stderr


@pytest.mark.parametrize("first", ["import deep_gemm", "dg.install_as_deep_gemm()"])
def test_another_distribution_installed_over_the_shim_is_displaced_like_any(shim, tmp_path, first):
    site = tmp_path / "site"
    shutil.copytree(shim, site)
    theirs = "".join(f"def {name}(): return 'theirs'\n" for name in ("fp8_gemm_nt", "fp8_einsum"))
    (site / "deep_gemm/__init__.py").write_text(theirs)
    code = f"""
import deep_gemm_jit as dg
{first}
module = dg.install_as_deep_gemm()
import deep_gemm
assert module is deep_gemm and deep_gemm.fp8_gemm_nt is dg.fp8_gemm_nt
assert deep_gemm.fp8_einsum() == "theirs"
dg.uninstall_as_deep_gemm()
import deep_gemm
assert deep_gemm.fp8_gemm_nt() == "theirs"
"""
    checked(code, site, tmp_path)


def test_the_shim_gives_way_to_nobody_and_takes_what_it_lacks_from_vllm(shim, tmp_path):
    vendored = tmp_path / "path/vllm/third_party/deep_gemm"
    vendored.mkdir(parents=True)
    for folder in (vendored, vendored.parent, vendored.parents[1]):
        (folder / "__init__.py").write_text("")
    (vendored / "__init__.py").write_text("def mega_mhc(): return 'vendored'\ndef set_num_sms(n): print(n)\n")
    code = """
import deep_gemm_jit as dg
import vllm, deep_gemm
assert dg.install_as_deep_gemm() is deep_gemm      # ours already: nothing to do
deep_gemm.set_num_sms(24)
assert deep_gemm.mega_mhc() == "vendored" and deep_gemm.fp8_gemm_nt is dg.fp8_gemm_nt
assert not hasattr(deep_gemm, "fp8_einsum")
"""
    path = os.pathsep.join([str(shim), str(tmp_path / "path")])
    assert checked(code, path, tmp_path).split() == ["24"]


def test_the_shim_has_our_version_and_needs_us(shim):
    ours = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    its = tomllib.loads((ROOT / "python/deep_gemm/pyproject.toml").read_text())["project"]
    assert its["name"] == NAME and its["version"] == ours["version"]
    assert its["dependencies"] == [f"deep_gemm_jit>={ours['version']}"]
    files = {path.relative_to(shim).as_posix() for path in shim.glob("deep_gemm/**/*") if path.is_file()}
    files = {file for file in files if not file.endswith(".pyc")}
    parts = ("__init__", "testing", "utils/__init__", "utils/layout", "utils/math")
    assert files == {f"deep_gemm/{part}.py" for part in parts}
