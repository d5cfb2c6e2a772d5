"""The benchmarks of this checkout, and fixtures of the cache: its C++ code in small processes, with a
compiler that counts."""

from pathlib import Path

import pytest
from checkout import load_benchmarks
from cpp.build import Driver, build

load_benchmarks()


@pytest.fixture(scope="session")
def driver(request):
    return Driver(build("cache_driver", request.config.cache.mkdir("cpp")))


@pytest.fixture
def root(tmp_path):
    return tmp_path / "cache"


@pytest.fixture
def env(root):
    return {"DGJ_CACHE_DIR": str(root)}


@pytest.fixture
def marker(tmp_path):
    return tmp_path / "compiled"


@pytest.fixture
def folder(tmp_path):
    """Writes files, given as names and texts, and returns the folder that they are in."""

    def write(files: dict[str, str]) -> Path:
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        return tmp_path

    return write
