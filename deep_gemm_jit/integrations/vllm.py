"""Entry point of the group `vllm.general_plugins`: vLLM calls it in each process before it loads a model.

Inert until DGJ_BACKEND is set. See docs/vllm.md.
"""

import logging
import os

from deep_gemm_jit.integrations import server_mode

__all__ = ["register"]

# FlashInfer would take the linear layers below 32 rows.
_LINEAR = {"VLLM_BLOCKSCALE_FP8_GEMM_FLASHINFER": "0"}
# vLLM prefers other experts unless these are set, even to their default.
_MOE = {"VLLM_USE_DEEP_GEMM": "1", "VLLM_MOE_USE_DEEP_GEMM": "1"}


def register() -> None:
    """Make this package vLLM's deep_gemm when DGJ_BACKEND says so; variables that are set already stay.

    DGJ_BACKEND=1: linear layers of any number of rows. DGJ_BACKEND=moe: experts too; vLLM then refuses
    experts that DeepGEMM cannot run. Raises SystemExit for another value. May be called again.
    """
    mode = server_mode()
    if mode is None:
        return
    from deep_gemm_jit.dropin import install_as_deep_gemm

    install_as_deep_gemm()
    wanted = _LINEAR | (_MOE if mode == "moe" else {})
    set_here = {name: value for name, value in wanted.items() if name not in os.environ}
    os.environ.update(set_here)
    kept = sorted(f"{name}={os.environ[name]}" for name in wanted if name not in set_here)
    # vLLM shows the loggers below its own only.
    logging.getLogger("vllm.plugins.deep_gemm_jit").info(
        "DGJ_BACKEND=%s: deep_gemm is deep_gemm_jit; set %s; kept %s",
        os.environ["DGJ_BACKEND"],
        " ".join(f"{name}={value}" for name, value in sorted(set_here.items())) or "nothing",
        " ".join(kept) or "nothing",
    )
