"""M-grouped problems in every form, with hostile surroundings, on the emulator; and what is right about D."""

import ctypes
from dataclasses import dataclass

import torch
from emulator import launch, plans
from emulator.problems import FAR, FP8, PAST_32_BITS, ROUNDING, SMALLEST, spread

from deep_gemm_jit import _core

IDS, ENDS, OFFSETS, COUNTS = range(4)  # dgj::GroupForm
UNTOUCHED = 0x7FA5  # in each 16 bits of D before: a NaN of every dtype, but none that arithmetic gives


class GroupedArgs(ctypes.Structure):  # kernels_src/parts/grouped_args.cuh
    _fields_ = [
        *((name, ctypes.c_uint64) for name in ("sfa", "sfb", "d", "index")),
        *((name, ctypes.c_int64) for name in ("sfa_m", "sfa_k", "sfa_group", "sfb_n", "sfb_k", "sfb_group")),
        *((name, ctypes.c_int64) for name in ("ldd", "d_group")),
        *((name, ctypes.c_uint32) for name in ("rows", "groups", "form", "alignment")),
        *((name, ctypes.c_uint32) for name in ("zero_padding", "units")),
    ]


@dataclass
class Problem:
    form: int
    alignment: int
    a: torch.Tensor
    sfa: torch.Tensor
    b: torch.Tensor
    sfb: torch.Tensor
    d: torch.Tensor
    guard: torch.Tensor  # the allocation of d
    index: torch.Tensor
    owner: torch.Tensor  # group of each row, or -1
    zero_padding: bool = False
    readable: torch.Tensor | None = None  # of a: other rows are read by nobody


def rows_of(form: int, counts, alignment: int, generator, holes=None) -> tuple[torch.Tensor, torch.Tensor]:
    """(index, owner) of groups with `counts` rows. Ids come in any order, with holes in their units: those
    given, as (group, row of the group), or any."""
    groups = len(counts)
    if form == COUNTS:
        index = torch.tensor(counts, dtype=torch.int32)
        place = torch.arange(max(counts, default=0) + 5)
        return index, torch.where(place < index[:, None], torch.arange(groups)[:, None], -1)
    if form == OFFSETS:
        index = torch.tensor([3, *counts]).cumsum(0).int()
        owner = torch.full((int(index[-1]) + 6,), -1)
        for g in range(groups):
            owner[index[g] : index[g + 1]] = g
        return index, owner
    order = torch.randperm(groups, generator=generator).tolist() if form == IDS else range(groups)
    owner, ends, starts = [], [], {}
    for g in order:
        starts[g] = len(owner)
        owner += [g] * counts[g]
        ends.append(len(owner))
        owner += [-1] * (-len(owner) % alignment)
    owner = torch.tensor(owner + [-1] * (2 * alignment + 1))
    if form == ENDS:
        return torch.tensor(ends).int(), owner
    hole = torch.rand(len(owner), generator=generator) < 0.1
    if holes is not None:
        hole[:] = False
        hole[[starts[g] + row for g, row in holes]] = True
    owner[hole & (torch.arange(len(owner)) % alignment != 0)] = -1
    return owner.int(), owner


def scales(shape, lie: str, generator) -> torch.Tensor:
    """lie: "rows" (K-major), "columns" or "aligned" ones (MN-major, any column pitch or a multiple of 4)."""
    values = torch.rand(shape, generator=generator) + 0.25
    if lie == "rows":
        return values
    rows = shape[-2]
    pitch = (rows + 3) // 4 * 4 if lie == "aligned" else rows + 3 - rows % 2
    whole = torch.full((*shape[:-2], shape[-1], pitch), float("nan"))
    whole[..., :rows] = values.transpose(-1, -2)
    return whole.transpose(-1, -2)[..., :rows, :]


def make(
    form,
    counts,
    n,
    k,
    *,
    alignment=1,
    dtype=torch.bfloat16,
    lie="rows",
    zero_padding=False,
    holes=None,
    seed=0,
):
    """Rows of no group hold NaN in values and scales, D and what is beside it UNTOUCHED."""
    g = torch.Generator().manual_seed(seed)
    groups, blocks_n, blocks_k = len(counts), (n + 127) // 128, (k + 127) // 128
    index, owner = rows_of(form, counts, alignment, g, holes)
    a = torch.randn(*owner.shape, k, generator=g).to(FP8)
    sfa = scales((*owner.shape, blocks_k), lie, g)
    a.view(torch.uint8)[owner < 0] = 0x7F
    sfa[owner < 0] = float("nan")
    whole = torch.empty(*owner.shape, n + 8, dtype=dtype)
    whole.view(torch.int16).fill_(UNTOUCHED)
    return Problem(
        form, alignment, a, sfa, torch.randn(groups, n, k, generator=g).to(FP8),
        torch.rand(groups, blocks_n, blocks_k, generator=g) + 0.25, whole[..., :n], whole, index, owner,
        zero_padding,
    )  # fmt: skip


def far_apart(p: Problem) -> Problem:
    """As problems.far_apart, for rows, or for the groups' planes."""
    rows = (FAR,) if p.d.dim() == 2 else (PAST_32_BITS, p.d.shape[-1])
    p.d = p.guard = spread(p.d, *rows)
    p.sfa = spread(p.sfa, *((FAR + 1,) if p.sfa.dim() == 2 else (PAST_32_BITS, p.sfa.shape[-1])))
    p.sfb = spread(p.sfb, PAST_32_BITS, p.sfb.shape[-1])
    return p


