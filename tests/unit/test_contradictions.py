"""Values that are each fine alone and not together: one clear line for each contradiction."""

from __future__ import annotations

import pytest

from benchmarks.bert.config import load
from tests.support.configuration import problems_of


def test_contradictions_are_reported_together() -> None:
    problems = problems_of(
        {
            "HIDDEN_SIZE": "100",
            "NUM_HEADS": "16",
            "BATCH_SIZE": "8",
            "GRADIENT_ACCUMULATION_STEPS": "3",
            "MAX_LENGTH": "8",
            "NUM_STRATA": "9",
        }
    )
    assert len(problems) == 3
    assert "HIDDEN_SIZE=100 must be a multiple of NUM_HEADS=16" in problems
    assert "BATCH_SIZE=8 must be a multiple of GRADIENT_ACCUMULATION_STEPS=3" in problems
    assert "NUM_STRATA=9 must be at most MAX_LENGTH=8" in problems


def test_relative_offset_needs_an_even_head_width() -> None:
    variables = {"HIDDEN_SIZE": "20", "NUM_HEADS": "4"}
    load(variables)
    [problem] = problems_of(variables | {"INITIALISATION": "relative_offset"})
    assert "INITIALISATION=relative_offset needs an even head width" in problem


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"GROWTH": "layer_drop:0.5@0.001"}, "needs NORM=pre"),
        ({"GROWTH": "mslt:12,24@.5,.5", "SHARD_OPTIMIZER": "1"}, "needs SHARD_OPTIMIZER=0"),
        ({"GROWTH": "mslt:12,24@.5,.5", "INITIAL_CHECKPOINT": "w"}, "begins as 12x1024"),
        ({"GROWTH": "staged:24x512,24x1024@.5,.5", "NUM_HEADS": "1"}, "no whole numbers"),
        ({"GROWTH": "none", "CUDA_GRAPHS": "1", "LOADING": "random", "VIRTUAL_RANKS": "2"}, "VIRTUAL_RANKS=1"),
        ({"GROWTH": "mslt:12,24@.5,.5", "CUDA_GRAPHS": "1"}, "needs GROWTH=none"),
    ],
    ids=str,
)
def test_what_growth_and_graphs_do_not_go_with(changed: dict[str, str], said: str) -> None:
    evaluated = {"EVAL_START_SAMPLES": "64", "EVAL_INTERVAL_SAMPLES": "64"}
    [problem] = problems_of(evaluated | changed)
    assert said in problem


def test_published_weights_do_not_fit_a_pre_norm_network() -> None:
    weights = {"INITIAL_CHECKPOINT": "w/model.ckpt-1"}
    load(weights | {"NORM": "post"})
    [problem] = problems_of(weights | {"NORM": "pre"})
    assert "NORM=pre contradicts INITIAL_CHECKPOINT=w/model.ckpt-1" in problem
    assert "INITIAL_CHECKPOINT=none" in problem


def test_a_first_evaluation_beyond_the_run_is_refused_with_the_numbers() -> None:
    """Known fault 91: such a run could never log an accuracy."""
    variables = {"BATCH_SIZE": "10", "MAX_STEPS": "5", "EVAL_INTERVAL_SAMPLES": "50"}
    assert load(variables).eval_start_samples == 50
    for beyond in ({"EVAL_INTERVAL_SAMPLES": "51"}, {"EVAL_START_SAMPLES": "51"}):
        [problem] = problems_of(variables | beyond)
        assert "due after 51 samples, but MAX_STEPS=5 x 10 ends at 50" in problem
    [problem] = problems_of({"MAX_STEPS": "100"})
    assert "due after 150000 samples" in problem
