"""Wrong input: each kind has its own exception and message, by both paths, and leaves d untouched."""

import os
import re
import subprocess
import sys

import numpy
import pytest
import torch

import deep_gemm_jit as dg
from deep_gemm_jit import _core

M, N, K = 5, 24, 272
E4M3 = torch.float8_e4m3fn


def case() -> dict:
    generator = torch.Generator().manual_seed(0)
    a = dg.per_token_cast_to_fp8(torch.randn(M, K, generator=generator))
    b = dg.per_block_cast_to_fp8(torch.randn(N, K, generator=generator))
    return {"a": a, "b": b, "d": torch.full((M, N), 7.0, dtype=torch.bfloat16)}


def at_offset(t: torch.Tensor, elements: int) -> torch.Tensor:
    """A copy of t that starts `elements` past an aligned address, with the same strides."""
    room = torch.zeros(t.numel() + elements, dtype=torch.uint8 if t.dtype == E4M3 else t.dtype)
    moved = room[elements:].view(t.dtype).view(t.shape) if t.dtype == E4M3 else room[elements:].view(t.shape)
    moved.copy_(t)
    return moved


def with_pitch(t: torch.Tensor, pitch: int) -> torch.Tensor:
    return torch.zeros(t.shape[0], pitch, dtype=torch.uint8).view(E4M3)[:, : t.shape[1]]


def scales_of(t: torch.Tensor, **replaced) -> torch.Tensor:
    return torch.ones(replaced.get("shape", t.shape), dtype=replaced.get("dtype", t.dtype))


