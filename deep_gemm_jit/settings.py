"""Process-wide settings, under DeepGEMM's names. Each call of an operation reads them once."""

import sys

from deep_gemm_jit import _core

__all__ = [
    "get_batch_invariant",
    "get_num_sms",
    "get_pdl",
    "set_batch_invariant",
    "set_num_sms",
    "set_pdl",
]


def set_num_sms(num_sms: int) -> None:
    """Let kernels use at most num_sms streaming multiprocessors; 0 means all of the device.

    It changes the grid of a launch only: no kernel is compiled for it. Raises ValueError below 0.
    """
    _core.set_num_sms(num_sms)


def get_num_sms(device: int | None = None) -> int:
    """Return how many streaming multiprocessors kernels may use on a CUDA device.

    device: its index; None means torch's current device, or 0 where torch has not been imported.
    Raises NotImplementedError where there is no driver or no supported device, ValueError for a wrong index.
    """
    return _core.get_num_sms(current_device() if device is None else device)


def current_device() -> int:
    """Return the index of torch's current CUDA device, or 0 where torch has not been imported."""
    torch = sys.modules.get("torch")
    return torch.cuda.current_device() if torch is not None and torch.cuda.is_available() else 0


def set_pdl(enabled: bool) -> None:
    """Turn programmatic dependent launch on or off: a kernel may start while the one before it ends."""
    _core.set_pdl(bool(enabled))


def get_pdl() -> bool:
    """Return whether programmatic dependent launch is on; off until set_pdl says otherwise."""
    return _core.get_pdl()


def set_batch_invariant(enabled: bool) -> None:
    """Turn the mode on or off in which the bits of a row of D depend on its own row of A, and B, alone.

    Without it the same inputs give the same bits, always; with it, for every number of rows as well.
    """
    _core.set_batch_invariant(bool(enabled))


def get_batch_invariant() -> bool:
    """Return whether batch-invariant mode is on.

    Until it is set, DGJ_BATCH_INVARIANT or else VLLM_BATCH_INVARIANT decides, read once.
    """
    return _core.get_batch_invariant()
