"""The JSON reader against Python's, on documents with random damage, under sanitizers."""

import json
import math
import random
import subprocess

import pytest
from cpp.build import build

SANITIZERS = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
DOCUMENTS = [
    '{"format": 1, "winners": [{"m": 64, "us": 9.125, "plan": "n=8 | gemm"}, null, true, false, []]}',
    '[0, -0, 10, 1.5, -2e10, 3E+7, 4.25e-3, "", "\\u00e9\\ud83d\\ude00\\n\\"\\\\\\/", {"a": {"b": [{}]}}]',
    ' \t[ "x" , { } ] ',
]
# Pieces that damage becomes interesting with.
PIECES = ["", "0", "00", "-", ".", "e", "E+", "[", "]", "{", "}", ",", ":", '"', "\\", "\\u", "\\ud800",
          "inf", "nan", "true", "nul", " ", "\t", "\x01", "1e999", "1" * 400, "é"]  # fmt: skip


@pytest.fixture(scope="module")
def is_json(request):
    program = build(
        "json_driver",
        request.config.cache.mkdir("cpp"),
        extra_flags=SANITIZERS,
        only=("base/json_value.cpp",),
    )

    def answers(documents: list[str]) -> list[bool]:
        done = subprocess.run(
            [str(program)], input="\n".join(documents) + "\n", capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr[-4000:]
        return [line == "1" for line in done.stdout.splitlines()]

    return answers


def refuse(name: str):
    raise ValueError(name)


def finite(text: str) -> float:
    return float(text) if math.isfinite(float(text)) else refuse(text)


def is_json_to_python(document: str) -> bool:
    try:
        value = json.loads(document, parse_constant=refuse, parse_float=finite, parse_int=finite)
        json.dumps(value, ensure_ascii=False).encode()  # lone surrogates are no text
    except ValueError:
        return False
    return True


def test_the_same_documents_are_json_to_both(is_json):
    source = random.Random(11)
    documents = list(DOCUMENTS)
    for _ in range(20_000):
        text = source.choice(DOCUMENTS)
        for _ in range(source.randint(1, 3)):
            at = source.randrange(len(text) + 1)
            text = text[:at] + source.choice(PIECES) + text[at + source.randint(0, 3) :]
        documents.append(text)
    found = is_json(documents)
    wanted = [is_json_to_python(document) for document in documents]
    assert 0.05 < sum(wanted) / len(wanted) < 0.95, "damage of one kind only would test little"
    assert [d for d, mine, theirs in zip(documents, found, wanted, strict=True) if mine != theirs] == []


def test_nesting_is_bounded(is_json):
    deep = "[" * 60 + "]" * 60
    assert is_json([deep, "[" * 70 + "]" * 70, "[" * 1_000_000, '{"a":' * 1_000_000]) == [True] + [False] * 3
