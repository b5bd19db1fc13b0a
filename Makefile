# `make test` and `make lint` set themselves up. With PYTHON set, that interpreter is used and nothing is installed.
VENV ?= .venv
ifdef PYTHON
setup = true
else
PYTHON := $(VENV)/bin/python
setup = VENV=$(VENV) ./setup.sh --tools
endif
export PYTHON

.PHONY: test lint format setup data
setup:
	@$(setup)
test: setup
	@$(PYTHON) -m pytest $(TESTS)
lint: setup
	@$(PYTHON) -m ruff check .
	@$(PYTHON) -m ruff format --check .
	@$(PYTHON) -m mypy
format: setup
	@$(PYTHON) -m ruff format .
	@$(PYTHON) -m ruff check --fix .
data: setup
	@./init_datasets.sh
