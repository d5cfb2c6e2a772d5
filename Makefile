# Needs make, g++ >= 12 and a Python 3.11-3.13 with venv and headers; the targets set up everything else.
# Variables: PYTHON (a path or a version such as 3.12), TORCH (a requirement), VENV, JOBS (parallel tests),
# BENCH (arguments of `python -m benchmarks`).
SHELL := /bin/bash
PYTHON ?=
TORCH ?= torch==2.11.*
VENV ?= .venv
JOBS ?= 2
BENCH ?= dense
SETUP_PYTHON := $(firstword $(shell command -v python3) $(PYTHON))
BIN := $(VENV)/bin
REPORTS := build/reports
CXX_FILES = $(shell find csrc kernels_src tests/emulator tests/validation -name '*.[ch]pp' -o -name '*.cuh')

# Tests see the installed package: neither the current folder nor PYTHONPATH may bring the one beside them.
export PYTHONSAFEPATH := 1
export PYTHONPATH :=

# pytest's exit code 5 means that no test was selected, which is no failure of a suite that is still empty.
define pytest
@mkdir -p $(REPORTS)
$(BIN)/pytest $(2) --junitxml=$(REPORTS)/$(1).xml || [ $$? -eq 5 ]
endef

# The repository's root goes last on the path: `benchmarks` comes from here, deep_gemm_jit from the environment.
run_benchmarks = import runpy, sys; sys.path.append("."); runpy.run_module("benchmarks", None, "__main__", True)

.PHONY: help demo test test-cpu test-emulator test-integration test-long test-gpu lint format bench env clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

env: ## Make .venv, build the wheel, install it
	@$(SETUP_PYTHON) tools/dev_env.py --venv '$(VENV)' --python '$(PYTHON)' --torch '$(TORCH)'

demo: env ## Plan, compile and run a few GEMMs, compared with float64
	$(BIN)/python examples/demo.py

test: lint test-cpu ## Lint, tests without a GPU, the emulator's smoke test
	$(call pytest,emulator-smoke,tests/emulator -m smoke)

test-cpu: env
	$(call pytest,cpu,tests/cpu -m "not long" -n $(JOBS))

test-emulator: env ## Device code executed on the CPU, all of it but the long tests
	$(call pytest,emulator,tests/emulator -m "not smoke and not long" -n $(JOBS))

test-integration: env ## The built module, the examples, and frameworks calling it
	$(call pytest,integration,tests/integration -m "not long" -n $(JOBS) --dist loadfile)

test-long: env ## The tests marked long: builds in every way, crash loops, the warm-up of a large model
	$(call pytest,long,tests/cpu tests/emulator tests/integration -m long)

test-gpu: env ## Tests on a GPU
	$(call pytest,gpu,tests/gpu)

lint: env ## ruff, clang-format
	$(BIN)/ruff check .
	@$(BIN)/clang-format --dry-run --Werror $(CXX_FILES)

format: env ## Let ruff and clang-format rewrite the sources
	$(BIN)/ruff check --fix-only .
	$(BIN)/clang-format -i $(CXX_FILES)

bench: env ## Benchmarks on a GPU; results go to benchmarks/results
	$(BIN)/python -c '$(run_benchmarks)' $(BENCH)

clean: ## Remove build folders and the environment
	rm -rf build dist *.egg-info '$(VENV)'
