"""Quantisation to FP8 (e4m3) with one scale for each block, and back; forward only, without gradients.

    amax = largest |x| of the block
    sf   = max(amax, 1e-4) / 448          in FP32, correctly rounded; use_ue8m0: rounded up to a power of two
    q    = e4m3(x * (1 / sf))             reciprocal and product in FP32; to nearest even, saturated at +-448

CPU and GPU tensors give the same bits. What is not finite spoils its own block only: a NaN makes the scale
and every element of its block NaN; an infinity makes the scale infinite, finite elements 0 and infinite ones
NaN, so that the whole block reads back as NaN. As a packed exponent both are 255, the NaN of UE8M0.
"""

from __future__ import annotations

import torch

from deep_gemm_jit.layouts import _check_tensor, _pack_exponents, align, ceil_div

__all__ = [
    "cast_back_from_fp8",
    "ceil_to_ue8m0",
    "pack_ue8m0_to_int",
    "per_block_cast_to_fp8",
    "per_channel_cast_to_fp8",
    "per_token_cast_to_fp8",
    "unpack_ue8m0_from_int",
]

_NAMESPACE = "deep_gemm_jit"
_INPUT_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
_GRANULARITIES = (32, 64, 128)
_MANTISSA = 0x7FFFFF
_EXPONENT = 0x7F800000
_SMALLEST_NORMAL = 1 << 23


# ---- public functions ----------------------------------------------------------------------------


