"""Quantisation helpers under the names of DeepGEMM's utils.math."""

from deep_gemm_jit.layouts import align, ceil_div
from deep_gemm_jit.quant import (
    cast_back_from_fp8,
    ceil_to_ue8m0,
    pack_ue8m0_to_int,
    per_block_cast_to_fp8,
    per_channel_cast_to_fp8,
    per_token_cast_to_fp8,
    unpack_ue8m0_from_int,
)

__all__ = [
    "align",
    "cast_back_from_fp8",
    "ceil_div",
    "ceil_to_ue8m0",
    "pack_ue8m0_to_int",
    "per_block_cast_to_fp8",
    "per_channel_cast_to_fp8",
    "per_token_cast_to_fp8",
    "unpack_ue8m0_from_int",
]
