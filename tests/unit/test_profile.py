"""The profiler's window: traces of its steps alone, with names and order in them; it changes no bit of the run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.bert.comm.hook import CLIP_VARIANTS
from benchmarks.bert.config import VARIABLES, Config, ConfigError, load
from benchmarks.bert.data.batch import synthetic_batch
from benchmarks.bert.profile import NoProfile, ProfileWindow, profile_of
from benchmarks.bert.trainer import Trainer, build_trainer
from benchmarks.bert.warm_up import warm_up
from benchmarks.bert.world import World
from tests.support.ranks import run_ranks, run_trial
from tests.support.records import read_records
from tests.support.tiny import make_tiny_data, tiny_environment

UNDER_BACKWARD = ("none", "bucket_before", "global_after")
NUM_STEPS = 5
FIRST, LAST = 2, 3  # of the window
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Event:
    name: str
    start_us: float
    end_us: float

    def holds(self, other: Event) -> bool:
        return self.start_us <= other.start_us and other.end_us <= self.end_us


def events_of(path: Path) -> list[Event]:
    """Of a Chrome trace, those with a duration."""
    trace = json.loads(path.read_text("utf-8"))
    return [
        Event(each["name"], each["ts"], each["ts"] + each["dur"])
        for each in trace["traceEvents"]
        if each.get("ph") == "X"
    ]


def named(events: Sequence[Event], name: str) -> list[Event]:
    """Those whose name begins so, in the order of their start."""
    return sorted((each for each in events if each.name.startswith(name)), key=lambda each: each.start_us)


def steps_of(events: Sequence[Event]) -> list[list[Event]]:
    """The events that begin inside of each step."""
    return [[each for each in events if step.start_us < each.start_us < step.end_us] for step in named(events, "step ")]


def check_order(step: Sequence[Event], *, under_backward: bool) -> None:
    """Whether the all-reduces of a step of one micro-batch lie under backward's computing, or all after it."""
    (backward,) = named(step, "backward")
    (optimizer,) = named(step, "optimizer")
    starts, all_reduces = named(step, "start all-reduce of bucket "), named(step, "gloo:all_reduce")
    assert len(starts) == len(all_reduces) > 2
    assert [each.name.split()[-1] for each in starts] == [str(index) for index in range(len(starts))]
    computed = [each for each in named(step, "autograd::engine") if each.start_us > starts[0].start_us]
    if under_backward:
        assert all(backward.holds(each) for each in starts), "an all-reduce is started after backward"
        assert len(computed) > 10, "nothing is computed after the first all-reduce has begun"
        assert all(each.start_us < backward.end_us for each in all_reduces)
    else:
        assert all(each.start_us > backward.end_us for each in starts), "an all-reduce is started under backward"
        assert all(each.start_us > backward.end_us for each in all_reduces)
        assert not computed
    assert all(each.start_us < optimizer.start_us for each in all_reduces)


def config_of(**changed: Any) -> Config:
    values: dict[str, Any] = {
        "ranks_per_node": 2,
        "device": "cpu",
        "max_length": 32,
        "num_layers": 2,
        "hidden_size": 32,
        "num_heads": 2,
        "ffn_size": 64,
        "bucket_mb": 0.02,
        "decay_steps": 10,
        "profile_start_step": FIRST,
        "profile_num_steps": LAST - FIRST + 1,
    }
    return Config(**(values | changed))


def make(config: Config, rank: int, num_ranks: int) -> tuple[Trainer, World]:
    world = World(rank, num_ranks, rank, num_ranks, rendezvous=None)
    trainer = build_trainer(config, world, CPU, seed=3, num_vocabulary=100)
    warm_up(trainer, config)
    return trainer, world


def left_on(trainer: Trainer) -> list[str]:
    """What the window has put on the trainer's objects."""
    return [
        name
        for owner in (trainer.gradient, trainer.loss_scale, trainer.optimizer)
        for name, value in vars(owner).items()
        if hasattr(value, "__wrapped__") and hasattr(type(owner), name)
    ]


def train(config: Config, rank: int, num_ranks: int, num_done: int = 0, stop_after: int = NUM_STEPS) -> dict[str, Any]:
    """Steps as the loop takes them, with what was put on the trainer at each, and the weights at the end."""
    trainer, world = make(config, rank, num_ranks)
    before = left_on(trainer)
    during = {}
    with profile_of(config, trainer, world, num_done) as profile:
        for step in range(num_done + 1, stop_after + 1):
            profile.before(step)
            during[step] = len(left_on(trainer)) - len(before)
            batches = [
                synthetic_batch(3, 8 + rank + step + micro, 100, 2)
                for micro in range(config.gradient_accumulation_steps)
            ]
            trainer.step(step, batches)
    after = len(left_on(trainer)) - len(before)
    weights = {name: weight.detach().clone() for name, weight in trainer.model.named_parameters()}
    return {"during": during, "after": after, "weights": weights, "num_buckets": trainer.gradient.num_buckets}


