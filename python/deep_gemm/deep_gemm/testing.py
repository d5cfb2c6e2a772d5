"""deep_gemm.testing: the names of deep_gemm_jit.testing."""

from deep_gemm_jit import dropin as _dropin


def __getattr__(name: str):
    return _dropin.resolve(name, "testing")


def __dir__() -> list[str]:
    return _dropin.names("testing")
