"""The M-grouped part of `verify`: every form; rows of no group hold NaN, and D keeps what it had there."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import deep_gemm_jit as dg
from deep_gemm_jit.cli.accuracy import (
    BLOCK,
    GUARD,
    GUARD_ROWS,
    PRODUCT_UNIT,
    UNITS,
    Check,
    judged,
    random_values,
    widened,
)

_COUNTS = (5, 0, 131, 1, 64)  # rows of each group
_N, _K = 264, 400  # whole blocks of 128, and a part of one
_ALIGNMENTS = (128, 16)  # of the contiguous forms
_E4M3_NAN = 0x7F


@dataclass
class _Form:
    """owner: the group of each row, or -1, in the shape of the rows of D. call(a, b, d) writes D."""

    name: str
    owner: Any
    call: Callable[[tuple, tuple, Any], None]
    alignment: int = 128
    zero_padding: bool = False


def grouped_gemms(torch, device) -> list[Check]:
    weights = [dg.per_block_cast_to_fp8(random_values(torch, device, _N, _K, g)) for g in range(len(_COUNTS))]
    values = torch.stack([q.view(torch.uint8) for q, _ in weights]).view(weights[0][0].dtype)
    b = values, torch.stack([scales for _, scales in weights])
    wide = [widened(torch, q, scales, BLOCK) for q, scales in weights]
    before = dg.get_mk_alignment_for_contiguous_layout()
    checks = []
    try:
        for form in _forms(torch, device):
            dg.set_mk_alignment_for_contiguous_layout(form.alignment)
            checks += _of_form(torch, device, form, b, wide)
    finally:
        dg.set_mk_alignment_for_contiguous_layout(before)
    return checks


def _forms(torch, device) -> list[_Form]:
    def whole_numbers(values):
        return torch.tensor(values, dtype=torch.int32, device=device)

    found = []
    for alignment in _ALIGNMENTS:
        owner, ends = [], []
        for group, count in enumerate(_COUNTS):
            owner += [group] * count
            ends.append(len(owner))
            owner += [-1] * (-len(owner) % alignment)
        owner += [-1] * 3
        for zero in (False, True):
            options = {"ensure_zero_padding": True} if zero else {}
            extra = " zero padding" if zero else ""
            for name, index, more in (
                ("ids", owner, {}),
                ("psum ends", ends, {"use_psum_layout": True}),
            ):
                index = whole_numbers(index)
                call = partial(_contiguous, index=index, **more, **options)
                name = f"m_grouped_fp8_gemm_nt_contiguous {name}, alignment {alignment}{extra}"
                found.append(_Form(name, torch.tensor(owner), call, alignment, zero))

    offsets = [2]
    for count in _COUNTS:
        offsets.append(offsets[-1] + count)
    owner = [-1, -1] + [group for group, count in enumerate(_COUNTS) for _ in range(count)] + [-1] * 3
    call = partial(_offsets, index=whole_numbers(offsets))
    found.append(_Form("m_grouped_fp8_gemm_nt_offsets", torch.tensor(owner), call))

    place, counts = torch.arange(max(_COUNTS) + 2), torch.tensor(_COUNTS)[:, None]
    owner = torch.where(place < counts, torch.arange(len(_COUNTS))[:, None], -1)
    call = partial(_masked, index=whole_numbers(_COUNTS))
    found.append(_Form("m_grouped_fp8_gemm_nt_masked", owner, call))
    return found


def _contiguous(a, b, d, index, **options) -> None:
    dg.m_grouped_fp8_gemm_nt_contiguous(a, b, d, index, **options)


def _offsets(a, b, d, index) -> None:
    dg.m_grouped_fp8_gemm_nt_offsets(a, b, d, index)


def _masked(a, b, d, index) -> None:
    dg.m_grouped_fp8_gemm_nt_masked(a, b, d, index, max(_COUNTS))


def _of_form(torch, device, form: _Form, b: tuple, weights: list) -> list[Check]:
    owner = form.owner.to(device)
    flat = owner.flatten()
    values, scales = dg.per_token_cast_to_fp8(random_values(torch, device, len(flat), _K, len(flat)))
    left = widened(torch, values, scales, 1)
    exact = torch.zeros(len(flat), _N, dtype=torch.float64, device=device)
    magnitude = torch.zeros_like(exact)
    for group, right in enumerate(weights):
        rows = flat == group
        exact[rows] = left[rows] @ right.t()
        magnitude[rows] = left[rows].abs() @ right.abs().t()
    values.view(torch.uint8)[flat < 0] = _E4M3_NAN
    scales[flat < 0] = float("nan")
    a = values.view(*owner.shape, _K), scales.view(*owner.shape, -1)
    exact, magnitude = exact.view(*owner.shape, _N), magnitude.view(*owner.shape, _N)
    return [_check(torch, form, owner, a, b, exact, magnitude, dtype) for dtype in UNITS]


def _check(torch, form: _Form, owner, a, b, exact, magnitude, dtype: str) -> Check:
    """One call, twice: rows of groups start as NaN, all others, and what is around D, as the guard."""
    used, results = owner >= 0, []
    for _ in range(2):
        shape = (owner.shape[0] + 2 * GUARD_ROWS, *owner.shape[1:], _N)
        whole = torch.full(shape, GUARD, dtype=getattr(torch, dtype), device=owner.device)
        d = whole[GUARD_ROWS:-GUARD_ROWS]
        d[used] = float("nan")
        form.call(a, b, d)
        results.append(d.clone())
        around = (whole[:GUARD_ROWS] == GUARD).all() and (whole[-GUARD_ROWS:] == GUARD).all()
    bound = magnitude[used] * PRODUCT_UNIT + exact[used].abs() * UNITS[dtype]
    error = (results[0][used].double() - exact[used]).abs()
    check = judged(torch, f"{form.name} {_N}x{_K} {dtype}", error, bound)
    if not torch.equal(*results):
        check.ok, check.note = False, "a second call gave other bits"
    if not (results[0][~used] == (0.0 if form.zero_padding else GUARD)).all():
        check.ok, check.note = False, "rows of no group are not as they should be"
    if not around:
        check.ok, check.note = False, "rows outside of D were written"
    return check
