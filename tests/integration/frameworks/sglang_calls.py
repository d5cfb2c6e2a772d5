"""SGLang's own code calls deep_gemm_jit on CPU tensors. A process of its own; see report.py.

Patched are device predicates (a CPU declines by itself), the place of new tensors, and SGLang's compiled
activation and quantisation kernels, which exist for GPUs only. Triton kernels run in Triton's interpreter.
"""

import os
from types import SimpleNamespace

import interpreter
import oracle
import sglang.srt.utils as utils
import torch
from oracle import assert_close, cast_blocks, restored
from report import checks, run_checks
from torch.overrides import TorchFunctionMode

import deep_gemm_jit as dg

# SGLang decides about DeepGEMM while its wrapper is imported.
predicates = {name: getattr(utils, name) for name in ("is_cuda", "get_device_sm")}
utils.is_cuda, utils.get_device_sm = lambda: True, lambda: 90
import sglang.srt.layers.deep_gemm_wrapper.configurer as configurer  # noqa: E402

vars(utils).update(predicates)
from sglang.kernels.ops.moe import ep_moe_kernels  # noqa: E402
from sglang.kernels.ops.quantization import fp8_kernel  # noqa: E402
from sglang.srt.environ import envs  # noqa: E402
from sglang.srt.layers.deep_gemm_wrapper import compile_utils, entrypoint  # noqa: E402
from sglang.srt.layers.moe.moe_runner import deep_gemm as runner  # noqa: E402
from sglang.srt.layers.moe.moe_runner.base import MoeRunnerConfig  # noqa: E402
from sglang.srt.plugins import load_plugins  # noqa: E402

EXPERTS, HIDDEN, INTERMEDIATE, TOPK, TOKENS = 4, 256, 128, 2, 9
MODULE = entrypoint.deep_gemm


