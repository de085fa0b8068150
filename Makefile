# Every target sets up .venv from a hash-pinned lock file first; nothing but Python 3.11+, make and a package index
# is needed. Another Python beside it: make VENV=.venv-3.13 PYTHON=python3.13 run
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
# Processes that run tests side by side: TESTERS=0 for one after another, in this process.
TESTERS ?= 2

.PHONY: help run test test-ci test-nightly lint docs benchmarks paper lock clean
.DEFAULT_GOAL := help

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

run: $(VENV)/.run-ready ## set up, then train on the embedded digits (no download)
	$(RUN) -m pipeline.train digits

test: $(VENV)/.test-ready ## set up, then check style and types and run the quick tests (2 to 4 minutes)
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy
	$(RUN) -m pytest -m "not (ci or nightly)" -n $(TESTERS) --dist worksteal

test-ci: $(VENV)/.test-ready ## what continuous integration runs besides, properties on 100 examples (10 to 20 minutes)
	$(RUN) -m pytest -m "(ci or hypothesis) and not (nightly or alone)" --hypothesis-profile ci -n $(TESTERS) --dist worksteal
	$(RUN) -m pytest -m "ci and alone" --hypothesis-profile ci

test-nightly: $(VENV)/.test-ready ## every test, properties on 1000 examples (hours); FAMILIES="faults alone": only these
	PYTHON=$(RUN) .ci/nightly $(FAMILIES)

lint: $(VENV)/.test-ready ## style and types only
	$(RUN) -m ruff check . && $(RUN) -m ruff format --check . && $(RUN) -m mypy

docs: $(VENV)/.test-ready ## build the pages of docs/ as a site in build/docs
	$(RUN) -m sphinx -W -E --keep-going -q -b html docs build/docs
	@echo "open build/docs/index.html"

benchmarks: $(VENV)/.test-ready ## time runs, stage by stage, against the bare arithmetic in them (needs MNIST; minutes)
	$(RUN) jobs/benchmarks/speed.py --out runs/benchmarks

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

# So that `slkl` and `import pipeline` work in any folder, from this checkout.
$(VENV)/bin/slkl: | $(VENV)/bin/python
	@echo '$(CURDIR)' >"$$($(VENV)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/slkl.pth"
	@printf '#!%s\nimport sys\n\nfrom pipeline.__main__ import main\n\nsys.exit(main())\n' '$(abspath $(VENV))/bin/python' >$@
	@chmod +x $@

$(VENV)/.run-ready: requirements.lock | $(VENV)/bin/slkl
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	touch $@

$(VENV)/.test-ready: requirements-dev.lock | $(VENV)/bin/slkl
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-dev.lock
	touch $@ $(VENV)/.run-ready
