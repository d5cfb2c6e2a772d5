"""Arguments whose own Python code changes what a call was given: a call that ends, never a crash."""

import subprocess
import sys

import pytest

SETUP = """
import torch
import deep_gemm_jit as dg

class Clears:
    # An integer that empties lists on the way.
    def __init__(self, value, *lists):
        self.value, self.lists = value, lists

    def __index__(self):
        import gc
        for victim in self.lists:
            victim.clear()
        gc.collect()
        junk = [bytes(400) for _ in range(2000)]  # takes the freed memory
        return self.value

class Hook:
    lists = ()

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        for victim in cls.lists:
            victim.clear()
        junk = [bytes(400) for _ in range(2000)]
        return super().__torch_function__(func, types, args, kwargs or {})

class Weight(Hook, torch.nn.Parameter):
    pass

class Subclass(Hook, torch.Tensor):
    pass

a = list(dg.per_token_cast_to_fp8(torch.randn(128, 128)))
b = list(dg.per_block_cast_to_fp8(torch.randn(64, 128)))
d = torch.zeros(128, 64, dtype=torch.bfloat16)
expected = torch.zeros_like(d)
dg.fp8_gemm_nt(tuple(a), tuple(b), expected)
grouped_b = [t.unsqueeze(0) for t in b]
ids, ends = torch.zeros(128, dtype=torch.int32), torch.tensor([0, 128], dtype=torch.int32)
"""

# Each ends in a plain Python error, or in the right result.
CALLS = {
    "recipe cleared by its item": """
recipe = []
recipe += [Clears(1, recipe), 128, 128]
try:
    dg.fp8_gemm_nt(a, b, d, recipe=recipe)
except NotImplementedError as error:
    assert "recipe is []" in str(error), error
else:
    raise AssertionError("taken")
""",
    "operands cleared by a recipe": """
dg.fp8_gemm_nt(a, b, d, recipe=(Clears(1, a, b), 128, 128))
assert torch.equal(d, expected) and not a and not b
""",
    "operands of the grouped GEMM cleared by a recipe": """
dg.m_grouped_fp8_gemm_nt_contiguous(a, grouped_b, d, ids, recipe=(Clears(1, a, grouped_b), 128, 128))
assert torch.equal(d, expected) and not a and not grouped_b
""",
    "operands of the offsets GEMM cleared by a recipe": """
dg.m_grouped_fp8_gemm_nt_offsets(a, grouped_b, d, ends, recipe_a=(Clears(1, a, grouped_b), 128))
assert torch.equal(d, expected) and not a and not grouped_b
""",
    "operands of the masked GEMM cleared by its hint": """
a = [t.unsqueeze(0) for t in a]
masked_m = torch.tensor([128], dtype=torch.int32)
dg.m_grouped_fp8_gemm_nt_masked(a, grouped_b, d.unsqueeze(0), masked_m, Clears(128, a, grouped_b))
assert torch.equal(d, expected) and not a and not grouped_b
""",
    "operands cleared by the hook of a weight": """
b[1] = Weight(b[1], requires_grad=False)
Weight.lists = (a, b)
dg.fp8_gemm_nt(a, b, d)
assert torch.equal(d, expected)
""",
    "operands cleared by the hook of a subclass": """
b[1] = b[1].as_subclass(Subclass)
Subclass.lists = (a, b)
dg.fp8_gemm_nt(a, b, d)
assert torch.equal(d, expected) and not a and not b
""",
}


def run(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, (done.returncode, done.stderr)


@pytest.mark.parametrize("name", CALLS)
def test_lists_that_lose_their_items_during_a_call_do_no_harm(name):
    run(SETUP + CALLS[name])
