"""deep_gemm.utils.math: the names of deep_gemm_jit.utils.math."""

from deep_gemm_jit import dropin as _dropin


def __getattr__(name: str):
    return _dropin.resolve(name, "utils.math")


def __dir__() -> list[str]:
    return _dropin.names("utils.math")
