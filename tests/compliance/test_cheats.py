"""Ways in which a result was made to look better than it is: each fails, on our own runs and on published ones."""

from __future__ import annotations

import copy
import functools
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import cheats
from tests.support.cheats import CHEATS, PUBLISHED, TREE_CHEATS, Runs
from tests.support.command import NOT_JUDGED, run
from tests.support.submissions import write_records
from tools.verify.finding import Finding, Severity
from tools.verify.report import Report
from tools.verify.verify import verify

published = pytest.param(
    "published", marks=pytest.mark.skipif(not PUBLISHED.is_dir(), reason="needs the published logs in ../shared/data")
)
each_source = pytest.mark.parametrize("source", ["ours", published])
needs_mem = pytest.mark.skipif(
    not os.path.exists("/proc/self/mem"), reason="needs a file that opens and cannot be read"
)


@functools.cache
def honest_runs(source: str) -> Runs:
    return cheats.our_runs() if source == "ours" else cheats.published_runs()


def runs_of(source: str) -> Runs:
    return copy.deepcopy(honest_runs(source))


def write(folder: Path, runs: Runs) -> Path:
    folder.mkdir()
    for number, records in enumerate(runs):
        write_records(folder / f"result_{number}.txt", records)
    return folder


@pytest.fixture(scope="module")
def honest_trees(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Not to be changed."""

    @functools.cache
    def tree(source: str) -> Path:
        root = tmp_path_factory.mktemp("honest") / "org"
        return cheats.our_tree(root) if source == "ours" else cheats.published_tree(root)

    return tree


def tree_of(source: str, honest_trees: Callable[[str], Path], folder: Path) -> tuple[Path, Path]:
    """A copy to cheat with, and its one folder of results."""
    root = Path(shutil.copytree(honest_trees(source), folder / "org"))
    (results,) = root.glob("results/*/bert")
    return root, results


def flat(findings: Iterator[Finding] | tuple[Finding, ...]) -> Iterator[Finding]:
    for finding in findings:
        yield finding
        yield from flat(finding.consequences)


def errors(report: Report) -> Counter[str]:
    """How often each rule speaks."""
    return Counter(finding.rule.id for finding in flat(report.all_findings()) if finding.severity is Severity.ERROR)


# --- the honest ones


@each_source
def test_honest_runs_pass(source: str, tmp_path: Path) -> None:
    report = verify(write(tmp_path / "box", runs_of(source)))
    assert not report.failed
    aborted = {"ours": [], "published": ["result_9.txt"]}
    assert [run.path.name for run in report.folders[0].runs if run.failed] == aborted[source]


@each_source
def test_an_honest_tree_passes(source: str, honest_trees: Callable[[str], Path]) -> None:
    assert not verify(honest_trees(source)).failed


# --- in the logs


@pytest.fixture(scope="module")
def honest_errors(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Counter[str]]:
    """Those of a published run, which was aborted."""

    @functools.cache
    def of(source: str) -> Counter[str]:
        return errors(verify(write(tmp_path_factory.mktemp("honest") / "box", honest_runs(source))))

    return of


@each_source
@pytest.mark.parametrize("name", CHEATS)
def test_a_cheat_in_the_logs_fails(
    name: str, source: str, honest_errors: Callable[[str], Counter[str]], tmp_path: Path
) -> None:
    cheat, rule = CHEATS[name]
    runs = runs_of(source)
    cheat(runs)
    report = verify(write(tmp_path / "box", runs))
    assert report.failed
    assert errors(report)[rule] > honest_errors(source)[rule]


@each_source
def test_a_late_start_that_leaves_no_contradiction_is_seen_by_its_pace(source: str, tmp_path: Path) -> None:
    runs = runs_of(source)
    cheats.begin_late(*cheats.BEGINNING)(runs)
    said = [finding.rule.id for finding in verify(write(tmp_path / "box", runs)).all_findings()]
    assert said.count("run.pace") >= 9


@each_source
def test_names_that_are_there_twice_make_no_success_of_an_aborted_run(source: str, tmp_path: Path) -> None:
    folder = write(tmp_path / "box", runs_of(source))
    path = folder / "result_0.txt"
    text = path.read_text("utf-8")
    assert text.count('"status": "success"') == 1
    path.write_text(text.replace('"status": "success"', '"status": "aborted", "status": "success"'), "utf-8")
    report = verify(folder)
    assert report.failed
    assert "record.names" in errors(report)


@each_source
@pytest.mark.parametrize("num_runs", [1, 2])
def test_an_aborted_log_among_fewer_than_three_fails(num_runs: int, source: str, tmp_path: Path) -> None:
    folder = write(tmp_path / "box", runs_of(source)[:num_runs])
    assert not verify(folder, num_runs=num_runs).failed
    text = (folder / "result_0.txt").read_text("utf-8")
    (folder / "result_0.txt").write_text(text.replace('"success"', '"aborted"'), "utf-8")
    report = verify(folder, num_runs=num_runs)
    assert report.failed
    assert "runs.failed" in errors(report)


@each_source
@pytest.mark.parametrize("content", ["# never grant rcp-bypass here\n", "not: rcp-bypass\n", "no rcp_bypass"])
def test_a_sentence_about_a_bypass_asks_for_none(content: str, source: str, tmp_path: Path) -> None:
    runs = runs_of(source)
    cheats.count_fewer_samples(0.6)(runs)
    folder = write(tmp_path / "box", runs)
    (folder / "package_checker_params").write_text(content)
    assert "runs.rcp" in errors(verify(folder))
    (folder / "package_checker_params").write_text("rcp-bypass\n")
    assert "runs.rcp" not in errors(verify(folder))


# --- in the tree


@each_source
@pytest.mark.parametrize("name", TREE_CHEATS)
def test_a_cheat_in_the_tree_fails(name: str, source: str, honest_trees: Callable[[str], Path], tmp_path: Path) -> None:
    cheat, rule = TREE_CHEATS[name]
    root, results = tree_of(source, honest_trees, tmp_path)
    cheat(root, results)
    report = verify(root)
    assert report.failed
    assert rule in errors(report)


@each_source
def test_an_older_result_below_does_not_stand_for_what_fails(
    source: str, honest_trees: Callable[[str], Path], tmp_path: Path
) -> None:
    _, results = tree_of(source, honest_trees, tmp_path)
    cheats.fail_before_an_older_result(results)
    report = verify(results)
    assert {folder.path: folder.failed for folder in report.folders}[results]
    assert report.failed


# --- files that are no files


@each_source
def test_a_scaling_factor_of_400_digits_is_a_warning(
    source: str, honest_trees: Callable[[str], Path], tmp_path: Path
) -> None:
    root, results = tree_of(source, honest_trees, tmp_path)
    (results / "scaling.json").write_text('{"scaling_factor": ' + 400 * "1" + "}")
    report = verify(root)
    assert not report.failed
    assert "package.scaling" in {finding.rule.id for finding in report.all_findings()}


@needs_mem
@each_source
def test_parameters_that_cannot_be_read_ask_for_nothing(source: str, tmp_path: Path) -> None:
    runs = runs_of(source)
    cheats.count_fewer_samples(0.6)(runs)
    folder = write(tmp_path / "box", runs)
    (folder / "package_checker_params").symlink_to("/proc/self/mem")
    assert "runs.rcp" in errors(verify(folder))


def test_a_pipe_in_the_place_of_a_log_is_not_waited_for(tmp_path: Path) -> None:
    folder = write(tmp_path / "box", runs_of("ours"))
    (folder / "result_9.txt").unlink()
    os.mkfifo(folder / "result_9.txt")
    for path in (folder / "result_9.txt", folder):
        done = run(path)  # which a time limit ends
        assert done.returncode == NOT_JUDGED
        assert b"result_9.txt" in done.stderr
