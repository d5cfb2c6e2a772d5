"""vLLM, SGLang and transformers: their own code, unchanged, calls this package (on CPU tensors)."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "frameworks"))
import environment  # noqa: E402

FOLDER = Path(__file__).parent / "frameworks"
FRAMEWORKS = ("vllm", "sglang", "transformers")


def checks_of(framework: str) -> list[str]:
    text = (FOLDER / f"{framework}_calls.py").read_text()
    return re.findall(r"^@checks\ndef (\w+)", text, re.M)


@pytest.fixture(scope="session")
def frameworks():
    try:
        return environment.make()
    except environment.RegistryUnreachable as error:
        pytest.skip(f"the package registry cannot be reached: {error}")


@pytest.fixture(scope="session")
def results(frameworks, shim, tmp_path_factory):
    """What the checks of a framework gave; its process runs once."""
    python, sources = frameworks
    found: dict[str, dict] = {}

    def of(framework: str) -> dict:
        if framework in found:
            return found[framework]
        home = tmp_path_factory.mktemp(framework)
        paths = [sources, FOLDER, FOLDER.parents[1], *([shim] if framework == "sglang" else [])]
        keep = {name: value for name, value in os.environ.items() if not name.startswith(("DGJ_", "DG_"))}
        variables = {
            "PYTHONPATH": os.pathsep.join(map(str, paths)),
            "HOME": str(home),
            "XDG_CACHE_HOME": str(home / "cache"),
            "DGJ_BACKEND": "moe" if framework == "vllm" else "1",
            "CUDA_VISIBLE_DEVICES": "",  # a set and empty one lets vLLM keep Triton without a GPU
            "TRITON_INTERPRET": "1",
            "TORCH_COMPILE_DISABLE": "1",  # helpers of the frameworks, which would take minutes on a CPU
            "HF_HUB_OFFLINE": "1",
        }
        command = [str(python), str(FOLDER / f"{framework}_calls.py")]
        done = subprocess.run(
            command, capture_output=True, text=True, env=keep | variables, cwd=home, timeout=900
        )
        lines = re.findall(r"^CHECK (.*)$", done.stdout, re.M)
        rows = {row["name"]: row for row in map(json.loads, lines)}
        found[framework] = {"rows": rows, "rest": (done.stdout + done.stderr)[-6000:]}
        return found[framework]

    return of


@pytest.mark.parametrize(
    ("framework", "check"), [(name, check) for name in FRAMEWORKS for check in checks_of(name)]
)
def test_framework(framework, check, results):
    given = results(framework)
    assert check in given["rows"], given["rest"]
    assert given["rows"][check]["error"] is None, given["rows"][check]["error"]
