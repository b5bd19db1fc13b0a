# Each target sets itself up first (setup.sh); PYTHON=... takes that interpreter and installs nothing.
python = $$(./setup.sh --tools)

.PHONY: test lint format data
test:
	@python=$(python) && PYTHON="$$python" "$$python" -m pytest $(TESTS)
lint:
	@python=$(python) && "$$python" -m ruff check . && "$$python" -m ruff format --check . && "$$python" -m mypy
format:
	@python=$(python) && "$$python" -m ruff format . && "$$python" -m ruff check --fix .
data:
	@./init_datasets.sh
