"""The layers of examples/ on a GPU: every test of example_tests.py, and a CUDA graph."""

import importlib

import example_tests
import pytest
from example_tests import *  # noqa: F403


@pytest.fixture
def device() -> str:
    return "cuda"


def test_a_captured_layer_is_replayed_with_other_tokens_and_another_routing():
    layer = example_tests.layers("cuda")["vllm masked"].__self__
    captured = importlib.import_module("moe_vllm").Graph(layer, *example_tests.inputs(40, "cuda"))
    for experts in (example_tests.EXPERTS, 2, 3):
        given = example_tests.inputs(40, "cuda", experts)
        difference = example_tests.common.difference(captured(*given), layer.experts.reference(*given))
        assert difference < example_tests.common.LIMIT
