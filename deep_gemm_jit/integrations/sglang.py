"""Entry point of the group `sglang.srt.plugins`: called at engine start and in each scheduler process.

Inert until DGJ_BACKEND is set. See docs/sglang.md.
"""

import logging
import os
import sys

from deep_gemm_jit.integrations import server_mode

__all__ = ["register"]


def register() -> None:
    """Make this package SGLang's deep_gemm when DGJ_BACKEND says so; 1 and moe mean the same here.

    SGLang has imported its deep_gemm by then and looks each function up at each call, so the functions of the
    loaded module are replaced. Where SGLang found no deep_gemm it has switched DeepGEMM off for good, and a
    warning says so. Raises SystemExit for another value. May be called again.
    """
    if server_mode() is None:
        return
    from deep_gemm_jit.dropin import install_as_deep_gemm

    install_as_deep_gemm()
    logger = logging.getLogger("deep_gemm_jit")
    configurer = sys.modules.get("sglang.srt.layers.deep_gemm_wrapper.configurer")
    if configurer is not None and not configurer.ENABLE_JIT_DEEPGEMM:
        logger.warning(
            "DGJ_BACKEND=%s: SGLang switched DeepGEMM off when it started (no importable deep_gemm, "
            "SGLANG_ENABLE_JIT_DEEPGEMM=0, or a GPU older than Hopper), so nothing calls deep_gemm_jit. "
            "Remedy: install sgl-deep-gemm or deep-gemm-jit-shim",
            os.environ["DGJ_BACKEND"],
        )
    else:
        logger.info(
            "DGJ_BACKEND=%s: the functions of deep_gemm are those of deep_gemm_jit", os.environ["DGJ_BACKEND"]
        )
