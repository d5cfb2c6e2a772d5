"""python -m deep_gemm_jit verify: right on a right installation, and able to find a wrong one."""

import json
import os
import subprocess
import sys

import pytest

import deep_gemm_jit as dg
from deep_gemm_jit import _core
from deep_gemm_jit.cli import verify

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
# The same for each M-grouped function; `kw` may hold ensure_zero_padding.
GROUPED_BREAKAGES = {
    "one element off": "real(a, b, d, *args, **kw); d.view(-1, d.shape[-1])[SPOT, -1] *= 1.1",
    "nan": "real(a, b, d, *args, **kw); d.view(-1, d.shape[-1])[SPOT, 0] = float('nan')",
    "d untouched": "None",
    "row before d written": "real(a, b, d, *args, **kw); d._base[0] = 0",
    "row after d written": "real(a, b, d, *args, **kw); d._base[-1] = 0",
    "row of no group written": "real(a, b, d, *args, **kw); d.view(-1, d.shape[-1])[-1, 3] = 5",
    "weights of the group before": "real(a, tuple(turned(t) for t in b), d, *args, **kw)",
    "other bits each time":
        "real(a, b, d, *args, **kw); d.view(-1, d.shape[-1])[SPOT, 0] *= 1 + next(counter) * 2.0**-7",
}  # fmt: skip
# A row of the first group, whatever the form.
SPOT = 2
ZERO_BREAKAGE = {"zeros left out": "kw.pop('ensure_zero_padding', None); real(a, b, d, *args, **kw)"}
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


@pytest.mark.parametrize("device", [row["name"] for row in _core.device_profiles()])
def test_kernels_for_many_rows_are_among_those_that_are_verified(device):
    for extras in (False, True):
        taken = {
            dg.plan(dg.GemmProblem(n=n, k=k, d_dtype=dtype, extras=extras), m, device).family
            for m, n, k in verify._SHAPES
            for dtype in ("bfloat16", "float16", "float32")
        }
        assert taken == {"gemm", "gemm_swap_ab"}


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
    names = {check["name"] for check in values["checks"]}
    assert "fp8_gemm_nt 1x576x7168 bfloat16" in names
    assert "fp8_gemm_nt 520x2056x528 float16 alpha bias c" in names
    for form in (
        "contiguous ids, alignment 128", "contiguous ids, alignment 16 zero padding",
        "contiguous psum ends, alignment 16", "contiguous psum ends, alignment 128 zero padding",
        "offsets", "masked",
    ):  # fmt: skip
        for dtype in ("bfloat16", "float16", "float32"):
            assert f"m_grouped_fp8_gemm_nt_{form} 264x400 {dtype}" in names


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
verify._SHAPES, verify.grouped_gemms = verify._SHAPES[1:2], lambda *_: []  # these have a test of their own
counter, code, out = itertools.count(), {{}}, sys.stdout
real, real_cast = dg.fp8_gemm_nt, dg.per_token_cast_to_fp8
def broken(name, wrong, *options):
    before, sys.stdout = getattr(dg, name), io.StringIO()
    setattr(dg, name, wrong)
    result = main(["verify", "--device", "cpu", *options])
    setattr(dg, name, before)
    return [result, "WRONG" in sys.stdout.getvalue()]
{breakages}
def wrong(a, b, d, *args, **kw):
    {GEMM_BREAKAGES["nan"]}
broken("fp8_gemm_nt", wrong, "--json")
text = sys.stdout.getvalue()
assert "Infinity" not in text and "NaN" not in text
assert None in [check["worst"] for check in json.loads(text)["checks"]]
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


def test_wrong_grouped_operations_are_found(folder):
    parts = []
    for function in ("contiguous", "offsets", "masked"):
        breakages = GROUPED_BREAKAGES | (ZERO_BREAKAGE if function == "contiguous" else {})
        parts += [
            f"""
real = dg.m_grouped_fp8_gemm_nt_{function}
def wrong(a, b, d, *args, **kw):
    {line.replace("SPOT", str(SPOT))}
code[{function!r} + " " + {name!r}] = broken("m_grouped_fp8_gemm_nt_{function}", wrong)
"""
            for name, line in breakages.items()
        ]
    code = f"""
import io, itertools, json, sys
import torch
import deep_gemm_jit as dg
from deep_gemm_jit.cli import verify_grouped
verify_grouped.UNITS = {{"bfloat16": 2.0**-8}}
verify_grouped._COUNTS, verify_grouped._N, verify_grouped._K = (4, 0, 5), 24, 144
forms = verify_grouped._forms
counter, code = itertools.count(), {{}}
def turned(t):
    return t.view(torch.uint8).roll(1, 0).view(t.dtype) if t.element_size() == 1 else t.roll(1, 0)
def broken(name, wrong):
    before = getattr(dg, name)
    verify_grouped._forms = lambda *args: [form for form in forms(*args) if name in form.name]
    setattr(dg, name, wrong)
    checks = verify_grouped.grouped_gemms(torch, torch.device("cpu"))
    setattr(dg, name, before)
    return sum(not check.ok for check in checks) / len(checks)
{"".join(parts)}
assert dg.get_mk_alignment_for_contiguous_layout() == 128
print(json.dumps(code))
"""
    done = run(folder, code)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found.pop("contiguous zeros left out") == 0.5  # half of its checks ask for zeros
    functions = ("contiguous", "offsets", "masked")
    assert found == {f"{function} {name}": 1.0 for function in functions for name in GROUPED_BREAKAGES}
