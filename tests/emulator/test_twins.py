"""The emulator's ptx/ headers have every function and type of the device's, in the file of the same name."""

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
DEVICE = TESTS.parents[1] / "kernels_src" / "ptx"


def functions(path: Path) -> dict[str, list[str]]:
    """Name -> types of its parameters; those of the emulator end with the caller's line, left out here."""
    code = re.sub(r"//[^\n]*", "", path.read_text())
    found = {}
    for name, given in re.findall(r"DGJ_DEVICE [\w ]+?[ &](\w+)\((.*?)\)\s*\{", code, re.S):
        parameters = [" ".join(p.split()) for p in given.split(",") if p.strip() and "Where w" not in p]
        types = [re.sub(r"\s*\b\w+(\)\[\w+\])?$", r"\1", p) for p in parameters]
        found.setdefault(name, []).append(types)
    return found


@pytest.mark.parametrize("name", sorted(path.name for path in DEVICE.glob("*.cuh")))
def test_each_instruction_has_its_twin(name):
    ours, twins = functions(DEVICE / name), functions(TESTS / "ptx" / name)
    assert ours, "no function found: the check would check nothing"
    for function, signatures in ours.items():
        for signature in signatures:
            assert signature in twins.get(function, []), f"ptx/{name}: {function}({', '.join(signature)})"
    types = r"struct (?:alignas\(\d+\) )?(\w+)"
    assert set(re.findall(types, (DEVICE / name).read_text())) <= set(
        re.findall(types, (TESTS / "ptx" / name).read_text())
    )