def train_each(rank: int, folder: Path) -> dict[str, dict[str, Any]]:
    """By variant with the window, and without it."""
    return {name: train(config_of(clip=name, profile_dir=folder / name), rank, 2) for name in CLIP_VARIANTS} | {
        "without": train(config_of(profile_start_step=0, profile_dir=folder / "without"), rank, 2)
    }


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, dict[str, Any]]]]:
    folder = tmp_path_factory.mktemp("traces")
    return folder, run_ranks(train_each, 2, folder)


Traced = tuple[Path, list[dict[str, dict[str, Any]]]]


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("clip", CLIP_VARIANTS)
def test_the_trace_shows_the_all_reduces_under_backward_or_after_it(traced: Traced, clip: str, rank: int) -> None:
    steps = steps_of(events_of(traced[0] / clip / f"rank_{rank}.json"))
    assert len(steps) == LAST - FIRST + 1
    for step in steps:
        check_order(step, under_backward=clip in UNDER_BACKWARD)
        with pytest.raises(AssertionError, match="an all-reduce is started"):
            check_order(step, under_backward=clip not in UNDER_BACKWARD)


@pytest.mark.parametrize("clip", CLIP_VARIANTS)
def test_the_trace_holds_the_steps_of_the_window_and_the_parts_of_each(traced: Traced, clip: str) -> None:
    folder, results = traced
    events = events_of(folder / clip / "rank_0.json")
    assert [each.name for each in named(events, "step ")] == [f"step {step}" for step in range(FIRST, LAST + 1)]
    for step in steps_of(events):
        for name in ("forward", "backward", "optimizer"):
            assert len(named(step, name)) == 1, name
        num_clipped = 0 if clip == "global_before" else results[0][clip]["num_buckets"]
        assert len(named(step, "clip bucket ")) == num_clipped
        (forward,), (backward,) = named(step, "forward"), named(step, "backward")
        assert forward.end_us <= backward.start_us


def test_names_are_on_the_trainer_in_the_window_alone(traced: Traced) -> None:
    for of_rank in traced[1]:
        for name, result in of_rank.items():
            in_window = {step for step, count in result["during"].items() if count}
            assert in_window == (set() if name == "without" else {FIRST, LAST}), name
            assert result["after"] == 0


def test_a_window_changes_no_bit_of_the_weights(traced: Traced) -> None:
    for of_rank in traced[1]:
        with_window, without = of_rank["bucket_before"]["weights"], of_rank["without"]["weights"]
        assert all(torch.equal(weight, without[name]) for name, weight in with_window.items())
        assert not all(torch.equal(weight, without[name]) for name, weight in of_rank["none"]["weights"].items())


def test_without_a_window_nothing_is_written(traced: Traced) -> None:
    assert sorted(path.name for path in traced[0].iterdir()) == sorted(CLIP_VARIANTS)
    assert sorted(path.name for path in (traced[0] / "none").iterdir()) == ["rank_0.json", "rank_1.json"]


# --- where the window and the run do not end together


def train_alone(rank: int, folder: Path, num_done: int, stop_after: int) -> dict[str, Any]:
    config = config_of(ranks_per_node=1, gradient_accumulation_steps=2, profile_dir=folder)
    return train(config, rank, 1, num_done, stop_after)


@pytest.mark.parametrize(
    ("num_done", "stop_after", "expected"),
    [
        pytest.param(0, FIRST, [FIRST], id="the run ends inside the window"),
        pytest.param(FIRST, NUM_STEPS, [LAST], id="it goes on from inside the window"),
        pytest.param(LAST, NUM_STEPS, [], id="it goes on from behind the window"),
        pytest.param(0, FIRST - 1, [], id="it ends before the window"),
    ],
)
def test_the_trace_holds_the_steps_that_the_run_took(
    num_done: int, stop_after: int, expected: list[int], tmp_path: Path
) -> None:
    run_ranks(train_alone, 1, tmp_path, num_done, stop_after)
    path = tmp_path / "rank_0.json"
    assert path.exists() == bool(expected)
    if expected:
        events = events_of(path)
        assert [each.name for each in named(events, "step ")] == [f"step {step}" for step in expected]
        for step in steps_of(events):
            assert [len(named(step, name)) for name in ("forward", "backward", "optimizer")] == [2, 2, 1]


