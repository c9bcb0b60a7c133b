# palimpsest in two commands: `make train` and `make test`. Both make their own environment in .venv first.

PYTHON ?= python3
ARGS   ?=

VENV := .venv
BIN  := $(VENV)/bin
CODE := palimpsest tests benchmarks scripts notebooks
PIP  := $(BIN)/python -m pip install --disable-pip-version-check -c requirements.lock

.DEFAULT_GOAL := help
.PHONY: help train test notebooks check format docs bench setup lock clean

help: ## this page
	@echo 'usage: make TARGET [ARGS="..."] [PYTHON=python3.12]'
	@sed -n 's/^\([a-z]*\):[^#]*## \(.*\)/  make \1|\2/p' Makefile | while IFS='|' read -r left right; do printf '%-14s %s\n' "$$left" "$$right"; done

train: $(VENV)/.installed ## train the default recipe, evaluate it, sample from it; ARGS="--steps 20" is handed on
	$(BIN)/palimpsest train $(ARGS)

test: $(VENV)/.installed-dev ## the tests; ARGS="-m slow" for the slow ones
	$(BIN)/pytest $(ARGS)

notebooks: $(VENV)/.installed-dev ## run the notebooks from their first cell to their last
	$(BIN)/pytest --nbmake --nbmake-timeout=300 notebooks $(ARGS)

check: $(VENV)/.installed-dev ## lint, format, types, and which room may import which
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports --no-logo

format: $(VENV)/.installed-dev ## let ruff mend what it can
	$(BIN)/ruff check --fix $(CODE)
	$(BIN)/ruff format $(CODE)

docs: $(VENV)/.installed-dev ## the site, into site/; ARGS=serve shows it while you write
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs $(or $(ARGS),build --strict)

bench: $(VENV)/.installed ## speed and memory on this machine
	for one in scan attention recurrent retrieval translation; do $(BIN)/python benchmarks/$$one.py $(ARGS); done

setup: $(VENV)/.installed-dev ## the environment with the development tools, and nothing else

lock: | $(BIN)/pip ## renew requirements.lock; ARGS="--torch VERSION" moves torch
	$(BIN)/python scripts/renew_lock.py $(ARGS)

clean: ## remove the environment and the caches; runs/ stays
	rm -rf $(VENV) dist build site .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find $(wildcard $(CODE)) -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamps: a second call is instant, a changed pyproject.toml or lock installs again.

$(VENV)/.installed: pyproject.toml requirements.lock | $(BIN)/pip
	$(PIP) -e .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml requirements.lock | $(BIN)/pip
	$(PIP) -e '.[dev]'
	@touch $(VENV)/.installed $@

$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	  { echo "palimpsest needs Python 3.11 or newer, but $(PYTHON) is $$($(PYTHON) --version 2>&1 | tail -n 1). Name another one: make PYTHON=python3.12 ..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
