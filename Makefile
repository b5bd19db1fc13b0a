# Each target sets itself up first (setup.sh); PYTHON=... takes that interpreter and installs nothing.
python = $$(./setup.sh --tools)

.PHONY: test test-docker test-slurm test-mpi lint format data
test:
	@python=$(python) && PYTHON="$$python" "$$python" -m pytest $(TESTS)
test-docker:
	@python=$(python) && DOCKER_TESTS=1 PYTHON="$$python" "$$python" -m pytest -rs tests/launch/test_docker.py
test-slurm: # run.sub on a cluster of two nodes on this machine; needs root, slurm-wlm, munge and bats
	@python=$(python) && PYTHON="$$python" "$$python" -m pytest -rs tests/launch/test_slurm.py tests/launch/test_slurm_local.py
test-mpi: # with each MPI on PATH and below MPI_PREFIXES
	@python=$(python) && "$$python" -m pip install --quiet -r requirements-mpi.txt && PYTHON="$$python" "$$python" -m pytest -rs tests/launch/test_mpi.py
lint:
	@python=$(python) && "$$python" -m ruff check . && "$$python" -m ruff format --check . && "$$python" -m mypy
format:
	@python=$(python) && "$$python" -m ruff format . && "$$python" -m ruff check --fix .
data:
	@./init_datasets.sh
