"""Python code that changes what a call was given, or what it asks, while it asks: never a crash."""

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


# What torch.compile and torch's profiler set for themselves; a call that sees it goes to the dispatcher.
FLAGS = """
import torch.autograd.profiler as profiler

def seen(change):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        profiler._is_profiler_enabled = False
        dg.fp8_gemm_nt(a, b, d)
        change()
        dg.fp8_gemm_nt(a, b, d)
        profiler._is_profiler_enabled = False
    return "deep_gemm_jit::fp8_gemm_nt" in {event.key for event in profile.key_averages()}

def starts():
    torch.autograd.profiler._is_profiler_enabled = True
"""


def test_a_flag_set_while_the_other_one_is_read_is_seen_at_the_next_call():
    run(
        SETUP
        + FLAGS
        + """
class Key(str):
    armed = False
    __hash__ = lambda self: hash("_is_compiling_flag")

    def __eq__(self, other):
        if Key.armed:
            Key.armed = False
            starts()
        return False

names = vars(torch.compiler)
del names["_is_compiling_flag"]
names[Key()] = None  # found first by whoever looks for the flag
names["_is_compiling_flag"] = False

def change():
    profiler._is_profiler_enabled = True
    profiler._is_profiler_enabled = False
    Key.armed = True
    dg.fp8_gemm_nt(a, b, d)
    assert not Key.armed and profiler._is_profiler_enabled

assert seen(change)
"""
    )


# The user interrupts what registers the operators, twice.
AGAIN = """
import deep_gemm_jit as dg  # before torch, so that nothing is registered yet
import torch
import types
from deep_gemm_jit import _core, ops

implement = ops._implement_natively
native = False

def early():
    raise KeyboardInterrupt

def late():
    global native
    native = implement()
    raise KeyboardInterrupt

for ops._implement_natively in (early, late):
    try:
        ops.register()
    except KeyboardInterrupt:
        pass
ops._implement_natively = implement
"""


def test_after_an_interrupted_registration_operators_are_registered_anew():
    run(
        AGAIN
        + SETUP
        + """
for _ in range(3):
    torch.ops.deep_gemm_jit.fp8_gemm_nt(*a, *b, d.zero_())
    assert torch.equal(d, expected)
assert _core.native_operators() == native
"""
    )


def test_flags_of_the_modules_that_were_attached_last_are_seen():
    run(
        AGAIN
        + """
copy = types.ModuleType(torch.autograd.profiler.__name__)
vars(copy).update(vars(torch.autograd.profiler))
torch.autograd.profiler = copy
"""
        + SETUP
        + FLAGS.replace("import torch.autograd.profiler as profiler", "profiler = torch.autograd.profiler")
        + "assert profiler is copy and not seen(lambda: None) and seen(starts)"
    )


def test_a_program_ends_while_a_daemon_thread_computes():
    run(
        SETUP
        + """
import threading, time

calls = 0

def compute():
    global calls
    while True:
        dg.fp8_gemm_nt(a, b, d)
        calls += 1

threading.Thread(target=compute, daemon=True).start()
while calls < 10:
    time.sleep(0.01)
"""
    )


@pytest.mark.parametrize(
    "use",
    [
        "made(dg.KernelPlan).shape",
        "made(dg.KernelPlan).grid_blocks(8, 132)",
        "dg.emit(made(dg.KernelPlan))",
        "dg.compile(made(dg.KernelSource))",
        "dg.emit(made(dg.CastPlan))",
        "dg.plan(made(dg.GemmProblem), 8, 'h200')",
        "made(dg.GemmProblem) == made(dg.GemmProblem)",
    ],
)
def test_an_object_that_was_never_made_is_refused(use):
    run(f"""
import deep_gemm_jit as dg
made = lambda kind: kind.__new__(kind)
try:
    {use}
except TypeError as error:
    assert "the object was never made" in str(error), error
else:
    raise AssertionError("taken")
""")