def replacing(rank: int, folder: Path) -> tuple[int, int]:
    """What a new stage of growth does, between the window's two steps: names left on the old and the new objects."""
    config = config_of(ranks_per_node=1, profile_dir=folder, profile_start_step=1, profile_num_steps=2)
    (trainer, world), (other, _) = (make(config, rank, 1) for _ in range(2))
    old = replace(trainer)
    batch = synthetic_batch(3, 8, 100, 2)
    with profile_of(config, trainer, world, 0) as profile:
        profile.before(1)
        trainer.step(1, [batch])
        trainer.ddp, trainer.gradient, trainer.optimizer = other.ddp, other.gradient, other.optimizer
        profile.before(2)
        trainer.step(2, [batch])
    return len(left_on(old)), len(left_on(trainer))


def test_what_is_replaced_between_two_steps_has_names_in_the_next_and_none_after(tmp_path: Path) -> None:
    assert run_ranks(replacing, 1, tmp_path) == [(0, 0)]
    first, second = steps_of(events_of(tmp_path / "rank_0.json"))
    for name in ("forward", "backward", "clip bucket ", "start all-reduce", "optimizer"):
        assert len(named(first, name)) == len(named(second, name)) > 0, name


def breaking(rank: int, folder: Path) -> tuple[str, int]:
    """A step of the window that raises in its forward pass: what came out, and what is left on the trainer."""
    config = config_of(ranks_per_node=1, profile_dir=folder, profile_start_step=1)
    trainer, world = make(config, rank, 1)
    try:
        with profile_of(config, trainer, world, 0) as profile:
            profile.before(1)
            trainer.step(1, [None])  # type: ignore[list-item]
    except AttributeError as error:
        return str(error), len(left_on(trainer))
    return "", -1


def test_a_run_that_breaks_inside_the_window_writes_its_trace_and_keeps_its_reason(tmp_path: Path) -> None:
    ((reason, num_left),) = run_ranks(breaking, 1, tmp_path)
    assert "'NoneType'" in reason
    assert num_left == 0
    assert [each.name for each in named(events_of(tmp_path / "rank_0.json"), "step ")] == ["step 1"]


# --- what is refused


def window(folder: Path, rank: int = 0) -> NoProfile | ProfileWindow:
    trainer: Any = None
    return profile_of(config_of(profile_dir=folder), trainer, World(rank, 2, rank, 2, rendezvous=None), 0)


def test_a_folder_that_holds_this_ranks_trace_is_refused_and_left_alone(tmp_path: Path) -> None:
    trace = tmp_path / "rank_1.json"
    trace.write_text("an older one")
    assert isinstance(window(tmp_path, rank=0), ProfileWindow)
    with pytest.raises(ConfigError, match=r"PROFILE_DIR=.*holds rank_1.json.*never overwritten"):
        window(tmp_path, rank=1)
    assert trace.read_text() == "an older one"


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"PROFILE_DIR=.*cannot make the folder"):
        window(tmp_path / "file" / "folder")


def test_a_trace_that_cannot_be_written_is_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = window(tmp_path)
    assert isinstance(made, ProfileWindow)
    made._write(Unwritable())  # type: ignore[arg-type]
    assert "warning: rank 0: no trace" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


class Unwritable:
    """A profiler whose disk is full."""

    def export_chrome_trace(self, path: str) -> None:
        Path(path).touch()
        raise OSError(28, "No space left on device")


def test_a_window_that_begins_after_the_last_step_is_refused() -> None:
    assert load({"PROFILE_START_STEP": "100000"}).profile_start_step == 100_000
    with pytest.raises(ConfigError, match="PROFILE_START_STEP=100001 must be at most MAX_STEPS=100000"):
        load({"PROFILE_START_STEP": "100001"})


def test_the_window_belongs_to_no_steps_arithmetic() -> None:
    names = {name for name in VARIABLES if name.startswith("PROFILE_")}
    assert len(names) == 3
    assert not names & set(Config().of_steps())


# --- a whole run


def test_a_run_with_a_window_is_a_valid_one_and_one_that_finds_a_trace_is_refused(tmp_path: Path) -> None:
    data, traces = make_tiny_data(tmp_path / "data"), tmp_path / "traces"

    def trial(result: str) -> list[tuple[int, str, Any]]:
        environment = tiny_environment(
            data, tmp_path / result, PROFILE_START_STEP="1", PROFILE_NUM_STEPS="1000", PROFILE_DIR=str(traces)
        )
        return run_trial([environment] * 2)

    assert [status for status, *_ in trial("first.txt")] == [0, 0]
    (stop,) = [record for record in read_records(tmp_path / "first.txt") if record.key == "run_stop"]
    assert stop.metadata["status"] == "success"
    for rank in (0, 1):
        steps = [each.name for each in named(events_of(traces / f"rank_{rank}.json"), "step ")]
        assert steps == [f"step {step}" for step in range(1, len(steps) + 1)]
        assert len(steps) > 2
    refused = trial("second.txt")
    assert [status for status, *_ in refused] == [2, 2]
    assert "a trace is never overwritten" in "".join(said for _, said, _ in refused)  # by the rank that is first
    assert not (tmp_path / "second.txt").exists()
