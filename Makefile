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

# pip would compile what it installs on one core, and the tests of every package, too.
$(VENV)/.ready: $(VENV)/.base
	@echo "Setting up $(VENV) for development: a minute or two"
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-compile -e '.[dev,torch,mpi]'
	$(BIN)/python -m compileall -qq -j 0 -x '/tests?/' $(VENV)/lib || true
	touch $@

$(VENV)/.demo: $(VENV)/.base
	@echo "Setting up $(VENV) for the demo: a minute or two"
	$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[demo]'
	touch $@

# Debian's package $(1), which has the file $(2). Where it cannot be installed, what wants it finds another way.
define DEBIAN
if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && [ ! -e $(2) ]; then \
	echo "Installing Debian's package $(1), if it is to be had"; \
	apt="timeout 120 apt-get -qq -o Acquire::Retries=0 -o Acquire::http::Timeout=5 -o Acquire::https::Timeout=5"; \
	export DEBIAN_FRONTEND=noninteractive; \
	{ $$apt install -y --no-install-recommends $(1) || \
		{ $$apt update && $$apt install -y --no-install-recommends $(1); }; } </dev/null >/dev/null 2>&1 || true; \
fi
endef

demo: $(VENV)/.demo
	@$(call DEBIAN,dataset-fashion-mnist,/usr/share/datasets/fashion-mnist)
	$(BIN)/windlass demo $(ARGS)

# Whole files run three at a time, as tests often wait; JOBS=0 runs one after the other. Those that load torch go by
# themselves: once it is loaded, every cluster that the same process starts loads it too, which takes 1.5 s. What
# compares speeds runs alone.
JOBS ?= 3
ALONE := tests/examples/test_stragglers.py
TORCH := apps behaviour checkpoint cli/test_demo.py collectives examples/test_ctr.py store test_arrays.py torch_devices torch_embedding torch_training
TORCH := $(addprefix tests/,$(TORCH))
PYTEST = $(BIN)/python -m pytest -n $(JOBS) --dist loadfile

# The tests start some hundreds of processes, and each would compile the package again.
unexport PYTHONDONTWRITEBYTECODE

test: check
	@$(call DEBIAN,openmpi-bin,/usr/bin/mpirun)
	$(BIN)/python -m pytest $(ALONE)
	$(PYTEST) $(ALONE:%=--ignore=%) $(TORCH:%=--ignore=%)
	$(PYTEST) $(TORCH)

check: $(VENV)/.ready
	$(BIN)/ruff check src tests bench examples
	$(BIN)/mypy

soak: $(VENV)/.ready
	$(BIN)/python -m pytest -m soak --timeout 1800

bench: $(VENV)/.ready
	@$(call DEBIAN,openmpi-bin,/usr/bin/mpirun)
	@$(call DEBIAN,redis-server,/usr/bin/redis-server)
	$(BIN)/python -m pip install -q --disable-pip-version-check -r bench/requirements.txt
	$(BIN)/python -m bench.dense --markdown docs/benchmarks.md
	$(BIN)/python -m bench.collectives --markdown docs/benchmarks-collectives.md
	$(BIN)/python -m bench.training --markdown docs/benchmarks.md
	$(BIN)/python -m bench.accuracy --markdown docs/demo.md
	$(BIN)/python -m bench.faults --markdown docs/benchmarks-faults.md
	$(BIN)/python -m bench.filters --markdown docs/filters.md
	$(BIN)/python -m bench.sparse --markdown docs/benchmarks-sparse.md
	$(BIN)/python -m bench.linear --markdown docs/logistic.md

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
