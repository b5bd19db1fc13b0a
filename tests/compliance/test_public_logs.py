"""Sixty published logs: the verifier's answers beside the official ones, which were taken from the official tools."""

from __future__ import annotations

import csv
import functools
from pathlib import Path

import pytest

from tests.support.tiny import ROOT
from tools.verify.finding import Finding, Severity
from tools.verify.report import Folder, Report, Run
from tools.verify.verify import verify

DATA = ROOT.parent / "shared" / "data"
TREES = ("v2.0/NVIDIA", "v2.0/Samsung", "v3.0/Lenovo", "v5.0/Dell", "v5.0/NVIDIA")
FAILING_TREES = {"v3.0/Lenovo"}  # nine logs and more lack opt_lamb_epsilon, which the rules of 3.0.0 ask for

pytestmark = pytest.mark.skipif(
    not (DATA / "results").is_dir(), reason="needs the published logs in ../shared/data/results"
)


def table(name: str) -> list[dict[str, str]]:
    if not (DATA / name).is_file():
        return []
    with open(DATA / name, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file, delimiter="\t"))


LOGS, FOLDERS = table("verdicts.tsv"), table("verdicts_folders.tsv")


def name_of(row: dict[str, str]) -> str:
    return "/".join(row[column] for column in ("round", "submitter", "system", "file") if column in row)


@functools.cache
def judged(tree: str, as_submitted: bool) -> Report:
    """Its round is found from the path."""
    return verify(DATA / "results" / tree, as_submitted=as_submitted)


def folder_of(row: dict[str, str], as_submitted: bool = True) -> Folder:
    report = judged(f"{row['round']}/{row['submitter']}", as_submitted)
    (folder,) = [folder for folder in report.folders if folder.system == row["system"]]
    return folder


def run_of(row: dict[str, str], as_submitted: bool = True) -> Run:
    (run,) = [run for run in folder_of(row, as_submitted).runs if run.path.name == row["file"]]
    return run


def errors_of(findings: tuple[Finding, ...]) -> list[str]:
    return [finding.rule.id for finding in findings if finding.severity is Severity.ERROR]


def test_the_tables_are_whole() -> None:
    assert len(LOGS) == 60
    assert {row["outcome"] for row in LOGS} == {"PASS", "FAIL"}
    assert len(FOLDERS) == 6
    assert sum(len(judged(tree, True).folders) for tree in TREES) == 6


@pytest.mark.parametrize("as_submitted", [True, False], ids=["as-submitted", "as-shipped"])
@pytest.mark.parametrize("row", LOGS, ids=name_of)
def test_the_official_verdict_of_a_log(row: dict[str, str], as_submitted: bool) -> None:
    """None of these rounds' rules changed later, so both give the table's."""
    assert judged(f"{row['round']}/{row['submitter']}", as_submitted).ruleset == row["ruleset"]
    run = run_of(row, as_submitted)
    assert run.official == run.official_shipped == row["outcome"].lower()


@pytest.mark.parametrize("row", LOGS, ids=name_of)
def test_the_figures_of_a_log(row: dict[str, str]) -> None:
    run = run_of(row)
    assert run.status == row["run_status"]
    assert run.division == row["division"]
    assert run.batch == int(row["gbs"])
    assert run.minutes == pytest.approx(float(row["ttt_min"]), abs=0.00006)  # the table has four decimals


@pytest.mark.parametrize("row", LOGS, ids=name_of)
def test_our_own_rules_find_no_error_in_a_log_that_passed(row: dict[str, str]) -> None:
    assert bool(errors_of(run_of(row).findings)) is (row["outcome"] == "FAIL")


@pytest.mark.parametrize("row", FOLDERS, ids=name_of)
def test_the_official_answers_on_a_folder(row: dict[str, str]) -> None:
    folder = folder_of(row)
    assert folder.rcp is not None
    assert folder.rcp.batch == int(row["gbs"])
    assert folder.rcp.official_epoch_num == passed(row["rcp_epoch"])
    assert folder.rcp.official_train_samples == passed(row["rcp_samples"])
    by = "rcp_epoch" if folder.rcp.samples_from == "epoch_num" else "rcp_samples"
    assert folder.rcp.passed is (row[by] == "True")
    assert folder.rcp.message == row[f"{by}_msg"] == row["rcp_epoch_msg"]
    assert len(folder.runs) == int(row["n_files"])
    if row["division"] == "closed":
        assert outcomes(folder)["seeds"] == passed(row["seed_ok"])
        assert outcomes(folder)["RCP"] == passed(row[by])
    else:
        assert outcomes(folder)["seeds"] == outcomes(folder)["RCP"] == "not applicable"


def passed(cell: str) -> str:
    return {"True": "pass", "False": "fail"}[cell]


def outcomes(folder: Folder) -> dict[str, str]:
    return {check.name: check.outcome for check in folder.checks}


@pytest.mark.parametrize("row", FOLDERS, ids=name_of)
def test_the_score_of_a_folder_is_the_official_one_to_the_millisecond(row: dict[str, str]) -> None:
    score = folder_of(row).score
    assert score is not None
    assert score.scaling == pytest.approx(float(row["scaling"]), rel=1e-12)
    assert score.counts is bool(row["olympic_min"])
    if row["olympic_min"]:
        assert score.scaled_minutes is not None
        assert abs(score.scaled_minutes - float(row["olympic_min"])) * 60_000 < 1


def test_samsungs_placeholders_are_seen_through() -> None:
    """Its evaluations all say epoch_num 1."""
    (folder,) = judged("v2.0/Samsung", True).folders
    assert folder.rcp is not None
    assert folder.rcp.samples_from == "train_samples"
    assert folder.rcp.submission_mean == 2_932_736
    assert folder.rcp.minimum == pytest.approx(5_400_269, abs=1)


@pytest.mark.parametrize("tree", TREES)
def test_a_published_tree_stands_unless_its_logs_fail(tree: str) -> None:
    report = judged(tree, True)
    assert report.failed is (tree in FAILING_TREES)
    if not report.failed:
        errors = [errors_of(folder.findings) for folder in report.folders]
        assert not any(errors)
        assert errors_of(report.findings) == []


@pytest.mark.parametrize("row", [row for row in LOGS if row["file"] == "result_0.txt"], ids=name_of)
def test_a_published_log_alone_is_judged_as_in_its_folder(row: dict[str, str]) -> None:
    path = DATA / "results" / row["round"] / row["submitter"] / "results" / row["system"] / "bert" / row["file"]
    report = verify(path)
    assert (report.kind, report.ruleset) == ("log", row["ruleset"])
    assert report.folders[0].runs[0].findings == run_of(row).findings
    assert report.failed is (row["outcome"] == "FAIL")


@pytest.mark.parametrize("row", [row for row in LOGS if row["file"] == "result_0.txt"][:3], ids=name_of)
def test_a_published_log_fails_once_its_run_is_said_to_be_aborted(row: dict[str, str], tmp_path: Path) -> None:
    copy, content = tmp_path / row["file"], run_of(row).path.read_bytes()
    copy.write_bytes(content)
    assert not verify(copy, round_name=row["round"]).failed
    copy.write_bytes(content.replace(b'"status": "success"', b'"status": "aborted"'))
    assert verify(copy, round_name=row["round"]).failed
