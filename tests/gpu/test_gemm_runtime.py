"""Streams, threads, CUDA graphs, PDL, the number of SMs, and the ways into the operator: all give the same
bits."""

import threading

import pytest
import torch

import deep_gemm_jit as dg
from benchmarks import core_api
from benchmarks.data import random_operands

BF16 = torch.bfloat16
SHAPES = [(1, 2112, 7168), (64, 7168, 2048), (130, 576, 1152), (2048, 4096, 1024)]


def run(o, **options):
    m, n, _ = o.shape
    d = torch.full((m, n), float("nan"), dtype=BF16, device="cuda")
    core_api.gemm(o, d, **options)
    return d


def same_bits(x, y):
    return torch.equal(x.view(torch.int16), y.view(torch.int16))


@pytest.mark.parametrize("shape", SHAPES)
def test_graph_replays_with_new_values(shape):
    o, fresh = random_operands(*shape), random_operands(*shape)
    d = run(o)
    want = run(fresh)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        core_api.gemm(o, d)
    for target, source in ((o.a, fresh.a), (o.b, fresh.b)):
        target.view(torch.uint8).copy_(source.view(torch.uint8))
    o.sfa.copy_(fresh.sfa)
    o.sfb.copy_(fresh.sfb)
    for _ in range(3):
        d.fill_(float("nan"))
        graph.replay()
        assert same_bits(d, want)


def test_work_is_ordered_by_the_current_stream():
    o = random_operands(64, 2112, 7168)
    want = run(o)
    ready = o.a.clone()
    o.a.view(torch.uint8).zero_()
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)  # about 25 ms: a launch on another stream would see the zeros
        o.a.view(torch.uint8).copy_(ready.view(torch.uint8))
        d = run(o)
    stream.synchronize()
    assert same_bits(d, want)


def test_streams_run_beside_each_other():
    cases = [random_operands(*shape) for shape in SHAPES]
    want = [run(o) for o in cases]
    streams = [torch.cuda.Stream() for _ in cases]
    results = [[] for _ in cases]
    torch.cuda.synchronize()
    for _ in range(10):
        for o, stream, kept in zip(cases, streams, results, strict=True):
            with torch.cuda.stream(stream):
                kept.append(run(o))
    torch.cuda.synchronize()
    for expected, kept in zip(want, results, strict=True):
        assert all(same_bits(d, expected) for d in kept)


def test_fresh_threads_can_launch():
    """A new thread has no current context, and several may meet a new shape at once."""
    shapes = [
        (5, 264, 400),
        (77, 272, 400),
        (200, 280, 416),
    ]  # not used elsewhere: their kernels are not loaded yet
    cases = [random_operands(*shape) for shape in shapes]
    outputs = [
        [torch.full((m, n), float("nan"), dtype=BF16, device="cuda") for m, n, _ in shapes] for _ in range(8)
    ]
    torch.cuda.synchronize()
    errors = []
    gate = threading.Barrier(len(outputs))

    def work(mine):
        try:
            gate.wait()
            for o, d in zip(cases, mine, strict=True):
                dg.fp8_gemm_nt((o.a, o.sfa), (o.b, o.sfb), d)
        except Exception as error:  # noqa: BLE001  reported by the main thread
            errors.append(error)

    threads = [threading.Thread(target=work, args=(mine,)) for mine in outputs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cuda.synchronize()
    assert not errors, errors
    for index, o in enumerate(cases):
        expected = run(o)
        assert all(same_bits(mine[index], expected) for mine in outputs)


@pytest.mark.parametrize("shape", SHAPES)
def test_pdl_changes_no_bits(shape):
    """Each call reads what the one before wrote, so a kernel that starts too early reads a stale c."""
    o = random_operands(*shape)
    start = torch.randn(shape[0], shape[1], device="cuda").to(BF16)

    def chain():
        d = start.clone()
        for _ in range(20):
            core_api.gemm(o, d, c=d, alpha=2.0**-6)
        return d

    with core_api.pdl(False):
        want = chain()
    with core_api.pdl(True):
        assert core_api._core.get_pdl()
        assert all(same_bits(chain(), want) for _ in range(5))


@pytest.mark.parametrize("shape", SHAPES)
def test_number_of_sms_changes_no_bits(shape):
    o = random_operands(*shape)
    device = torch.cuda.current_device()
    everything = core_api._core.get_num_sms(device)
    want = run(o)
    try:
        for count in (2, 64, everything - 2, everything):
            core_api._core.set_num_sms(count)
            assert core_api._core.get_num_sms(device) == count
            assert same_bits(run(o), want), f"{count} SMs"
    finally:
        core_api._core.set_num_sms(0)


@pytest.mark.parametrize("shape", SHAPES[:3])
def test_every_way_in_gives_the_same_bits(shape):
    o = random_operands(*shape)
    want = run(o)
    d = torch.empty_like(want)

    def call(a, sfa, b, sfb, d):
        dg.fp8_gemm_nt((a, sfa), (b, sfb), d)
        return d

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as recorded:
        d.fill_(float("nan"))
        call(o.a, o.sfa, o.b, o.sfb, d)
    assert same_bits(d, want)
    assert any("fp8_gemm_nt" in event.key for event in recorded.key_averages()), (
        "the profiler must see the operator"
    )

    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    d.fill_(float("nan"))
    compiled(o.a, o.sfa, o.b, o.sfb, d)
    assert same_bits(d, want)


def test_gpu_and_cpu_agree():
    """Two implementations of one definition: they differ by the tensor core's product sums only."""
    from benchmarks.reference import Reference

    o = random_operands(70, 392, 1152)
    gpu = run(o).cpu()
    cpu = torch.full_like(gpu, float("nan"))
    dg.fp8_gemm_nt((o.a.cpu(), o.sfa.cpu()), (o.b.cpu(), o.sfb.cpu()), cpu)
    reference = Reference(o.a, o.sfa, o.b, o.sfb)
    for d in (gpu, cpu):
        bad, _ = reference.check(d.cuda())
        assert int(bad) == 0
