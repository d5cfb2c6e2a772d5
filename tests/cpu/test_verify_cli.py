"""python -m deep_gemm_jit verify: right on a right installation, and able to find a wrong one."""

import json
import os
import subprocess
import sys

import pytest

# What a broken installation would do, put in place of an operation before the command runs.
GEMM_BREAKAGES = {
    "one element off": "real(a, b, d, *args, **kw); d[-1, -1] += 1 + abs(d[-1, -1])",
    "nan": "real(a, b, d, *args, **kw); d[0, 0] = float('nan')",
    "d untouched": "None",
    "row before d written": "real(a, b, d, *args, **kw); d._base[0, 0] = 0",
    "row after d written": "real(a, b, d, *args, **kw); d._base[-1, -1] = 0",
    "no bias": "kw.pop('bias', None); real(a, b, d, *args, **kw)",
    "alpha ignored": "kw.pop('alpha', None); real(a, b, d, *args, **kw)",
    "other bits each time": "real(a, b, d, *args, **kw); d[0, 0] *= 1 + next(counter) * 2.0**-7",
}
CAST_BREAKAGE = "q, sf = real_cast(x); sf[-1, -1] *= 1.2; return q, sf"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("verify")


def run(folder, code):
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=folder,
        env={"DGJ_CACHE_DIR": str(folder / "cache"), "HOME": str(folder), "PATH": os.environ["PATH"]},
    )


def test_the_cpu_is_right(folder):
    code = """
import runpy, sys
sys.argv = ["deep_gemm_jit", "verify", "--device", "cpu", "--json"]
runpy.run_module("deep_gemm_jit", run_name="__main__")
"""
    done = run(folder, code)
    assert done.returncode == 0, (done.stdout, done.stderr)
    values = json.loads(done.stdout)
    assert values["ok"] and values["device"] == "cpu" and len(values["checks"]) > 20
    assert all(0 <= check["worst"] <= 1 and check["ok"] for check in values["checks"])
    assert max(check["worst"] for check in values["checks"]) > 0.3, "the bounds are not loose"
    assert "fp8_gemm_nt 1x576x7168 bfloat16" in {check["name"] for check in values["checks"]}


def test_a_wrong_installation_is_found_and_a_wrong_device_named(folder):
    """In one process: torch takes seconds to import."""
    breakages = "".join(
        f"""
def wrong(a, b, d, *args, **kw):
    {line}
code[{name!r}] = broken("fp8_gemm_nt", wrong)
"""
        for name, line in GEMM_BREAKAGES.items()
    )
    code = f"""
import io, itertools, json, sys
import torch
import deep_gemm_jit as dg
from deep_gemm_jit.__main__ import main
from deep_gemm_jit.cli import verify
verify._SHAPES = verify._SHAPES[1:2]
counter, code, out = itertools.count(), {{}}, sys.stdout
real, real_cast = dg.fp8_gemm_nt, dg.per_token_cast_to_fp8
def broken(name, wrong):
    before, sys.stdout = getattr(dg, name), io.StringIO()
    setattr(dg, name, wrong)
    result = main(["verify", "--device", "cpu"])
    setattr(dg, name, before)
    return [result, "WRONG" in sys.stdout.getvalue()]
{breakages}
def wrong_cast(x):
    {CAST_BREAKAGE}
code["cast"] = broken("per_token_cast_to_fp8", wrong_cast)
code["none"] = broken("fp8_gemm_nt", real)
for device in ("meta", "gpu!", "cuda:999"):
    code[device] = [main(["verify", "--device", device]), False]
print(json.dumps(code), file=out)
"""
    done = run(folder, code)
    assert done.returncode == 0, done.stderr
    codes = json.loads(done.stdout)
    assert {name: codes.pop(name) for name in [*GEMM_BREAKAGES, "cast"]} == {
        name: [1, True] for name in [*GEMM_BREAKAGES, "cast"]
    }
    assert codes == {"none": [0, False], "meta": [2, False], "gpu!": [2, False], "cuda:999": [2, False]}
    for device in ("meta", "gpu!", "cuda:999"):
        assert f"'{device}'" in done.stderr
