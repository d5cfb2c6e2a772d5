"""Wrong input of the M-grouped GEMMs: each kind has its own exception and message and leaves d untouched."""

import pytest
import torch

import deep_gemm_jit as dg
from benchmarks import core_api
from benchmarks.grouped_data import (
    grouped_operands,
    ids_layout,
    masked_layout,
    offsets_layout,
    psum_layout,
    random_weights,
)

G, N, K = 3, 24, 272
ALIGNMENT = 16
E4M3 = torch.float8_e4m3fn
FUNCTIONS = {
    "ids": dg.m_grouped_fp8_gemm_nt_contiguous,
    "psum": dg.m_grouped_fp8_gemm_nt_contiguous,
    "masked": dg.m_grouped_fp8_gemm_nt_masked,
    "offsets": dg.m_grouped_fp8_gemm_nt_offsets,
}
INDEX = {"ids": "grouped_layout", "psum": "grouped_layout", "masked": "masked_m", "offsets": "offsets"}
COUNTS = [5, 0, 20]
LAYOUTS = {  # 48 rows each: of A, or 3 x 20 where each group has its own
    "ids": ids_layout(COUNTS, ALIGNMENT),
    "psum": psum_layout(COUNTS, ALIGNMENT),
    "masked": masked_layout(COUNTS, 20),
    "offsets": offsets_layout(COUNTS, first=3, tail=20),
}
M = 48
VALUE, TYPE, UNSUPPORTED = ValueError, TypeError, NotImplementedError


def case(form: str) -> dict:
    torch.manual_seed(0)
    made = grouped_operands(LAYOUTS[form], random_weights(G, N, K, "cpu"), device="cpu")
    shape = (*made.a.shape[:-1], N)
    arguments = {"a": made.lhs, "b": made.rhs, "d": torch.full(shape, 7.0).bfloat16()}
    arguments[INDEX[form]] = made.index
    if form == "psum":
        arguments["use_psum_layout"] = True
    if form == "masked":
        arguments["expected_m"] = 4
    return arguments


def call(form: str, arguments: dict, operator: bool = False) -> None:
    with core_api.alignment(ALIGNMENT):
        if operator:
            op = getattr(torch.ops.deep_gemm_jit, FUNCTIONS[form].__name__)
            op(*arguments["a"], *arguments["b"], arguments["d"], arguments[INDEX[form]],
               **({"use_psum_layout": True} if form == "psum" else {}))  # fmt: skip
        else:
            FUNCTIONS[form](**arguments)


def put(name, index, make):
    """Replaces values (0) or scales (1) of an operand, or a whole argument (None)."""

    def change(c):
        if index is None:
            return {name: make(c[name])}
        pair = list(c[name])
        pair[index] = make(pair[index])
        return {name: tuple(pair)}

    return change


def at(position: int, value: int):
    def make(t):
        t = t.clone()
        t[position] = value
        return t

    return make


def misaligned(t):
    room = torch.zeros(t.numel() + 16, dtype=torch.uint8)[1 : 1 + t.numel()]
    return room.view(t.shape).view(t.dtype)


def bytes_like(t, *shape):
    return torch.zeros(shape, dtype=torch.uint8).view(t.dtype)


def overlapping_groups(d):
    return torch.zeros(21 * N + 2 * N * 20).bfloat16().as_strided((G, 20, N), (10 * N, N, 1))


def d_inside_a(c):
    room = torch.zeros(M * K, dtype=torch.uint8)
    a = room.view(M, K)[:, :K].view(E4M3)
    return {"a": (a, c["a"][1]), "d": room[: M * N * 2].view(torch.bfloat16).view(M, N)}


def index_inside_d(c):
    d = torch.zeros(M, N).bfloat16()
    return {"d": d, "offsets": d.view(torch.int32)[0, : G + 1]}


