"""Every GEMM kernel that the planner can choose: compiled for the real target and read as machine code."""

import re

import pytest
from machine_code import disassembly

from deep_gemm_jit import _core

SHAPES = [(2112, 7168), (24576, 1536), (32768, 512), (7168, 16384), (4096, 7168), (7168, 2048)]
SHAPES += [(4096, 1408)]  # blocks of K that do not fill the last stage
OTHER_OUTPUTS = ("float16", "float32")  # of one shape: the epilogue is all that changes
GROUPED = [(4096, 7168), (7168, 2048), (2048, 768)]  # full tiles unrolled, twice, and not
MOST_GROUPED_BYTES = 63 << 10  # of code: above 66 each KB costs a call 0.1 us (docs/notes/grouped.md)


def plans():
    problems = [_core.GemmProblem(n=n, k=k) for n, k in SHAPES]
    n, k = 4096, 7168
    problems += [_core.GemmProblem(n=n, k=k, d_dtype=dtype) for dtype in OTHER_OUTPUTS]
    problems += [_core.GemmProblem(n=n, k=k, d_dtype=dtype, extras=True) for dtype in ("bfloat16", "float16")]
    problems += [_core.GemmProblem(n=n, k=k, layout="m_grouped") for n, k in GROUPED]
    problems += [_core.GemmProblem(n=n, k=k, d_dtype=dtype, layout="m_grouped") for dtype in OTHER_OUTPUTS]
    return {str(plan): plan for problem in problems for plan in _core.all_plans(problem, "h200")}


PLANS = plans()


def innermost_loop_around_the_tensor_core(code: str) -> list[str]:
    """The lines of the smallest loop that holds a QGMMA: from a label to a branch back to it."""
    lines = code.splitlines()
    labels = {m.group(1): i for i, line in enumerate(lines) if (m := re.match(r"\s*(\.L_x_\d+):", line))}
    loops = []
    for i, line in enumerate(lines):
        target = re.search(r"\bBRA\b.*`\((\.L_x_\d+)\)", line)
        if target and labels.get(target.group(1), i) < i:
            body = lines[labels[target.group(1)] : i + 1]
            if any("QGMMA" in text for text in body):
                loops.append(body)
    assert loops, "no loop around the tensor-core instruction"
    return min(loops, key=len)


def test_a_problem_has_few_plans():
    for n, k in SHAPES:
        assert 1 <= len(_core.all_plans(_core.GemmProblem(n=n, k=k, d_dtype="bfloat16"), "h200")) <= 10


@pytest.mark.parametrize("line", PLANS, ids=str)
def test_kernel_compiles_cleanly(line, tmp_path):
    kernel = _core.compile_uncached(_core.emit(PLANS[line]))
    report = kernel["report"]
    assert report["spill_stores"] == report["spill_loads"] == report["stack_bytes"] == 0, kernel["log"]
    assert report["advisories"] == []
    code = disassembly(kernel["cubin"], tmp_path)
    loop = innermost_loop_around_the_tensor_core(code)
    slow = r"\b(LDL|STL|LD\.E|ST\.E|CCTL\S*|ERRBAR)\b|\bMEMBAR\.(?!\S*CTA)\S*"
    assert not [text for text in loop if re.search(slow, text)]
    if PLANS[line].family == "gemm_grouped":
        assert 16 * len(re.findall(r"/\*[0-9a-f]{4,5}\*/", code)) <= MOST_GROUPED_BYTES
