"""Layouts of scale factors: sizes, MN-major copies that tensor maps can read, packed UE8M0 words.

A scale tensor has the shape [mn, blocks of k], or [groups, mn, blocks of k]. MN-major TMA-aligned means
strides (1, align(mn, 4)): the scales of one block of k lie together, and each such run starts on 16 bytes.
The FP8 GEMMs of this package read row-major and unaligned scales as well; these functions serve callers that
expect DeepGEMM's layouts.

Importing this module does not import torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

__all__ = [
    "align",
    "ceil_div",
    "get_mn_major_tma_aligned_packed_ue8m0_tensor",
    "get_mn_major_tma_aligned_tensor",
    "get_tma_aligned_size",
    "transform_sf_into_required_layout",
]

_TMA_ALIGNMENT = 16  # bytes: row pitches and base addresses of a tensor map


def ceil_div(x: int, y: int) -> int:
    """Return x / y rounded up, for x >= 0 and y > 0."""
    return (x + y - 1) // y


def align(x: int, y: int) -> int:
    """Return the smallest multiple of y that is not below x, for x >= 0 and y > 0."""
    return ceil_div(x, y) * y


def get_tma_aligned_size(x: int, element_size: int) -> int:
    """Return x rounded up to whole 16 bytes of elements of element_size bytes, as tensor maps want rows.

    Raises ValueError unless element_size is 1, 2, 4, 8 or 16.
    """
    if element_size not in (1, 2, 4, 8, 16):
        raise ValueError(
            f"get_tma_aligned_size: element_size is {element_size}; allowed are 1, 2, 4, 8 and 16 bytes"
        )
    return align(x, _TMA_ALIGNMENT // element_size)


def get_mn_major_tma_aligned_tensor(x: torch.Tensor) -> torch.Tensor:
    """Return fp32 scales in MN-major TMA-aligned layout.

    x: fp32 [mn, k] or [groups, mn, k], any strides.
    Returns the same shape and values with strides (1, align(mn, 4)), groups align(mn, 4) * k apart: x itself
    when it has these strides and starts on 16 bytes of its storage, else a copy. It is never a view of x with
    other strides. What lies between mn and align(mn, 4) is not initialised.

    Raises TypeError for another dtype, ValueError for another rank.
    """
    import torch

    _check_scales("get_mn_major_tma_aligned_tensor", x, torch.float32)
    mn, k = x.shape[-2:]
    pitch = get_tma_aligned_size(mn, 4)
    strides = (pitch * k, 1, pitch)[-x.dim() :]
    if x.stride() == strides and x.storage_offset() % 4 == 0:
        return x
    out = _empty_mn_major(x, x.shape, pitch)
    out.copy_(x)
    return out


def get_mn_major_tma_aligned_packed_ue8m0_tensor(sf: torch.Tensor) -> torch.Tensor:
    """Return fp32 power-of-two scales as packed UE8M0 words in MN-major TMA-aligned layout.

    sf: fp32 [mn, k] or [groups, mn, k], any strides.
    Returns int32 [.., mn, ceil(k / 4)] with strides (1, align(mn, 4)). A word holds the biased exponents of
    four neighbouring scales of k, the first in its low byte; bytes past k are 0. Values that are no powers of
    two lose their mantissa and sign, without an error, since rows that nobody uses may hold anything.

    Raises TypeError for another dtype, ValueError for another rank.
    """
    import torch

    _check_scales("get_mn_major_tma_aligned_packed_ue8m0_tensor", sf, torch.float32)
    words = _pack_exponents(sf)
    out = _empty_mn_major(words, words.shape, get_tma_aligned_size(words.shape[-2], 4))
    out.copy_(words)
    return out


def transform_sf_into_required_layout(
    sf: torch.Tensor,
    mn: int,
    k: int,
    recipe: Sequence[int],
    num_groups: int | None = None,
    is_sfa: bool | None = None,
    disable_ue8m0_cast: bool = False,
    psum_layout: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return scales in the layout that DeepGEMM's GEMMs want on Hopper. CPU tensors get the same.

    sf: fp32 [ceil(mn / gran_mn), ceil(k / gran_k)], with a leading num_groups when that is given.
    recipe: (gran_a, gran_b, gran_k), of which is_sfa picks the first or the second, or (gran_mn, gran_k),
        which forbids is_sfa.
    disable_ue8m0_cast, psum_layout: accepted and without meaning here, since scales stay fp32 and rows stay
        in place.
    Granularity (1, 128): returns what get_mn_major_tma_aligned_tensor returns. (128, 128): returns sf.

    Raises NotImplementedError for another granularity and for packed int32 scales, TypeError for another
    kind or dtype, and ValueError for a wrong shape, recipe or is_sfa.
    """
    import torch

    name = "transform_sf_into_required_layout"
    _check_tensor(name, "sf", sf)
    for parameter, value in (("mn", mn), ("k", k)):
        if not hasattr(value, "__index__") and not isinstance(value, torch.SymInt):
            raise TypeError(f"{name}: {parameter} is {value!r}; it must be an integer")
    gran_mn, gran_k = _granularity(name, recipe, is_sfa)
    if sf.dtype == torch.int32:
        raise NotImplementedError(
            f"{name}: sf has dtype int32 (packed UE8M0), which no kernel for this device reads; "
            "pass fp32 scales"
        )
    if (gran_mn, gran_k) not in ((1, 128), (128, 128)):
        raise NotImplementedError(
            f"{name}: recipe {tuple(recipe)} means a scale per {gran_mn}x{gran_k} elements; supported "
            "are 1x128 and 128x128"
        )
    if sf.dtype != torch.float32:
        raise TypeError(f"{name}: sf has dtype {sf.dtype}; it must be float32: convert it with sf.float()")
    shape = (ceil_div(mn, gran_mn), ceil_div(k, gran_k))
    if num_groups is not None:
        shape = (num_groups, *shape)
    if tuple(sf.shape) != shape:
        raise ValueError(
            f"{name}: sf has shape {list(sf.shape)}; mn={mn}, k={k}, num_groups={num_groups} with a scale "
            f"per {gran_mn}x{gran_k} elements need {list(shape)}"
        )
    return get_mn_major_tma_aligned_tensor(sf) if gran_mn == 1 else sf


