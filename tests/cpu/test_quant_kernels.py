"""The quantisation kernels without a GPU: each compiles cleanly and loads 16 bytes at a time."""

import re

import pytest
from machine_code import disassembly

from deep_gemm_jit import _core

SOURCES = dict(_core.cast_sources())
MAX_REGISTERS = {
    "per 1x": 48,
    "per 32x": 64,
    "per 64x": 80,
    "per 128x": 96,
}  # 5, 4, 3 and 2 blocks of 256 threads an SM


def test_there_is_one_kernel_for_each_combination():
    assert len(SOURCES) == 3 * 3 * (3 + 2)
    texts = {source.text for source in SOURCES.values()}
    assert len(texts) == len(SOURCES)
    for line, source in SOURCES.items():
        assert source.text.startswith(f"// {line}\n")
        assert (
            source.text.count("#include") == 1
            and source.text.count('extern "C"') + source.text.count("DGJ_KERNEL") == 1
        )


@pytest.mark.parametrize("line", SOURCES)
def test_kernel_compiles_cleanly(line, tmp_path):
    kernel = _core.compile_uncached(SOURCES[line])
    report = kernel["report"]
    assert report["spill_stores"] == report["spill_loads"] == report["stack_bytes"] == 0, kernel["log"]
    assert report["advisories"] == []
    limit = next(registers for part, registers in MAX_REGISTERS.items() if part in line)
    assert 0 < report["registers"] <= limit, f"{report['registers']} registers leave too few threads on an SM"

    code = disassembly(kernel["cubin"], tmp_path)
    units = int(re.search(r"kUnits = (\d+);", SOURCES[line].text).group(1))
    wide_loads = [m.start() for m in re.finditer(r"\bLDG\.E\.\S*128", code)]
    assert len(wide_loads) == units
    assert code.find("F2FP.SATFINITE.E4M3") > wide_loads[-1], (
        "the loads are not all issued before the first is used"
    )
    assert not re.search(r"\b(LDL|STL|LD\.E|ST\.E|CCTL|MEMBAR)\b", code)
