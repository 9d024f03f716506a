# Two commands do everything on a fresh machine: `make demo` runs the main job, `make test` passes the tests.
SHELL := /bin/bash
BIN := .venv/bin
READY := .venv/.ready

.PHONY: demo test test-maxtext setup lint unit clean
.DEFAULT_GOAL := help

help:  ## what there is
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/' | expand -t 12

setup: $(READY)  ## prepare .venv with all extras, and Prometheus

$(READY): pyproject.toml constraints.txt scripts/setup
	@scripts/setup

demo: setup  ## train four processes, break one (FAULT=stop|kill|cpu|none|slow-data|packet-loss|oom|…; with a GPU power-cap|gpu-hog|…, see docs/lab-inject.md), diagnose it
	@FAULT=$${FAULT:-stop} $(BIN)/trackwalker demo

test: setup lint  ## all checks and all tests
	@scripts/setup-tests
	@$(BIN)/python -m pytest tests/unit tests/integration -m "not alone" -n $${WORKERS:-3} --dist loadfile
	@$(BIN)/python -m pytest tests/integration -m alone

unit: setup  ## the fast tests only
	@$(BIN)/python -m pytest tests/unit

test-maxtext: setup  ## the real MaxText 0.2.5 through the launcher, locally and on Slurm (opt-in: 4.2 GB, 20 minutes the first time)
	@scripts/setup-tests
	@scripts/setup-maxtext
	@$(BIN)/python -m pytest tests/maxtext/real_maxtext.py

lint: setup  ## style, types, import directions
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

clean:  ## remove what setup and tests made (never outputs/)
	rm -rf .venv .maxtext-venv .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