# name: (error, words of the message, what is changed in the case)
WRONG = {
    "bare tensor for a": (TypeError, ("a is a Tensor", "(values, scales)"), lambda c: {"a": c["a"][0]}),
    "one item": (ValueError, ("b has 1 items",), lambda c: {"b": [c["b"][0]]}),
    "three items": (ValueError, ("a has 3 items",), lambda c: {"a": (*c["a"], None)}),
    "None as scales": (TypeError, ("a[1] is a NoneType",), lambda c: {"a": (c["a"][0], None)}),
    "numpy values": (TypeError, ("b[1] is a", "Tensor"), lambda c: {"b": (c["b"][0], c["b"][1].numpy())}),
    "d is a list": (TypeError, ("d is a list",), lambda c: {"d": [1]}),
    "bf16 operand": (TypeError, ("a[0]", "bfloat16"), lambda c: {"a": (c["a"][0].bfloat16(), c["a"][1])}),
    "e5m2 operand": (
        NotImplementedError,
        ("b[0]", "float8_e5m2"),
        lambda c: {"b": (c["b"][0].view(torch.float8_e5m2), c["b"][1])},
    ),
    "fp4 bytes": (
        NotImplementedError,
        ("b[0]", "uint8"),
        lambda c: {"b": (c["b"][0].view(torch.uint8), c["b"][1])},
    ),
    "packed scales": (
        NotImplementedError,
        ("a[1]", "int32"),
        lambda c: {"a": (c["a"][0], scales_of(c["a"][1], shape=(M, 1), dtype=torch.int32))},
    ),
    "half scales": (TypeError, ("b[1]", "float16"), lambda c: {"b": (c["b"][0], c["b"][1].half())}),
    "double d": (TypeError, ("d has dtype float64",), lambda c: {"d": c["d"].double()}),
    "fp8 d": (TypeError, ("d has dtype float8_e4m3fn",), lambda c: {"d": c["d"].to(E4M3)}),
    "c of another dtype": (TypeError, ("c has dtype float32", "bfloat16"), lambda c: {"c": c["d"].float()}),
    "bias of another dtype": (TypeError, ("bias", "float16"), lambda c: {"bias": torch.zeros(N).half()}),
    "3-D a": (ValueError, ("a[0]", "3 dimensions"), lambda c: {"a": (c["a"][0][None], c["a"][1])}),
    "6-D d": (ValueError, ("d has 6 dimensions",), lambda c: {"d": c["d"][None, None, None, None]}),
    "2-D bias": (ValueError, ("bias", "2 dimensions"), lambda c: {"bias": torch.zeros(1, N)}),
    "other K": (ValueError, ("b[0]", "[24, 256]"), lambda c: {"b": (c["b"][0][:, :256], c["b"][1])}),
    "K % 16": (
        ValueError,
        ("K", "264", "multiple of 16"),
        lambda c: {"a": (c["a"][0][:, :264], c["a"][1]), "b": (c["b"][0][:, :264], c["b"][1])},
    ),
    "N % 8": (
        ValueError,
        ("N", "20", "multiple of 8"),
        lambda c: {"b": (c["b"][0][:20], c["b"][1]), "d": torch.zeros(M, 20).bfloat16()},
    ),
    "M past 31 bits": (
        ValueError,
        ("a[0] has 2147483648 rows", "at most 2147483647"),
        lambda c: {"a": (c["a"][0][:1].expand(2**31, K), c["a"][1][:1].expand(2**31, 3))},
    ),
    "d transposed": (ValueError, ("d has shape [24, 5]",), lambda c: {"d": torch.zeros(N, M).bfloat16()}),
    "c too small": (ValueError, ("c has shape [4, 24]",), lambda c: {"c": torch.zeros(4, N).bfloat16()}),
    "bias too long": (ValueError, ("bias has shape [25]", "[24]"), lambda c: {"bias": torch.zeros(N + 1)}),
    "scales of A, wrong rows": (ValueError, ("a[1]",), lambda c: {"a": (c["a"][0], torch.ones(M + 2, 3))}),
    "scales of B, wrong shape": (ValueError, ("b[1]",), lambda c: {"b": (c["b"][0], torch.ones(2, 7))}),
    "1x32 scales": (NotImplementedError, ("a[1]", "recipe"), lambda c: {"a": (c["a"][0], torch.ones(M, 9))}),
    "scales per row of B": (NotImplementedError, ("b[1]",), lambda c: {"b": (c["b"][0], torch.ones(N, 3))}),
    "tensor-wise scale": (NotImplementedError, ("a[1]",), lambda c: {"a": (c["a"][0], torch.ones(()))}),
    "A column-major": (
        ValueError,
        ("a[0]", "contiguous()"),
        lambda c: {"a": (torch.zeros(K, M, dtype=torch.uint8).view(E4M3).t(), c["a"][1])},
    ),
    "pitch of B": (ValueError, ("b[0]", "pitch"), lambda c: {"b": (with_pitch(c["b"][0], 280), c["b"][1])}),
    "A misaligned": (ValueError, ("a[0]", "16 bytes"), lambda c: {"a": (at_offset(c["a"][0], 1), c["a"][1])}),
    "d misaligned": (ValueError, ("d ", "16 bytes"), lambda c: {"d": at_offset(c["d"], 4)}),
    "rows of d overlap": (ValueError, ("d has", "overlap"), lambda c: {"d": c["d"][:1].expand(M, N)}),
    "scales of A, no unit stride": (
        ValueError,
        ("a[1]", "stride"),
        lambda c: {"a": (c["a"][0], torch.ones(2 * M, 6)[::2, ::2])},
    ),
    "bias strided": (ValueError, ("bias", "stride"), lambda c: {"bias": torch.zeros(2 * N)[::2]}),
    "c overlaps d": (
        ValueError,
        ("c ", "overlaps d"),
        lambda c: (lambda t: {"d": t[:M], "c": t[1 : M + 1]})(torch.zeros(M + 1, N).bfloat16()),
    ),
    "bias is a row of d": (ValueError, ("bias", "overlaps d"), lambda c: {"bias": c["d"][0]}),
    "a on meta": (TypeError, ("on cpu", "on meta"), lambda c: {"a": tuple(t.to("meta") for t in c["a"])}),
    "recipe": (NotImplementedError, ("(1, 1, 128)", "(1, 128, 128)"), lambda c: {"recipe": (1, 1, 128)}),
    "recipe_a": (NotImplementedError, ("recipe_a is (1, 32)", "(1, 128)"), lambda c: {"recipe_a": (1, 32)}),
    "recipe_b": (NotImplementedError, ("recipe_b is (1, 32)",), lambda c: {"recipe_b": (1, 32)}),
    "recipe length": (NotImplementedError, ("recipe is (1, 128)",), lambda c: {"recipe": (1, 128)}),
    "recipe past 64 bits": (NotImplementedError, ("recipe is (1,",), lambda c: {"recipe": (1, 128, 2**70)}),
    "recipe as text": (TypeError, ("recipe is a str",), lambda c: {"recipe": "fp8"}),
    "recipe of floats": (TypeError, ("recipe is (1.0,", "integers"), lambda c: {"recipe": (1.0, 128, 128)}),
    "epilogue": (NotImplementedError, ("epilogue is 'silu'",), lambda c: {"epilogue": "silu"}),
    "alpha tensor": (TypeError, ("alpha is a Tensor", "item()"), lambda c: {"alpha": torch.ones(())}),
    "alpha text": (TypeError, ("alpha is a str",), lambda c: {"alpha": "1"}),
    "alpha bool": (TypeError, ("alpha is a bool",), lambda c: {"alpha": True}),
    "alpha past float32": (ValueError, ("alpha is 1e+39", "float32"), lambda c: {"alpha": -1e39}),
    "alpha past any float": (ValueError, ("alpha is", "float32"), lambda c: {"alpha": 10**400}),
    "unknown keyword": (TypeError, ("unexpected keyword", "'gamma'"), lambda c: {"gamma": 1}),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_input(name):
    error, words, change = WRONG[name]
    arguments = case()
    arguments |= change(arguments)
    d = arguments["d"]
    before = d.float().clone() if isinstance(d, torch.Tensor) else None
    with pytest.raises(error) as caught:
        dg.fp8_gemm_nt(**arguments)
    message = str(caught.value)
    assert type(caught.value) is error
    assert all(word in message for word in words), message
    assert "fp8_gemm_nt" in message, message
    if before is not None:
        assert torch.equal(d.float(), before)


def test_every_message_is_its_own():
    messages = {}
    for name, (error, _, change) in WRONG.items():
        arguments = case()
        arguments |= change(arguments)
        with pytest.raises(error) as caught:
            dg.fp8_gemm_nt(**arguments)
        assert str(caught.value) not in messages.values(), (name, messages)
        messages[name] = str(caught.value)
    assert len(messages) > 40


@pytest.mark.parametrize(
    "name", [name for name, row in WRONG.items() if row[1][0].split("[")[0] in "abd"]
)
def test_the_operator_refuses_with_the_same_words(name):
    error, _, change = WRONG[name]
    arguments = case()
    arguments |= change(arguments)
    a, b, d = arguments["a"], arguments["b"], arguments["d"]
    operands = (*a, *b, d) if len(a) == len(b) == 2 else ()
    if len(operands) != 5 or not all(isinstance(t, torch.Tensor) for t in operands):
        pytest.skip("not expressible in the operator's schema")
    with pytest.raises(error) as by_operator:
        torch.ops.deep_gemm_jit.fp8_gemm_nt(*operands)
    with pytest.raises(error) as by_function:
        dg.fp8_gemm_nt(a, b, d)
    without_addresses = [
        " ".join(word for word in str(caught.value).split() if not word.startswith("0x"))
        for caught in (by_operator, by_function)
    ]
    assert without_addresses[0] == without_addresses[1]


@pytest.mark.parametrize("call", ["operator", "internal function"])
def test_the_operator_refuses_an_alpha_that_float32_does_not_hold(call):
    arguments = case()
    operands = *arguments["a"], *arguments["b"], arguments["d"], None, None, 1e39
    run = torch.ops.deep_gemm_jit.fp8_gemm_nt if call == "operator" else _core.run_fp8_gemm_nt
    with pytest.raises(ValueError, match="fp8_gemm_nt: alpha is 1e\\+39"):
        run(*operands)
    assert (arguments["d"] == 7).all()


@pytest.mark.parametrize("alpha", [float("inf"), -float("inf"), float("nan"), 3.4e38, 1e-300, 0])
def test_an_alpha_that_float32_holds_or_rounds_is_applied(alpha):
    arguments = case()
    dg.fp8_gemm_nt(**arguments, alpha=alpha)
    product = torch.empty(M, N)
    dg.fp8_gemm_nt(arguments["a"], arguments["b"], product)
    expected = (product * torch.tensor(alpha, dtype=torch.float32)).bfloat16()
    torch.testing.assert_close(arguments["d"], expected, rtol=0, atol=0, equal_nan=True)


def test_call_forms_that_python_refuses():
    c = case()
    with pytest.raises(TypeError, match="missing the required argument 'd'"):
        dg.fp8_gemm_nt(c["a"], c["b"])
    with pytest.raises(TypeError, match="at most 11 positional"):
        dg.fp8_gemm_nt(c["a"], c["b"], c["d"], None, None, None, None, "nk", False, None, None, None)
    with pytest.raises(TypeError, match="multiple values for argument 'b'"):
        dg.fp8_gemm_nt(c["a"], c["b"], c["d"], b=c["b"])


def test_sizes_of_one_are_not_held_against_their_strides():
    a = dg.per_token_cast_to_fp8(torch.randn(1, K))
    b = dg.per_block_cast_to_fp8(torch.randn(N, K))
    expected = torch.empty(1, N)
    dg.fp8_gemm_nt(a, b, expected)
    odd = torch.as_strided(a[0].view(torch.uint8).clone(), (1, K), (3, 1)).view(E4M3)
    scales = torch.as_strided(a[1].clone(), (1, 3), (77, 1))
    d = torch.as_strided(torch.empty(N), (1, N), (5, 1))
    dg.fp8_gemm_nt((odd, scales), b, d)
    assert torch.equal(d, expected)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"x": torch.zeros(4, 128, dtype=torch.float64)}, TypeError, ("x has dtype float64",)),
        ({"q": torch.zeros(4, 128)}, TypeError, ("q has dtype float32",)),
        ({"sf": torch.zeros(4, 1).half()}, TypeError, ("sf has dtype float16",)),
        ({"sf": torch.zeros(3, 1)}, ValueError, ("sf has shape [3, 1]", "[4, 1]")),
        ({"q": torch.zeros(4, 64).to(E4M3)}, ValueError, ("q has shape [4, 64]",)),
        ({"x": torch.zeros(4, 2, 64)}, ValueError, ("3",)),
        ({"x": torch.zeros(128, 4).t()}, ValueError, ("x has strides", "contiguous()")),
        ({"gran_k": 48}, NotImplementedError, ("1x48",)),
        ({"gran_rows": 2}, NotImplementedError, ("2x128",)),
        ({"sf": torch.zeros(4, 1, dtype=torch.int32)}, ValueError, ("use_ue8m0",)),
        ({"q": torch.zeros(1, 128).to(E4M3).expand(4, 128)}, ValueError, ("rows of q overlap",)),
    ],
)
def test_the_cast_refuses(change, error, words):
    arguments = {
        "x": torch.zeros(4, 128),
        "q": torch.zeros(4, 128).to(E4M3),
        "sf": torch.zeros(4, 1),
        "gran_rows": 1,
        "gran_k": 128,
        "use_ue8m0": False,
    }
    _core.run_cast_to_fp8(**arguments)
    with pytest.raises(error) as caught:
        _core.run_cast_to_fp8(**(arguments | change))
    assert all(word in str(caught.value) for word in words), caught.value


