"""The validation set on the emulator: no timing changes a bit, and a GPU gave the same bits."""

import functools
from pathlib import Path

import pytest
from emulator import launch
from validation import cases, emulated, rounding, run

DOCUMENT = Path(cases.HERE).parents[1] / "docs" / "emulator.md"
RESULTS = sorted((Path(cases.HERE) / "results").glob("*.json"))
CASES = {case.name: case for case in cases.all_cases()}


def test_every_micro_kernel_compiles_for_the_gpu():
    refused = {c: why for c, why in run.compile_all(list(CASES.values())).items() if isinstance(why, str)}
    assert not refused, "\n".join(refused.values())


@pytest.mark.parametrize("name", [n for n, case in CASES.items() if not case.refused])
def test_the_order_of_events_changes_no_bit(name):
    outs = [emulated.run(CASES[name], seed) for seed in launch.seeds((0, 1, 2, 3))]
    assert all(out == outs[0] for out in outs)
    outside = ("outside", "no group", "negative group", "below a group")  # nothing is stored
    assert outs[0] != CASES[name].out or any(words in name for words in outside)


@pytest.mark.parametrize("name", [n for n, case in CASES.items() if case.refused])
def test_what_the_hardware_refuses_is_refused_under_any_order(name):
    for seed in launch.seeds((0, 1, 2)):
        with pytest.raises(launch.EmulatorFault) as fault:
            emulated.run(CASES[name], seed)
        assert CASES[name].refused in str(fault.value)


@functools.cache
def verdicts(path: Path) -> dict[str, run.Verdict]:
    return run.compare(list(CASES.values()), run.merged([path]))


@pytest.mark.parametrize("path", RESULTS, ids=lambda p: p.stem)
def test_the_gpu_gave_the_same_bits(path):
    wrong = {n: v for n, v in verdicts(path).items() if v.kind not in run.AGREED}
    assert not wrong, "\n".join(f"{name}: {v.kind}: {v.remark}" for name, v in wrong.items())


def verdict(name: str, known: dict, ours: bytes | str) -> str:
    case = CASES[name]
    return run.compare_case(case, {"digest": case.digest(), **known}, ours).kind


def test_a_disagreement_about_what_is_refused_is_seen():
    stops = {"error": f"cuCtxSynchronize {run.ILLEGAL_INSTRUCTION}"}
    runs = {"sha": run.sha(b"bytes")}
    misaligned, narrow, legal = "load edge unaligned", "load swizzle 128 width 64", "load edge left"
    fault = CASES[misaligned].refused
    assert verdict(misaligned, stops, fault) == "refused"
    assert verdict(misaligned, runs, fault) == "differs"  # the GPU runs it
    assert verdict(misaligned, stops, b"bytes") == "differs"  # the emulator does
    assert verdict(misaligned, stops, "deadlock") == "differs"
    assert verdict(misaligned, {"error": "nothing for 10 s"}, fault) == "failed"
    assert verdict(narrow, runs, CASES[narrow].refused) == "not modelled"
    assert verdict(narrow, stops, CASES[narrow].refused) == "failed"
    assert verdict(legal, runs, b"bytes") == "equal"
    assert verdict(legal, runs, b"other") == "differs"
    assert verdict(legal, runs, fault) == "differs"
    assert verdict(legal, stops, b"bytes") == "failed"
    assert verdict(legal, {**runs, "digest": "of another case"}, b"bytes") == "stale"


def test_the_document_says_how_far_cut_sums_are_from_exact_ones():
    sums = [case for case in CASES.values() if case.rounding is not None]
    apart = max(rounding.worst(case.rounding, emulated.run(case)) for case in sums)
    assert apart <= rounding.BOUND
    assert f"at most {apart:.1f} units from the exact ones" in DOCUMENT.read_text()


def test_the_document_has_the_table_that_the_results_give():
    document = DOCUMENT.read_text()
    if not RESULTS:
        assert run.table(None) in document
    for path in RESULTS:
        assert run.table(verdicts(path), run.title(run.merged([path]))) in document
