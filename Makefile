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

.PHONY: train test test-all test-wheel test-oldest test-sb3 lint lint-schemas format docs dist setup clean

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
	$(MAKE) --no-print-directory lint-schemas

SCHEMA = $(BIN)/check-jsonschema -q --builtin-schema vendor
lint-schemas: $(VENV)/.ready
	$(SCHEMA).github-workflows .github/workflows/*.yml
	$(SCHEMA).github-issue-forms .github/ISSUE_TEMPLATE/[!c]*.yml
	$(SCHEMA).github-issue-config .github/ISSUE_TEMPLATE/config.yml
	$(SCHEMA).citation-file-format --force-filetype yaml CITATION.cff

# Fails on any warning of Sphinx and on any local link that leads nowhere.
docs: $(VENV)/.ready
	rm -rf docs/_build
	$(BIN)/sphinx-build -q -W --keep-going -b html docs docs/_build/html
	$(BIN)/python tests/packaging/check_links.py docs/_build/html *.md docs/*.md docs/*/*.md

# The packages that would be published.
dist: $(VENV)/.ready
	rm -rf dist
	$(BIN)/python -m build --outdir dist .
	$(BIN)/twine check --strict dist/*

# What users have: the wheel in fresh environments, without and with each extra alone.
test-wheel: dist
	$(BIN)/python tests/packaging/check_wheel.py dist/*.whl

# The oldest releases of SB3, sb3-contrib, rl_zoo3 and Gymnasium that pyproject.toml admits.
test-oldest: dist
	$(BIN)/python tests/packaging/check_oldest.py dist/*.whl

# The tests of SB3 and sb3-contrib with our classes in place of theirs.
test-sb3: $(VENV)/.ready
	$(BIN)/python tests/packaging/run_sb3_tests.py

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
	rm -rf $(VENV) .mypy_cache .ruff_cache .hypothesis build dist docs/_build *.egg-info
