"""csrc/runtime without a GPU: contexts, tensor maps, launches, captures and failures, on a fake driver.

Every scenario of tests/cpp/runtime_driver.cpp is a process; tests/cpp/fake_cuda.c is its libcuda.so.1.
"""

import subprocess
import sys
from pathlib import Path

import pytest
from claimed_cuda import build_driver, cuda_include
from cpp.build import ROOT, build

SCENARIOS = [
    "launch_arguments",
    "attributes_once",
    "empty_operands",
    "contexts",
    "map_reuse",
    "warm",
    "capture_compile",
    "capture_from_cache",
    "capture_old_driver",
    "compile_mode",
    "rejected_image",
    "threads",
    "no_device",
    "broken_driver",
    "old_driver",
    "other_architecture",
    "devices",
    "batch_invariant_off",
    "generic_launch",
    "grouped",
]
# A warm call is to add 0.3 us to the driver's launch; new pointers cost little beside the driver's encoding.
# The limit allows for slow test machines; it catches a string, a file or a plan made anew on the way.
MOST_NANOSECONDS = 800


@pytest.fixture(scope="session")
def fake_driver(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("fake_cuda")
    build_driver(folder)
    return folder


@pytest.fixture(scope="session")
def program(request, tmp_path_factory) -> Path:
    embedded = tmp_path_factory.mktemp("embedded") / "embedded_files.cpp"
    tool = ROOT / "tools" / "embed_kernels.py"
    subprocess.run([sys.executable, str(tool), str(ROOT / "kernels_src"), str(embedded)], check=True)
    return build(
        "runtime_driver",
        request.config.cache.mkdir("cpp"),
        more_folders=("problem", "plan", "emit", "runtime"),
        more_flags=(f"-I{ROOT / 'kernels_src'}", f"-isystem{cuda_include()}"),
        more_sources=(embedded,),
    )


@pytest.fixture
def run(program, tmp_path):
    def run_scenario(name: str, driver_folder: Path, **environment: str) -> str:
        home = tmp_path / "home"
        home.mkdir(exist_ok=True)
        env = {
            "LD_LIBRARY_PATH": str(driver_folder),
            "HOME": str(home),
            "DGJ_CACHE_DIR": str(tmp_path / "cache"),
        }
        done = subprocess.run(
            [str(program), name], env=env | environment, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run_scenario


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_runtime(scenario, run, fake_driver):
    run(scenario, fake_driver)


def test_every_scenario_runs():
    text = (ROOT / "tests" / "cpp" / "runtime_driver.cpp").read_text()
    table = text[text.index("kScenarios[]") :]
    others = ["no_driver", "batch_invariant_from_environment", "switches_that_are_none", "checked_index"]
    others += ["cost", "grouped_cost"]
    assert [name for name in [*SCENARIOS, *others] if f'{{"{name}", {name}}}' not in table] == []
    assert table.count('{"') == len(SCENARIOS) + len(others)


def test_machine_without_a_driver(run, tmp_path):
    # A file that is no library hides the driver that the machine may have: the loader stops at it.
    (tmp_path / "libcuda.so.1").write_text("not a library")
    run("no_driver", tmp_path)


@pytest.mark.parametrize(
    ("scenario", "variables"),
    [
        ("batch_invariant_from_environment", {"DGJ_BATCH_INVARIANT": "1"}),
        ("batch_invariant_from_environment", {"VLLM_BATCH_INVARIANT": "1"}),
        ("batch_invariant_from_environment", {"DGJ_BATCH_INVARIANT": "on", "VLLM_BATCH_INVARIANT": "0"}),
        ("checked_index", {"DGJ_CHECK": "1"}),
        ("batch_invariant_off", {"DGJ_BATCH_INVARIANT": "0", "VLLM_BATCH_INVARIANT": "1"}),
        ("switches_that_are_none", {"DGJ_CHECK": "maybe", "DGJ_BATCH_INVARIANT": "2"}),
    ],
)
def test_settings_from_the_environment(scenario, variables, run, fake_driver):
    run(scenario, fake_driver, **variables)


def test_warm_grouped_call_costs_little_beside_the_launch(run, fake_driver):
    assert float(run("grouped_cost", fake_driver)) < MOST_NANOSECONDS


def test_warm_call_costs_little_beside_the_launch(run, fake_driver):
    same, new_pointers = map(float, run("cost", fake_driver).split())
    assert same < MOST_NANOSECONDS and new_pointers < MOST_NANOSECONDS, (same, new_pointers)
