"""The official checks of a folder as real passes and fails: seeds, power, compliance, number of results."""

from __future__ import annotations

import os
import shutil
import warnings
from pathlib import Path

import pytest
from mlperf_logging.package_checker.seed_checker import SeedChecker

from tests.support.reports import check_of
from tests.support.submissions import Records, Spoil, abort, change, drop, set_value, write_results
from tools.verify.finding import Finding, Severity
from tools.verify.report import Folder
from tools.verify.verify import verify

NUM_RUNS = 10


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten runs that stand; not to be changed."""
    return write_results(tmp_path_factory.mktemp("whole") / "box" / "bert")


@pytest.fixture
def results(whole: Path, tmp_path: Path) -> Path:
    """Ten runs to be spoiled."""
    return Path(shutil.copytree(whole, tmp_path / "box" / "bert"))


def judge(folder: Path, round_name: str = "5.0.0", *, as_submitted: bool = True) -> Folder:
    (judged,) = verify(folder, round_name=round_name, as_submitted=as_submitted).folders
    return judged


# --- seeds


def for_all(folder: Path, key: str, value: object) -> None:
    for path in folder.glob("result_*.txt"):
        set_value(path, key, value)


def at_line(path: Path, line: int) -> None:
    def edit(records: Records) -> None:
        for record in records:
            if record["key"] == "seed":
                record["metadata"]["lineno"] = line

    change(path, edit)


def without_place(path: Path) -> None:
    change(path, lambda records: [record["metadata"].pop("file") for record in records if record["key"] == "seed"])


def log_seed_again(path: Path, value: object, lines_on: int = 0) -> None:
    def edit(records: Records) -> None:
        at = [record["key"] for record in records].index("seed")
        metadata = records[at]["metadata"]
        there = metadata | {"lineno": metadata["lineno"] + lines_on}
        records.insert(at, records[at] | {"value": value, "metadata": there})

    change(path, edit)


def without_seeds(folder: Path) -> None:
    for path in folder.iterdir():
        drop(path, "seed")


def same_seed_elsewhere(folder: Path) -> None:
    set_value(folder / "result_4.txt", "seed", 1000)
    at_line(folder / "result_4.txt", 9999)


SEEDS: dict[str, Spoil] = {
    "none spoiled": lambda folder: None,
    "no seed in one": lambda folder: drop(folder / "result_4.txt", "seed"),
    "no seed in any": without_seeds,
    "equal on one line": lambda folder: set_value(folder / "result_4.txt", "seed", 1000),
    "equal on other lines": same_seed_elsewhere,
    "all 42": lambda folder: for_all(folder, "seed", 42),
    "texts": lambda folder: for_all(folder, "seed", "42"),
    "no integer": lambda folder: set_value(folder / "result_4.txt", "seed", "x"),
    "a fraction": lambda folder: set_value(folder / "result_4.txt", "seed", 1000.5),
    "null": lambda folder: set_value(folder / "result_4.txt", "seed", None),
    "no file in the metadata": lambda folder: without_place(folder / "result_4.txt"),
    "two in one run": lambda folder: log_seed_again(folder / "result_4.txt", 5),
    "another run's as a second one": lambda folder: log_seed_again(folder / "result_4.txt", 1000),
    "the same twice on one line": lambda folder: log_seed_again(folder / "result_4.txt", 1028),
    "the same twice on two lines": lambda folder: log_seed_again(folder / "result_4.txt", 1028, 1),
}


@pytest.mark.parametrize("name", SEEDS)
def test_the_seed_check_answers_as_the_official_one(name: str, results: Path) -> None:
    SEEDS[name](results)
    with warnings.catch_warnings(action="ignore"):
        passes = SeedChecker("5.0.0").check_seeds(sorted(results.glob("result_*.txt")))
    assert check_of(judge(results), "seeds").outcome == ("pass" if passes else "fail")


def test_the_table_of_seeds_holds_passes_and_fails(results: Path) -> None:
    assert check_of(judge(results), "seeds").outcome == "pass"
    SEEDS["no seed in one"](results)
    assert check_of(judge(results), "seeds").outcome == "fail"


@pytest.mark.parametrize("name", ["equal on other lines", "all 42", "texts"])
def test_equal_seeds_fail_wherever_they_were_logged(name: str, results: Path) -> None:
    SEEDS[name](results)
    for number, path in enumerate(sorted(results.iterdir())):
        at_line(path, 100 + number)
    assert check_of(judge(results), "seeds").outcome == "pass"  # the official checker sees nothing
    (finding,) = judge(results).findings
    assert (finding.rule.id, finding.severity) == ("runs.seeds", Severity.ERROR)


def test_equal_seeds_are_a_warning_in_the_open_division(tmp_path: Path) -> None:
    folder = write_results(tmp_path / "box" / "bert", division="open")
    assert judge(folder).findings == ()
    for_all(folder, "seed", 42)
    (finding,) = judge(folder).findings
    assert (finding.rule.id, finding.severity) == ("runs.seeds", Severity.WARNING)
    assert "seed 42 is that of 10 runs" in finding.message


ROUNDS = [
    ("5.0.0", True, Severity.ERROR),
    ("4.1", True, Severity.ERROR),
    ("4.0", True, Severity.WARNING),
    ("2.0", True, Severity.WARNING),
    ("2.0", False, Severity.ERROR),
]


@pytest.mark.parametrize(("round_name", "as_submitted", "severity"), ROUNDS)
def test_seeds_that_are_missing_fail_from_round_4_1_on_and_before_only_by_todays_rules(
    round_name: str, as_submitted: bool, severity: Severity, results: Path
) -> None:
    SEEDS["no seed in any"](results)
    folder = judge(results, round_name, as_submitted=as_submitted)
    found = {finding.rule.id: finding for finding in all_findings(folder)}
    assert found["official.seeds"].severity is severity
    assert "logs no seed" in found["official.seeds"].message


def all_findings(folder: Folder) -> list[Finding]:
    return [each for finding in folder.findings for each in (finding, *finding.consequences)]


def test_one_cause_of_missing_seeds_is_one_finding(results: Path) -> None:
    """Each log says it of itself; the folder says that its logs do not stand, and folds the rest under that."""
    SEEDS["no seed in any"](results)
    assert [finding.rule.id for finding in judge(results).findings] == ["runs.failed"]


# --- power


def write_power(folder: Path, num_nodes: int = 2) -> None:
    for path in folder.glob("result_*.txt"):
        place = folder / "power" / path.stem
        place.mkdir(parents=True)
        for node in range(num_nodes):
            (place / f"node_{node}.txt").write_text("")
        (place / "sw_0.txt").write_text("")


def without_two_nodes(folder: Path) -> None:
    for run in (3, 5):
        (folder / "power" / f"result_{run}" / "node_1.txt").unlink()


POWER: dict[str, tuple[Spoil, str]] = {
    "none spoiled": (lambda folder: None, "pass"),
    "no folder for a run": (lambda folder: shutil.rmtree(folder / "power" / "result_3"), "fail"),
    "a number too high": (
        lambda folder: (folder / "power/result_3/node_1.txt").rename(folder / "power/result_3/node_7.txt"),
        "fail",
    ),
    "a name without a number": (lambda folder: (folder / "power/result_3/node_x.txt").write_text(""), "crash"),
    "a node too few in two runs": (
        without_two_nodes,
        "fail",
    ),
}


@pytest.mark.parametrize("name", POWER)
def test_power_files_are_checked(name: str, results: Path) -> None:
    spoil, outcome = POWER[name]
    write_power(results)
    spoil(results)
    folder = judge(results)
    assert check_of(folder, "power").outcome == outcome
    assert [finding.rule.id for finding in folder.findings] == ([] if outcome == "pass" else ["official.power"])
    assert folder.failed is (outcome != "pass")


def test_power_files_are_checked_alike_from_inside_the_folder(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_power(results)
    monkeypatch.chdir(results)
    assert check_of(judge(Path(".")), "power").outcome == "pass"


def test_without_power_files_there_is_no_power_check(whole: Path) -> None:
    assert "power" not in {check.name for check in judge(whole).checks}


# --- compliance and count


@pytest.mark.parametrize(("num_aborted", "outcome"), [(0, "pass"), (1, "pass"), (2, "fail")])
def test_compliance_bears_one_log_that_fails(num_aborted: int, outcome: str, results: Path) -> None:
    for number in range(num_aborted):
        abort(results / f"result_{number}.txt")
    check = check_of(judge(results), "compliance")
    assert check.outcome == outcome
    assert check.detail.startswith(f"{NUM_RUNS - num_aborted} of 10 logs comply")
    assert all(f"result_{number}.txt" in check.detail for number in range(num_aborted))


def test_the_number_of_results_is_checked(results: Path) -> None:
    assert check_of(judge(results), "number of results").outcome == "pass"
    os.remove(results / "result_0.txt")
    check = check_of(judge(results), "number of results")
    assert (check.outcome, check.detail) == ("fail", "9, expected 10")


def test_in_the_open_division_seeds_and_rcp_do_not_apply(tmp_path: Path) -> None:
    folder = judge(write_results(tmp_path / "box" / "bert", division="open"))
    assert {check.name: check.outcome for check in folder.checks} == {
        "compliance": "pass",
        "number of results": "pass",
        "seeds": "not applicable",
        "RCP": "not applicable",
    }
    assert any("open division" in said for said in folder.not_applicable)
    assert not folder.failed


def test_a_closed_folder_says_nothing_of_what_does_not_apply(whole: Path) -> None:
    assert judge(whole).not_applicable == ()