def whole_to_the_end(p: Problem) -> Problem:
    """Without the rows behind the last group's: its unit is short."""
    rows = int((p.owner >= 0).nonzero().max()) + 1
    p.a, p.sfa, p.guard, p.owner = (t[:rows].clone() for t in (p.a, p.sfa, p.guard, p.owner))
    p.d, p.index = p.guard[:, : p.d.shape[1]], p.owner.int()
    return p


def within_16_bytes(p: Problem) -> Problem:
    """ids that start anywhere in 16 bytes."""
    around = torch.zeros(p.index.numel() + 7, dtype=torch.int32)
    start = -around.data_ptr() // 4 % 4 + 3
    p.index = around[start : start + p.index.numel()].copy_(p.index)
    return p


def encode(tensor: torch.Tensor, box_rows: int, ended: bool = True) -> launch.Map:
    """As csrc/runtime/m_grouped_gemm.cpp: a tensor of matrices, or one matrix; `ended`: for boxes that end
    before their last row."""
    size = tensor.element_size()
    matrices, rows, inner = tensor.shape if tensor.dim() == 3 else (1, *tensor.shape)
    pitch = tensor.stride(-2) * size
    step = tensor.stride(0) * size if tensor.dim() == 3 else pitch
    if inner == 0:
        return launch.Map()
    kind = launch.MAP_TYPES.get(tensor.dtype, 0)
    address, dims, pitches = tensor.data_ptr(), (inner, rows, matrices), (pitch, step)
    if ended:
        height = min(box_rows, rows)
        dims = (inner, height, rows - height + 1, matrices)
        pitches = (pitch, pitch, step)
    box = (128 // size, box_rows, *(1,) * (len(dims) - 2))
    return launch.make_map(address, dims, pitches, box, kind, 128)


def run(p: Problem, *, sms=2, seed=0, patch=None, left=launch.POISON) -> launch.Statistics:
    groups, n, k = p.b.shape
    problem = _core.GemmProblem(n=n, k=k, d_dtype=p.d.dtype, layout="m_grouped", groups=groups)
    plan = plans.find(problem, 100)
    shape, planes = plan.shape, p.form == COUNTS
    args = GroupedArgs(
        p.sfa.data_ptr(), p.sfb.data_ptr(), p.d.data_ptr(), p.index.data_ptr(),
        p.sfa.stride(-2), p.sfa.stride(-1), p.sfa.stride(0) if planes else 0,
        p.sfb.stride(1), p.sfb.stride(2), p.sfb.stride(0),
        p.d.stride(-2), p.d.stride(0) if planes else 0,
        p.a.shape[-2], groups, p.form, p.alignment, p.zero_padding,
        -(-p.a.shape[-2] // p.alignment) if p.form == IDS else 0,
    )  # fmt: skip
    d_map = encode(p.d, shape["d_box_rows"]) if shape["d_box_rows"] else launch.Map()
    maps = [encode(p.a, shape["a_box_rows"]), encode(p.b, shape["b_box_rows"], ended=False)]
    maps += [encode(p.a, shape["few_box_rows"]), d_map]
    inputs = (p.a if p.readable is None else p.readable, p.sfa, p.b, p.sfb, p.index)
    return launch.run(
        launch.compiled(plans.emit(plan), patch),
        [*maps, args],
        [launch.extent(p.d, True), *(launch.extent(t, False) for t in inputs)],
        blocks=sms,
        threads=shape["threads"],
        cluster=1,
        shared_bytes=shape["smem_bytes"],
        seed=seed,
        what=f"{plan} form={p.form} alignment={p.alignment} rows={tuple(p.owner.shape)} sms={sms}",
        left=left,
    )


def untouched(d: torch.Tensor) -> bool:
    return bool((d.contiguous().view(torch.int16) == UNTOUCHED).all())


def check(p: Problem) -> None:
    """Live rows within what FP32 sums and one rounding allow; no other byte changed, or zero if asked."""
    groups, n, k = p.b.shape
    a, sfa, d = (t.flatten(0, -2) for t in (p.a, p.sfa, p.d))
    owner, dtype = p.owner.flatten(), p.d.dtype
    for g in range(groups):
        rows = owner == g
        exact = magnitude = 0
        for kb in range((k + 127) // 128):
            part = slice(kb * 128, min(k, kb * 128 + 128))
            scale = sfa[rows, kb].double()[:, None] * p.sfb[g, :, kb].double().repeat_interleave(128)[:n]
            x, w = a[rows][:, part].float().double(), p.b[g][:, part].float().double()
            exact = exact + (x @ w.t()) * scale
            magnitude = magnitude + (x.abs() @ w.abs().t()) * scale
        bound = (4 + 3 + (k + 127) // 128) * 2.0**-24 * magnitude
        bound = bound + ROUNDING[dtype] * (abs(exact) + bound) * 1.01 + SMALLEST[dtype]
        error = (d[rows].double() - exact).abs()
        wrong = ~(error <= bound)
        assert not wrong.any(), f"group {g}: {int(wrong.sum())} elements, first {wrong.nonzero()[0].tolist()}"
    dead = d[owner < 0]
    if p.zero_padding:
        assert bool((dead == 0).all()), "a row of no group is not zero"
    else:
        assert untouched(dead), "a row of no group was written"
    assert untouched(p.guard[..., n:]), "memory beside D was written"
