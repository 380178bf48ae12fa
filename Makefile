# Everything a newcomer types. Needs python3.11 or newer and make, nothing else.
#
#   make serve            a small model behind an OpenAI API at http://127.0.0.1:8000
#   make test lint        what .ci/run checks
#
# Settings: PYTHON (interpreter for the virtual environment), MODEL (a name, a folder or a hub id),
# SERVE (options of `outrider serve`, for instance SERVE="--port 9000"), PIP (options of pip install),
# TESTS (what `make test` runs, with options of pytest), WORKERS (processes that share the tests; 0:
# this one alone), EXACTNESS, BENCH and SOAK (options of these three).

PYTHON ?= python3
MODEL ?= smollm2-135m
SERVE ?=
PIP ?=
TESTS ?= tests
WORKERS ?= 2

VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP)
TORCH := $(shell sed -n 's/^    "\(torch==[^"]*\)",/\1/p' pyproject.toml)
PROTOS := $(wildcard protos/speculation/v1/*.proto)

.PHONY: serve install dev test lint format exactness bench soak compose-test requirements protos docs clean
.DELETE_ON_ERROR:

serve: $(VENV)/.installed
	@if [ "$(MODEL)" = smollm2-135m ]; then $(BIN)/outrider models pull $(MODEL) >/dev/null; fi
	@exec $(BIN)/outrider serve $(MODEL) $(SERVE)

install: $(VENV)/.installed

dev: $(VENV)/.installed-dev

test: $(VENV)/.installed-dev
	$(BIN)/outrider models pull smollm2-135m
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(TESTS)

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The whole matrix of prompts, proposers, K and temperatures; `make test` runs a slice of it.
exactness: $(VENV)/.installed-dev
	$(BIN)/outrider models pull smollm2-135m
	$(BIN)/python -m benchmarks.exactness $(EXACTNESS)

bench: $(VENV)/.installed-dev
	$(BIN)/outrider models pull smollm2-135m
	$(BIN)/python -m benchmarks.cpu $(BENCH)

# Ten minutes of everything at once; SOAK="--tiny --minutes 1 --clients 4" for a first look.
soak: $(VENV)/.installed-dev
	$(BIN)/outrider models pull smollm2-135m
	$(BIN)/python -m benchmarks.soak $(SOAK)

# The containers, for real: needs a Docker engine, or makes one. Some minutes.
compose-test: $(VENV)/.installed-dev
	bash tests/compose/run.sh $(BIN)/python

# What the container images install.
requirements: $(VENV)/.installed-dev
	$(BIN)/python deploy/requirements.py

protos: $(VENV)/.installed-dev
	$(BIN)/python -m grpc_tools.protoc -I protos --python_out=protos --pyi_out=protos \
	  --grpc_python_out=protos $(PROTOS)

# Pages that are made of code.
docs: $(VENV)/.installed-dev
	$(BIN)/python -m gateway.field_page docs/request-fields.md
	$(BIN)/python -m outrider.configuration_page docs/configuration.md

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "error: PYTHON=$(PYTHON) is older than 3.11; give another, e.g. PYTHON=python3.12"; exit 2; }
	$(PYTHON) -m venv $(VENV)

# torch by its exact pin first: a range lets pip take another build of it.
$(VENV)/.installed: pyproject.toml | $(BIN)/python
	$(INSTALL) $(TORCH)
	$(INSTALL) --editable .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(INSTALL) --editable '.[dev]'
	@touch $@
