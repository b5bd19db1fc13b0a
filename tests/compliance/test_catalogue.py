"""docs/compliance.md lists every rule with its source and its test; no rule explains one that does not exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.rules import ALL_RULES
from tools.verify.finding import Rule

TESTS = Path(__file__).resolve().parent
PAGE = TESTS.parents[1] / "docs" / "compliance.md"
ROWS = {
    cells[0].strip("`"): cells
    for line in PAGE.read_text("utf-8").splitlines()
    if line.startswith("| `") and len(cells := [cell.strip() for cell in line.strip("|").split("|")]) == 5
}


def test_the_page_lists_the_rules_and_no_other() -> None:
    assert set(ROWS) == {rule.id for rule in ALL_RULES}


@pytest.mark.parametrize("rule", ALL_RULES, ids=lambda rule: rule.id)
def test_the_page_says_of_a_rule_what_it_says_of_itself(rule: Rule) -> None:
    _, title, _, source, tests = ROWS[rule.id]
    assert (title, source) == (rule.title, rule.source)
    assert all((TESTS / name).is_file() for name in tests.split(", "))


def test_ids_are_unique() -> None:
    assert len({rule.id for rule in ALL_RULES}) == len(ALL_RULES)


@pytest.mark.parametrize("rule", ALL_RULES, ids=lambda rule: rule.id)
def test_a_rule_explains_rules_that_exist(rule: Rule) -> None:
    named = {name for name in rule.explains if not re.match("key:", name)}
    assert named <= {other.id for other in ALL_RULES} - {rule.id}
