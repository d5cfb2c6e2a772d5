"""Helpers under the names of DeepGEMM's utils package; the functions are those of quant.py and layouts.py."""

from deep_gemm_jit.utils import layout, math
from deep_gemm_jit.utils.layout import *  # noqa: F403
from deep_gemm_jit.utils.math import *  # noqa: F403

__all__ = sorted({*layout.__all__, *math.__all__})
