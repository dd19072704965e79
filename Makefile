# `make demo` needs Python 3.11 or newer and nothing else: it makes .venv with the runtime's packages.
# The other targets add what tests and checks need to the same .venv. Each set is installed once, and again when
# pyproject.toml changes.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/.stamps
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
WORKERS ?= 2
MACHINES ?= 2
# What runs the tests that are not slow: pytest here, or as on other processors, "tests.machines 1".
RUN ?= pytest

# The tests start many processes, each of which would compile the sources again.
export PYTHONDONTWRITEBYTECODE =

SOURCES := hloexec tests conformance evaluation docs examples $(wildcard benchmarks)

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow test-all machines coverage lint types check docs format clean

help:
	@echo 'make demo      run two examples (creates .venv on first use)'
	@echo 'make test      run the tests that are not slow'
	@echo 'make test-slow run the others'
	@echo 'make test-all  run all tests'
	@echo 'make machines  the tests of what depends on numbers, as on other processors'
	@echo 'make coverage  make test, and what of opcodes, commands and pages it leaves out'
	@echo 'make check     formatting, lint, types and tests: what has to pass at every commit'
	@echo 'make docs      build the documentation site, in site/'
	@echo 'make format    format the sources, and list the commands in README.md'
	@echo 'make clean     remove .venv and caches'

$(STAMPS)/venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "hloexec needs Python 3.11 or newer; set PYTHON=")'
	$(PYTHON) -m venv $(VENV)
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/runtime: $(STAMPS)/venv pyproject.toml
	$(PIP) install --editable .
	@touch $@

$(STAMPS)/dev: $(STAMPS)/runtime
	$(PIP) install --editable '.[dev]'
	@touch $@

$(STAMPS)/docs: $(STAMPS)/runtime
	$(PIP) install --editable '.[docs]'
	@touch $@

demo: $(STAMPS)/runtime
	$(BIN)/hloexec info examples/attention.hlo
	$(BIN)/hloexec run examples/attention.hlo

test: $(STAMPS)/dev
	$(BIN)/python -m $(RUN) -n $(WORKERS) --dist worksteal -m 'not slow'

test-slow: $(STAMPS)/dev
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m slow

test-all: $(STAMPS)/dev
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

# What has numbers in it that another processor or BLAS may round otherwise.
NUMERIC := $(addprefix tests/,conformance diffing exec explaining golden jax_functions library_calls nan_search \
	narrowing numerics ops plan shadowing shrinking test_docs.py)

machines: $(STAMPS)/dev
	$(BIN)/python -m tests.machines $(MACHINES) -q -n $(WORKERS) --dist worksteal -m 'not slow' $(NUMERIC)

# The recorder stands between hloexec and the callers that tests of warnings look for.
coverage: $(STAMPS)/dev
	rm -f .executed
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m 'not slow' --ignore tests/api/test_warnings.py \
		-p tests.opcode_coverage --executed .executed
	$(BIN)/python -m tests.opcode_coverage .executed

lint: $(STAMPS)/dev
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)

types: $(STAMPS)/dev
	$(BIN)/mypy --strict hloexec

check: lint types test

docs: $(STAMPS)/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

format: $(STAMPS)/dev
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/python -m docs.hooks.readme

clean:
	rm -rf $(VENV) build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage htmlcov .executed
