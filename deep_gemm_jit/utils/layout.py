"""Layout helpers under the names of DeepGEMM's utils.layout."""

from deep_gemm_jit.layouts import (
    get_mn_major_tma_aligned_packed_ue8m0_tensor,
    get_mn_major_tma_aligned_tensor,
    get_tma_aligned_size,
    transform_sf_into_required_layout,
)

__all__ = [
    "get_mn_major_tma_aligned_packed_ue8m0_tensor",
    "get_mn_major_tma_aligned_tensor",
    "get_tma_aligned_size",
    "transform_sf_into_required_layout",
]
