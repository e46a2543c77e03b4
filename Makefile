# Two commands are enough on a fresh machine: `make demo` and `make test`.
# PYTHON picks the interpreter, VENV the place of the environment.
PYTHON ?= python3
VENV ?= .venv
SEED ?=
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo demo-cluster test test-torch check bench sweep format clean

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "ckptgov needs Python 3.11 or newer; set PYTHON=..."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $(STAMP)

demo: $(STAMP)
	@$(BIN)/python tests/demo.py

demo-cluster: $(STAMP)
	@$(BIN)/python tests/cluster_demo.py

test: $(STAMP)
	$(BIN)/python -m pytest -n 2 $(if $(SEED),--seed=$(SEED)) $(ARGS)

test-torch: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check torch numpy
	$(BIN)/python -m pytest tests/interop/test_torch.py tests/interop/test_torchrun.py $(ARGS)

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/test_architecture.py

bench: $(STAMP)
	$(BIN)/python tests/bench/run.py $(ARGS)

sweep: $(STAMP)
	$(BIN)/python -m pytest -m "sweep or not sweep" --full-sweep tests/faults \
	  tests/flows/test_tiers_end_to_end.py tests/planning/test_retention_oracle.py \
	  tests/planning/test_capacity.py $(ARGS)

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache dist build
