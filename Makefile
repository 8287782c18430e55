# rescore: `make train` and `make test` are all you need. Everything stays inside this folder.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY   = $(VENV)/.ready$(HASHES)

# Not ?=: a shell's own variables of these names must not choose the task.
ALGO  = dpmd
ENV   = InvertedPendulum-v4
STEPS = 30000
ARGS  =
# The first task is solved at 950 and looked at often; any other trains for all of its STEPS.
# Only learners from replay begin with random steps.
WARMUP := $(if $(filter ppo dppo,$(ALGO)),,--warmup 1000)
FIRST := $(if $(filter InvertedPendulum-v4,$(ENV)),--until 950 $(WARMUP) --eval-every 1000)

# Compiled programs are kept here, so that a second run starts quickly.
export JAX_COMPILATION_CACHE_DIR := $(CURDIR)/.jax_cache
export JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS := 0.5

# What libraries keep for themselves stays here, too.
export XDG_CACHE_HOME := $(CURDIR)/.cache
export MPLCONFIGDIR := $(CURDIR)/$(VENV)/.cache/matplotlib

# HASHES=1 installs only files whose checksums stand in hashes.txt, which names all there are.
HASHES =
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help setup train test test-slow lint format check golden bench gauntlet docs dist release clean

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 18

$(READY): pyproject.toml constraints.txt $(if $(HASHES),hashes.txt)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "rescore needs Python 3.11 or newer; try: make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)
ifeq ($(HASHES),)
	PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt $(PIP) -e '.[dev]'
else
	$(PIP) --require-hashes --only-binary :all: --no-deps -r hashes.txt
	$(PIP) --no-deps --no-build-isolation -e .
	$(BIN)/python -m pip check --disable-pip-version-check
endif
	@touch $@ $(VENV)/.ready

setup: $(READY)  ## a virtual environment with pinned dependencies, in .venv

train: $(READY)  ## train a diffusion policy, the first task until it is solved (ALGO= ENV= STEPS= ARGS=)
	$(BIN)/rescore train $(ALGO) $(ENV) --steps $(STEPS) $(FIRST) --video $(ARGS)

test: $(READY)  ## all tests but the slow ones
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m "not slow"

test-slow: $(READY)  ## the slow tests: learning on probe tasks, long runs, 1,000 faults
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m slow

gauntlet: $(READY)  ## kill, signal, fill and forge a few hundred times (ARGS="--seed 1")
	$(BIN)/python -m benchmarks.gauntlet $(ARGS)

lint: $(READY)  ## style, errors and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)  ## rewrite to the house style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

check: lint test  ## what must pass before a commit

golden: $(READY)  ## regenerate golden numbers (say why under Behaviour in CHANGELOG.md) and public names
	$(BIN)/python -m tests.test_golden
	$(BIN)/python -m tests.test_architecture

bench: $(READY)  ## what each algorithm costs here, as ratios
	$(BIN)/rescore bench speed $(ARGS)

docs: $(READY)  ## the documentation as a site, in .site; a broken link is an error
	@$(BIN)/python -c "import material, mkdocstrings_handlers.python" 2>/dev/null \
	  || PIP_CONSTRAINT=constraints.txt $(PIP) -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "open .site/index.html"

dist:  ## source archive and wheel in dist, checked, and tried in a bare environment
	$(PYTHON) -m benchmarks.release

release:  ## the same of a dated version and a clean commit; says how to tag and upload it
	$(PYTHON) -m benchmarks.release --final

clean:  ## remove what make made, but no runs and no results
	rm -rf $(VENV) .site dist .jax_cache .cache .pytest_cache .ruff_cache .mypy_cache .hypothesis
