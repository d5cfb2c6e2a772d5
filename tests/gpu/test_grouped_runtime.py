"""The M-grouped GEMMs with CUDA graphs, streams, PDL, values that are out of range, and the ways in: all give
the same bits, and nothing waits."""

import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

import deep_gemm_jit as dg
from benchmarks import core_api
from benchmarks.grouped_correctness import output_of, same_bits
from benchmarks.grouped_data import (
    FORMS,
    check,
    draw_counts,
    grouped_operands,
    ids_layout,
    masked_layout,
    offsets_layout,
    padded_to,
    psum_layout,
    random_weights,
    with_layout,
)

BF16 = torch.bfloat16
GROUPS, N, K, ROWS, ROOM = 8, 1024, 2048, 1024, 128
INDEX = {"ids": "grouped_layout", "psum": "grouped_layout", "masked": "masked_m", "offsets": "offsets"}


def layout(form, counts):
    """All of one size, so that the same tensors serve each."""
    if form == "masked":
        return masked_layout(counts, ROOM)
    made = {"ids": ids_layout, "psum": psum_layout}.get(form)
    return padded_to(made(counts, 32) if made else offsets_layout(counts, first=3), ROWS)


COUNTS = [
    [37, 0, 128, 1, 64, 0, 100, 9],
    [0] * GROUPS,
    [0, 0, 0, 0, 0, 0, 0, 128],
    draw_counts("multinomial", GROUPS, 400),
    [1] * GROUPS,
]


@pytest.fixture(scope="module")
def weights():
    core_api.compile_ahead([core_api.grouped_problem(N, K)])
    return random_weights(GROUPS, N, K)


@pytest.fixture(params=FORMS)
def case(request, weights):
    return grouped_operands(layout(request.param, COUNTS[0]), weights, poison=False)


def run(case, **options):
    _, d = output_of(case, BF16)
    d.fill_(1.0)
    core_api.grouped(case, d, **options)
    return d


def equal(x, y) -> bool:
    return int(same_bits(x, y)) == 0


# ---- graphs, streams -----------------------------------------------------------------------------


def test_a_replayed_graph_follows_new_counts(case):
    d = run(case)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        core_api.grouped(case, d)
    for counts in (*COUNTS, COUNTS[0]):
        changed = with_layout(case, layout(case.layout.form, counts))
        want = run(changed)
        case.index.copy_(changed.index)
        d.fill_(1.0)
        graph.replay()
        assert equal(d, want), counts
        bad, worst, touched = check(changed, d, torch.ones_like(d))
        assert int(bad) == 0 and int(touched) == 0, (counts, float(worst))


def test_two_replays_in_a_row_and_two_graphs_of_one_call_agree(case):
    """No state of a launch may be left for the next one."""
    d, e = run(case), run(case)
    want = d.clone()
    graphs = []
    for target in (d, e):
        graphs.append(torch.cuda.CUDAGraph())
        with torch.cuda.graph(graphs[-1]):
            core_api.grouped(case, target)
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    torch.cuda.synchronize()
    for _ in range(10):
        for graph, stream in zip(graphs, streams, strict=True):
            with torch.cuda.stream(stream):
                graph.replay()
    torch.cuda.synchronize()
    assert equal(d, want) and equal(e, want)


def test_streams_run_the_same_operation_at_once(case):
    others = [with_layout(case, layout(case.layout.form, counts)) for counts in (COUNTS[0], COUNTS[3])]
    wanted = [run(other) for other in others]
    streams, kept = [torch.cuda.Stream() for _ in range(4)], [[] for _ in range(4)]
    torch.cuda.synchronize()
    for _ in range(20):
        for i, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                kept[i].append(run(others[i % 2]))
    torch.cuda.synchronize()
    for i, results in enumerate(kept):
        assert all(equal(d, wanted[i % 2]) for d in results)


