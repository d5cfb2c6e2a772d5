"""transformers' own FP8 layers call deep_gemm_jit on CPU tensors. A process of its own; see report.py.

Patched are device predicates only: a CPU declines by itself.
"""

from types import SimpleNamespace

import oracle
import torch
from oracle import assert_close, cast_blocks, restored
from report import checks, run_checks
from transformers.integrations import deepgemm, finegrained_fp8

import deep_gemm_jit as dg
from deep_gemm_jit.integrations import transformers as adapter

EXPERTS, HIDDEN, INTERMEDIATE, TOPK, TOKENS = 4, 256, 128, 2, 9


@checks
def adapter_fills_the_record_and_takes_it_back():
    gate = finegrained_fp8.is_deepgemm_loadable
    adapter.enable()
    adapter.enable()
    assert deepgemm.load_deepgemm_kernel().fp8_fp4_matmul is dg.fp8_gemm_nt
    assert deepgemm._DEEPGEMM.m_alignment == 128
    for field in adapter._ABSENT:
        try:
            getattr(deepgemm._DEEPGEMM, field)(1, two=2)
        except NotImplementedError as error:
            assert field in str(error)
        else:
            raise AssertionError(f"{field} did not raise")
    if not torch.cuda.is_available():
        assert finegrained_fp8.is_deepgemm_loadable() is False  # no GPU here, whatever nvcc there is
        try:
            deepgemm.is_deepgemm_loadable(raise_error=True)
        except ImportError as error:
            assert "no CUDA device" in str(error)
    adapter.disable()
    assert deepgemm._DEEPGEMM is None and finegrained_fp8.is_deepgemm_loadable is gate


def enable() -> None:
    adapter.disable()
    adapter.enable()
    ours = vars(deepgemm._DEEPGEMM)
    checked = {
        "fp8_fp4_matmul": oracle.fp8_gemm_nt,
        "grouped_fp8_fp4_matmul_nt": oracle.m_grouped_fp8_gemm_nt_contiguous,
    }
    deepgemm._DEEPGEMM = deepgemm.DeepGEMM(**ours | checked)
    for module in (deepgemm, finegrained_fp8):
        module.is_deepgemm_loadable = lambda raise_error=False: True
        module.is_sm100 = lambda: False


def restored_input(x):
    return restored(*dg.per_token_cast_to_fp8(x))


@checks
def linear_layer_runs_in_both_dtypes():
    enable()
    for dtype in (torch.bfloat16, torch.float16):
        layer = finegrained_fp8.FP8Linear(HIDDEN, 192, block_size=(128, 128))
        weight, scale = cast_blocks(torch.randn(192, HIDDEN))
        layer.weight = torch.nn.Parameter(weight, requires_grad=False)
        layer.weight_scale_inv = torch.nn.Parameter(scale, requires_grad=False)
        for m in (1, 33):
            x = torch.randn(3, m, HIDDEN, dtype=dtype)
            d = layer(x)
            assert d.dtype == dtype and d.shape == (3, m, 192)
            assert_close(d.flatten(0, 1), restored_input(x.flatten(0, 1)) @ restored(weight, scale).T)


@checks
def experts_run_a_layer():
    enable()
    config = SimpleNamespace(
        hidden_size=HIDDEN, moe_intermediate_size=INTERMEDIATE, num_experts=EXPERTS, hidden_act="silu"
    )
    layer = finegrained_fp8.FP8Experts(config, block_size=(128, 128))
    w13, s13 = cast_blocks(torch.randn(EXPERTS, 2 * INTERMEDIATE, HIDDEN) / 16)
    w2, s2 = cast_blocks(torch.randn(EXPERTS, HIDDEN, INTERMEDIATE) / 16)
    for name, tensor in {
        "gate_up_proj": w13, "gate_up_proj_scale_inv": s13, "down_proj": w2, "down_proj_scale_inv": s2
    }.items():  # fmt: skip
        setattr(layer, name, torch.nn.Parameter(tensor, requires_grad=False))
    layer.is_transposed = layer._is_expert_parallel = False
    f13, f2 = restored(w13, s13), restored(w2, s2)
    for tokens in (1, TOKENS):
        x = torch.randn(tokens, HIDDEN, dtype=torch.bfloat16)
        ids = torch.stack([torch.randperm(EXPERTS)[:TOPK] for _ in range(tokens)])
        weights = torch.rand(tokens, TOPK)
        out = finegrained_fp8.FP8ExpertsInterface._global_mapping["deepgemm"](layer, x, ids, weights)
        quantised, expected = restored_input(x), torch.zeros(tokens, HIDDEN, dtype=torch.float64)
        for token in range(tokens):
            for expert, weight in zip(ids[token].tolist(), weights[token].double(), strict=True):
                gate, up = (f13[expert] @ quantised[token]).chunk(2)
                expected[token] += weight * (f2[expert] @ (torch.nn.functional.silu(gate) * up))
        assert_close(out, expected, 3e-3)


if __name__ == "__main__":
    torch.manual_seed(0)
    run_checks()
