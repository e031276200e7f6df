# Everything runs in .venv; `make run` and `make test` install first where needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-warn-conflicts
PACKAGES := ling_runtime experiments gates analysis hydra_plugins run.py

.PHONY: help install run test test-slow soak gate check doctor status format clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

install: $(STAMP) ## Make .venv: torch, the runtime, the light SGLang client, MLflow, the development tools

$(STAMP): pyproject.toml requirements/client.txt requirements/client-nodeps.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed")'
	$(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade pip
	$(PIP) torch==2.13.0
	$(PIP) --no-deps -r requirements/client-nodeps.txt
	$(PIP) -r requirements/client.txt -e '.[dev]'
	@touch $@

run: install ## Run experiment=quickstart: three cells on the miniature, compared and logged
	$(BIN)/python run.py experiment=quickstart

test: install ## Run the tests (minutes)
	$(BIN)/python -m pytest

test-slow: install ## Run the tests that take long
	$(BIN)/python -m pytest -m slow

soak: install ## Half an hour under eight clients: memory, slots and step time must stay
	$(BIN)/python -m tests.ling_runtime.soak.soak --minutes 30

gate: install ## Hold the miniature against its golden record, bit by bit (BASE=COMMIT: against that commit, here)
	.ci/gate $(BASE)

check: install ## Format, lint, types, quick tests (under a minute)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy $(PACKAGES)
	$(BIN)/python -m pytest -n auto --maxprocesses 8 --dist worksteal -m 'not slow and not gpu and not process and not whole'

doctor: ## Say what this machine can run, and how to get what it lacks (also before make install)
	$(or $(wildcard $(BIN)/python),$(PYTHON)) -m experiments.doctor

status: ## Say what ran, what is invalid and why, and what runs now (OUTPUT=outputs)
	$(or $(wildcard $(BIN)/python),$(PYTHON)) -m experiments.status $(or $(OUTPUT),outputs)

format: install ## Rewrite the code in the project's format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean: ## Remove .venv and caches; outputs stay
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache *.egg-info
