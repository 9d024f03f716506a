# Two commands do everything on a fresh machine: `make demo` runs the main job, `make test` passes the tests.
SHELL := /bin/bash
BIN := .venv/bin
READY := .venv/.ready
# Programs that tests start find their modules compiled: else each start compiles them again (`diagnose`: 0.9 s of CPU).
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo check test test-all test-maxtext setup lint types imports unit docs audit clean
.DEFAULT_GOAL := help

help:  ## what there is
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/' | expand -t 12

setup: $(READY)  ## prepare .venv with all extras, and Prometheus

$(READY): pyproject.toml requirements.lock scripts/setup
	@scripts/setup

demo: setup  ## train four processes, break one (FAULT=stop|kill|cpu|none|slow-data|packet-loss|oom|…; with a GPU power-cap|gpu-hog|…, see docs/how-to/lab-inject.md), diagnose it
	@FAULT=$${FAULT:-stop} $(BIN)/trackwalker demo

check: setup  ## lint, types, import directions and unit tests: after every change, at most 3 minutes
	@$(MAKE) --no-print-directory -j2 -O lint types imports unit

test: check  ## all that a landing needs, on real parts: at most 15 minutes on two cores (what CI runs)
	@scripts/setup-tests
	@scripts/run-tests landing

test-all: check  ## `make test`, and the long drills, every fault, fuzzing, soak: before a release
	@scripts/setup-tests
	@scripts/run-tests landing
	@$(BIN)/python -m pytest tests/integration tests/unit -m long -q --list-long
	@scripts/run-tests long

unit: setup
	@$(BIN)/python -m pytest tests/unit -m unit -n $${WORKERS:-2} --dist loadfile -q --durations-table unit

test-maxtext: setup  ## the real MaxText 0.2.5 through the launcher, locally and on Slurm (opt-in: 4.2 GB, 20 minutes the first time)
	@scripts/setup-tests
	@scripts/setup-maxtext
	@$(BIN)/python -m pytest tests/maxtext/real_maxtext.py

lint: setup
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: setup
	@$(BIN)/mypy

imports: setup
	@$(BIN)/lint-imports

docs:  ## render docs/ as a site in build/site (mkdocs-material, in an environment of its own)
	@scripts/docs

audit: setup  ## known vulnerabilities of what requirements.lock pins (opt-in: asks the network, needs pip-audit)
	@command -v pip-audit >/dev/null || { echo "audit: install pip-audit first" >&2; exit 2; }
	@pip-audit --require-hashes --disable-pip -r requirements.lock

clean:  ## remove what setup and tests made (never outputs/)
	rm -rf .venv .venv-docs .maxtext-venv .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