# name: (form, error, words of the message, change)
WRONG = {
    "bare tensor for a": ("ids", TYPE, ("a is a Tensor", "(values, scales)"), lambda c: {"a": c["a"][0]}),
    "one item": ("masked", VALUE, ("b has 1 items",), lambda c: {"b": [c["b"][0]]}),
    "list for ids": ("ids", TYPE, ("grouped_layout is a list",), put("grouped_layout", None, list)),
    "numpy offsets": ("offsets", TYPE, ("offsets is a",), put("offsets", None, lambda t: t.numpy())),
    "int64 ids": (
        "ids", TYPE, ("grouped_layout", "int64", "int32"),
        put("grouped_layout", None, torch.Tensor.long),
    ),
    "int64 counts": ("masked", TYPE, ("masked_m", "int64"), put("masked_m", None, torch.Tensor.long)),
    "float offsets": ("offsets", TYPE, ("offsets", "float32"), put("offsets", None, torch.Tensor.float)),
    "bf16 operand": ("masked", TYPE, ("a[0]", "bfloat16"), put("a", 0, torch.Tensor.bfloat16)),
    "e5m2 operand": ("ids", UNSUPPORTED, ("b[0]", "e5m2"), put("b", 0, lambda t: t.view(torch.float8_e5m2))),
    "fp4 bytes": ("ids", UNSUPPORTED, ("b[0]", "int8"), put("b", 0, lambda t: t.view(torch.int8))),
    "packed scales": ("psum", UNSUPPORTED, ("a[1]", "int32"), put("a", 1, torch.Tensor.int)),
    "half scales": ("offsets", TYPE, ("b[1]", "float16"), put("b", 1, torch.Tensor.half)),
    "double d": ("ids", TYPE, ("d has dtype float64",), put("d", None, torch.Tensor.double)),
    "2-D b": ("ids", VALUE, ("b[0]", "2 dimensions"), put("b", 0, lambda t: t[0])),
    "2-D a, masked": ("masked", VALUE, ("a[0]", "must have 3"), put("a", 0, lambda t: t[0])),
    "3-D a, ids": ("ids", VALUE, ("a[0]", "must have 2"), put("a", 0, lambda t: t[None])),
    "3-D d, offsets": ("offsets", VALUE, ("d has 3",), put("d", None, lambda t: t[None])),
    "2-D counts": ("masked", VALUE, ("masked_m has 2",), put("masked_m", None, lambda t: t[None])),
    "6-D d": ("ids", VALUE, ("d has 6",), put("d", None, lambda t: t[None, None, None, None])),
    "no groups": (
        "ids", VALUE, ("b[0]", "0 groups", "65535"),
        lambda c: {"b": (bytes_like(c["b"][0], 0, N, K), torch.ones(0, 1, 3))},
    ),
    "other K": ("ids", VALUE, ("a[0]", "[48, 272]"), put("a", 0, lambda t: t[:, :256])),
    "K % 16": (
        "offsets", VALUE, ("K", "264", "multiple of 16"),
        lambda c: {n: (c[n][0][..., :264], c[n][1]) for n in "ab"},
    ),
    "N % 8": (
        "masked", VALUE, ("N", "20", "multiple of 8"),
        lambda c: {"b": (c["b"][0][:, :20], c["b"][1]), "d": c["d"][..., :20]},
    ),
    "d has too few rows": ("psum", VALUE, ("d has shape [47, 24]",), put("d", None, lambda t: t[:-1])),
    "d has too few groups": ("masked", VALUE, ("d has shape [2",), put("d", None, lambda t: t[:-1])),
    "a has too few groups": ("masked", VALUE, ("a[0]", "[2, 20, 272]"), put("a", 0, lambda t: t[:-1])),
    "ids too short": (
        "ids", VALUE, ("grouped_layout has shape [47]", "[48]"),
        put("grouped_layout", None, lambda t: t[:-1]),
    ),
    "ends too long": (
        "psum", VALUE, ("grouped_layout has shape [48]", "[3]"),
        put("grouped_layout", None, lambda t: t.new_zeros(48)),
    ),
    "offsets without an end": (
        "offsets", VALUE, ("offsets has shape [3]", "[4]"),
        put("offsets", None, lambda t: t[:-1]),
    ),
    "a count too many": (
        "masked", VALUE, ("masked_m has shape [4]", "[3]"),
        put("masked_m", None, lambda t: t.new_zeros(4)),
    ),
    "ids with a stride": (
        "ids", VALUE, ("grouped_layout", "stride"),
        put("grouped_layout", None, lambda t: t.repeat_interleave(2)[::2]),
    ),
    "scales of A, wrong rows": ("ids", VALUE, ("a[1]",), put("a", 1, lambda t: t.new_ones(M + 2, 3))),
    "scales of A, one expert": ("masked", VALUE, ("a[1]", "2 dimensions"), put("a", 1, lambda t: t[0])),
    "1x32 scales": ("ids", UNSUPPORTED, ("a[1]", "recipe"), put("a", 1, lambda t: t.new_ones(M, 9))),
    "1x32 scales, masked": (
        "masked", UNSUPPORTED, ("a[1]", "recipe"),
        put("a", 1, lambda t: t.new_ones(G, 20, 9)),
    ),
    "scales per row of B": ("ids", UNSUPPORTED, ("b[1]",), put("b", 1, lambda t: t.new_ones(G, N, 3))),
    "scales of B of another G": ("ids", VALUE, ("b[1]", "[2, 1, 3]"), put("b", 1, lambda t: t[:2])),
    "tensor-wise scale": ("offsets", UNSUPPORTED, ("b[1]", "[]"), put("b", 1, lambda t: t.new_ones(()))),
    "A column-major": (
        "ids", VALUE, ("a[0]", "contiguous()"),
        put("a", 0, lambda t: bytes_like(t, K, M).t()),
    ),
    "B column-major": (
        "ids", VALUE, ("b[0]", "contiguous()"),
        put("b", 0, lambda t: bytes_like(t, G, K, N).transpose(1, 2)),
    ),
    "pitch of B": (
        "ids", VALUE, ("b[0]", "pitch of 280"),
        put("b", 0, lambda t: bytes_like(t, G, N, 280)[..., :K]),
    ),
    "group stride of A": (
        "masked", VALUE, ("a[0]", "from group to group"),
        put("a", 0, lambda t: bytes_like(t, 1, G * 21 * K).as_strided((G, 20, K), (20 * K + 8, K, 1))),
    ),
    "group stride of B": (
        "ids", VALUE, ("b[0]", "6536 bytes from group to group"),
        put("b", 0, lambda t: bytes_like(t, 1, 4 * N * K).as_strided((G, N, K), (N * K + 8, K, 1))),
    ),
    "B misaligned": ("offsets", VALUE, ("b[0]", "16 bytes"), put("b", 0, misaligned)),
    "rows of d overlap": ("ids", VALUE, ("d has", "overlap"), put("d", None, lambda t: t[:1].expand(M, N))),
    "groups of d overlap": (
        "masked", VALUE, ("d has", "groups must not overlap"),
        put("d", None, overlapping_groups),
    ),
    "groups of d are one": (
        "masked", VALUE, ("d has", "0 bytes from"),
        put("d", None, lambda t: t[:1].expand(G, -1, -1)),
    ),
    "scales of A, no unit stride": (
        "ids", VALUE, ("a[1]", "stride"),
        put("a", 1, lambda t: t.new_ones(2 * M, 6)[::2, ::2]),
    ),
    "scales of A, masked, no unit stride": (
        "masked", VALUE, ("a[1]", "stride"), put("a", 1, lambda t: t.new_ones(G, 40, 6)[:, ::2, ::2]),
    ),
    "d lies in a": ("ids", VALUE, ("a[0]", "overlaps d"), d_inside_a),
    "offsets lie in d": ("offsets", VALUE, ("offsets", "overlaps d"), index_inside_d),
    "a on meta": ("ids", TYPE, ("on cpu", "on meta"), lambda c: {"a": tuple(t.to("meta") for t in c["a"])}),
    "ids on meta": (
        "ids", TYPE, ("grouped_layout is on meta",),
        put("grouped_layout", None, lambda t: t.to("meta")),
    ),
    "recipe": ("ids", UNSUPPORTED, ("(1, 1, 128)", "(1, 128, 128)"), lambda c: {"recipe": (1, 1, 128)}),
    "recipe_a": ("masked", UNSUPPORTED, ("recipe_a is (1, 32)",), lambda c: {"recipe_a": (1, 32)}),
    "recipe_b": ("offsets", UNSUPPORTED, ("recipe_b is (1, 32)",), lambda c: {"recipe_b": (1, 32)}),
    "epilogue": ("masked", UNSUPPORTED, ("epilogue is 'silu'",), lambda c: {"epilogue": "silu"}),
    "expected_m as text": ("masked", TYPE, ("expected_m is a str",), lambda c: {"expected_m": "4"}),
    "expected_m as counts": (
        "masked", TYPE, ("expected_m is a Tensor that is no integer",),
        lambda c: {"expected_m": c["masked_m"]},
    ),
    "a flag for each group": (
        "psum", TYPE, ("ensure_zero_padding is a Tensor", "pass a bool"),
        lambda c: {"ensure_zero_padding": torch.ones(G)},
    ),
    "a flag for each row": (
        "ids", TYPE, ("use_psum_layout is a numpy.ndarray", "pass a bool"),
        lambda c: {"use_psum_layout": torch.ones(M).numpy()},
    ),
    "a promise for each group": (
        "offsets", TYPE, ("b_is_constant is a Tensor", "pass a bool"),
        lambda c: {"b_is_constant": torch.ones(G)},
    ),
    "expected_m as float": (
        "psum", TYPE, ("expected_m_for_psum_layout is a float",),
        lambda c: {"expected_m_for_psum_layout": 4.0},
    ),
    "two spellings": ("ids", TYPE, ("m_indices", "both"), lambda c: {"m_indices": c["grouped_layout"]}),
    "no layout": ("ids", TYPE, ("m_indices", "none"), put("grouped_layout", None, lambda t: None)),
    "unknown keyword": ("ids", TYPE, ("unexpected keyword", "'c'"), lambda c: {"c": c["d"]}),
    # values of groups, which are looked at because they are on the CPU
    "id of no group": (
        "ids", VALUE, ("grouped_layout[3] is 3", "0..2"),
        put("grouped_layout", None, at(3, 3)),
    ),
    "id below -1": ("ids", VALUE, ("grouped_layout[0] is -2",), put("grouped_layout", None, at(0, -2))),
    "two groups in a unit": (
        "ids", VALUE, ("grouped_layout[2] is 2", "16 rows", "row 0", "group 0's", "set_mk_alignment"),
        put("grouped_layout", None, at(2, 2)),
    ),
    "a dead unit with an owner": (
        "ids", VALUE, ("grouped_layout[1] is 0", "group -1's"), put("grouped_layout", None, at(0, -1)),
    ),
    "end before its start": (
        "psum", VALUE, ("grouped_layout[1] is 15", "16..48"),
        put("grouped_layout", None, at(1, 15)),
    ),
    "negative end": (
        "psum", VALUE, ("grouped_layout[0] is -1", "0..48"),
        put("grouped_layout", None, at(0, -1)),
    ),
    "end behind the last row": (
        "psum", VALUE, ("grouped_layout[2] is 49",),
        put("grouped_layout", None, at(2, 49)),
    ),
    "offsets that decrease": ("offsets", VALUE, ("offsets[2] is 7", "8..48"), put("offsets", None, at(2, 7))),
    "negative offset": ("offsets", VALUE, ("offsets[0] is -1",), put("offsets", None, at(0, -1))),
    "offset behind the last row": (
        "offsets", VALUE, ("offsets[3] is 49", "48 rows"),
        put("offsets", None, at(3, 49)),
    ),
    "count above the room": (
        "masked", VALUE, ("masked_m[2] is 21", "0..20"),
        put("masked_m", None, at(2, 21)),
    ),
    "negative count": ("masked", VALUE, ("masked_m[1] is -1",), put("masked_m", None, at(1, -1))),
}  # fmt: skip
BY_FUNCTION_ONLY = {
    "bare tensor for a", "one item", "list for ids", "numpy offsets", "expected_m as counts",
    "a flag for each row",
}  # fmt: skip


