"""The M-grouped GEMMs as torch operators: schemas, what they do without data, what torch.compile inlines.

ops.register defines them. The alignment of the contiguous layouts is no argument of the operator: it is read
when the operator runs, so that a compiled graph sees what is set at the moment of the call.
"""

import torch

__all__: list[str] = []

_OPERANDS = "Tensor a, Tensor sfa, Tensor b, Tensor sfb, Tensor(a!) d"
_FP8 = torch.float8_e4m3fn
_D_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


# ---- without data --------------------------------------------------------------------------------


def _check(name: str, a, sfa, b, sfb, d, groups_name: str, groups, groups_shape) -> None:
    rank = 3 if groups_name == "masked_m" else 2
    for argument, tensor, wanted in (
        ("a[0]", a, rank), ("b[0]", b, 3), ("d", d, rank), (groups_name, groups, 1),
    ):  # fmt: skip
        if tensor.dim() != wanted:
            raise ValueError(f"{name}: {argument} has {tensor.dim()} dimensions; it must have {wanted}")
    for argument, tensor in (("a[1]", sfa), ("b[0]", b), ("b[1]", sfb), ("d", d), (groups_name, groups)):
        if tensor.device != a.device:
            raise TypeError(f"{name}: {argument} is on {tensor.device} but a[0] is on {a.device}")
    for argument, tensor in (("a[0]", a), ("b[0]", b)):
        if tensor.dtype != _FP8:
            raise TypeError(f"{name}: {argument} has dtype {tensor.dtype}; supported: float8_e4m3fn")
    for argument, tensor in (("a[1]", sfa), ("b[1]", sfb)):
        if tensor.dtype != torch.float32:
            raise NotImplementedError(f"{name}: {argument} has dtype {tensor.dtype}; supported: float32")
    if d.dtype not in _D_DTYPES:
        raise TypeError(f"{name}: d has dtype {d.dtype}; allowed: bfloat16, float16, float32")
    if groups.dtype != torch.int32:
        raise TypeError(f"{name}: {groups_name} has dtype {groups.dtype}; it must be int32")
    torch._check(a.shape[-1] == b.shape[2], lambda: f"{name}: a is {a.shape} but b is {b.shape}")
    torch._check(d.shape[-2] == a.shape[-2], lambda: f"{name}: a is {a.shape} but d is {d.shape}")
    torch._check(d.shape[-1] == b.shape[1], lambda: f"{name}: b is {b.shape} but d is {d.shape}")
    if rank == 3:
        torch._check(a.shape[0] == b.shape[0], lambda: f"{name}: a is {a.shape} but b is {b.shape}")
        torch._check(d.shape[0] == b.shape[0], lambda: f"{name}: b is {b.shape} but d is {d.shape}")
    torch._check(
        groups.shape[0] == groups_shape, lambda: f"{name}: {groups_name} has shape {groups.shape}"
    )


def _fake_contiguous(
    a, sfa, b, sfb, d, grouped_layout, use_psum_layout=False, ensure_zero_padding=False, expected_m=0,
    b_is_constant=False,
) -> None:  # fmt: skip
    extent = b.shape[0] if use_psum_layout else a.shape[0]
    name = "m_grouped_fp8_gemm_nt_contiguous"
    _check(name, a, sfa, b, sfb, d, "grouped_layout", grouped_layout, extent)


def _fake_masked(a, sfa, b, sfb, d, masked_m, expected_m=0, b_is_constant=False) -> None:
    _check("m_grouped_fp8_gemm_nt_masked", a, sfa, b, sfb, d, "masked_m", masked_m, b.shape[0])


def _fake_offsets(a, sfa, b, sfb, d, offsets, b_is_constant=False) -> None:
    _check("m_grouped_fp8_gemm_nt_offsets", a, sfa, b, sfb, d, "offsets", offsets, b.shape[0] + 1)


# ---- torch.compile -------------------------------------------------------------------------------


