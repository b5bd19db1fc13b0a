"""What the closed division refuses, what it warns of, and that the open one does neither."""

from __future__ import annotations

import pytest

from benchmarks.bert.config import load
from benchmarks.bert.data.plan import STRATEGIES
from benchmarks.bert.division import warnings
from tests.support.configuration import problems_of


def test_the_closed_division_refuses_adam_and_clipping_by_bucket() -> None:
    problems = problems_of({"DIVISION": "closed"})
    assert len(problems) == 2
    assert "LAMB" in problems[0]
    assert "not adam" in problems[0]
    assert "CLIP=bucket_before" in problems[1]
    [only_the_optimizer] = problems_of({"DIVISION": "closed", "CLIP": "global_after"})
    assert "not adam" in only_the_optimizer
    lamb = {"DIVISION": "closed", "OPTIMIZER": "lamb"}
    [only_the_clip] = problems_of(lamb | {"CLIP": "none"})
    assert "not CLIP=none" in only_the_clip
    [only_the_norm] = problems_of(lamb | {"CLIP": "global_before", "MAX_NORM": "2"})
    assert "MAX_NORM=1" in only_the_norm


@pytest.mark.parametrize("options", [{"LAMB_BIAS_CORRECTION": "0"}, {"MAX_TRUST_RATIO": "10"}], ids=str)
def test_the_closed_division_takes_lamb_in_the_references_form_alone(options: dict[str, str]) -> None:
    lamb = {"OPTIMIZER": "lamb", "CLIP": "global_before"}
    assert load(lamb | options | {"DIVISION": "open"}).optimizer == "lamb"
    [problem] = problems_of(lamb | options | {"DIVISION": "closed"})
    assert "table of optimizers" in problem
    for name, value in options.items():
        assert f"{name}={value}" in problem.split(", not ")[1]
    [lans] = problems_of(lamb | {"OPTIMIZER": "lans", "DIVISION": "closed"})
    assert "not lans" in lans


def test_the_closed_division_refuses_another_network_than_the_references() -> None:
    closed = {"DIVISION": "closed", "OPTIMIZER": "lamb", "CLIP": "global_after"}
    assert load(closed | {"NORM": "post"}).norm == "post"
    [problem] = problems_of(closed | {"NORM": "pre"})
    assert "requires NORM=post" in problem
    assert "not pre" in problem


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"DROPOUT": "0.0"}, "DROPOUT=0.1"),
        ({"DECAY_POWER": "2"}, "DECAY_POWER=1"),
        ({"SCHEDULE": "lans"}, "SCHEDULE=lans"),
        ({"GROWTH": "mslt:12,24@.5,.5"}, "GROWTH=none"),
    ],
    ids=str,
)
def test_the_closed_division_refuses_what_is_not_free(changed: dict[str, str], said: str) -> None:
    lamb = {"OPTIMIZER": "lamb", "CLIP": "global_after"}
    load(lamb | changed)
    [problem] = problems_of(lamb | changed | {"DIVISION": "closed"})
    assert said in problem


@pytest.mark.parametrize("clip", ["global_before", "global_after"])
def test_the_closed_division_takes_lamb_with_a_clip_of_the_whole_gradient(clip: str) -> None:
    assert load({"DIVISION": "closed", "OPTIMIZER": "lamb", "CLIP": clip}).division == "closed"


@pytest.mark.parametrize("loading", STRATEGIES)
def test_only_the_closed_division_warns_of_batches_that_are_no_random_draw(loading: str) -> None:
    closed = {"DIVISION": "closed", "OPTIMIZER": "lamb", "CLIP": "global_after"}
    found = warnings(load(closed | {"LOADING": loading}))
    if loading in ("random", "global_presort", "least_loaded"):
        assert found == []
    else:
        assert [f"LOADING={loading}" in warning for warning in found] == [True]
    assert warnings(load({"LOADING": loading})) == []
