# Two commands matter: `make demo` and `make test`. Both set up .venv by themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Compiled once, also where the environment forbids it on the way: each actor imports it.
CODE := hetero actors cluster examples tests
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

.PHONY: demo test models faults soak lint bench clean

demo: $(VENV)/.demo
	$(BIN)/python -m examples.ocr.main

test: $(VENV)/.test lint
	$(BIN)/python -m pytest

# Every real model of tests/models, of which `make test` runs a quick third, and large networks on each device alone.
models: $(VENV)/.test
	HETERO_ALL_MODELS=1 $(BIN)/python -m pytest tests/models tests/conformance/test_models.py

# Every fault over every road; `make test` tries each over one of them.
faults: $(VENV)/.test
	HETERO_ALL_FAULTS=1 $(BIN)/python -m pytest tests/faults

# Steps over actors that are killed at random, with and without state, over both roads.
soak: $(VENV)/.test
	$(BIN)/python -m tests.faults.soak

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/.test
	$(BIN)/python -m benchmarks

$(VENV)/.made:
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/.demo: $(VENV)/.made pyproject.toml
	$(PIP) install --editable '.[demo]'
	$(BIN)/python -m hetero.kernels
	$(BIN)/python -m compileall -q $(CODE)
	touch $@

$(VENV)/.test: $(VENV)/.made pyproject.toml
	$(PIP) install --editable '.[test]'
	$(BIN)/python -m hetero.kernels
	$(BIN)/python -m compileall -q $(CODE)
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache out
