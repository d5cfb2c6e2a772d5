"""After a warm-up with load=True no call compiles, whatever M is; tuning on this GPU; bench and verify."""

import statistics
import time

import pytest
import torch

import deep_gemm_jit as dg
from deep_gemm_jit import _core
from deep_gemm_jit.__main__ import main

N, K, GROUPS, MOST_ROWS = 1024, 1536, 4, 2048


@pytest.fixture(autouse=True)
def own_cache_and_table(tmp_path, monkeypatch):
    monkeypatch.setenv("DGJ_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("DGJ_TUNING", str(tmp_path / "tuning.json"))
    _core.forget_memory_cache()
    _core.forget_tuning()
    yield
    monkeypatch.undo()
    _core.forget_memory_cache()
    _core.forget_tuning()


def weights(*shape: int):
    w = torch.randn(*shape, device="cuda", dtype=torch.bfloat16)
    if len(shape) == 2:
        return dg.per_block_cast_to_fp8(w)
    quantised = [dg.per_block_cast_to_fp8(part) for part in w]
    return torch.stack([q for q, _ in quantised]), torch.stack([sf for _, sf in quantised])


def test_calls_of_every_size_compile_nothing_after_a_warm_up():
    # Shapes that no other test uses: kernels that are loaded already would prove nothing.
    n, k = N + 64, K + 128
    problems = [
        dg.GemmProblem(n=n, k=k),
        dg.GemmProblem(n=n, k=k, layout="m_grouped", groups=GROUPS),
    ]
    report = dg.warmup(problems, load=True)
    assert report.compiled > 0
    x = torch.randn(MOST_ROWS, k, device="cuda", dtype=torch.bfloat16)
    with dg.zero_jit():
        b, grouped_b = weights(n, k), weights(GROUPS, n, k)
        d = torch.empty(MOST_ROWS, n, device="cuda", dtype=torch.bfloat16)
        for m in [*range(1, 300), 512, 1000, MOST_ROWS]:
            a = dg.per_token_cast_to_fp8(x[:m])
            dg.fp8_gemm_nt(a, b, d[:m])
            ends = torch.linspace(0, m, GROUPS + 1, device="cuda").to(torch.int32)
            dg.m_grouped_fp8_gemm_nt_offsets(a, grouped_b, d[:m], ends)
    torch.cuda.synchronize()


def test_a_kernel_from_disk_is_read_verified_and_loaded_in_two_milliseconds():
    problem = dg.GemmProblem(n=N + 128, k=K + 256)  # of no other test
    plans = dg.all_plans(problem, _core.device_profile_name(0))
    for plan in plans:
        dg.compile(plan)
    _core.forget_memory_cache()
    with dg.zero_jit():
        dg.load(plans[0])  # opens the driver and the cache's folders
        took = []
        for plan in plans[1:]:
            started = time.perf_counter()
            dg.load(plan)
            took.append(1e3 * (time.perf_counter() - started))
    assert len(took) > 2 and statistics.median(took) < 2.0, took


def test_whatever_tuning_chooses_is_warm():
    problem = dg.GemmProblem(n=N, k=K)
    ms = [1, 8, 64, 200, 1024, MOST_ROWS]
    before = dg.all_plans(problem, _core.device_profile_name(0))
    rows = dg.tune(problem, ms)
    assert [row.m for row in rows] == ms and all(0 < row.us <= row.planned_us for row in rows)
    assert set(dg.all_plans(problem, _core.device_profile_name(0))) == set(before)
    dg.warmup(problem, load=True)
    b, d = weights(N, K), torch.empty(MOST_ROWS, N, device="cuda", dtype=torch.bfloat16)
    a, sfa = dg.per_token_cast_to_fp8(torch.randn(MOST_ROWS, K, device="cuda", dtype=torch.bfloat16))
    with dg.zero_jit():
        for m in [*range(1, 260), *ms]:
            dg.fp8_gemm_nt((a[:m], sfa[:m]), b, d[:m])
    torch.cuda.synchronize()


def test_bench_times_every_plan(capsys):
    assert main(["bench", "64", str(N), str(K), "--all"]) == 0
    lines = capsys.readouterr().out.splitlines()
    plans = dg.all_plans(dg.GemmProblem(n=N, k=K), _core.device_profile_name(0))
    assert len(lines) == 1 + len(plans) and all(" us " in line and "TFLOPS" in line for line in lines[1:])


def test_verify_finds_every_operation_right(capsys):
    code = main(["verify", "--device", "cuda:0"])
    assert code == 0, capsys.readouterr().out
