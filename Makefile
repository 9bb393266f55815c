# Every target sets up what it needs: a virtual environment beside this file, made once.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test soak check bench clean

$(VENV)/.base: pyproject.toml
	@echo "Setting up $(VENV), once"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check -e .
	touch $@

$(VENV)/.ready: $(VENV)/.base
	@echo "Setting up $(VENV) for development: a minute or two"
	$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[dev,torch]'
	touch $@

demo: $(VENV)/.base
	$(BIN)/windlass demo

test: check
	$(BIN)/python -m pytest

check: $(VENV)/.ready
	$(BIN)/ruff check src tests bench examples
	$(BIN)/mypy

soak: $(VENV)/.ready
	$(BIN)/python -m pytest -m soak --timeout 1800

bench: $(VENV)/.ready
	$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[mpi]'
	$(BIN)/python -m bench.dense --markdown docs/benchmarks.md

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
