"""Triton's interpreter with 8 and 16 bit floats that are right.

Release 3.6 loses the carry into the exponent when it narrows, and multiplies bfloat16 as integers.
"""

import numpy
import torch
import triton.language as tl
from triton.runtime import interpreter

_NARROW = {
    tl.float8e4nv: (torch.float8_e4m3fn, torch.uint8, numpy.uint8),
    tl.bfloat16: (torch.bfloat16, torch.int16, numpy.uint16),
}
_convert = interpreter._convert_float
_binary_op = interpreter.InterpreterBuilder.binary_op


def _convert_float(data, source, target, rounding_mode):
    if source != tl.float32 or target not in _NARROW:
        return _convert(data, source, target, rounding_mode)
    kind, as_int, as_numpy = _NARROW[target]
    values = torch.from_numpy(numpy.array(data, dtype=numpy.float32))
    if kind == torch.float8_e4m3fn:
        values = values.clamp(-448, 448)  # as on a GPU; NaN stays
    return values.to(kind).view(as_int).numpy().view(as_numpy)


def _widened(handle):
    bits = numpy.asarray(handle.data).astype(numpy.uint32) << 16
    return interpreter.TensorHandle(bits.view(numpy.float32), tl.float32)


def _rounded_binary_op(self, lhs, rhs, op):
    if lhs.dtype.scalar != tl.bfloat16:
        return _binary_op(self, lhs, rhs, op)
    wide = _binary_op(self, _widened(lhs), _widened(rhs), op)
    return interpreter.TensorHandle(_convert_float(wide.data, tl.float32, tl.bfloat16, None), tl.bfloat16)


class _Counter(int):
    """A loop variable: compiled kernels may convert it, the interpreter has Python's integers there."""

    def to(self, _dtype):
        return self


def counters(*bounds):
    """What `range` is in kernels."""
    return map(_Counter, range(*map(int, bounds)))


def install(*modules) -> None:
    """Correct the interpreter for all kernels, and `range` in the kernels of modules."""
    for module in (interpreter, *modules):
        module.range = counters
    interpreter._convert_float = _convert_float
    interpreter.InterpreterBuilder.binary_op = _rounded_binary_op
