"""What the documentation names exists: modules, files and variables."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from benchmarks.bert.config import VARIABLES, table

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
# Read by scripts and tests alone, so no field of the configuration.
SCRIPT_VARIABLES = {
    "CONFIG",
    "CONTAINER_IMAGE",
    "GLOO_SOCKET_IFNAME",
    "HARNESS_DIR",
    "MASTER_ADDR",
    "MASTER_PORT",
    "MPI_PREFIXES",
    "OMP_NUM_THREADS",
    "ON_FAILURE",
    "PIP_EXTRA_INDEX_URL",
    "PREPARE_WHEELS",
    "PYTHON",
    "REFERENCE_VOCAB",
    "RESULTS_DIR",
    "SYSTEM_TEMPLATE",
    "TESTS",
    "TRIAL_MINUTES",
    "VENV",
}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_module_that_a_page_runs_exists(page: Path) -> None:
    for module in re.findall(r"python -m ((?:benchmarks|tools|mlperf_log_utils)[\w.]*)", page.read_text("utf-8")):
        assert importlib.util.find_spec(module), f"{page.name} names {module}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text("utf-8")):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_variable_that_a_page_sets_or_names_exists(page: Path) -> None:
    named = re.findall(r"`([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+)(?:=[^`]*)?`", page.read_text("utf-8"))
    assert set(named) <= set(VARIABLES) | SCRIPT_VARIABLES


def test_the_page_of_variables_is_what_the_configuration_says() -> None:
    page = (ROOT / "docs" / "variables.md").read_text("utf-8")
    assert page.endswith("\n" + "\n".join(table()) + "\n"), "python -m benchmarks.bert.config table"
    assert page.count("\n| `") == len(VARIABLES)
