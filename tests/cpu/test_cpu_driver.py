"""Beyond the reach of the Python ops: other instruction sets give equal bits; speed by CPU time; fork."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from cpp.build import CSRC, ROOT, fmt_include

CPU_FLAGS = set()
if Path("/proc/cpuinfo").is_file():
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("flags"):
            CPU_FLAGS.update(line.split(":", 1)[1].split())

# No clones: the whole program for one instruction set. haswell and skylake-avx512 have fused multiply-add, so
# that a contracted expression would show. What each needs of this machine is named beside it.
BUILDS = {
    "baseline": ((), set()),
    "haswell": (("-march=haswell",), {"avx2", "fma", "bmi2", "f16c", "movbe"}),
    "skylake-avx512": (
        ("-march=skylake-avx512",),
        {"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512cd"},
    ),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("cpu_driver")


@pytest.fixture(scope="module")
def driver(folder):
    return build_cpu_driver(folder)


def build_cpu_driver(folder, *flags):
    compiler = shutil.which(os.environ.get("CXX", "g++")) or pytest.skip("no C++ compiler")
    include = fmt_include()
    sources = [ROOT / "tests/cpp/cpu_driver.cpp", CSRC / "base/env.cpp", CSRC / "base/log.cpp"]
    sources += sorted([*CSRC.glob("cpu/*.cpp"), *CSRC.glob("problem/*.cpp")])
    program = folder / f"cpu_driver{''.join(flags)}"
    command = [compiler, "-std=c++20", "-O2", "-pthread", "-DFMT_HEADER_ONLY", f"-I{CSRC}", *flags]
    command += [f"-isystem{include}"] if include else []
    subprocess.run([*command, *map(str, sources), "-o", str(program)], check=True)
    return program


def run(program, what):
    result = subprocess.run([program, what], capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, (result.returncode, result.stdout, result.stderr)
    return result.stdout


@pytest.mark.parametrize("name", BUILDS)
def test_bits_do_not_depend_on_the_instruction_set(driver, folder, name):
    flags, needed = BUILDS[name]
    if needed - CPU_FLAGS:
        pytest.skip(f"this CPU lacks {', '.join(sorted(needed - CPU_FLAGS))}")
    other = build_cpu_driver(folder, "-DDGJ_CPU_CLONES=", *flags)
    lines = run(driver, "digest").splitlines()
    assert len(lines) == 12 and len({line.split()[-1] for line in lines}) == 12
    assert run(other, "digest").splitlines() == lines


@pytest.mark.skipif("avx2" not in CPU_FLAGS, reason="the promise is for AVX2")
def test_ten_gflops_per_core(driver):
    assert float(run(driver, "speed")) >= 10.0


def test_groups_out_of_range_are_clamped(folder):
    # Whatever is read outside an operand is an error of the sanitizer.
    program = build_cpu_driver(folder, "-fsanitize=address", "-O1", "-DDGJ_CPU_CLONES=")
    assert run(program, "clamps") == "0 failures\n"


def test_forked_children_compute_while_the_parent_does(driver):
    assert run(driver, "fork") == "0 failures\n"
