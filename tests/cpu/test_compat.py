"""The contract of DeepGEMM's callers on CPU tensors: every test of compat_tests.py."""

import pytest
from compat_tests import *  # noqa: F403


@pytest.fixture
def device() -> str:
    return "cpu"
