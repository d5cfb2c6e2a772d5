"""The layers of examples/, for the device of a fixture.

Every GEMM is compared with float64 and the layer with the unquantised one: with empty experts, no tokens, and
NaN in whatever was never written.
"""

import importlib
import sys
from pathlib import Path

import oracle
import pytest
import torch

import deep_gemm_jit as dg

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
EXPERTS, HIDDEN, INTERMEDIATE, TOPK = 8, 256, 128, 2
sys.path.append(str(EXAMPLES))
common = importlib.import_module("moe_common")

CONTIGUOUS, MASKED = "m_grouped_fp8_gemm_nt_contiguous", "m_grouped_fp8_gemm_nt_masked"


def layers(device: str) -> dict:
    torch.manual_seed(0)
    experts = common.Experts(EXPERTS, HIDDEN, INTERMEDIATE, device)
    vllm = importlib.import_module("moe_vllm").VllmMoe(experts, max_tokens=40)
    sglang = importlib.import_module("moe_sglang").SglangMoe(experts)
    transformers = importlib.import_module("moe_transformers").SortedExperts(experts)
    return {
        "vllm contiguous": vllm.contiguous,
        "vllm masked": vllm.masked,
        "sglang compact": sglang.compact,
        "sglang masked": sglang.masked,
        "transformers": transformers.forward,
    }


NAMES = ["vllm contiguous", "vllm masked", "sglang compact", "sglang masked", "transformers"]


@pytest.fixture
def poisoned(monkeypatch):
    """empty and new_empty give NaN, the values of FP8 included, also where these begin as bytes."""

    def poison(make):
        def poisoned_make(*args, **options):
            made = make(*args, **options)
            if made.dtype in (torch.float8_e4m3fn, torch.uint8):
                made.view(torch.uint8).fill_(0x7F)
            elif made.is_floating_point():
                made.fill_(float("nan"))
            return made

        return poisoned_make

    monkeypatch.setattr(torch.Tensor, "new_empty", poison(torch.Tensor.new_empty))
    monkeypatch.setattr(torch, "empty", poison(torch.empty))


@pytest.fixture
def checked(monkeypatch):
    for name, function in {
        CONTIGUOUS: oracle.m_grouped_fp8_gemm_nt_contiguous,
        MASKED: oracle.m_grouped_fp8_gemm_nt_masked,
        "fp8_m_grouped_gemm_nt_masked": oracle.m_grouped_fp8_gemm_nt_masked,
        "fp8_gemm_nt": oracle.fp8_gemm_nt,
    }.items():
        monkeypatch.setattr(oracle, "dg", OwnFunctions)  # the oracle calls the real ones
        monkeypatch.setattr(dg, name, function)


class OwnFunctions:
    """deep_gemm_jit as it was before a test replaced functions of it."""

    fp8_gemm_nt = dg.fp8_gemm_nt
    m_grouped_fp8_gemm_nt_contiguous = dg.m_grouped_fp8_gemm_nt_contiguous
    m_grouped_fp8_gemm_nt_masked = dg.m_grouped_fp8_gemm_nt_masked
    cast_back_from_fp8 = staticmethod(dg.cast_back_from_fp8)
    get_mk_alignment_for_contiguous_layout = staticmethod(dg.get_mk_alignment_for_contiguous_layout)
    align = staticmethod(dg.align)
    testing = dg.testing


def inputs(tokens: int, device: str, experts: int = EXPERTS):
    x = torch.randn(tokens, HIDDEN, dtype=torch.bfloat16, device=device)
    return x, *common.route(tokens, experts, TOPK, device)


def reference_of(layer, *given):
    return layer.__self__.experts.reference(*given)


@pytest.mark.parametrize("tokens", [0, 1, 3, 40])
@pytest.mark.parametrize("name", NAMES)
def test_a_layer_agrees_with_the_unquantised_one(name, tokens, device, poisoned, checked):
    layer = layers(device)[name]
    given = inputs(tokens, device)
    out = layer(*given)
    assert out.shape == given[0].shape and out.dtype == torch.bfloat16
    assert common.difference(out, reference_of(layer, *given)) < common.LIMIT


@pytest.mark.parametrize("name", NAMES)
def test_a_layer_whose_tokens_go_to_two_experts(name, device, poisoned, checked):
    layer = layers(device)[name]
    given = inputs(9, device, experts=TOPK)  # six experts get nothing
    assert common.difference(layer(*given), reference_of(layer, *given)) < common.LIMIT


def test_memory_that_nobody_wrote_is_nan_in_these_tests(device, poisoned):
    rows = torch.tensor([1], device=device)
    scattered = common.scatter_rows(torch.zeros(1, 8, dtype=torch.uint8, device=device), rows, 3)
    assert scattered.float().isnan().all(dim=1).tolist() == [True, False, True]
    assert scattered.float().new_empty(2).isnan().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(0,), (2, 0), (1,), (2, 33), (0, 3)])
def test_the_linear_layer_takes_any_number_of_rows(shape, dtype, device, poisoned, checked):
    weight = torch.randn(192, HIDDEN, dtype=dtype, device=device)
    x = torch.randn(*shape, HIDDEN, dtype=dtype, device=device)
    y = importlib.import_module("moe_transformers").Fp8Linear(weight)(x)
    assert y.shape == (*shape, 192) and y.dtype == dtype
    assert common.difference(y, x.double() @ weight.double().T) < common.LIMIT


@pytest.fixture
def fill(device):
    """A function after which memory that torch hands out has all bits set: NaN as FP8, BF16 and FP32.

    On a CPU it does nothing: torch's deterministic mode fills what it allocates. On a GPU that mode would
    have the compiler make other code than for users, and does not reach what this code allocates: there the
    free blocks of the allocator are filled, those of its pool of small ones and those of large ones.
    """
    if device == "cpu":
        torch.use_deterministic_algorithms(True, warn_only=True)
        nothing = torch.zeros(0, 8, dtype=torch.uint8)
        assert common.scatter_rows(nothing, slice(0), 3).float().isnan().all()
        yield lambda: None
        torch.use_deterministic_algorithms(False)
        return

    def fill_free_blocks() -> None:
        torch.cuda.empty_cache()
        sizes = [1 << 20] * 16 + [20 << 20] * 2
        blocks = [torch.full((size,), 0xFF, dtype=torch.uint8, device=device) for size in sizes]
        del blocks
        for size in set(sizes):
            assert torch.empty(size, dtype=torch.uint8, device=device).min().item() == 0xFF

    yield fill_free_blocks


@pytest.mark.parametrize("name", NAMES)
def test_a_compiled_layer_gives_the_same(name, device, fill):
    layer = layers(device)[name]
    torch._dynamo.reset()
    compiled = torch.compile(layer, backend="inductor" if device == "cuda" else "aot_eager")
    for given in (inputs(9, device), inputs(5, device, experts=TOPK), inputs(0, device)):
        fill()
        out = compiled(*given)
        assert out.shape == given[0].shape
        assert common.difference(out, reference_of(layer, *given)) < common.LIMIT
        dg.testing.assert_bitwise_equal(layer(*given), layer(*given))
