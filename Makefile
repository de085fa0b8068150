# Every target sets up .venv from a hash-pinned lock file first; nothing but Python 3.11+, make and a package index
# is needed. Another Python beside it: make VENV=.venv-3.13 PYTHON=python3.13 run
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
# Processes that run tests side by side: TESTERS=0 for one after another, in this process.
TESTERS ?= 2

.PHONY: help run test test-slow test-slurm test-faults test-kills test-long lint benchmarks paper lock clean
.DEFAULT_GOAL := help

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

run: $(VENV)/.run-ready ## set up, then train on the embedded digits (no download)
	$(RUN) -m pipeline.train digits

test: $(VENV)/.test-ready ## set up, then check style and types and run the quick tests
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy
	$(RUN) -m pytest -m "not slow" -n $(TESTERS) --dist worksteal

test-slow: $(VENV)/.test-ready ## the remaining tests; those that measure or starve the machine one after another
	$(RUN) -m pytest -m "slow and not alone" -n $(TESTERS) --dist loadfile
	$(RUN) -m pytest -m "slow and alone"

test-slurm: $(VENV)/.test-ready ## the batch script on a real one-node SLURM (root; installs slurm-wlm and munge with apt-get)
	@{ command -v slurmctld && command -v munged; } >/dev/null || \
	    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -yqq --no-install-recommends slurm-wlm munge; }
	$(RUN) -m pytest -rs tests/jobs/test_slurm.py

test-faults: $(VENV)/.test-ready ## break a toy run at every change of the disk (hours)
	SLKL_BREAKS=0 $(RUN) -m pytest -m slow tests/faults/test_every_change.py --timeout 0

test-kills: $(VENV)/.test-ready ## 50 random kill -9 of a run on MNIST (needs SLKL_DATA_DIR)
	SLKL_KILLS=50 $(RUN) -m pytest -rs -m slow tests/faults/test_lost_processes.py -k mnist --timeout 0

test-long: $(VENV)/.test-ready ## all of MNIST as candidates, kill -9 every 45 s on average until done (about an hour)
	SLKL_LONG_RUN=45 $(RUN) -m pytest -rs -m slow tests/faults/test_long_run.py --timeout 0

lint: $(VENV)/.test-ready ## style and types only
	$(RUN) -m ruff check . && $(RUN) -m ruff format --check . && $(RUN) -m mypy

benchmarks: $(VENV)/.test-ready ## time the statistics against the bare arithmetic (needs MNIST; minutes)
	$(RUN) jobs/benchmarks/floor.py --out runs/benchmarks

paper: $(VENV)/.test-ready ## the paper's tables and figures (about half an hour; needs the data sets, or downloads them)
	$(RUN) jobs/paper/table_regression.py
	$(RUN) jobs/paper/table_usps.py
	$(RUN) jobs/paper/mnist.py
	$(RUN) jobs/paper/figures.py
	$(RUN) jobs/paper/scheduler.py
	$(RUN) jobs/paper/report.py

lock: ## renew the lock files (needs uv)
	uv pip compile pyproject.toml --universal --python-version 3.11 --generate-hashes --no-annotate --no-header \
	    --no-emit-index-url --no-emit-find-links -q -o requirements.lock
	uv pip compile pyproject.toml --all-extras -c requirements.lock --universal --python-version 3.11 --generate-hashes \
	    --no-annotate --no-header --no-emit-index-url --no-emit-find-links -q -o requirements-dev.lock

clean: ## remove the environment and caches (runs stay)
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "slkl needs Python 3.11 or newer, found $$($(PYTHON) --version 2>&1); set PYTHON=/path/to/python3.11" >&2; exit 69; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run-ready: requirements.lock | $(VENV)/bin/python
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	touch $@

$(VENV)/.test-ready: requirements-dev.lock | $(VENV)/bin/python
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-dev.lock
	touch $@ $(VENV)/.run-ready
