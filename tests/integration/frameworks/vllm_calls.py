"""vLLM's own code calls deep_gemm_jit on CPU tensors. A process of its own; see report.py.

Patched are device predicates only: a CPU declines by itself. Triton kernels run in Triton's interpreter.
"""

import os
import sys
from types import SimpleNamespace

import interpreter
import oracle
import torch
import vllm.utils.deep_gemm as wrappers
from oracle import assert_close, cast_blocks, restored
from report import checks, run_checks
from vllm.config import DeviceConfig, VllmConfig, set_current_vllm_config
from vllm.model_executor.kernels.linear.scaled_mm import deep_gemm as linear
from vllm.model_executor.layers.fused_moe import config as moe
from vllm.model_executor.layers.fused_moe import modular_kernel as mk
from vllm.model_executor.layers.fused_moe.activation import MoEActivation
from vllm.model_executor.layers.fused_moe.experts.batched_deep_gemm_moe import BatchedDeepGemmExperts
from vllm.model_executor.layers.fused_moe.experts.deep_gemm_moe import DeepGemmExperts
from vllm.model_executor.layers.quantization.utils import fp8_utils
from vllm.model_executor.layers.quantization.utils import quant_utils as keys
from vllm.model_executor.warmup import deep_gemm_warmup as warmup
from vllm.platforms import current_platform
from vllm.plugins import load_general_plugins
from vllm.v1.worker import workspace

import deep_gemm_jit as dg

load_general_plugins()
for predicate in ("support_deep_gemm", "is_cuda", "is_arch_support_pdl"):
    setattr(type(current_platform), predicate, lambda *_, **__: True)
interpreter.install()
type(current_platform).num_compute_units = lambda *_, **__: 132
type(current_platform).is_device_capability_family = lambda _self, capability, *_, **__: capability == 90

EXPERTS, HIDDEN, INTERMEDIATE, TOPK = 4, 256, 128, 2
TOKENS = 9


def silu_and_mul(x):
    gate, up = x.double().chunk(2, dim=-1)
    return torch.nn.functional.silu(gate) * up


@checks
def resolution_takes_our_module():
    from vllm.utils.import_utils import has_deep_gemm

    assert has_deep_gemm() and wrappers.is_deep_gemm_supported()
    module = wrappers._import_deep_gemm()
    assert module is sys.modules["deep_gemm"] and module.fp8_gemm_nt is dg.fp8_gemm_nt
    wrappers._lazy_init()
    assert wrappers._fp8_gemm_nt_impl is dg.fp8_gemm_nt
    assert wrappers._grouped_impl is dg.m_grouped_fp8_gemm_nt_contiguous
    assert wrappers._grouped_masked_impl is dg.m_grouped_fp8_gemm_nt_masked
    assert dg.get_pdl() is True  # vLLM sets it at first use
    assert os.environ["VLLM_MOE_USE_DEEP_GEMM"] == "1"  # of DGJ_BACKEND=moe
    # The copy inside vLLM cannot be imported here, so what we lack is absent and no function that raises.
    assert wrappers._mega_mhc_impl is None and wrappers._fp8_einsum_impl is None
    assert not wrappers.has_deep_gemm_sparse_mqa()
    wrappers._fp8_gemm_nt_impl = oracle.fp8_gemm_nt  # from here on every call is checked
    wrappers._grouped_impl = oracle.m_grouped_fp8_gemm_nt_contiguous
    wrappers._grouped_masked_impl = oracle.m_grouped_fp8_gemm_nt_masked


@checks
def alignment_scope_sets_and_restores():
    assert wrappers.get_mk_alignment_for_contiguous_layout() == [128, 128]
    with wrappers.mk_alignment_scope(64):
        assert dg.get_mk_alignment_for_contiguous_layout() == 64
    assert dg.get_mk_alignment_for_contiguous_layout() == 128
    assert wrappers.get_theoretical_mk_alignment_for_contiguous_layout(1024, 32) == 128


@checks
def linear_layer_reaches_fp8_gemm_nt():
    config = linear.FP8ScaledMMLinearLayerConfig(
        weight_quant_key=keys.kFp8Static128BlockSym,
        activation_quant_key=keys.kFp8Dynamic128Sym,
        weight_shape=(192, HIDDEN),
        input_dtype=torch.bfloat16,
        out_dtype=torch.bfloat16,
    )
    assert linear.DeepGemmFp8BlockScaledMMKernel.is_supported() == (True, None)
    kernel = linear.DeepGemmFp8BlockScaledMMKernel(config)
    layer = torch.nn.Module()
    weight, scale = cast_blocks(torch.randn(192, HIDDEN))
    layer.weight = torch.nn.Parameter(weight, requires_grad=False)
    layer.weight_scale_inv = torch.nn.Parameter(scale, requires_grad=False)
    layer.weight_block_size = [128, 128]
    kernel.process_weights_after_loading(layer)  # rounds scales to powers of two, calls our layout function
    assert layer.deep_gemm_warmup_provider is kernel
    for m in (0, 1, 7, 33):
        a = dg.per_token_cast_to_fp8(torch.randn(m, HIDDEN), use_ue8m0=True)
        for scales in (a[1], dg.get_mn_major_tma_aligned_tensor(a[1]), a[1].t().contiguous().t()):
            d = kernel.apply_block_scaled_mm(a[0], layer.weight, scales, layer.weight_scale_inv)
            assert d.shape == (m, 192) and d.dtype == torch.bfloat16
            assert_close(d, restored(*a) @ restored(layer.weight, layer.weight_scale_inv).T)


