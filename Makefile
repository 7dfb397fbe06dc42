# Needs: make, and Python >= 3.10 with its venv module. Everything else goes into $(VENV).
#   make run                      the main job on a simulated node, live, until Ctrl-C
#   make run ARGS=--once          walk the main job once, then exit
#   make test                     everything that CI checks
#   make test PYTHON=python3.12   with another Python (a $(VENV) that exists is kept: `make clean` first)

PYTHON ?= python3
VENV ?= .venv
ARGS ?=
BIN := $(VENV)/bin
STAMP := $(VENV)/.stamp
.DEFAULT_GOAL := help
.PHONY: help run test storm lint unit format proto docs bench e2e e2e-skew bench-race chaos packages clean

help: ## this list
	@sed -n 's/^\([a-z][a-z0-9-]*\):.*## /\1	/p' $(firstword $(MAKEFILE_LIST)) | expand -t 12

run: $(STAMP) ## supervisord, plugins, an embedded kubelet and node, live until Ctrl-C; ARGS=--once walks the main job
	@exec $(BIN)/devherd run --simulate $(ARGS)

test: lint unit ## lint, then all unit and process tests

unit: $(STAMP) ## unit and process tests; ARGS is for pytest
	@$(BIN)/python -m pytest $(ARGS)

storm: $(STAMP) ## everything happens to a simulated node, SECONDS=600 long, in an order that SEED=n decides
	@DEVHERD_STORM_SECONDS=$(or $(SECONDS),600) DEVHERD_STORM_SEED=$(SEED) $(BIN)/python -m pytest tests/process/test_storm.py -s

lint: $(STAMP) ## style, types, layers, and that generated files are up to date
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python proto/generate.py --check
	@$(BIN)/python -m devherd.config.docs --check
	@$(BIN)/python -m devherd_exporter.docs --check
	@PYTHONPATH=tests $(BIN)/python -m e2e.compare.docs --check

format: $(STAMP) ## reformat the code
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .

proto: $(STAMP) ## generate shared/devherd/api from proto/
	@$(BIN)/python proto/generate.py

docs: $(STAMP) ## generate docs/configuration.md, docs/metrics.md and docs/simulation.md
	@$(BIN)/python -m devherd.config.docs
	@$(BIN)/python -m devherd_exporter.docs
	@PYTHONPATH=tests $(BIN)/python -m e2e.compare.docs

bench: $(STAMP) ## measure the budgets on this machine
	@PYTHONPATH=tests $(BIN)/python -m bench $(ARGS)

e2e: $(STAMP) ## tests on a real kubelet of the newest version (root; builds it once, minutes); ARGS is for pytest
	@PYTHONPATH=tests $(BIN)/python -m e2e $(ARGS)

e2e-skew: $(STAMP) ## what depends on the kubelet's version, on every version and in both socket layouts
	@PYTHONPATH=tests $(BIN)/python -m e2e --all-lines -m skew $(ARGS)

bench-race: $(STAMP) ## who is first after a kubelet's start, devices or pods: reboots and restarts (root); ARGS="--scale 0.1"
	@PYTHONPATH=tests $(BIN)/python -m e2e.race $(ARGS)

e2e-machine: $(STAMP) ## a whole machine under qemu: cold boots, power cuts, hot-plug, systemd (root; BOOTS=20)
	@PYTHONPATH=tests $(BIN)/python -m e2e.machine --boots $(or $(BOOTS),20) $(ARGS)

chaos: $(STAMP) ## everything happens to a real kubelet's node, SECONDS=1200 long, in an order that SEED=n decides (root)
	@PYTHONPATH=tests $(BIN)/python -m e2e.chaos --seconds $(or $(SECONDS),1200) $(if $(SEED),--seed $(SEED)) $(ARGS)

packages: $(STAMP) ## a wheel in dist/; DEB and RPM follow
	@$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .

clean: ## remove the virtual environment and everything made by tools
	@rm -rf $(VENV) dist build .mypy_cache .ruff_cache .import_linter_cache .hypothesis .pytest_cache

# pip's words go to stderr: `make run ARGS="--once --json"` keeps stdout for the document, also in a fresh clone.
$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "devherd needs Python >= 3.10, and \`$(PYTHON)\` is none. Name one: make $(MAKECMDGOALS) PYTHON=/path/to/python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { echo "\`$(PYTHON)\` has no venv module. Install it (Debian, Ubuntu: apt install python3-venv), then try again." >&2; exit 1; }
	@echo "Setting up $(VENV) with $(PYTHON) (once; this downloads packages and takes about a minute) ..." >&2
	@$(PYTHON) -m venv $(VENV) >&2
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]' >&2
	@touch $@
