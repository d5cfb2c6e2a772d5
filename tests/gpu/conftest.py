"""Everything in this folder needs a GPU and is skipped without one. The reference and the sweeps are those of
benchmarks/."""

from pathlib import Path

import pytest
from checkout import load_benchmarks

HERE = Path(__file__).resolve().parent

load_benchmarks()


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
