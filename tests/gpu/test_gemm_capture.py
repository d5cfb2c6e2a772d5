"""What happens when a kernel is missing while a CUDA graph is being captured. Each case is a fresh
process."""

import os
import subprocess
import sys

import pytest

PRELUDE = """
import sys, torch, deep_gemm_jit as dg
m, n, k = 24, 328, 1168
torch.manual_seed(0)
a = torch.randn(m, k, device="cuda").to(torch.float8_e4m3fn)
b = torch.randn(n, k, device="cuda").to(torch.float8_e4m3fn)
sfa = torch.rand(m, 10, device="cuda") + 0.5
sfb = torch.rand(3, 10, device="cuda") + 0.5
wide_a = a.float() * sfa.repeat_interleave(128, 1)[:, :k]
wide_b = b.float() * sfb.repeat_interleave(128, 0)[:n].repeat_interleave(128, 1)[:, :k]
want = wide_a.double() @ wide_b.double().t()
d = torch.full((m, n), float("nan"), dtype=torch.bfloat16, device="cuda")
call = lambda: dg.fp8_gemm_nt((a, sfa), (b, sfb), d)
def right():
    torch.cuda.synchronize()
    return bool(((d.double() - want).abs() <= 2**-7 * want.abs() + 1e-2 * want.std()).all())
def capture():
    torch.cuda.synchronize()
    graph, stream, error = torch.cuda.CUDAGraph(), torch.cuda.Stream(), None
    with torch.cuda.stream(stream):
        graph.capture_begin()
        try:
            call()
        except Exception as caught:
            error = caught
        graph.capture_end()   # raises if the call above spoiled the capture
    return graph, error
"""

MISSING = """
graph, error = capture()
assert isinstance(error, RuntimeError), repr(error)
assert "captur" in str(error), str(error)
call()
assert right(), "the context must work after the aborted capture"
graph, error = capture()
assert error is None, repr(error)
d.fill_(float("nan"))
graph.replay()
assert right()
"""

ON_DISK = """
graph, error = capture()
assert error is None, repr(error)
assert dg._core.compile_count() == 0
d.fill_(float("nan"))
graph.replay()
assert right()
"""


def run(body: str, cache: str) -> None:
    environment = dict(os.environ, DGJ_CACHE_DIR=cache)
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + body],
        env=environment,
        cwd=cache,  # -c puts the current folder first on the path: it must not be a checkout
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_compile_during_capture_raises_and_leaves_the_capture_valid(tmp_path):
    run(MISSING, str(tmp_path))


def test_disk_hit_during_capture_loads(tmp_path):
    import deep_gemm_jit as dg

    if dg._core.driver_version() < 12030:
        pytest.skip("loading during a capture needs a driver of CUDA 12.3")
    run("call(); assert right()", str(tmp_path))
    run(ON_DISK, str(tmp_path))
