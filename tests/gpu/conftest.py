"""Everything in this folder needs a GPU and is skipped without one. The reference and the sweeps are those of
benchmarks/."""

import importlib.util
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent


def _load_benchmarks() -> None:
    """As a package, without putting the checkout on the module path: the tests must see the installed
    library."""
    if "benchmarks" in sys.modules:
        return
    folder = ROOT / "benchmarks"
    spec = importlib.util.spec_from_file_location(
        "benchmarks", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    module = importlib.util.module_from_spec(spec)
    sys.modules["benchmarks"] = module
    spec.loader.exec_module(module)


_load_benchmarks()


def pytest_collection_modifyitems(items) -> None:
    mine = [item for item in items if HERE in Path(item.path).parents]
    if not mine:
        return
    import torch

    if not torch.cuda.is_available():
        reason = "needs a GPU"
    elif torch.cuda.get_device_capability() != (9, 0):
        reason = "needs a Hopper GPU"
    else:
        return
    for item in mine:
        item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(autouse=True)
def _context_alive():
    """A test that broke the context must not let the next one take the blame."""
    yield
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