def test_a_call_neither_waits_nor_copies(case):
    run(case)
    _, d = output_of(case, BF16)
    torch.cuda.synchronize()
    done = torch.cuda.Event()
    torch.cuda._sleep(200_000_000)  # about 100 ms
    for _ in range(3):
        core_api.grouped(case, d)
    done.record()
    assert not done.query(), "the call waited for the work ahead of it"
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as recorded:
        core_api.grouped(case, d)
        torch.cuda.synchronize()
    names = [event.key for event in recorded.key_averages()]
    assert not [name for name in names if "Memcpy" in name or "memcpy" in name], names


# ---- PDL -----------------------------------------------------------------------------------------

# Lets its dependents start at once and writes only long after.
LATE_COPY = """
extern "C" __global__ void late_copy(unsigned char* to, const unsigned char* from, int bytes, int spin) {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    const long long begin = clock64();
    while (clock64() - begin < spin) {}
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < bytes; i += gridDim.x * blockDim.x)
        to[i] = from[i];
}
"""


@pytest.fixture(scope="module")
def late_copy():
    if not hasattr(torch.cuda, "_compile_kernel"):
        pytest.skip("this torch compiles no kernels of its users")
    kernel = torch.cuda._compile_kernel(LATE_COPY, "late_copy", compute_capability="90")

    def copy(target, source, spin=60_000):
        to, origin = bytes_of(target), bytes_of(source)
        kernel(grid=(8, 1, 1), block=(256, 1, 1), args=[to, origin, to.numel(), spin])

    return copy


def bytes_of(t):
    """All of its memory, which has to be one piece."""
    flat = t.as_strided((t.numel(),), (1,))
    return flat.view(torch.uint8)


@pytest.mark.parametrize("written", ["a", "sfa", "b", "sfb", "index"])
def test_operands_of_a_predecessor_that_triggers_early(case, late_copy, written):
    """With PDL the launch may begin while the kernel ahead of it still writes what it reads."""
    want = run(case)
    tensor = {
        "a": case.a, "sfa": case.sfa, "b": case.weights.b, "sfb": case.weights.sfb, "index": case.index,
    }[written]  # fmt: skip
    right = tensor.clone()
    stale = torch.zeros_like(bytes_of(right)) if written != "index" else bytes_of(stale_index(case))
    late_copy(tensor, right)  # compiled and loaded
    with core_api.pdl(True):
        run(case)
        for _ in range(5):
            bytes_of(tensor).copy_(stale)
            torch.cuda.synchronize()
            _, d = output_of(case, BF16)
            d.fill_(1.0)
            late_copy(tensor, right)
            core_api.grouped(case, d)
            assert equal(d, want)


def stale_index(case):
    return with_layout(case, layout(case.layout.form, COUNTS[3])).index


def test_a_chain_of_calls_with_pdl(case):
    """Each call reads with its scales what the one before has written."""
    blocks = case.sfa.shape[-1]

    def chain():
        scales, outputs = case.sfa, []
        for _ in range(6):
            d = torch.ones(*case.a.shape[:-1], N, dtype=BF16, device="cuda")
            core_api.grouped(replace(case, sfa=scales), d)
            scales = case.sfa + d[..., :blocks] * 1e-3
            outputs.append(d)
        return torch.stack(outputs)

    with core_api.pdl(False):
        want = chain()
    with core_api.pdl(True):
        assert all(equal(chain(), want) for _ in range(3))


def test_a_promise_that_b_is_constant_changes_no_bits(case):
    want = run(case)
    with core_api.pdl(True):
        for _ in range(5):
            assert equal(run(case, b_is_constant=True), want)


# ---- values out of range -------------------------------------------------------------------------


