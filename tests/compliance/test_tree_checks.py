"""The official checks of a tree as real passes and fails: system descriptions, and what git can hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.reports import check_of, only
from tests.support.submissions import CODE, DESCRIBED, SYSTEM, Spoil, set_description
from tools.verify.finding import Severity
from tools.verify.verify import verify


@pytest.mark.parametrize("field", ["submitter", "division", "status", "number_of_nodes", DESCRIBED[0], DESCRIBED[-1]])
def test_a_field_that_the_description_lacks_fails(field: str, root: Path) -> None:
    set_description(root, **{field: None})
    report = verify(root)
    assert report.failed
    check = check_of(report, f"system description {SYSTEM}.json")
    assert check.outcome == "fail"
    assert f"Missing field {field}" in check.detail
    said = [finding for root in report.all_findings() for finding in (root, *root.consequences)]
    assert "official.system-description" in {finding.rule.id for finding in said}


@pytest.mark.parametrize(("round_name", "outcome"), [("3.1", "pass"), ("4.0", "fail"), ("5.0", "fail")])
def test_the_status_is_one_of_a_list_from_round_4_0_on(round_name: str, outcome: str, root: Path) -> None:
    set_description(root, status="onprem")
    report = verify(root, round_name=round_name)
    assert check_of(report, f"system description {SYSTEM}.json").outcome == outcome
    assert report.failed is (outcome == "fail")


def number_in_joined_field(root: Path) -> None:
    set_description(root, accelerators_per_node=8)


def broken_description(root: Path) -> None:
    (root / "systems" / f"{SYSTEM}.json").write_text("{")


@pytest.mark.parametrize(
    ("spoil", "rule"),
    [
        pytest.param(number_in_joined_field, "system.strings", id="a number"),
        pytest.param(broken_description, "system.description", id="broken JSON"),
    ],
)
def test_a_crash_of_the_official_check_is_folded_under_its_cause(spoil: Spoil, rule: str, root: Path) -> None:
    spoil(root)
    report = verify(root)
    assert check_of(report, f"system description {SYSTEM}.json").outcome == "crash"
    assert report.failed
    assert [finding.rule.id for finding in report.all_findings()] == [rule]


def name_with_a_space(root: Path) -> None:
    (root / CODE / "my notes.md").touch()


def large_file(root: Path) -> None:
    with open(root / CODE / "weights.bin", "wb") as file:
        file.truncate(50 * 2**20 + 1)


def file_of_50_mb(root: Path) -> None:
    with open(root / CODE / "weights.bin", "wb") as file:
        file.truncate(50 * 2**20)


def broken_link(root: Path) -> None:
    (root / CODE / "data").symlink_to("nowhere")


def link_that_leads_somewhere(root: Path) -> None:
    (root / CODE / "manual.md").symlink_to("README.md")


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        pytest.param(name_with_a_space, "my notes.md", id="a space"),
        pytest.param(large_file, "Files > 50MB", id="over 50 MB"),
        pytest.param(broken_link, "broken symbolic links", id="a broken link"),
    ],
)
def test_what_git_cannot_hold_fails(spoil: Spoil, said: str, root: Path) -> None:
    spoil(root)
    report = verify(root)
    finding = only(report)
    assert (finding.rule.id, finding.severity) == ("official.repository", Severity.ERROR)
    assert said in finding.message
    assert report.failed


@pytest.mark.parametrize("spoil", [file_of_50_mb, link_that_leads_somewhere])
def test_what_git_can_hold_passes(spoil: Spoil, root: Path) -> None:
    spoil(root)
    assert list(verify(root).all_findings()) == []


def test_several_faults_of_the_repository_are_all_said(root: Path) -> None:
    for spoil in (name_with_a_space, large_file, broken_link):
        spoil(root)
    detail = check_of(verify(root), "repository").detail
    assert all(said in detail for said in ("my notes.md", "Files > 50MB", "broken symbolic links"))
