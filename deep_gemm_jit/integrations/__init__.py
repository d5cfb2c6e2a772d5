"""Adapters for frameworks. Importing one of them imports neither its framework nor torch."""

import importlib
import os

__all__ = ["backend_mode", "sglang", "transformers", "vllm"]

_MODES = {"1": "linear", "true": "linear", "yes": "linear", "on": "linear", "moe": "moe"}
_OFF = ("", "0", "false", "no", "off")


def backend_mode() -> str | None:
    """Return what DGJ_BACKEND asks for: None (off), "linear" or "moe". Raises ValueError for others."""
    value = os.environ.get("DGJ_BACKEND", "").strip().lower()
    if value in _OFF:
        return None
    if value not in _MODES:
        raise ValueError(
            f"DGJ_BACKEND is {value!r}; allowed are 1 (linear layers), moe (experts too) and 0 (off)"
        )
    return _MODES[value]


def __getattr__(name: str):
    if name in ("sglang", "transformers", "vllm"):
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
