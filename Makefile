# `make train` and `make test` set up .venv by themselves, and again only when pyproject or constraints change.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
ALGO   ?= averaging_ppo
ENV    ?= CartPole-v1
ARGS   ?=

export PIP_DISABLE_PIP_VERSION_CHECK = 1
# No screen is needed for rendering.
export MUJOCO_GL ?= egl

.PHONY: train test test-all lint format setup clean

train: $(VENV)/.ready
	$(BIN)/sb3-avgcorr train --algo $(ALGO) --env $(ENV) -P $(ARGS)

test: $(VENV)/.ready lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto -m "not slow"

test-all: $(VENV)/.ready lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto

lint: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

setup: $(VENV)/.ready

# torch first and exactly as pinned, so that nothing else chooses a build of it.
$(VENV)/.ready: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .hypothesis build dist *.egg-info