def per_token_cast_to_fp8(
    x: torch.Tensor, use_ue8m0: bool = False, gran_k: int = 128, use_packed_ue8m0: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise with one scale for each row and each gran_k columns (formula: see the module).

    x: bfloat16, float16 or float32 [m, n], any m and n. Rows may have any pitch; where columns are not
        adjacent x is copied first. gran_k: 32, 64 or 128.
    Returns (q, sf): q float8_e4m3fn [m, n] contiguous; sf float32 [m, ceil(n / gran_k)] contiguous, or with
        use_packed_ue8m0 (which needs use_ue8m0) int32 [m, ceil(n / (4 * gran_k))] with strides
        (1, align(m, 4)): four biased exponents a word, low bytes first, 0 past the last block.

    Raises TypeError for another dtype; ValueError for another rank or gran_k, or packing without use_ue8m0.
    """
    return torch.ops.deep_gemm_jit.per_token_cast_to_fp8(
        _forward_only("per_token_cast_to_fp8", x), use_ue8m0, gran_k, use_packed_ue8m0
    )


def per_block_cast_to_fp8(
    x: torch.Tensor, use_ue8m0: bool = False, gran_k: int = 128
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise with one scale for each gran_k x gran_k block (formula: see the module), as for weights.

    x: bfloat16, float16 or float32 [m, n], any m and n. Rows may have any pitch; where columns are not
        adjacent x is copied first. gran_k: 32, 64 or 128.
    Returns (q, sf): q float8_e4m3fn [m, n]; sf float32 [ceil(m / gran_k), ceil(n / gran_k)]; both contiguous.

    Raises TypeError for another dtype; ValueError for another rank or gran_k.
    """
    return torch.ops.deep_gemm_jit.per_block_cast_to_fp8(
        _forward_only("per_block_cast_to_fp8", x), use_ue8m0, gran_k
    )


def per_channel_cast_to_fp8(
    x: torch.Tensor, use_ue8m0: bool = False, gran_k: int = 128
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise with one scale for each gran_k rows of each column (formula: see the module).

    x: bfloat16, float16 or float32 [m, n], any m, n and strides. gran_k: 32, 64 or 128.
    Returns (q, sf): q float8_e4m3fn [m, n]; sf float32 [ceil(m / gran_k), n]; both contiguous. Works through
        a transposed copy of x, so it costs about three times what per_token_cast_to_fp8 costs.

    Raises TypeError for another dtype; ValueError for another rank or gran_k.
    """
    _check_tensor("per_channel_cast_to_fp8", "x", x)
    _check_input("per_channel_cast_to_fp8", x, gran_k)
    q, sf = per_token_cast_to_fp8(x.t().contiguous(), use_ue8m0, gran_k)
    # e4m3 travels as bytes: not every torch can transpose it into a contiguous tensor.
    return q.view(torch.uint8).t().contiguous().view(q.dtype), sf.t().contiguous()


def cast_back_from_fp8(
    x: torch.Tensor, sf: torch.Tensor, gran_k: int = 128, use_packed_ue8m0: bool = False
) -> torch.Tensor:
    """Return x * sf in float32 [m, n]; each product is rounded once.

    x: float8_e4m3fn [m, n].
    sf: float32 [m, ceil(n / gran_k)] (per token) or [ceil(m / gran_k), ceil(n / gran_k)] (per block), or with
        use_packed_ue8m0 int32 [m, ceil(n / (4 * gran_k))]; any strides.

    Raises TypeError for another dtype, ValueError for another shape.
    """
    name = "cast_back_from_fp8"
    _check_tensor(name, "x", x)
    _check_tensor(name, "sf", sf)
    if gran_k < 1:
        raise ValueError(f"{name}: gran_k is {gran_k}; it must be at least 1, and what x was cast with")
    if x.dtype != torch.float8_e4m3fn:
        raise TypeError(f"{name}: x has dtype {x.dtype}; it must be float8_e4m3fn")
    if x.dim() != 2 or sf.dim() != 2:
        raise ValueError(f"{name}: x has {x.dim()} and sf {sf.dim()} dimensions; both must have 2")
    if sf.dtype != (torch.int32 if use_packed_ue8m0 else torch.float32):
        raise TypeError(
            f"{name}: sf has dtype {sf.dtype}; with use_packed_ue8m0={use_packed_ue8m0} it must be "
            f"{'int32' if use_packed_ue8m0 else 'float32'}"
        )
    m, n = x.shape
    rows, blocks = ceil_div(m, gran_k), ceil_div(n, gran_k)
    if use_packed_ue8m0:
        allowed = [(m, ceil_div(blocks, 4))]
    else:
        allowed = [(m, blocks), (rows, blocks)]
    if tuple(sf.shape) not in allowed:
        raise ValueError(
            f"{name}: sf has shape {list(sf.shape)}; x of shape [{m}, {n}] with gran_k={gran_k} needs "
            + " or ".join(str(list(shape)) for shape in allowed)
        )
    if use_packed_ue8m0:
        sf = unpack_ue8m0_from_int(sf)
    if sf.shape[0] != m:
        sf = sf.repeat_interleave(gran_k, dim=0)[:m]
    return x.float() * sf.repeat_interleave(gran_k, dim=1)[:, :n]


def ceil_to_ue8m0(x: torch.Tensor) -> torch.Tensor:
    """Return |x| rounded up to a power of two, float32, any shape; at least 2^-126. Infinity and NaN stay.

    Raises TypeError unless x is float32.
    """
    _check_tensor("ceil_to_ue8m0", "x", x)
    if x.dtype != torch.float32:
        raise TypeError(
            f"ceil_to_ue8m0: x has dtype {x.dtype}; it must be float32: convert it with x.float()"
        )
    magnitude = x.abs()
    # Adding all mantissa bits carries into the exponent unless the value is a power of two.
    rounded = (magnitude.view(torch.int32) + _MANTISSA) & _EXPONENT
    return torch.where(magnitude.isnan(), magnitude, rounded.clamp(min=_SMALLEST_NORMAL).view(torch.float32))


def pack_ue8m0_to_int(x: torch.Tensor) -> torch.Tensor:
    """Pack power-of-two scales, four biased exponents a word.

    x: float32 [.., k], each value a positive power of two, zero, infinite or NaN.
    Returns int32 [.., ceil(k / 4)] contiguous: the first of four in the low byte, bytes past k 0, infinity
    and NaN as 255. Waits for the device, to look at the values.

    Raises TypeError for another dtype; ValueError for a scalar or for values that UE8M0 cannot hold.
    """
    _check_tensor("pack_ue8m0_to_int", "x", x)
    if x.dtype != torch.float32:
        raise TypeError(
            f"pack_ue8m0_to_int: x has dtype {x.dtype}; it must be float32: convert it with x.float()"
        )
    if x.dim() == 0:
        raise ValueError("pack_ue8m0_to_int: x is a scalar; it needs at least one dimension: use x.view(1)")
    lost = (x.view(torch.int32) & ~_EXPONENT) != 0
    if bool((lost & ~x.isnan()).any()):
        raise ValueError(
            "pack_ue8m0_to_int: x has values that are no powers of two, which UE8M0 cannot hold: "
            "round them with ceil_to_ue8m0 before they are used to quantise"
        )
    return _pack_exponents(x)


def unpack_ue8m0_from_int(packed: torch.Tensor) -> torch.Tensor:
    """Return the scales of packed UE8M0 words.

    packed: int32 [.., w], any strides. Returns float32 [.., 4 * w] contiguous, low bytes first:
    2^(byte - 127), NaN for 255, and 0 for 0, which pads the last word.

    Raises TypeError for another dtype, ValueError for a scalar.
    """
    _check_tensor("unpack_ue8m0_from_int", "packed", packed)
    if packed.dtype != torch.int32:
        raise TypeError(f"unpack_ue8m0_from_int: packed has dtype {packed.dtype}; it must be int32")
    if packed.dim() == 0:
        raise ValueError(
            "unpack_ue8m0_from_int: packed is a scalar; it needs at least one dimension: use packed.view(1)"
        )
    # Shifts, not a view as bytes: that needs stride 1 in the last dimension, also where its size is 1.
    shifts = torch.arange(0, 32, 8, dtype=torch.int32, device=packed.device)
    exponents = ((packed.unsqueeze(-1) >> shifts) & 0xFF).flatten(-2)
    return (exponents << 23).view(torch.float32).masked_fill_(exponents == 255, float("nan"))


# ---- operators -----------------------------------------------------------------------------------


def _forward_only(function: str, x: torch.Tensor) -> torch.Tensor:
    _check_tensor(function, "x", x)
    return x.detach() if x.requires_grad else x


def _check_input(name: str, x: torch.Tensor, gran_k: int) -> None:
    if x.dim() != 2:
        raise ValueError(f"{name}: x has {x.dim()} dimensions; it must be [m, n]: use x.view(-1, x.size(-1))")
    if x.dtype not in _INPUT_DTYPES:
        raise TypeError(
            f"{name}: x has dtype {x.dtype}; allowed are bfloat16, float16 and float32: convert it with .to()"
        )
    if gran_k not in _GRANULARITIES:
        raise ValueError(f"{name}: gran_k is {gran_k}; allowed are 32, 64 and 128")


def _per_token_outputs(
    x: torch.Tensor, use_ue8m0: bool = False, gran_k: int = 128, use_packed_ue8m0: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    _check_input("per_token_cast_to_fp8", x, gran_k)
    if use_packed_ue8m0 and not use_ue8m0:
        raise ValueError(
            "per_token_cast_to_fp8: use_packed_ue8m0 packs powers of two; pass use_ue8m0=True with it"
        )
    m, n = x.shape
    blocks = ceil_div(n, gran_k)
    q = torch.empty((m, n), dtype=torch.float8_e4m3fn, device=x.device)
    if not use_packed_ue8m0:
        return q, torch.empty((m, blocks), dtype=torch.float32, device=x.device)
    words = torch.empty((ceil_div(blocks, 4), align(m, 4)), dtype=torch.int32, device=x.device)
    return q, words.t()[:m]


def _per_block_outputs(
    x: torch.Tensor, use_ue8m0: bool = False, gran_k: int = 128
) -> tuple[torch.Tensor, torch.Tensor]:
    _check_input("per_block_cast_to_fp8", x, gran_k)
    m, n = x.shape
    q = torch.empty((m, n), dtype=torch.float8_e4m3fn, device=x.device)
    return q, torch.empty((ceil_div(m, gran_k), ceil_div(n, gran_k)), dtype=torch.float32, device=x.device)


def _run(
    x: torch.Tensor, q: torch.Tensor, sf: torch.Tensor, gran_rows: int, gran_k: int, use_ue8m0: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    if x.numel() > 0:
        from deep_gemm_jit import _core

        if x.stride(1) != 1:
            x = x.contiguous()
        _core.run_cast_to_fp8(x, q, sf, gran_rows, gran_k, use_ue8m0)
    return q, sf


def _per_token(
    x: torch.Tensor, use_ue8m0: bool = False, gran_k: int = 128, use_packed_ue8m0: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    return _run(x, *_per_token_outputs(x, use_ue8m0, gran_k, use_packed_ue8m0), 1, gran_k, use_ue8m0)


def _per_block(
    x: torch.Tensor, use_ue8m0: bool = False, gran_k: int = 128
) -> tuple[torch.Tensor, torch.Tensor]:
    return _run(x, *_per_block_outputs(x, use_ue8m0, gran_k), gran_k, gran_k, use_ue8m0)


# A fragment: the module that registers the GEMMs shares the namespace. The object must live as long as its
# operators.
_library = torch.library.Library(_NAMESPACE, "FRAGMENT")


def _register(name: str, schema: str, run, outputs) -> None:
    _library.define(name + schema)
    for key in ("CPU", "CUDA"):
        _library.impl(name, run, key)
    torch.library.register_fake(f"{_NAMESPACE}::{name}", outputs, lib=_library)


_register(
    "per_token_cast_to_fp8",
    "(Tensor x, bool use_ue8m0=False, int gran_k=128, bool use_packed_ue8m0=False) -> (Tensor, Tensor)",
    _per_token,
    _per_token_outputs,
)
_register(
    "per_block_cast_to_fp8",
    "(Tensor x, bool use_ue8m0=False, int gran_k=128) -> (Tensor, Tensor)",
    _per_block,
    _per_block_outputs,
)
