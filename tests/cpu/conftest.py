"""The benchmarks of this checkout, and fixtures of the cache: its C++ code in small processes, with a
compiler that counts."""

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