def _granularity(name: str, recipe: Sequence[int], is_sfa: bool | None) -> tuple[int, int]:
    if not isinstance(recipe, tuple | list):
        raise TypeError(
            f"{name}: recipe is {recipe!r}; it must be a tuple of integers, such as (1, 128, 128) or (1, 128)"
        )
    if len(recipe) == 3:
        if is_sfa is None:
            raise ValueError(
                f"{name}: recipe {tuple(recipe)} has three numbers, for A, B and k; is_sfa must say whose "
                "scales sf holds: pass is_sfa=True or False"
            )
        return (recipe[0] if is_sfa else recipe[1]), recipe[2]
    if len(recipe) == 2:
        if is_sfa is not None:
            raise ValueError(
                f"{name}: recipe {tuple(recipe)} has two numbers and belongs to one operand; leave is_sfa out"
            )
        return recipe[0], recipe[1]
    raise ValueError(f"{name}: recipe {tuple(recipe)} has {len(recipe)} numbers; allowed are 2 and 3")


def _check_tensor(name: str, parameter: str, value: object) -> None:
    import torch

    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{name}: {parameter} is a {type(value).__name__}; it must be a torch.Tensor")


def _check_scales(name: str, sf: torch.Tensor, dtype: torch.dtype) -> None:
    _check_tensor(name, "the argument", sf)
    if sf.dtype != dtype:
        raise TypeError(
            f"{name}: the scales have dtype {sf.dtype}; they must be {dtype}: convert them with .float()"
        )
    if sf.dim() not in (2, 3):
        raise ValueError(
            f"{name}: the scales have {sf.dim()} dimensions; allowed are [mn, k] and [groups, mn, k]: "
            "use .view()"
        )


def _empty_mn_major(like: torch.Tensor, shape: Sequence[int], pitch: int) -> torch.Tensor:
    # The storage holds whole columns, the last one's padding too: tensor maps and vector loads may touch it.
    *groups, mn, k = shape
    return like.new_empty((*groups, k, pitch)).transpose(-1, -2)[..., :mn, :]


def _pack_exponents(sf: torch.Tensor) -> torch.Tensor:
    """Return the exponents of fp32 sf [.., k] as contiguous int32 [.., ceil(k / 4)], low bytes first."""
    import torch

    exponents = (sf.view(torch.int32) >> 23).bitwise_and_(0xFF).to(torch.uint8)
    *outer, k = sf.shape
    padded = exponents.new_zeros((*outer, align(k, 4)))
    padded[..., :k] = exponents
    return padded.view(torch.int32)