class OnTheCpu(TorchFunctionMode):
    """New tensors "on cuda" lie on the CPU."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if kwargs.get("device") == "cuda":
            kwargs["device"] = "cpu"
        return function(*args, **kwargs)


def patch_devices() -> None:
    interpreter.install(ep_moe_kernels)
    entrypoint._ensure_cuda = lambda pair: pair
    compile_utils.get_available_gpu_memory = lambda **_: 1.0
    properties = SimpleNamespace(multi_processor_count=132, max_threads_per_multi_processor=2048)
    torch.cuda.get_device_properties = lambda *_: properties
    torch.cuda.current_device = lambda: 0
    torch.cuda.current_stream = lambda *_: SimpleNamespace(synchronize=lambda: None)
    compile_utils._BUILTIN_M_LIST = [1, 2, 7, 64, 128, 256]
    runner.is_allocation_symmetric = lambda: False
    runner.get_parallel = lambda: SimpleNamespace(tp_group=None)
    deterministic = SimpleNamespace(enable_deterministic_inference=False)
    runner.get_exec = lambda: SimpleNamespace(deterministic=deterministic)


def silu_and_mul(x):
    gate, up = x.chunk(2, dim=-1)
    return torch.nn.functional.silu(gate) * up


def patch_compiled_kernels() -> None:
    def quantise(x, group_size, *_, **options):
        assert group_size == 128 and not options.get("scale_ue8m0")
        return dg.per_token_cast_to_fp8(x)

    def silu_into(x, out):
        out.copy_(silu_and_mul(x.float()))

    def masked_silu_quantise(x, group_size, masked_m, **options):
        assert group_size == 128 and options["fuse_silu_and_mul"] and options["column_major_scales"]
        q, sf = dg.per_token_cast_to_fp8(silu_and_mul(x.float()).bfloat16().flatten(0, 1))
        sf = dg.get_mn_major_tma_aligned_tensor(sf.view(*x.shape[:2], -1))
        return q.view(*x.shape[:2], -1), sf

    fp8_kernel.sglang_per_token_group_quant_fp8 = quantise
    ep_moe_kernels.per_token_group_quant_fp8 = quantise
    runner._legacy_silu_and_mul = silu_into
    runner.per_token_group_quant = masked_silu_quantise


@checks
def resolution_takes_our_module():
    assert configurer.ENABLE_JIT_DEEPGEMM and configurer.DEEPGEMM_NEED_TMA_ALIGNED_SCALES
    assert not configurer.DEEPGEMM_PAGED_SPARSE_MQA_LOGITS
    assert not configurer._sm120_deep_gemm_apis_available()  # fp8_einsum is absent
    load_plugins()
    for name in ("fp8_gemm_nt", "m_grouped_fp8_gemm_nt_contiguous", "get_mn_major_tma_aligned_tensor"):
        assert getattr(MODULE, name) is getattr(dg, name), name
    assert os.environ["DG_JIT_CACHE_DIR"] == envs.SGLANG_DG_CACHE_DIR.get()
    for name in ("fp8_gemm_nt", "m_grouped_fp8_gemm_nt_contiguous"):  # every later call is checked
        setattr(MODULE, name, getattr(oracle, name))
    MODULE.fp8_m_grouped_gemm_nt_masked = oracle.m_grouped_fp8_gemm_nt_masked


@checks
def layout_helper_gives_the_argument_or_a_copy():
    for rows in (1, 3, 8, 13):
        sf = torch.rand(rows, 2)
        once = entrypoint.get_mn_major_tma_aligned_tensor(sf)
        assert once.stride() == (1, dg.align(rows, 4)) and torch.equal(once, sf)
        assert entrypoint.get_mn_major_tma_aligned_tensor(once) is once
        masked = entrypoint.get_mn_major_tma_aligned_tensor(torch.rand(3, rows, 2))
        assert masked.stride() == (dg.align(rows, 4) * 2, 1, dg.align(rows, 4))


@checks
def dense_wrapper_warms_up_then_runs():
    modes = []

    def recorded(mode):
        modes.append(mode)
        dg.set_compile_mode(mode)

    MODULE.set_compile_mode = recorded
    a, b = dg.per_token_cast_to_fp8(torch.randn(7, HIDDEN)), cast_blocks(torch.randn(192, HIDDEN))
    d = torch.empty(7, 192, dtype=torch.bfloat16)
    for scales in (a[1], a[1].t().contiguous().t()):
        entrypoint.gemm_nt_f8f8bf16((a[0], scales), b, d)
    assert modes == [1, 0] and dg.get_compile_mode() == 0  # one sweep for one (n, k), without launches
    assert oracle.calls["fp8_gemm_nt"] == 2 + len(compile_utils._BUILTIN_M_LIST)
    locks = os.listdir(os.path.join(os.environ["DG_JIT_CACHE_DIR"], "locks"))
    assert any(name.endswith(".lock") for name in locks)


@checks
def grouped_wrappers_warm_up_then_run():
    b = cast_blocks(torch.randn(EXPERTS, 192, HIDDEN))
    a = dg.per_token_cast_to_fp8(torch.randn(3 * 128, HIDDEN))
    ids = torch.full((3 * 128,), -1, dtype=torch.int32)
    ids[:100], ids[256:257] = 3, 1
    d = torch.empty(3 * 128, 192, dtype=torch.bfloat16)
    entrypoint.grouped_gemm_nt_f8f8bf16_contig(a, b, d, ids)
    masked = (a[0].view(3, 128, HIDDEN)[:, :8], a[1].view(3, 128, -1)[:, :8])
    three = (b[0][:3], b[1][:3])
    counts = torch.tensor([8, 0, 3], dtype=torch.int32)
    entrypoint.grouped_gemm_nt_f8f8bf16_masked(masked, three, d[:24].view(3, 8, 192), counts, 4)
    assert oracle.calls["contiguous ids"] == 1 + 2 and oracle.calls["masked"] == 1 + 6  # and the sweeps


@checks
def alignment_for_the_compact_layout_is_small():
    assert entrypoint.get_contiguous_layout_alignment(16, 4) in (8, 16)
    assert entrypoint.get_contiguous_layout_alignment(8192 * 8, 4) == 128
    with entrypoint.contiguous_layout_alignment_scope(16):
        assert dg.get_mk_alignment_for_contiguous_layout() == 16
    assert dg.get_mk_alignment_for_contiguous_layout() == 128


def run_layer(layout: str, tokens: int, local: int = EXPERTS, start: int = 0) -> None:
    compile_utils._ENABLE_JIT_DEEPGEMM_PRECOMPILE = False
    w13 = cast_blocks(torch.randn(local, 2 * INTERMEDIATE, HIDDEN) / 16)
    w2 = cast_blocks(torch.randn(local, HIDDEN, INTERMEDIATE) / 16)
    quant = runner.DeepGemmMoeQuantInfo(
        w13_weight=w13[0], w2_weight=w2[0], use_fp8=True, w13_scale=w13[1], w2_scale=w2[1],
        block_shape=[128, 128],
    )  # fmt: skip
    config = MoeRunnerConfig(
        num_experts=EXPERTS, num_local_experts=local, hidden_size=HIDDEN, top_k=TOPK, inplace=False,
        intermediate_size_per_partition=INTERMEDIATE,
    )  # fmt: skip
    x = torch.randn(tokens, HIDDEN, dtype=torch.bfloat16)
    ids = torch.stack([torch.randperm(EXPERTS)[:TOPK] for _ in range(tokens)]).to(torch.int32)
    weights = torch.rand(tokens, TOPK)
    state: dict = {}
    dispatched = SimpleNamespace(hidden_states=x, topk_output=(weights, ids, None))
    with envs.SGLANG_DEEPGEMM_STANDARD_LAYOUT.override(layout):
        given = runner.pre_permute_standard_to_deep_gemm(dispatched, quant, config, state, expert_start=start)
        assert given.use_masked_gemm == (layout == "masked")
        out = runner.DeepGemmRunnerCore(config).run(given, quant, state)
        combined = runner.post_permute_deep_gemm_to_standard(out, quant, config, state).hidden_states
    quantised = restored(*dg.per_token_cast_to_fp8(x))
    expected = torch.zeros_like(quantised)
    f13, f2 = restored(*w13), restored(*w2)
    for token in range(tokens):
        for expert, weight in zip(ids[token].tolist(), weights[token].double(), strict=True):
            if start <= expert < start + local:
                hidden = silu_and_mul(f13[expert - start] @ quantised[token])
                expected[token] += weight * (f2[expert - start] @ hidden)
    assert_close(combined, expected, 3e-3)


@checks
def compact_experts_run_a_layer():
    run_layer("compact", TOKENS)
    run_layer("compact", 1)
    run_layer("compact", TOKENS, local=2, start=2)


@checks
def masked_experts_run_a_layer():
    run_layer("masked", TOKENS)
    run_layer("masked", TOKENS, local=2, start=2)


if __name__ == "__main__":
    torch.manual_seed(0)
    patch_devices()
    patch_compiled_kernels()
    with OnTheCpu():
        run_checks()
