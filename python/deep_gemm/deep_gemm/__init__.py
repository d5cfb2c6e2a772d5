"""deep_gemm_jit as `deep_gemm`: deep_gemm_jit.dropin says which names it has.

Importing it imports no torch, creates no CUDA context and makes no file. Raises ImportError when another
distribution has installed files into this folder.
"""

from pathlib import Path as _Path

from deep_gemm_jit import dropin as _dropin

_dropin.check_distribution(_Path(__file__).parent, "deep-gemm-jit-shim")


def __getattr__(name: str):
    return _dropin.resolve(name)


def __dir__() -> list[str]:
    return _dropin.names()
