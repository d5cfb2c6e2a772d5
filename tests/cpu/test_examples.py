"""The layers of examples/ on CPU tensors: every test of example_tests.py."""

import pytest
from example_tests import *  # noqa: F403


@pytest.fixture
def device() -> str:
    return "cpu"
