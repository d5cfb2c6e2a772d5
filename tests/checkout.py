"""Tests see the installed library, but share the references and inputs of the checkout's benchmarks/."""

import importlib.util
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def load_benchmarks() -> None:
    """As a package, without putting the checkout on the module path."""
    if "benchmarks" in sys.modules:
        return
    folder = ROOT / "benchmarks"
    spec = importlib.util.spec_from_file_location(
        "benchmarks", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    module = importlib.util.module_from_spec(spec)
    sys.modules["benchmarks"] = module
    spec.loader.exec_module(module)