def changed(name: str) -> tuple[str, type, tuple, dict]:
    form, error, words, change = WRONG[name]
    arguments = case(form)
    return form, error, words, arguments | change(arguments)


@pytest.mark.parametrize("form", FUNCTIONS)
def test_the_unchanged_case_is_right(form):
    arguments = case(form)
    call(form, arguments)
    assert (arguments["d"] != 7).any()


@pytest.mark.parametrize("name", WRONG)
def test_wrong_input(name):
    form, error, words, arguments = changed(name)
    d = arguments["d"]
    before = d.float().clone()
    with pytest.raises(error) as caught:
        call(form, arguments)
    message = str(caught.value)
    assert type(caught.value) is error
    assert all(word in message for word in words), message
    assert FUNCTIONS[form].__name__ in message, message
    assert torch.equal(d.float(), before)


OTHER_DTYPES = [
    "bool", "uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float64", "complex32",
    "complex64", "complex128", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu",
    "float4_e2m1fn_x2",
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("operator", [False, True], ids=["function", "operator"])
@pytest.mark.parametrize("name", OTHER_DTYPES)
def test_every_dtype_of_torch_is_named(name, operator):
    dtype = getattr(torch, name, None)
    if dtype is None:
        pytest.skip("this torch does not have it")
    c = case("masked")
    c["d"] = torch.empty(c["d"].shape, dtype=dtype)
    with pytest.raises(TypeError, match=f"d has dtype {name};"):
        call("masked", c, operator)


def test_values_of_packed_fp4_are_another_recipe():
    dtype = getattr(torch, "float4_e2m1fn_x2", None)
    if dtype is None:
        pytest.skip("this torch does not have it")
    c = case("masked")
    c["b"] = (torch.empty(c["b"][0].shape, dtype=dtype), c["b"][1])
    with pytest.raises(NotImplementedError, match=r"b\[0\] has dtype float4_e2m1fn_x2;"):
        call("masked", c)


def test_every_message_is_its_own():
    messages = {}
    for name in WRONG:
        form, error, _, arguments = changed(name)
        with pytest.raises(error) as caught:
            call(form, arguments)
        assert str(caught.value) not in messages.values(), name
        messages[name] = str(caught.value)


@pytest.mark.parametrize("name", [n for n in WRONG if n not in BY_FUNCTION_ONLY])
def test_the_operator_refuses_with_the_same_words(name):
    form, error, _, arguments = changed(name)
    if not {"a", "b", "d", INDEX[form], "use_psum_layout", "expected_m"} >= set(arguments):
        pytest.skip("not expressible in the operator's schema")
    if arguments.get("expected_m", 4) != 4 or arguments[INDEX[form]] is None or "meta" in name:
        pytest.skip("the dispatcher refuses it before the operator")
    with pytest.raises(error) as by_operator:
        call(form, arguments, operator=True)
    with pytest.raises(error) as by_function:
        call(form, arguments)
    without_addresses = [
        " ".join(word for word in str(caught.value).split() if not word.startswith("0x"))
        for caught in (by_operator, by_function)
    ]
    assert without_addresses[0] == without_addresses[1]


class Own(RuntimeError):
    pass


class Raising:
    def __init__(self, error):
        self.error = error

    def __bool__(self):
        raise self.error

    __index__ = __bool__


@pytest.mark.parametrize("error", [Own("mine"), KeyboardInterrupt()], ids=["own", "interrupt"])
@pytest.mark.parametrize("name", ["expected_m", "b_is_constant"])
def test_what_is_not_about_the_value_is_left_as_it_is(name, error):
    with pytest.raises(type(error)) as caught:
        call("masked", case("masked") | {name: Raising(error)})
    assert caught.value is error


@pytest.mark.parametrize("name", ["expected_m", "b_is_constant"])
def test_what_python_says_of_a_value_is_the_cause(name):
    said = ValueError("no such number")
    with pytest.raises(TypeError, match=f"{name} is a Raising") as caught:
        call("masked", case("masked") | {name: Raising(said)})
    assert caught.value.__cause__ is said


def test_call_forms_that_python_refuses():
    c = case("masked")
    with pytest.raises(TypeError, match="missing the required argument 'expected_m'"):
        dg.m_grouped_fp8_gemm_nt_masked(c["a"], c["b"], c["d"], c["masked_m"])
    with pytest.raises(TypeError, match="at most 10 positional"):
        dg.m_grouped_fp8_gemm_nt_offsets(*[None] * 11)
    with pytest.raises(TypeError, match="multiple values for argument 'grouped_layout'"):
        dg.m_grouped_fp8_gemm_nt_contiguous(c["a"], c["b"], c["d"], c["masked_m"], grouped_layout=None)


@pytest.mark.parametrize("value", [0, -1, 129, 1 << 20, 1 << 40, -(1 << 70)])
def test_the_alignment_is_in_its_range(value):
    with pytest.raises(ValueError, match=r"the alignment is -?\d+; allowed: 1\.\.128"):
        dg.set_mk_alignment_for_contiguous_layout(value)
    assert dg.get_mk_alignment_for_contiguous_layout() == 128


@pytest.mark.parametrize("setter", [dg.set_compile_mode])
def test_a_number_beyond_32_bits_is_a_wrong_value_and_not_a_wrong_type(setter):
    for value in (1 << 40, -(1 << 70)):
        with pytest.raises(ValueError, match=f"{setter.__name__}: .* is {value}; allowed"):
            setter(value)
    with pytest.raises(TypeError):
        setter("1")