def clamped(form, values, rows, alignment):
    """The layout that the operation documents for such values."""
    if form == "masked":
        return masked_layout([min(max(v, 0), rows) for v in values], rows)
    if form == "ids":
        runs = []
        for start in range(0, rows, alignment):
            owner = values[start]
            for row in range(start, min(start + alignment, rows)):
                if 0 <= owner < GROUPS and values[row] == owner:
                    runs.append((owner, row, 1))
        index = values
    elif form == "psum":
        runs, start, index = [], 0, values
        for g, v in enumerate(values):
            end = max(min(v, rows), start)
            runs.append((g, start, end - start))
            start = -(-end // alignment) * alignment
    else:
        runs, index = [], values
        start = max(min(values[0], rows), 0)
        for g, v in enumerate(values[1:]):
            end = max(min(v, rows), start)
            runs.append((g, start, end - start))
            start = end
    found = layout(form, COUNTS[0])
    found.runs, found.index = runs, list(index)
    return found


BIG = 2**31 - 1
OUT_OF_RANGE = {
    "masked": [[-1, ROOM + 1, BIG, -BIG - 1, 5, 0, ROOM, -7]],
    "psum": [
        [-5, 10, BIG, 3, 4, -1, 900, 7],
        [BIG] * 8,
        [-BIG - 1] * 8,
        [100, 50, 300, 200, ROWS + 1, 0, 0, ROWS + 500],
    ],
    "offsets": [
        [-9, 5, 3, 200, 100, BIG, 7, 0, -1],
        [BIG] * 9,
        [-BIG - 1] * 9,
        [ROWS + 5, 0, 10, 20, 30, 40, 50, 60, 70],
    ],
}


@pytest.mark.parametrize("form", FORMS)
def test_values_out_of_range_are_clamped(form, weights):
    if form == "ids":
        index = layout(form, COUNTS[0]).index
        wild = list(index)
        wild[0::64] = [[GROUPS, -2, BIG, -BIG - 1][i % 4] for i in range(len(wild[0::64]))]
        mixed = [(v if row % 7 else (BIG, GROUPS, -2)[row % 3]) for row, v in enumerate(index)]
        examples = [wild, mixed, [GROUPS] * ROWS]
    else:
        examples = OUT_OF_RANGE[form]
    rows = ROOM if form == "masked" else ROWS
    for values in examples:
        told = clamped(form, values, rows, 32)
        case = grouped_operands(told, weights, poison=True)
        case.index = torch.tensor(values, dtype=torch.int32, device="cuda")
        guard, d = output_of(case, BF16)
        before = d.clone()
        core_api.grouped(case, d)
        bad, worst, touched = check(case, d, before)
        assert int(bad) == 0 and int(touched) == 0, (values[:9], int(bad), float(worst), int(touched))
        assert int(guard.broken_bytes()) == 0


def test_dgj_check_reports_them():
    code = """
import torch, deep_gemm_jit as dg
fp8 = lambda *s: torch.ones(s, device="cuda").to(torch.float8_e4m3fn)
one = lambda *s: torch.ones(s, device="cuda")
index = lambda *v: torch.tensor(v, dtype=torch.int32, device="cuda")
a, b, d = (fp8(64, 256), one(64, 2)), (fp8(2, 256, 256), one(2, 2, 2)), torch.zeros(64, 256, device="cuda")
def refused(call, *words):
    try: call()
    except ValueError as error: assert all(word in str(error) for word in words), error
    else: raise SystemExit(f"accepted: {words}")
refused(lambda: dg.m_grouped_fp8_gemm_nt_offsets(a, b, d, index(0, 5, 65)), "offsets[2] is 65")
refused(lambda: dg.m_grouped_fp8_gemm_nt_contiguous(a, b, d, index(*[2] * 64)), "grouped_layout[0] is 2")
refused(lambda: dg.m_grouped_fp8_gemm_nt_contiguous(a, b, d, index(-1, 5), use_psum_layout=True), "is -1")
masked = (fp8(2, 32, 256), one(2, 32, 2))
three = d.view(2, 32, 256)
refused(lambda: dg.m_grouped_fp8_gemm_nt_masked(masked, b, three, index(3, 33), 4), "masked_m[1] is 33")
assert not d.any()
dg.m_grouped_fp8_gemm_nt_offsets(a, b, d, index(0, 5, 64))
assert d.eq(256).all()
graph, bad = torch.cuda.CUDAGraph(), index(0, 5, 65)
with torch.cuda.graph(graph): dg.m_grouped_fp8_gemm_nt_offsets(a, b, d, bad)  # cannot be checked now
"""
    environment = dict(os.environ, DGJ_CHECK="1")
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr[-3000:]


# ---- ways in -------------------------------------------------------------------------------------


def test_every_way_in_gives_the_same_bits(case):
    want = run(case)
    d = torch.ones_like(want)
    core_api.grouped_op(case, d)
    assert equal(d, want)
    d.fill_(1.0)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as recorded:
        core_api.grouped(case, d)
    assert equal(d, want)
    assert any("m_grouped_fp8_gemm_nt" in event.key for event in recorded.key_averages())

    form = case.layout.form
    if form == "ids":
        return  # its compiled call would need the alignment set around it; psum covers the function

    def function(a, sfa, b, sfb, index, d):
        if form == "masked":
            dg.m_grouped_fp8_gemm_nt_masked((a, sfa), (b, sfb), d, index, 16)
        elif form == "offsets":
            dg.m_grouped_fp8_gemm_nt_offsets((a, sfa), (b, sfb), d, index)
        else:
            dg.m_grouped_fp8_gemm_nt_contiguous((a, sfa), (b, sfb), d, index, use_psum_layout=True)
        return d

    d.fill_(1.0)
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    with core_api.alignment(case.layout.alignment):
        compiled(*case.lhs, *case.rhs, case.index, d)
    assert equal(d, want)


@pytest.mark.parametrize("form", FORMS)
def test_gpu_and_cpu_agree(form, weights):
    case = grouped_operands(layout(form, COUNTS[0]), weights)
    _, d = output_of(case, BF16)
    core_api.grouped(case, d)
    on_cpu = type(case)(
        case.layout, case.a.cpu(), case.sfa.cpu(), type(weights)(weights.b.cpu(), weights.sfb.cpu()),
        case.index.cpu(),
    )  # fmt: skip
    e = torch.full(d.shape, float("nan"), dtype=BF16)
    core_api.grouped(on_cpu, e)
    for result in (d, e.cuda()):
        bad, worst, _ = check(case, result, result)
        assert int(bad) == 0, float(worst)


def test_no_inner_extent_zeroes_live_rows(case):
    empty = type(case)(
        case.layout, case.a[..., :0].contiguous(), case.sfa[..., :0].contiguous(),
        type(case.weights)(case.weights.b[..., :0].contiguous(), case.weights.sfb[..., :0].contiguous()),
        case.index,
    )  # fmt: skip
    d = run(empty).reshape(case.layout.total, N)
    live = torch.zeros(case.layout.total, dtype=torch.bool, device="cuda")
    for _, start, count in case.layout.flat_runs():
        live[start : start + count] = True
    assert not d[live].any() and d[~live].eq(1).all()


@pytest.mark.parametrize("form", FORMS)
def test_groups_must_be_where_a_is(form, weights):
    case = grouped_operands(layout(form, COUNTS[0]), weights)
    case.index = case.index.cpu()
    with pytest.raises(TypeError, match=rf"{INDEX[form]} is on cpu but a\[0\] is on cuda"):
        run(case)
    torch.cuda.synchronize()


def test_a_whole_expert_parallel_step_without_rows(weights):
    """Idle ranks call with no rows at all."""
    a = torch.empty(0, K, device="cuda").to(torch.float8_e4m3fn), torch.empty(0, K // 128, device="cuda")
    d = torch.empty(0, N, dtype=BF16, device="cuda")
    index = torch.zeros(GROUPS + 1, dtype=torch.int32, device="cuda")
    dg.m_grouped_fp8_gemm_nt_offsets(a, (weights.b, weights.sfb), d, index)
    dg.m_grouped_fp8_gemm_nt_contiguous(a, (weights.b, weights.sfb), d, index[:0])
    dg.m_grouped_fp8_gemm_nt_contiguous(
        a, (weights.b, weights.sfb), d, index[:GROUPS], use_psum_layout=True
    )
    torch.cuda.synchronize()
