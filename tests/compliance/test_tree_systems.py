"""Which results of an organisation's tree are judged, each system's by themselves, and where they may not lie."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.reports import check_of, only
from tests.support.submissions import (
    SYSTEM,
    abort,
    describe,
    results_of,
    set_value,
    write_results,
)
from tools.verify.finding import Severity
from tools.verify.log import UnreadableLogError
from tools.verify.verify import verify

ERROR = Severity.ERROR


def test_results_of_other_benchmarks_are_not_read(root: Path) -> None:
    other = root / "results" / SYSTEM / "resnet"
    write_results(other, 1)
    set_value(other / "result_0.txt", "submission_benchmark", "resnet")
    report = verify(root)
    assert [folder.path.name for folder in report.folders] == ["bert"]
    assert not report.failed


def test_a_tree_without_results_of_bert_cannot_be_judged(root: Path) -> None:
    for path in results_of(root).iterdir():
        set_value(path, "submission_benchmark", "resnet")
    results_of(root).rename(results_of(root).with_name("resnet"))
    with pytest.raises(UnreadableLogError, match="no file result_"):
        verify(root)


def test_each_system_is_judged_by_itself_and_one_that_fails_fails_the_tree(root: Path) -> None:
    add_system(root, "other")
    report = verify(root)
    assert [folder.system for folder in report.folders] == [SYSTEM, "other"]
    assert not report.failed
    for number in (0, 1):
        abort(root / "results" / "other" / "bert" / f"result_{number}.txt")
    report = verify(root)
    assert [folder.failed for folder in report.folders] == [False, True]
    assert report.failed


def add_system(root: Path, name: str, **fields: Any) -> Path:
    """The folder of its results."""
    shutil.copy(root / "systems" / f"{SYSTEM}.json", root / "systems" / f"{name}.json")
    return write_results(root / "results" / name / "bert", first=10, **fields)


def test_a_run_of_one_system_among_those_of_another_is_named_with_both_places(root: Path) -> None:
    other = add_system(root, "other")
    shutil.copy(results_of(root) / "result_4.txt", other / "result_7.txt")
    finding = only(verify(root))
    assert (finding.rule.id, finding.severity, finding.path) == ("runs.distinct", ERROR, other / "result_7.txt")
    assert str(results_of(root) / "result_4.txt") in finding.message


def test_systems_of_both_divisions_lie_side_by_side(root: Path) -> None:
    write_results(root / "results" / "open_box" / "bert", division="open", num_evaluations=15)
    (root / "systems" / "open_box.json").write_text(json.dumps(describe("open")))
    report = verify(root)
    assert not report.failed
    assert [len(folder.not_applicable) for folder in report.folders] == [0, 2]


def test_a_description_without_results_is_checked_as_well(root: Path) -> None:
    (root / "systems" / "spare.json").write_text("{}")
    assert check_of(verify(root), "system description spare.json").outcome == "fail"


@pytest.mark.parametrize("num_links", [1, 2])
def test_results_that_are_a_link_are_not_judged_in_silence(num_links: int, root: Path) -> None:
    other = add_system(root, "other")
    (root / "stash").mkdir()
    for results in (other, results_of(root))[:num_links]:
        stash = root / "stash" / results.parent.name
        results.rename(stash)
        results.symlink_to(stash)
    if num_links == 1:
        finding = only(verify(root))
        assert (finding.rule.id, finding.severity, finding.path) == ("package.links", ERROR, other)
    else:
        with pytest.raises(UnreadableLogError, match="no file result_"):
            verify(root)


@pytest.mark.parametrize("holds_bert", [True, False])
def test_a_folder_of_another_name_is_judged_by_what_it_holds(holds_bert: bool, root: Path) -> None:
    more = write_results(root / "results" / SYSTEM / "bert_large", first=10)
    if not holds_bert:
        for path in more.iterdir():
            set_value(path, "submission_benchmark", "resnet")
    rules = [finding.rule.id for finding in verify(root).all_findings()]
    assert rules == (["package.benchmark-name"] if holds_bert else [])


@pytest.mark.parametrize("old_fails", [True, False])
def test_a_folder_is_judged_along_with_those_below_it(old_fails: bool, tmp_path: Path) -> None:
    folder = write_results(tmp_path / "new")
    old = write_results(folder / "old" / "bert", first=10)
    for number in (0, 1):
        abort((old if old_fails else folder) / f"result_{number}.txt")
    report = verify(folder)
    assert {judged.path: judged.failed for judged in report.folders} == {folder: not old_fails, old: old_fails}
    assert report.failed