def _split(name: str, a, b, recipe, recipe_a, recipe_b, epilogue) -> tuple:
    if recipe is not None and tuple(recipe) != (1, 128, 128):
        raise NotImplementedError(f"{name}: recipe: supported: None or (1, 128, 128)")
    if recipe_a is not None and tuple(recipe_a) != (1, 128):
        raise NotImplementedError(f"{name}: recipe_a: supported: None or (1, 128)")
    if recipe_b is not None and tuple(recipe_b) != (128, 128):
        raise NotImplementedError(f"{name}: recipe_b: supported: None or (128, 128)")
    if epilogue is not None:
        raise NotImplementedError(f"{name}: epilogue: supported: None")
    if isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor):
        raise TypeError(f"{name}: a and b must each be a tuple or list of two: (values, scales)")
    (a_values, a_scales), (b_values, b_scales) = a, b
    return a_values, a_scales, b_values, b_scales


def _traced_contiguous(
    a, b, d, grouped_layout=None, recipe=None, recipe_a=None, recipe_b=None, compiled_dims="nk",
    disable_ue8m0_cast=False, use_psum_layout=False, ensure_zero_padding=None,
    expected_m_for_psum_layout=None, epilogue=None, *, b_is_constant=False, m_indices=None,
):  # fmt: skip
    name = "m_grouped_fp8_gemm_nt_contiguous"
    operands = _split(name, a, b, recipe, recipe_a, recipe_b, epilogue)
    if (grouped_layout is None) == (m_indices is None):
        raise TypeError(f"{name}() takes exactly one of 'grouped_layout' and its other name 'm_indices'")
    torch.ops.deep_gemm_jit.m_grouped_fp8_gemm_nt_contiguous.default(
        *operands, d, m_indices if grouped_layout is None else grouped_layout, bool(use_psum_layout),
        bool(ensure_zero_padding), expected_m_for_psum_layout or 0, bool(b_is_constant),
    )  # fmt: skip


def _traced_masked(
    a, b, d, masked_m, expected_m, recipe=None, recipe_a=None, recipe_b=None, compiled_dims="nk",
    disable_ue8m0_cast=False, epilogue=None, *, b_is_constant=False,
):  # fmt: skip
    operands = _split("m_grouped_fp8_gemm_nt_masked", a, b, recipe, recipe_a, recipe_b, epilogue)
    torch.ops.deep_gemm_jit.m_grouped_fp8_gemm_nt_masked.default(
        *operands, d, masked_m, 0 if expected_m is None else expected_m, bool(b_is_constant)
    )


def _traced_offsets(
    a, b, d, offsets, recipe=None, recipe_a=None, recipe_b=None, compiled_dims="nk",
    disable_ue8m0_cast=False, epilogue=None, *, b_is_constant=False,
):  # fmt: skip
    operands = _split("m_grouped_fp8_gemm_nt_offsets", a, b, recipe, recipe_a, recipe_b, epilogue)
    torch.ops.deep_gemm_jit.m_grouped_fp8_gemm_nt_offsets.default(*operands, d, offsets, bool(b_is_constant))


# (schema, fake implementation, what torch.compile inlines) of each operator, whose public function and whose
# implementation, run_<name>, are in _core.
OPERATORS = (
    (
        f"m_grouped_fp8_gemm_nt_contiguous({_OPERANDS}, Tensor grouped_layout, bool use_psum_layout=False, "
        "bool ensure_zero_padding=False, SymInt expected_m=0, bool b_is_constant=False) -> ()",
        _fake_contiguous,
        _traced_contiguous,
    ),
    (
        f"m_grouped_fp8_gemm_nt_masked({_OPERANDS}, Tensor masked_m, SymInt expected_m=0, "
        "bool b_is_constant=False) -> ()",
        _fake_masked,
        _traced_masked,
    ),
    (
        f"m_grouped_fp8_gemm_nt_offsets({_OPERANDS}, Tensor offsets, bool b_is_constant=False) -> ()",
        _fake_offsets,
        _traced_offsets,
    ),
)
