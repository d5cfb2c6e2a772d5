"""Settings in a process with another deep_gemm: what that is told, and when."""

import pytest
from other_deep_gemm import OTHER, run

SETTABLE = OTHER | {
    "deep_gemm/__init__.py": OTHER["deep_gemm/__init__.py"].replace(
        'raise RuntimeError("no PDL there")', 'calls.append(("pdl", on))'
    )
    + "def use_deterministic_algorithms(on): calls.append(('deterministic', on))\n"
}


def test_setters_take_keywords_like_the_functions_they_stand_for(folder):
    run(
        """
dg.install_as_deep_gemm()
import deep_gemm
assert deep_gemm.fp8_einsum() == "their einsum"
deep_gemm.set_num_sms(num_sms=48)
deep_gemm.set_pdl(enabled=False)
deep_gemm.use_deterministic_algorithms(enabled=True)
deep_gemm.set_mk_alignment_for_contiguous_layout(alignment=64)
assert dg.get_mk_alignment_for_contiguous_layout() == 64 and dg.get_batch_invariant()
assert deep_gemm.calls == [("num_sms", 48), ("alignment", 64)], deep_gemm.calls
for wrong in ({}, {"sms": 1}):
    try:
        deep_gemm.set_num_sms(**wrong)
    except TypeError as error:
        assert "set_num_sms()" in str(error), error
    else:
        raise SystemExit("no error")
""",
        folder(OTHER),
    )


def test_a_later_install_does_not_repeat_settings_of_an_earlier_one(folder):
    run(
        """
import deep_gemm
dg.install_as_deep_gemm()
deep_gemm.set_num_sms(16)
dg.uninstall_as_deep_gemm()
deep_gemm.set_num_sms(100)                      # theirs alone
dg.install_as_deep_gemm()
assert deep_gemm.calls == [("num_sms", 16), ("num_sms", 100)], deep_gemm.calls
""",
        folder(OTHER),
    )


SET_ALL = """
dg.set_num_sms(100)
dg.set_num_sms(48)
dg.set_pdl(True)
dg.set_mk_alignment_for_contiguous_layout(64)
dg.set_batch_invariant(True)
"""
ALL = '[("num_sms", 48), ("pdl", True), ("alignment", 64), ("deterministic", True)]'


@pytest.mark.parametrize("first", [SET_ALL, ""], ids=["before", "after"])
def test_what_was_set_under_our_own_names_reaches_a_package_that_loads_later(folder, first):
    """Set before install_as_deep_gemm() or after it, the other package gets what holds when it is loaded."""
    run(
        f"""
{first}
dg.install_as_deep_gemm()
import deep_gemm
{SET_ALL if not first else ""}
assert deep_gemm.fp8_einsum() == "their einsum"
assert deep_gemm.calls == {ALL}, deep_gemm.calls
dg.set_num_sms(0)                               # from now on at once
dg.use_deterministic_algorithms(False)
assert deep_gemm.calls[4:] == [("num_sms", 0), ("deterministic", False)], deep_gemm.calls
dg.uninstall_as_deep_gemm()
dg.set_num_sms(8)                               # ours alone
import deep_gemm
assert len(deep_gemm.calls) == 6, deep_gemm.calls
dg.install_as_deep_gemm()                       # and theirs again
assert deep_gemm.calls[6:] == [("num_sms", 8)], deep_gemm.calls
""",
        folder(SETTABLE),
    )


def test_what_was_set_reaches_a_package_that_is_loaded_already(folder):
    run(
        f"""
import deep_gemm
{SET_ALL}
assert deep_gemm.calls == []
dg.install_as_deep_gemm()
assert deep_gemm.calls == {ALL}, deep_gemm.calls
""",
        folder(SETTABLE),
    )


def test_what_nobody_set_stays_as_the_other_package_has_it(folder):
    run(
        """
for wrong in (lambda: dg.set_num_sms(-1), lambda: dg.set_mk_alignment_for_contiguous_layout(129)):
    try:
        wrong()
    except ValueError:
        continue
    raise SystemExit("no error")
dg.install_as_deep_gemm()
import deep_gemm
assert deep_gemm.fp8_einsum() == "their einsum" and deep_gemm.calls == [], deep_gemm.calls
""",
        folder(SETTABLE),
    )


def test_an_uninstall_before_the_other_package_was_loaded_forgets_nothing(folder):
    run(
        """
dg.set_num_sms(48)
dg.install_as_deep_gemm()
dg.uninstall_as_deep_gemm()
dg.install_as_deep_gemm()
import deep_gemm
assert deep_gemm.fp8_einsum() == "their einsum" and deep_gemm.calls == [("num_sms", 48)], deep_gemm.calls
""",
        folder(SETTABLE),
    )
