"""Autograd learns that D was written: its version counter goes up, and a graph that saved D refuses it."""

import pytest
import torch

import deep_gemm_jit as dg

M, N, K, GROUPS = 6, 16, 128, 2


def operands(*batch: int):
    a = dg.per_token_cast_to_fp8(torch.ones(M, K))
    b = dg.per_block_cast_to_fp8(torch.ones(N, K))
    a = tuple(t.expand(*batch, *t.shape).contiguous() for t in a)
    return a, tuple(t.expand(GROUPS, *t.shape).contiguous() for t in b), b


def dense(d):
    a, _, b = operands()
    dg.fp8_gemm_nt(a, b, d)


def dense_with_addend(d):
    a, _, b = operands()
    dg.fp8_gemm_nt(a, b, d, c=d, alpha=0.5, bias=torch.zeros(N))


def dense_op(d):
    a, _, b = operands()
    torch.ops.deep_gemm_jit.fp8_gemm_nt(*a, *b, d)


IDS = torch.zeros(M, dtype=torch.int32)
ENDS = torch.tensor([M, 128], dtype=torch.int32)  # the second group is empty
OFFSETS = torch.tensor([0, 2, M], dtype=torch.int32)
COUNTS = torch.tensor([1, 2], dtype=torch.int32)


def contiguous(d):
    a, b, _ = operands()
    dg.m_grouped_fp8_gemm_nt_contiguous(a, b, d, IDS)


def contiguous_op(d):
    a, b, _ = operands()
    torch.ops.deep_gemm_jit.m_grouped_fp8_gemm_nt_contiguous(*a, *b, d, IDS)


def ends(d):
    a, b, _ = operands()
    dg.m_grouped_fp8_gemm_nt_contiguous(a, b, d, ENDS, use_psum_layout=True)


def offsets(d):
    a, b, _ = operands()
    dg.m_grouped_fp8_gemm_nt_offsets(a, b, d, OFFSETS)


def offsets_op(d):
    a, b, _ = operands()
    torch.ops.deep_gemm_jit.m_grouped_fp8_gemm_nt_offsets(*a, *b, d, OFFSETS)


def masked(d):
    a, b, _ = operands(GROUPS)
    dg.m_grouped_fp8_gemm_nt_masked(a, b, d, COUNTS, M)


def masked_op(d):
    a, b, _ = operands(GROUPS)
    torch.ops.deep_gemm_jit.m_grouped_fp8_gemm_nt_masked(*a, *b, d, COUNTS)


OPERATIONS = [
    dense, dense_with_addend, dense_op, contiguous, contiguous_op, ends, offsets, offsets_op, masked,
    masked_op,
]  # fmt: skip
each_operation = pytest.mark.parametrize("write", OPERATIONS, ids=lambda write: write.__name__)


def output(write, requires_grad=False):
    shape = (GROUPS, M, N) if write in (masked, masked_op) else (M, N)
    return torch.zeros(shape, dtype=torch.bfloat16, requires_grad=requires_grad)


@each_operation
@pytest.mark.parametrize("grad_mode", [True, False])
def test_the_version_goes_up_with_each_call(write, grad_mode):
    d = output(write)
    with torch.set_grad_enabled(grad_mode):
        for _ in range(3):
            before = d._version
            write(d)
            assert d._version > before


@each_operation
def test_a_graph_that_saved_d_raises(write):
    d, weight = output(write), torch.ones((), dtype=torch.bfloat16, requires_grad=True)
    product = weight * d  # the gradient of the weight needs d as it is now
    write(d)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()


@each_operation
def test_a_base_sees_that_its_view_was_written(write):
    whole = output(write)
    whole = whole.repeat(*[1] * (whole.dim() - 2), 2, 1)
    before = whole._version
    write(whole[..., M:, :])
    assert whole._version > before and (whole[..., M, :] != 0).all()


@each_operation
def test_a_leaf_written_without_grad_mode(write):
    d = output(write, requires_grad=True)
    before = d._version
    with torch.no_grad():
        write(d)
    assert d._version > before and d.is_leaf


@each_operation
def test_inference_tensors_have_no_version_and_are_written_everywhere(write):
    with torch.inference_mode():
        d = output(write)
        write(d)
        assert d.is_inference()
    write(d)
    assert (d.flatten(0, -2)[0] != 0).all()


@each_operation
def test_a_tensor_of_outside_is_counted_in_inference_mode(write):
    d = output(write)
    before = d._version
    with torch.inference_mode():
        write(d)
    assert d._version > before


def test_a_refused_call_counts_nothing():
    d = output(dense)
    before = d._version
    a, _, b = operands()
    with pytest.raises(ValueError, match="fp8_gemm_nt"):
        dg.fp8_gemm_nt(a, b, d[:3])
    assert d._version == before


def test_a_compiled_function_counts_too():
    d = output(dense)
    before = d._version
    torch.compile(dense, backend="eager")(d)
    assert d._version > before