def python(code: str, **variables: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | variables
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_missing_nvrtc_is_a_compile_error_that_names_the_places(tmp_path):
    code = """
import deep_gemm_jit as dg
try:
    dg.compile(dg.plan(dg.GemmProblem(n=8, k=16), 1, "h200"))
except dg.CompileError as error:
    print(error)
"""
    written = python(code, DGJ_NVRTC=str(tmp_path / "libnvrtc.so.13"), DGJ_CACHE_DIR="")
    assert str(tmp_path) in written and "12.3" in written and "DGJ_NVRTC" in written


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_without_a_gpu_loading_is_not_implemented():
    plan = dg.plan(dg.GemmProblem(n=8, k=16), 1, "h200")
    with pytest.raises(NotImplementedError):
        dg.load(plan)
    with pytest.raises(NotImplementedError):
        dg.get_num_sms()


def test_exceptions_have_the_bases_that_callers_catch():
    assert issubclass(dg.CompileError, RuntimeError) and issubclass(dg.JitForbiddenError, RuntimeError)
    assert dg.CompileError.__module__ == "deep_gemm_jit" and dg.JitForbiddenError.__doc__


@pytest.mark.parametrize("value", ["8", 1.5, [8]])
@pytest.mark.parametrize(
    ("setting", "parameter"),
    [
        ("set_num_sms", "num_sms"),
        ("set_compile_mode", "mode"),
        ("set_mk_alignment_for_contiguous_layout", "alignment"),
        ("get_theoretical_mk_alignment_for_contiguous_layout", "expected_m"),
    ],
)
def test_a_setting_that_is_no_integer(setting, parameter, value):
    with pytest.raises(TypeError, match=re.escape(f"{setting}: {parameter} is {value!r}; it must be an int")):
        getattr(dg, setting)(value)


def test_integers_of_other_libraries_are_integers():
    alignment = dg.get_theoretical_mk_alignment_for_contiguous_layout
    for kind in (torch.tensor, numpy.int64):
        assert alignment(kind(512)) == 64 and alignment(expected_m=kind(0)) == 8


SCALES = torch.ones(5, 3)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((None, 5, 272, (1, 128)), "sf is a NoneType; it must be a torch.Tensor"),
        ((SCALES, "5", 272, (1, 128)), "mn is '5'; it must be an integer"),
        ((SCALES, 5, 272.0, (1, 128)), "k is 272.0; it must be an integer"),
        ((SCALES, 5, 272, None), "recipe is None; it must be a tuple of integers"),
        ((SCALES, 5, 272, 128), "recipe is 128; it must be a tuple of integers"),
    ],
)
def test_the_scale_layouts_refuse_other_kinds(arguments, words):
    with pytest.raises(TypeError, match=re.escape(f"transform_sf_into_required_layout: {words}")):
        dg.transform_sf_into_required_layout(*arguments)
    for name in ("get_mn_major_tma_aligned_tensor", "get_mn_major_tma_aligned_packed_ue8m0_tensor"):
        with pytest.raises(TypeError, match=f"{name}: the argument is a list; it must be a torch.Tensor"):
            getattr(dg, name)([1.0])
