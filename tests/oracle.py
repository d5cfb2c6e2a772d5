"""Our grouped and dense GEMMs with each call compared with float64 on the very operands that it was given."""

import torch

import deep_gemm_jit as dg

LIMIT = 1e-5  # calc_diff of one GEMM
calls: dict[str, int] = {}


def cast_blocks(w):
    """Values and scales of [.., n, k] with a scale for each 128x128, as a checkpoint has them."""
    parts = [dg.per_block_cast_to_fp8(part) for part in w.reshape(-1, *w.shape[-2:])]
    q = torch.stack([values.view(torch.uint8) for values, _ in parts]).view(torch.float8_e4m3fn)
    sf = torch.stack([scales for _, scales in parts])
    return q.view(w.shape), sf.view(*w.shape[:-2], *sf.shape[1:])


def restored(q, sf):
    """float64 values of FP8 rows with a scale for each 128 columns, or for each 128x128 block."""
    if q.dim() == 3:
        return torch.stack([restored(*pair) for pair in zip(q, sf, strict=True)])
    return dg.cast_back_from_fp8(q, sf).double()


def assert_close(d, reference, limit=LIMIT):
    absent = reference.isnan()  # of operands that a warm-up left uninitialised
    assert torch.equal(d.isnan(), absent), "NaN in other places than in the reference"
    d, reference = d.masked_fill(absent, 0), reference.masked_fill(absent, 0)
    difference = dg.testing.calc_diff(d, reference).item()
    assert difference < limit, f"calc_diff is {difference:.2e}, allowed {limit}"


def _count(name):
    calls[name] = calls.get(name, 0) + 1


def fp8_gemm_nt(a, b, d, *args, **kwargs):
    assert dg.fp8_gemm_nt(a, b, d, *args, **kwargs) is None
    _count("fp8_gemm_nt")
    assert_close(d, restored(*a) @ restored(*b).T)


def rows_of(layout, groups, rows, psum):
    """The rows of each group; a row of nobody is in none."""
    alignment = dg.get_mk_alignment_for_contiguous_layout()
    if not psum:
        return [(layout == g).nonzero().flatten() for g in range(groups)]
    found, start = [], 0
    for end in layout.tolist():
        found.append(torch.arange(start, end, device=layout.device))
        start = dg.align(end, alignment)
    return found


def m_grouped_fp8_gemm_nt_contiguous(a, b, d, grouped_layout, *args, use_psum_layout=False, **kwargs):
    before = d.clone()
    done = dg.m_grouped_fp8_gemm_nt_contiguous(
        a, b, d, grouped_layout, *args, use_psum_layout=use_psum_layout, **kwargs
    )
    assert done is None
    _count("contiguous psum" if use_psum_layout else "contiguous ids")
    nobody = torch.ones(d.shape[0], dtype=torch.bool, device=d.device)
    groups = b[0].shape[0]
    for g, rows in enumerate(rows_of(grouped_layout, groups, d.shape[0], use_psum_layout)):
        assert_close(d[rows], restored(bytes_at(a[0], rows), a[1][rows]) @ restored(b[0][g], b[1][g]).T)
        nobody[rows] = False
    if use_psum_layout:  # with ids a unit may be computed as a whole
        dg.testing.assert_bitwise_equal(d[nobody], before[nobody])


def bytes_at(q, rows):
    return q.view(torch.uint8)[rows].view(q.dtype)


def m_grouped_fp8_gemm_nt_masked(a, b, d, masked_m, expected_m, *args, **kwargs):
    before = d.clone()
    assert dg.m_grouped_fp8_gemm_nt_masked(a, b, d, masked_m, expected_m, *args, **kwargs) is None
    _count("masked")
    for g, rows in enumerate(masked_m.tolist()):
        assert_close(d[g, :rows], restored(a[0][g, :rows], a[1][g, :rows]) @ restored(b[0][g], b[1][g]).T)
        dg.testing.assert_bitwise_equal(d[g, rows:], before[g, rows:])
