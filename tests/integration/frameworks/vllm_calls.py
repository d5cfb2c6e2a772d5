"""vLLM's own code calls deep_gemm_jit on CPU tensors. A process of its own; see report.py.

Patched are device predicates only: a CPU declines by itself. Triton kernels run in Triton's interpreter.
"""

import os
import sys

import torch
from report import checks, run_checks

sys.modules.setdefault("vllm._C", type(sys)("vllm._C"))  # compiled operators: none of them is needed here

import deep_gemm_jit as dg  # noqa: E402
import vllm.utils.deep_gemm as wrappers  # noqa: E402
from vllm.platforms import current_platform  # noqa: E402
from vllm.plugins import load_general_plugins  # noqa: E402

load_general_plugins()

HOPPER = {"support_deep_gemm": True, "is_cuda": True, "is_arch_support_pdl": True}
for name, value in HOPPER.items():
    setattr(type(current_platform), name, lambda *_, value=value, **__: value)
type(current_platform).is_device_capability_family = lambda _self, capability, *_, **__: capability == 90

E, K, N, TOPK = 4, 256, 256, 2  # experts, hidden size, intermediate size


def quantised(*shape, block=False):
    x = torch.randn(*shape)
    rows = x.flatten(0, -2)
    if not block:
        q, sf = dg.per_token_cast_to_fp8(rows)
        return q.view(shape), sf.view(*shape[:-1], -1)
    parts = [dg.per_block_cast_to_fp8(part) for part in x.view(-1, *shape[-2:])]
    return (
        torch.stack([q.view(torch.uint8) for q, _ in parts]).view(torch.float8_e4m3fn).view(shape),
        torch.stack([sf for _, sf in parts]).view(*shape[:-2], -1, shape[-1] // 128),
    )


def dequantised(q, sf):
    return dg.cast_back_from_fp8(q, sf).double()


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
    assert dg.get_pdl() is True  # set at first use
    assert os.environ["VLLM_MOE_USE_DEEP_GEMM"] == "1"  # DGJ_BACKEND=moe
    assert wrappers._mega_mhc_impl is None  # the vendored copy needs a GPU: absent, not a stub


@checks
def alignment_scope_sets_and_restores():
    assert wrappers.get_mk_alignment_for_contiguous_layout() == [128, 128]
    with wrappers.mk_alignment_scope(64):
        assert dg.get_mk_alignment_for_contiguous_layout() == 64
    assert dg.get_mk_alignment_for_contiguous_layout() == 128
    assert wrappers.get_theoretical_mk_alignment_for_contiguous_layout(1024, 32) == 128
if __name__ == "__main__":
    run_checks()
