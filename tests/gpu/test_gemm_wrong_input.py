"""Wrong arguments raise before anything is launched, each with its own message, and the context lives on."""

import pytest
import torch

import deep_gemm_jit as dg
from benchmarks.data import FP8, random_operands
from benchmarks.reference import Reference

BF16 = torch.bfloat16
M, N, K = 33, 136, 272
VALUE, TYPE, ANY = (ValueError,), (TypeError,), (ValueError, TypeError)
UNSUPPORTED = (NotImplementedError,)


def operands():
    o = random_operands(M, N, K)
    d = torch.full((M, N), float("nan"), dtype=BF16, device="cuda")
    return {"a": o.a, "sfa": o.sfa, "b": o.b, "sfb": o.sfb, "d": d, "options": {}}


def put(**changes):
    def change(x):
        for name, make in changes.items():
            x[name] = make(x)

    return change


def options(**given):
    return put(options=lambda x: {name: make(x) for name, make in given.items()})


def misaligned(t, by):
    flat = torch.zeros(t.numel() + 16, dtype=torch.uint8, device="cuda")[by : by + t.numel()]
    return flat.view(t.shape).view(t.dtype)


def pitched(t, pitch):
    return torch.zeros(t.shape[0], pitch, dtype=torch.uint8, device="cuda").view(t.dtype)[:, : t.shape[1]]


def overlapping_c(x):
    room = torch.zeros(M + 1, N, dtype=BF16, device="cuda")
    x["d"], x["options"] = room[:M], {"c": room[1:]}


CASES = {
    "a is bf16": (put(a=lambda x: x["a"].to(BF16)), ANY),
    "b is e5m2": (put(b=lambda x: x["b"].to(torch.float32).to(torch.float8_e5m2)), (*ANY, *UNSUPPORTED)),
    "sfa is fp16": (put(sfa=lambda x: x["sfa"].half()), (*ANY, *UNSUPPORTED)),
    "sfb is int32": (put(sfb=lambda x: x["sfb"].int()), (*ANY, *UNSUPPORTED)),
    "d is int32": (put(d=lambda x: torch.zeros(M, N, dtype=torch.int32, device="cuda")), ANY),
    "a on the CPU": (put(a=lambda x: x["a"].cpu()), ANY),
    "sfb on the CPU": (put(sfb=lambda x: x["sfb"].cpu()), ANY),
    "d on the CPU": (put(d=lambda x: x["d"].cpu()), ANY),
    "a of rank 3": (put(a=lambda x: x["a"][None]), VALUE),
    "d of rank 1": (put(d=lambda x: x["d"].flatten()), VALUE),
    "K differs": (put(b=lambda x: x["b"][:, :256]), VALUE),
    "d has too few rows": (put(d=lambda x: x["d"][:-1]), VALUE),
    "d has too few columns": (put(d=lambda x: x["d"][:, :-8]), VALUE),
    "sfa has too few blocks": (put(sfa=lambda x: x["sfa"][:, :-1]), VALUE),
    "sfa has too few rows": (put(sfa=lambda x: x["sfa"][:-1]), VALUE),
    "sfb has too few blocks": (put(sfb=lambda x: x["sfb"][:1]), (*VALUE, *UNSUPPORTED)),
    "N % 8": (put(b=lambda x: x["b"][:132], d=lambda x: x["d"][:, :132]), VALUE),
    "K % 16": (put(a=lambda x: x["a"][:, :264], b=lambda x: x["b"][:, :264]), VALUE),
    "a is transposed": (put(a=lambda x: x["a"].t().contiguous().t()), VALUE),
    "d is transposed": (put(d=lambda x: torch.zeros(N, M, dtype=BF16, device="cuda").t()), VALUE),
    "a is misaligned": (put(a=lambda x: misaligned(x["a"], 1)), VALUE),
    "b is misaligned": (put(b=lambda x: misaligned(x["b"], 8)), VALUE),
    "row pitch of a": (put(a=lambda x: pitched(x["a"], K + 8)), VALUE),
    "row pitch of d": (put(d=lambda x: torch.zeros(M, N + 4, dtype=BF16, device="cuda")[:, :N]), VALUE),
    "sfa without a unit stride": (put(sfa=lambda x: torch.ones(2 * M, 6, device="cuda")[::2, ::2]), VALUE),
    "d's rows overlap": (put(d=lambda x: x["d"][:1].expand(M, N)), VALUE),
    "c overlaps d": (overlapping_c, VALUE),
    "c has another dtype": (options(c=lambda x: torch.zeros(M, N, device="cuda")), ANY),
    "c has another shape": (options(c=lambda x: torch.zeros(M, N + 8, dtype=BF16, device="cuda")), VALUE),
    "bias has another length": (options(bias=lambda x: torch.zeros(N - 8, device="cuda")), VALUE),
    "bias has another dtype": (options(bias=lambda x: torch.zeros(N, dtype=torch.int32, device="cuda")), ANY),
    "alpha is a text": (options(alpha=lambda x: "2"), ANY),
    "unsupported recipe": (options(recipe=lambda x: (1, 64, 64)), UNSUPPORTED),
    "unsupported recipe_b": (options(recipe_a=lambda x: (1, 128), recipe_b=lambda x: (1, 32)), UNSUPPORTED),
    "epilogue": (options(epilogue=lambda x: object()), UNSUPPORTED),
}


def bytes_of(t):
    return t.contiguous().view(torch.uint8)


def call(x):
    dg.fp8_gemm_nt((x["a"], x["sfa"]), (x["b"], x["sfb"]), x["d"], **x["options"])


def test_wrong_input_raises_and_the_context_lives():
    good = operands()
    call(good)
    reference = Reference(good["a"], good["sfa"], good["b"], good["sfb"])
    messages, problems = {}, []
    for name, (change, allowed) in CASES.items():
        x = operands()
        change(x)
        before = x["d"].clone()
        try:
            call(x)
            problems.append(f"{name}: accepted")
        except allowed as error:
            messages[name] = str(error)
        except Exception as error:  # noqa: BLE001  any other type is what this test is about
            problems.append(f"{name}: {type(error).__name__} instead of {allowed}: {error}")
        torch.cuda.synchronize()
        if not torch.equal(bytes_of(x["d"]), bytes_of(before)):
            problems.append(f"{name}: D was written")
        good["d"].fill_(float("nan"))
        call(good)
        bad, _ = reference.check(good["d"])
        assert int(bad) == 0, f"after {name!r} a right call gives wrong results"
    problems += [
        f"{name}: the message does not name the function: {text}"
        for name, text in messages.items()
        if "fp8_gemm_nt" not in text
    ]
    assert not problems, "\n".join(problems)
    assert len(set(messages.values())) == len(messages), "two causes share one message"


@pytest.mark.parametrize("given", ["not a tuple", "three members", "nested"])
def test_operands_that_are_no_pairs(given):
    x = operands()
    lhs = {
        "not a tuple": x["a"],
        "three members": (x["a"], x["sfa"], x["sfa"]),
        "nested": ((x["a"], x["sfa"]),),
    }[given]
    with pytest.raises((TypeError, ValueError)):
        dg.fp8_gemm_nt(lhs, (x["b"], x["sfb"]), x["d"])
    torch.cuda.synchronize()


def test_unquantised_fp8_needs_scales():
    x = operands()
    with pytest.raises((TypeError, ValueError)):
        dg.fp8_gemm_nt((x["a"], None), (x["b"].to(FP8), x["sfb"]), x["d"])
    torch.cuda.synchronize()
