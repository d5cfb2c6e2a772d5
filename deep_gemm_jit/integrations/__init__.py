"""Adapters for frameworks. Importing one of them imports neither its framework nor torch."""

import importlib
import os

from deep_gemm_jit import _core

__all__ = ["backend_mode", "server_mode", "sglang", "transformers", "vllm"]


def backend_mode() -> str | None:
    """Return what DGJ_BACKEND asks for: None (off), "linear" or "moe". Raises ValueError for others."""
    value = os.environ.get("DGJ_BACKEND", "").strip().lower()
    if value == "moe":
        return "moe"
    # What is no UTF-8 is no flag either.
    linear = _core.parse_flag(value.encode(errors="backslashreplace").decode())
    if linear is None:
        raise ValueError(
            f"DGJ_BACKEND is {value!r}; allowed are 1 (linear layers), moe (experts too) and 0 (off)"
        )
    return "linear" if linear else None


def server_mode() -> str | None:
    """Return backend_mode(), for the plug-in of a server: a value that is none stops the server's start.

    Raises SystemExit, not ValueError: SGLang logs an Exception of a plug-in and starts without it, and then
    a misspelt value would mean another backend than was asked for.
    """
    try:
        return backend_mode()
    except ValueError as error:
        raise SystemExit(f"deep_gemm_jit: {error}") from None


def __getattr__(name: str):
    if name in ("sglang", "transformers", "vllm"):
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
