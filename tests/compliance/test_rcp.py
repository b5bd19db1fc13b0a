"""A submission's convergence against the reference's, with its numbers; where that is a rule and where not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.submissions import (
    Records,
    abort,
    change,
    use_placeholder,
    write_results,
    write_tree,
)
from tools.verify.finding import Severity
from tools.verify.report import Folder, Rcp
from tools.verify.verify import verify

MEAN, MINIMUM = 2_414_421 + 1 / 3, 2_274_732.029  # of the reference at batch 448, rules of 5.0.0


def judge(folder: Path, round_name: str = "5.0.0") -> Folder:
    (judged,) = verify(folder, round_name=round_name).folders
    return judged


def rcp_of(folder: Path, round_name: str = "5.0.0") -> Rcp:
    rcp = judge(folder, round_name).rcp
    assert rcp is not None
    return rcp


def rules_of(folder: Folder) -> dict[str, Severity]:
    return {finding.rule.id: finding.severity for finding in folder.findings}


@pytest.fixture
def results(tmp_path: Path) -> Path:
    return tmp_path / "box" / "bert"


# --- the numbers


@pytest.mark.parametrize(
    ("batch", "num_evaluations", "low", "high", "mean", "minimum"),
    [
        pytest.param(448, 17, 448, 448, MEAN, MINIMUM, id="on a point"),
        pytest.param(768, 17, 448, 4608, 2_443_934, 2_306_738, id="between points"),
        pytest.param(3072, 18, 448, 4608, 2_656_421, 2_545_477, id="on a point that was pruned"),
        pytest.param(256, 17, None, 448, MEAN, MINIMUM, id="below the smallest"),
        pytest.param(16384, 19, 16384, 16384, 5_505_422, 5_400_269, id="on the largest"),
    ],
)
def test_where_a_batch_lies_and_what_it_needs(
    batch: int, num_evaluations: int, low: int | None, high: int, mean: float, minimum: float, results: Path
) -> None:
    write_results(results, batch=batch, num_evaluations=num_evaluations)
    for path in results.iterdir():
        if batch == 16384:
            scale_samples(path, 2)
    rcp = rcp_of(results)
    assert (rcp.batch, rcp.low_batch, rcp.high_batch) == (batch, low, high)
    assert rcp.mean == pytest.approx(mean, abs=1)
    assert rcp.minimum == pytest.approx(minimum, abs=1)
    assert rcp.submission_mean is not None
    assert rcp.minimum is not None
    assert rcp.margin == pytest.approx(rcp.submission_mean / rcp.minimum - 1)
    assert rcp.passed
    assert rcp.scaling == 1.0
    assert rules_of(judge(results)).get("runs.rcp") is None


def scale_samples(path: Path, factor: int) -> None:
    """As many samples as at a larger interval."""

    def edit(records: Records) -> None:
        for record in records:
            for name in ("epoch_num", "samples_count"):
                if name in record["metadata"]:
                    record["metadata"][name] *= factor
            if record["key"] == "train_samples":
                record["value"] *= factor

    change(path, edit)


def test_above_the_largest_point_there_is_nothing_to_compare_with(results: Path) -> None:
    folder = judge(write_results(results, batch=20_000))
    rcp = folder.rcp
    assert rcp is not None
    assert (rcp.low_batch, rcp.high_batch, rcp.mean, rcp.minimum, rcp.margin) == (16384, None, None, None, None)
    assert not rcp.passed
    assert rules_of(folder)["runs.rcp"] is Severity.ERROR
    assert rcp.message == "Missing RCP, please submit RCP with BS = 20000"
    assert rcp.scaling == 1.0


def test_below_the_smallest_point_its_minimum_holds(results: Path) -> None:
    folder = judge(write_results(results, batch=256, num_evaluations=15))
    assert folder.rcp is not None
    assert not folder.rcp.passed
    assert folder.rcp.message == "Missing RCP, please submit RCP with BS = 256"
    assert rules_of(folder) == {"runs.rcp": Severity.ERROR}


def test_too_fast_is_an_error_that_says_its_numbers(results: Path) -> None:
    folder = judge(write_results(results, num_evaluations=15))
    (finding,) = folder.findings
    assert (finding.rule.id, finding.severity) == ("runs.rcp", Severity.ERROR)
    assert finding.message == "RCP found: a mean of 2,250,304 samples, the minimum is 2,274,732"
    rcp = folder.rcp
    assert rcp is not None
    assert rcp.margin == pytest.approx(2_250_304 / MINIMUM - 1)  # below 0
    assert not rcp.passed


def test_between_minimum_and_mean_it_passes_with_a_factor(results: Path) -> None:
    rcp = rcp_of(write_results(results, num_evaluations=16))
    assert rcp.passed
    assert rcp.scaling == pytest.approx(MEAN / 2_400_384)


def test_the_mean_leaves_the_least_and_the_most_samples_out(results: Path) -> None:
    write_results(results)
    scale_samples(results / "result_0.txt", 3)
    assert rcp_of(results).submission_mean == 2_550_016
    scale_samples(results / "result_1.txt", 3)
    assert rcp_of(results).submission_mean == 2_550_016 * 10 / 8


def test_one_run_that_did_not_converge_is_left_out_and_two_are_too_many(results: Path) -> None:
    write_results(results)
    abort(results / "result_0.txt")
    rcp = rcp_of(results)
    assert (rcp.passed, rcp.submission_mean) == (True, 2_550_016)
    abort(results / "result_1.txt")
    rcp = rcp_of(results)
    assert (rcp.passed, rcp.submission_mean, rcp.message) == (False, None, "Insufficient convergence")


@pytest.mark.parametrize("round_name", ["1.0", "1.1", "2.0", "2.1", "3.0", "3.1", "4.0", "4.1", "5.0"])
def test_each_round_since_1_0_has_reference_points(round_name: str, results: Path) -> None:
    assert rcp_of(write_results(results), round_name).message in ("RCP found", "RCP Interpolation")


def test_in_round_0_7_there_were_none(results: Path) -> None:
    folder = judge(write_results(results), "0.7")
    assert folder.rcp is None
    assert "round 0.7: there were no RCPs" in folder.not_applicable


# --- where it is no rule


def test_in_the_open_division_it_is_information(results: Path) -> None:
    folder = judge(write_results(results, num_evaluations=15, division="open"))
    assert folder.rcp is not None
    assert not folder.rcp.applies
    assert not folder.rcp.passed
    assert folder.rcp.minimum == pytest.approx(MINIMUM)
    assert "runs.rcp" not in rules_of(folder)
    assert not folder.failed


@pytest.mark.parametrize("epoch", [1, 0.5, 1.0])
def test_where_epoch_num_names_an_epoch_train_samples_are_taken(epoch: float, results: Path) -> None:
    write_results(results)
    assert (rcp_of(results).samples_from, rcp_of(results).official_epoch_num) == ("epoch_num", "pass")
    assert "samples trained on" in rcp_of(results).because
    for path in results.iterdir():
        use_placeholder(path, epoch)
    rcp = rcp_of(results)
    assert (rcp.samples_from, rcp.submission_mean) == ("train_samples", 2_550_016)
    assert rcp.because == "epoch_num names an epoch, no samples"
    assert (rcp.official_epoch_num, rcp.official_train_samples) == ("fail", "pass")
    assert rcp.passed
    assert not judge(results).failed


def test_a_last_evaluation_that_names_an_epoch_among_others_that_name_samples_is_no_way_around(results: Path) -> None:
    """Else one record would switch off what is asked of evaluations and samples."""
    write_results(results)
    for path in results.iterdir():
        change(path, name_an_epoch_last)
    folder = judge(results)
    assert folder.rcp is not None
    assert folder.rcp.official_epoch_num == "fail"
    assert folder.failed


def name_an_epoch_last(records: Records) -> None:
    evaluations = [record for record in records if record["key"] == "eval_accuracy"]
    evaluations[-1]["metadata"]["epoch_num"] = 1
    for record in evaluations[3:9]:
        records.remove(record)


SPELLINGS = ["rcp-bypass", "--rcp-bypass", "rcp_bypass", "--rcp_bypass"]
CONTENTS = [
    *(spelling + end for spelling in SPELLINGS for end in ("", "\n", "\r\n")),
    "seed-checker-bypass\nrcp-bypass\n",
    "# of our own batch\n  --rcp-bypass \n",
]


@pytest.mark.parametrize(
    ("content", "place"),
    [*((content, ".") for content in CONTENTS), (SPELLINGS[0], "..")],
)
def test_a_bypass_makes_a_warning_of_the_error(content: str, place: str, tmp_path: Path) -> None:
    root = write_tree(tmp_path / "org", num_evaluations=15)
    folder = root / "results" / "box" / "bert"
    (folder / place / "package_checker_params").write_text(content)
    judged = judge(folder)
    assert rules_of(judged) == {"runs.rcp": Severity.WARNING}
    assert "package_checker_params" in judged.findings[0].message
    assert not judged.failed
    assert judged.score is not None
    assert judged.score.counts


@pytest.mark.parametrize("place", ["../..", "../../.."])
def test_a_bypass_asked_for_above_the_system_is_none(place: str, tmp_path: Path) -> None:
    folder = write_tree(tmp_path / "org", num_evaluations=15) / "results" / "box" / "bert"
    (folder / place / "package_checker_params").write_text(SPELLINGS[0])
    assert rules_of(judge(folder)) == {"runs.rcp": Severity.ERROR}


NO_BYPASS = [
    *("", "no-rcp-bypass", "seed-checker-bypass", "rcp-bypasses", "#", "# rcp-bypass", "RCP-BYPASS", "---rcp-bypass"),
    "--rcp-bert-train-samples --rcp_bypass",
    "please do not grant rcp-bypass",
]


@pytest.mark.parametrize("content", NO_BYPASS)
def test_other_parameters_are_no_bypass(content: str, results: Path) -> None:
    write_results(results, num_evaluations=15)
    (results / "package_checker_params").write_text(content)
    assert rules_of(judge(results)) == {"runs.rcp": Severity.ERROR}
