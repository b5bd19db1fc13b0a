"""Rounds: their names, how a path tells one, and what each round's rules say of BERT."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.verify import rounds


@pytest.mark.parametrize(
    ("name", "ruleset"),
    [
        ("v2.1", "2.1.0"),
        ("2.1", "2.1.0"),
        ("2.1.0", "2.1.0"),
        ("v5.0", "5.0.0"),
        ("v5.0.0", "5.0.0"),
        ("0.7", "0.7.0"),
        ("1", "1.0.0"),
        ("v4", "4.0.0"),
    ],
)
def test_a_round_has_several_names(name: str, ruleset: str) -> None:
    assert rounds.ruleset_named(name) == ruleset


@pytest.mark.parametrize("ruleset", rounds.RULESETS)
def test_every_round_is_known_by_each_of_its_names(ruleset: str) -> None:
    short = ruleset.removesuffix(".0")
    assert {rounds.ruleset_named(name) for name in (ruleset, short, f"v{short}", f"v{ruleset}")} == {ruleset}


WITHOUT_BERT = ["5.1", "v5.1", "5.1.0", "6.0", "0.6", "2.2", "2.1.1"]
NO_ROUND = ["", "v", "vv2.1", "2.1.0.0", "2,1", "two", "2.1 ", "2.1\n", "-1", "../2.1.0", "²"]


@pytest.mark.parametrize("name", [*WITHOUT_BERT, *NO_ROUND])
def test_a_round_without_bert_is_refused_with_those_that_have_it(name: str) -> None:
    with pytest.raises(rounds.UnknownRoundError) as caught:
        rounds.ruleset_named(name)
    message = str(caught.value)
    assert repr(name) in message
    assert "v0.7" in message
    assert "v5.0" in message


@pytest.mark.parametrize(
    ("path", "ruleset"),
    [
        ("training_results_v2.1/Org/results/box/bert", "2.1.0"),
        ("v2.1/Org", "2.1.0"),
        ("v3_1/Org", "3.1.0"),
        ("training_results_v3_1/Org", "3.1.0"),
        ("training_results_v2.1-copy/Org", "2.1.0"),
        ("v2.0/old/v2.1/Org", "2.1.0"),  # the nearest one
        ("v5.1/v5.0/Org", "5.0.0"),
        ("v4.0", "4.0.0"),
        ("v4.0/result_0.txt", "4.0.0"),
    ],
)
def test_a_path_tells_the_round(path: str, ruleset: str) -> None:
    assert rounds.ruleset_of_path(Path("/data") / path) == ruleset


OTHER_ROUNDS = ["training_results_v5.1", "v5.1", "v6.0", "hpc_results_v2.0"]
NO_ROUNDS = ["Org", "v2.1-copy", "v1.0-x", "my_training_results_v2.1", "v4_16x8", "v2.10", "rev2.1", "v2", "2.1", "v20"]


@pytest.mark.parametrize("path", [f"{name}/Org" for name in (*OTHER_ROUNDS, *NO_ROUNDS)])
def test_other_paths_tell_none(path: str) -> None:
    assert rounds.ruleset_of_path(Path("/data") / path) is None


def test_a_relative_path_tells_the_round_of_where_it_leads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "v2.1" / "Org").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "v2.1" / "Org")
    assert rounds.ruleset_of_path(Path(".")) == "2.1.0"


# Rules, 2.5: FLOOR(0.05 * (230.23 * GBS + 3,000,000), 25,000)
INTERVALS = {
    1: 150_000,
    256: 150_000,
    448: 150_000,
    1024: 150_000,
    2048: 150_000,
    3072: 175_000,
    4096: 175_000,
    6144: 200_000,
    8192: 225_000,
    16384: 325_000,
}


@pytest.mark.parametrize(("batch", "interval"), INTERVALS.items())
def test_the_evaluation_interval_follows_the_batch(batch: int, interval: int) -> None:
    for ruleset in rounds.RULESETS[1:]:
        assert rounds.eval_interval(ruleset, batch) == interval
        assert rounds.first_eval(ruleset, batch) == interval


def test_the_interval_steps_where_the_formula_does() -> None:
    """175,000 = 0.05 * (230.23 * batch + 3,000,000) at a batch of 2171.7."""
    assert [rounds.eval_interval("5.0.0", batch) for batch in (2171, 2172)] == [150_000, 175_000]


def test_in_round_0_7_evaluations_began_late_and_came_seldom() -> None:
    assert {rounds.eval_interval("0.7.0", batch) for batch in (256, 16384)} == {500_000}
    assert {rounds.first_eval("0.7.0", batch) for batch in (256, 16384)} == {3_000_000}


@pytest.mark.parametrize(
    ("ruleset", "batch", "target"),
    [("0.7.0", 8191, 0.712), ("0.7.0", 8192, 0.706), ("0.7.0", None, 0.712)]
    + [(ruleset, batch, 0.720) for ruleset in rounds.RULESETS[1:] for batch in (None, 256, 16384)],
)
def test_the_target(ruleset: str, batch: int | None, target: float) -> None:
    assert rounds.target(ruleset, batch) == target


@pytest.mark.parametrize(
    ("ruleset", "closed", "opened"),
    [("0.7.0", 20, 20), ("1.0.0", 30, 30), ("1.1.0", 30, 30)] + [(ruleset, 30, 240) for ruleset in rounds.RULESETS[3:]],
)
def test_the_limit_of_initialisation(ruleset: str, closed: int, opened: int) -> None:
    assert rounds.init_limit_minutes(ruleset, "closed") == closed
    assert rounds.init_limit_minutes(ruleset, "open") == opened
    assert rounds.init_limit_minutes(ruleset, None) == closed


@pytest.mark.parametrize(
    ("one", "other", "holds"), [("4.1.0", "4.1.0", True), ("4.0.0", "4.1.0", False), ("5.0.0", "4.1.0", True)]
)
def test_rounds_have_an_order(one: str, other: str, holds: bool) -> None:
    assert rounds.at_least(one, other) is holds


def test_the_last_round_with_bert_is_the_default() -> None:
    assert rounds.LATEST == "5.0.0"
    assert rounds.NUM_RUNS == 10
