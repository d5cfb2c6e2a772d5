"""The commands of `python -m deep_gemm_jit`, one module each.

A module has add_arguments(parser) and run(args), which returns the exit code: 0, or 1 when it has findings. A
ValueError, TypeError or NotImplementedError is a wrong use and becomes exit code 2; a RuntimeError or OSError
is a failure and becomes 1. Only `verify` and `bench` import torch.
"""
