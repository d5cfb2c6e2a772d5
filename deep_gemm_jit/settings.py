"""Process-wide settings, under DeepGEMM's names. Each call of an operation reads them once."""

import operator
import sys
from collections.abc import Callable

from deep_gemm_jit import _core

__all__ = [
    "get_batch_invariant",
    "get_compile_mode",
    "get_deterministic_algorithms",
    "get_mk_alignment_for_contiguous_layout",
    "get_num_sms",
    "get_pdl",
    "get_theoretical_mk_alignment_for_contiguous_layout",
    "set_batch_invariant",
    "set_compile_mode",
    "set_mk_alignment_for_contiguous_layout",
    "set_num_sms",
    "set_pdl",
    "use_deterministic_algorithms",
]

# The settings that another package of DeepGEMM's names has too (see dropin): what its setter of each name
# would have been given last, for when it is loaded later, and who wants to know at once.
shared: dict[str, object] = {}
listener: Callable[[str, object], None] | None = None


# What _core has. torch.compile traces no C function, but reads a global and sees when it changes.
_mk_alignment = _core.get_mk_alignment()


def _share(setter: str, value: object) -> None:
    shared[setter] = value
    if listener is not None:
        listener(setter, value)


def set_num_sms(num_sms: int) -> None:
    """Let a kernel use at most num_sms streaming multiprocessors; 0 means all of the device.

    It holds for GEMMs and for casts to FP8, and changes the grid of a launch only: no kernel is compiled for
    it. Raises ValueError below 0, TypeError for what is no integer.
    """
    try:
        _core.set_num_sms(num_sms)
    except TypeError:
        raise _not_whole("set_num_sms", "num_sms", num_sms) from None
    _share("set_num_sms", operator.index(num_sms))


def get_num_sms(device: int | None = None) -> int:
    """Return how many streaming multiprocessors a kernel may use on a CUDA device.

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
    _share("set_pdl", bool(enabled))


def get_pdl() -> bool:
    """Return whether programmatic dependent launch is on; off until set_pdl says otherwise."""
    return _core.get_pdl()


def set_compile_mode(mode: int) -> None:
    """Say what a GEMM on a CUDA device does: 0 runs it; 1 compiles and loads its kernel without a launch.

    In mode 1 outputs stay as they were, and a call whose kernel is loaded already returns in about 1 us, so a
    server can walk over all its row counts. Operations on CPU tensors and casts run in both modes.
    Raises ValueError for another mode.
    """
    try:
        _core.set_compile_mode(mode)
    except TypeError:
        if isinstance(mode, int):  # a whole number that C++ cannot hold, which it takes for another type
            raise ValueError(f"set_compile_mode: mode is {mode}; allowed: 0 and 1") from None
        raise _not_whole("set_compile_mode", "mode", mode) from None


def get_compile_mode() -> int:
    """Return the mode that set_compile_mode set; 0 until then."""
    return _core.get_compile_mode()


def set_batch_invariant(enabled: bool) -> None:
    """Turn the mode on or off in which the bits of a row of D depend on its own row of A, and B, alone.

    Without it the same inputs give the same bits, always; with it, for every number of rows as well.
    """
    _core.set_batch_invariant(bool(enabled))
    _share("use_deterministic_algorithms", bool(enabled))


def get_batch_invariant() -> bool:
    """Return whether batch-invariant mode is on.

    Until it is set, DGJ_BATCH_INVARIANT or else VLLM_BATCH_INVARIANT decides, read once. Raises ValueError
    where the first is neither 1, true, yes, on nor 0, false, no, off.
    """
    return _core.get_batch_invariant()


def use_deterministic_algorithms(enabled: bool) -> None:
    """DeepGEMM's name of set_batch_invariant.

    Every kernel here is deterministic; what callers want of this switch is that the bits of a row depend on
    nothing but its own inputs, which is the batch-invariant mode.
    """
    set_batch_invariant(enabled)


def get_deterministic_algorithms() -> bool:
    """Return what get_batch_invariant returns: DeepGEMM's name of it."""
    return get_batch_invariant()


def set_mk_alignment_for_contiguous_layout(alignment: int) -> None:
    """Say that groups start at multiples of this many rows in the contiguous layouts, 1..128.

    It is read at the moment of a call and is the caller's promise: ids change at multiples of it only, and in
    the psum layout each group starts at the end of the one before, rounded up to it. A plain store of a
    process-wide value: under torch.compile it breaks the graph, and compiled code that read another value is
    compiled again. Raises ValueError outside 1..128.
    """
    global _mk_alignment
    try:  # costs a plain store nothing
        _core.set_mk_alignment(alignment)
    except TypeError:
        raise _not_whole("set_mk_alignment_for_contiguous_layout", "alignment", alignment) from None
    while _mk_alignment != _core.get_mk_alignment():  # another thread may set it in between
        _mk_alignment = _core.get_mk_alignment()
    _share("set_mk_alignment_for_contiguous_layout", operator.index(alignment))


def get_mk_alignment_for_contiguous_layout() -> int:
    """Return the alignment of groups in the contiguous layouts, in rows; 128 until it is set."""
    return _mk_alignment


def get_theoretical_mk_alignment_for_contiguous_layout(
    expected_m: int | None = None, num_groups: int | None = None
) -> int:
    """Return the alignment to lay out rows with: what costs little padding and is enough for the kernels.

    expected_m: rows of a usual group. num_groups: how many groups share the rows, which makes expected_m the
    rows of all of them; then, or without any argument, the answer is 128, which is what callers of that form
    build their other kernels for. With expected_m alone it is the largest of 8, 16, 32, 64 and 128 that is at
    most an eighth of it, but at least 8: half of it is the padding of a group, a sixteenth of its rows.
    """
    if expected_m is None or num_groups is not None:
        return 128
    try:
        rows = max(operator.index(expected_m), 1)
    except TypeError:
        name = "get_theoretical_mk_alignment_for_contiguous_layout"
        raise _not_whole(name, "expected_m", expected_m) from None
    return min(128, max(8, 1 << (rows.bit_length() - 1) >> 3))


def _not_whole(function: str, parameter: str, value: object) -> TypeError:
    return TypeError(f"{function}: {parameter} is {value!r}; it must be an integer")
