"""deep_gemm.utils.layout: the names of deep_gemm_jit.utils.layout."""

from deep_gemm_jit import dropin as _dropin


def __getattr__(name: str):
    return _dropin.resolve(name, "utils.layout")


def __dir__() -> list[str]:
    return _dropin.names("utils.layout")
