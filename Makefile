# One environment for everything, made on first use: `make demo` and `make test` work on a fresh machine.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
TRACE := $(VENV)-trace
TORCH ?= torch==2.13.0
DEMO := $(BIN)/vramcast check examples/trl_sft.yaml --gpu a100-sxm-80gb

.PHONY: setup demo test fuzz trace lint types layers docs ci clean
.NOTPARALLEL:

setup: $(VENV)/.dev  ## the package, editable, with what tests and checks need

demo: $(VENV)/.package  ## the main job: a user's own config against a card ("does not fit" exits with 1 and is an answer)
	@$(DEMO) || $(DEMO) --json | grep -q '"does_not_fit"'

test: setup
	$(BIN)/python -m pytest -n auto

FUZZ ?= 1
WALKS := tests/estimate/test_said.py tests/readers/test_verl_every_key.py
fuzz: setup  ## 20,000 strange inputs and every value of every path, of which `make test` tries a part; FUZZ=50 for a night
	VRAMCAST_FUZZ=$(FUZZ) VRAMCAST_ALL_VALUES=1 $(BIN)/python -m pytest -n auto tests/fuzz $(WALKS)

trace: $(TRACE)/.trace  ## the tests that need torch and the frameworks, in an environment of their own; no GPU
	$(TRACE)/bin/python -m pytest -n auto -m trace

lint: setup
	$(BIN)/ruff check .

types: setup
	$(BIN)/pyright --pythonpath $(BIN)/python

layers: setup
	$(BIN)/lint-imports

docs: setup  ## every figure of docs/articles.md asked for again, and mended
	$(BIN)/python -m tools.figures docs/articles.md --write

ci: lint types layers fuzz test  ## tests last: their closing line is the verdict

clean:
	rm -rf $(VENV) $(TRACE) .venv-ci .venv-ci-trace .hypothesis .import_linter_cache .pytest_cache .ruff_cache

%/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit("vramcast needs Python 3.11 or newer: make PYTHON=python3.12 ..." if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $*

$(VENV)/.package: pyproject.toml | $(BIN)/python
	$(PIP) install --editable .
	@$(BIN)/python -m compileall -q src
	@touch $@

$(VENV)/.dev: pyproject.toml | $(BIN)/python
	$(PIP) install --editable '.[dev]'
	@$(BIN)/python -m compileall -q src
	@touch $@ $(VENV)/.package

$(TRACE)/.trace: pyproject.toml | $(TRACE)/bin/python  ## torch first: any build of it will do, the CPU's is the smallest
	$(TRACE)/bin/python -m pip --disable-pip-version-check --quiet install $(TORCH)
	$(TRACE)/bin/python -m pip --disable-pip-version-check --quiet install --editable '.[trace,trace-kernels,dev]'
	@touch $@
