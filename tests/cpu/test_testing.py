"""deep_gemm_jit.testing: timing and comparing, with DeepGEMM's names and meanings."""

import json
import logging
import os
import time

import pytest
import torch

import deep_gemm_jit as dg
from deep_gemm_jit import testing


def test_calc_diff_is_zero_for_equal_tensors_and_grows_with_the_error():
    x = torch.randn(64, 64)
    assert testing.calc_diff(x, x).item() == pytest.approx(0, abs=1e-15)
    assert testing.calc_diff(x, -x).item() == pytest.approx(2)
    assert testing.calc_diff(x, torch.zeros(64, 64)).item() == pytest.approx(1)
    noisy = x + 1e-2 * torch.randn(64, 64)
    assert testing.calc_diff(x, noisy).item() == pytest.approx(0.5e-4, rel=0.1)
    assert testing.calc_diff(torch.zeros(3), torch.zeros(3)).item() == 0
    assert testing.calc_diff(x, torch.full_like(x, float("nan"))).isnan()


def test_count_bytes_enters_nested_tensors():
    a, b = torch.empty(3, 5, dtype=torch.bfloat16), torch.empty(7, dtype=torch.uint8)
    assert testing.count_bytes(a, (b, [a, None]), None) == 30 + 7 + 30
    assert testing.count_bytes() == 0


def test_assert_bitwise_equal_sees_bits_not_values():
    x = torch.tensor([0.0, float("nan"), 1.0])
    testing.assert_bitwise_equal(x, x.clone())
    with pytest.raises(AssertionError, match="gemm: 1 of 3 elements .* index 0"):
        testing.assert_bitwise_equal(x, torch.tensor([-0.0, float("nan"), 1.0]), "gemm")
    with pytest.raises(AssertionError, match="shapes"):
        testing.assert_bitwise_equal(x, x[:2])
    with pytest.raises(AssertionError, match="dtypes"):
        testing.assert_bitwise_equal(x, x.double())
    testing.assert_bitwise_equal(torch.ones(8, 6).t()[1:], torch.ones(5, 8))
    testing.assert_bitwise_equal(torch.empty(0, 4), torch.empty(0, 4))
    testing.assert_bitwise_equal(torch._neg_view(x), -x)
    z = torch.tensor([1 + 2j])
    testing.assert_bitwise_equal(z.conj(), torch.tensor([1 - 2j]))


def test_bench_gives_the_mean_of_one_call():
    if torch.cuda.is_available():
        pytest.skip("measures the host")
    seconds = testing.bench(lambda: time.sleep(0.01), num_warmups=1, num_tests=3)
    assert 0.01 <= seconds < 0.05
    with pytest.raises(ValueError, match="num_tests is 0"):
        testing.bench(lambda: None, num_tests=0)
    with pytest.raises(ValueError, match="num_tests is -1"):
        testing.bench_kineto(lambda: None, "kernel", num_tests=-1)


def test_bench_kineto_gives_the_time_of_each_name(tmp_path, capsys):
    if torch.cuda.is_available():
        pytest.skip("the names are those of operators on the CPU")
    a = dg.per_token_cast_to_fp8(torch.ones(64, 512))
    b = dg.per_block_cast_to_fp8(torch.ones(64, 512))
    d, calls = torch.empty(64, 64), []

    def run():
        torch.ops.deep_gemm_jit.fp8_gemm_nt(*a, *b, d)
        torch.add(d, 1)
        print("noise")

    trace = tmp_path / "trace.json"
    times = testing.bench_kineto(
        run,
        ("deep_gemm_jit::fp8_gemm_nt", "aten::add", "no such kernel"),
        num_tests=4,
        suppress_kineto_output=True,
        trace_path=str(trace),
        barrier=lambda: calls.append(1),
    )
    assert len(times) == 3 and times[0] > 0 and times[1] > 0 and times[2] == 0
    assert len(calls) == 4 and json.loads(trace.read_text())["traceEvents"]
    assert capsys.readouterr().out == "noise\n"  # of the call outside the profile
    single = testing.bench_kineto(run, "deep_gemm_jit::fp8_gemm_nt", num_tests=2)
    assert isinstance(single, float) and single > 0
    with pytest.raises(ValueError, match="with_multiple_kernels"):
        testing.bench_kineto(run, "e", num_tests=1)
    both = testing.bench_kineto(run, "::", num_tests=2, with_multiple_kernels=True)
    assert both > 0


def test_test_filter_runs_the_function_where_the_condition_holds(caplog):
    calls = []

    @testing.test_filter(lambda: False)
    def left_out():
        calls.append("left out")

    @testing.test_filter(lambda: True)
    def kept(value):
        calls.append(value)
        return value + 1

    with caplog.at_level(logging.INFO, "deep_gemm_jit"):
        assert left_out() is None
    assert kept(1) == 2 and calls == [1] and "left_out is filtered out" in caplog.text


def test_ignore_env_hides_a_variable_and_puts_it_back(monkeypatch):
    monkeypatch.setenv("SOME_SETTING", "7")

    def read():
        if os.environ.get("SOME_SETTING") is None:
            raise KeyError("hidden")

    hidden = testing.ignore_env("SOME_SETTING", lambda: True)(read)
    with pytest.raises(KeyError):
        hidden()
    assert os.environ["SOME_SETTING"] == "7"
    testing.ignore_env("SOME_SETTING", lambda: False)(read)()


def test_get_arch_major_is_the_device_s():
    if torch.cuda.is_available():
        assert testing.get_arch_major() == torch.cuda.get_device_properties().major
    else:
        with pytest.raises(RuntimeError, match="get_arch_major"):
            testing.get_arch_major()