def experts(cls, **more):
    w13, s13 = cast_blocks(torch.randn(EXPERTS, 2 * INTERMEDIATE, HIDDEN) / 16)
    w2, s2 = cast_blocks(torch.randn(EXPERTS, HIDDEN, INTERMEDIATE) / 16)
    w13, w2, s13, s2 = fp8_utils.prepare_fp8_moe_layer_for_deepgemm(w13, w2, s13, s2, (128, 128))
    quant = moe.fp8_w8a8_moe_quant_config(s13, s2, block_shape=[128, 128])
    config = moe.FusedMoEConfig(
        num_experts=EXPERTS,
        experts_per_token=TOPK,
        hidden_dim=HIDDEN,
        intermediate_size=INTERMEDIATE,
        num_local_experts=EXPERTS,
        num_logical_experts=EXPERTS,
        activation=MoEActivation.SILU,
        device="cpu",
        routing_method=moe.RoutingMethodType.Renormalize,
        moe_parallel_config=moe.FusedMoEParallelConfig.make_no_parallel(),
        in_dtype=torch.bfloat16,
    )
    layer = cls(config, quant, **more)
    return layer, (w13, w2), (restored(w13, s13), restored(w2, s2))


def workspaces(layer, tokens, total):
    """Two workspaces and the output, full of NaN: nothing of it may reach a row that counts."""
    shapes = layer.workspace_shapes(
        tokens, 2 * INTERMEDIATE, HIDDEN, TOPK, total, EXPERTS, None, MoEActivation.SILU
    )
    return [torch.full(shape, float("nan"), dtype=torch.bfloat16) for shape in shapes]


@checks
def contiguous_experts_run_a_layer():
    layer, (w13, w2), (f13, f2) = experts(DeepGemmExperts)
    sharded = torch.tensor([0, -1, 1, 2, -1, 3], dtype=torch.int32)  # -1: experts of other ranks
    for tokens, expert_map in ((TOKENS, None), (1, None), (TOKENS, sharded)):
        total = EXPERTS if expert_map is None else expert_map.numel()
        ids = torch.stack([torch.randperm(total)[:TOPK] for _ in range(tokens)]).to(torch.int32)
        weights = torch.rand(tokens, TOPK)
        a, sa = dg.per_token_cast_to_fp8(torch.randn(tokens, HIDDEN), use_ue8m0=True)
        first, second, out = workspaces(layer, tokens, total)
        layer.apply(
            out, a, w13, w2, weights, ids, MoEActivation.SILU, total, expert_map, sa, None, first, second,
            None, False,
        )  # fmt: skip
        x, expected = restored(a, sa), torch.zeros(tokens, HIDDEN, dtype=torch.float64)
        for token in range(tokens):
            for expert, weight in zip(ids[token].tolist(), weights[token].double(), strict=True):
                local = expert if expert_map is None else int(expert_map[expert])
                if local >= 0:
                    expected[token] += weight * (f2[local] @ silu_and_mul(f13[local] @ x[token]))
        assert_close(out, expected, 3e-3)


@checks
def batched_experts_run_a_layer():
    rows = 13  # not a multiple of 4
    layer, (w13, w2), (f13, f2) = experts(BatchedDeepGemmExperts, max_num_tokens=rows, num_dispatchers=1)
    counts = torch.tensor([5, 0, 13, 1], dtype=torch.int32)
    a, sa = dg.per_token_cast_to_fp8(torch.randn(EXPERTS * rows, HIDDEN), use_ue8m0=True)
    a, sa = a.view(EXPERTS, rows, HIDDEN), sa.view(EXPERTS, rows, -1)
    sa = sa.transpose(1, 2).contiguous().transpose(1, 2)  # strides (T*G, 1, T)
    x = torch.stack([restored(a[e], sa[e]) for e in range(EXPERTS)])
    for e in range(EXPERTS):
        sa[e, counts[e] :] = float("nan")
    first, second, out = workspaces(layer, rows, EXPERTS)
    meta = mk.ExpertTokensMetadata(expert_num_tokens=counts, expert_num_tokens_cpu=None)
    ids, weights = torch.zeros(rows, TOPK, dtype=torch.int32), torch.ones(rows, TOPK)
    layer.apply(
        out, a, w13, w2, weights, ids, MoEActivation.SILU, EXPERTS, None, sa, None, first, second, meta, False
    )
    for e, count in enumerate(counts.tolist()):
        assert_close(out[e, :count], silu_and_mul(x[e, :count] @ f13[e].T) @ f2[e].T, 3e-3)
        assert out[e, count:].isnan().all()


@checks
def warm_up_walks_over_every_shape():
    workspace.init_workspace_manager(torch.device("cpu"))
    warmup.get_dp_group = lambda: SimpleNamespace(world_size=1)
    w, sf = cast_blocks(torch.randn(192, HIDDEN))
    warmup._deepgemm_fp8_gemm_nt_warmup(w, sf, max_tokens=160)
    w13, s13 = cast_blocks(torch.randn(EXPERTS, 2 * INTERMEDIATE, HIDDEN))
    w2, s2 = cast_blocks(torch.randn(EXPERTS, HIDDEN, INTERMEDIATE))
    warmup._deepgemm_grouped_fp8_gemm_nt_contiguous_warmup(w13, w2, s13, s2, TOPK, max_tokens=64)
    assert w.size() in warmup.FP8_GEMM_NT_WARMUP_CACHE
    assert w13.size() in warmup.GROUPED_FP8_GEMM_NT_CONTIGUOUS_WARMUP_CACHE
    assert dg.get_mk_alignment_for_contiguous_layout() == 128


if __name__ == "__main__":
    torch.manual_seed(0)
    with set_current_vllm_config(VllmConfig(device_config=DeviceConfig(device="cpu"))):
        run_checks()
