"""Through NVIDIA DALI comes the same stream, with the same errors at the same steps; without it, one clear refusal."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from benchmarks.bert.config import ConfigError, load
from benchmarks.bert.data.ahead import read_ahead
from benchmarks.bert.data.batch import PackedBatch, PackLayout, pad_tail
from benchmarks.bert.data.loader import LoaderError, as_packed
from benchmarks.bert.data.loader import micro_batches as native
from benchmarks.bert.data.loaders import DALI_PACKAGE, LOADERS, MicroBatches, choose_loader
from benchmarks.bert.data.plan import STRATEGIES, Layout, Planner, plan_steps
from benchmarks.bert.data.shards import ShardError
from benchmarks.bert.data.strata import Strata
from tests.support.stores import MAX_LENGTH, Made, make_folder

CPU = torch.device("cpu")
COUNTS = (30, 50, 20)
REQUIREMENTS = Path(__file__).parents[2] / "requirements-dali.txt"


def has_dali() -> bool:
    try:
        return find_spec("nvidia.dali") is not None
    except ModuleNotFoundError:  # no package of NVIDIA's at all
        return False


needs_dali = pytest.mark.skipif(not has_dali(), reason="NVIDIA DALI is not there (requirements-dali.txt)")


@pytest.fixture(scope="module")
def dali() -> MicroBatches:
    return choose_loader("dali", CPU)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make_folder(tmp_path_factory.mktemp("made"), COUNTS)


def values_of(batch: PackedBatch) -> dict[str, object]:
    """Everything that a batch holds, with types and devices, so that equal means equal bit for bit."""
    values: dict[str, object] = {}
    for name, value in vars(batch).items():
        if isinstance(value, PackLayout):
            values[f"{name}/lengths"] = value.lengths
            value = value.cu_lengths
        assert isinstance(value, Tensor)
        values[name] = (value.dtype, value.device, tuple(value.shape), value.tolist())
    return values


def stream(
    loader: MicroBatches,
    made: Made,
    plan: Sequence[np.ndarray] | Iterator[np.ndarray],
    *,
    num_micro_batches: int = 1,
    finish: Callable[[PackedBatch], PackedBatch] = as_packed,
) -> list[list[dict[str, object]]]:
    store = made.data.open("headers")
    steps = loader(
        store, read_ahead(plan, store.prefetch, 4), num_micro_batches=num_micro_batches, device=CPU, finish=finish
    )
    return [[values_of(batch) for batch in batches] for batches in list(steps)]


def rows_of(made: Made, strategy: str, *, start: int = 0, num_steps: int = 12) -> list[np.ndarray]:
    planner = Planner(made.data.lengths, Layout(2, 2, 4), Strata(2, MAX_LENGTH), strategy=strategy)
    return list(islice(plan_steps(planner, seed=1, rank=3, start=start), num_steps))


# Chosen by name


def test_native_is_the_loader_of_the_harness() -> None:
    assert set(LOADERS) == {"native", "dali"}
    assert choose_loader("native", CPU) is native


def test_dali_without_the_package_is_one_refusal_that_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "benchmarks.bert.data.dali_loader", raising=False)
    monkeypatch.setitem(sys.modules, "nvidia.dali", None)
    monkeypatch.delattr("benchmarks.bert.data.dali_loader", raising=False)
    with pytest.raises(ConfigError) as refused:
        choose_loader("dali", CPU)
    [line] = str(refused.value).splitlines()
    assert line.startswith("LOADER=dali needs NVIDIA DALI")
    assert f"pip install -r {REQUIREMENTS.name}" in line
    assert "set LOADER=native" in line
    assert DALI_PACKAGE in REQUIREMENTS.read_text("utf-8")


def test_a_run_may_go_on_from_its_checkpoint_with_another_loader() -> None:
    default, other = load({}), load({"LOADER": "dali"})
    assert default.loader == "native"
    assert other.of_steps() == default.of_steps()
    assert other.common() != default.common()
    assert load({"LOADING": "random"}).of_steps() != default.of_steps()


def test_only_the_choice_of_dali_imports_it() -> None:
    """The refusal above could not be reached otherwise."""
    readers = [
        path.name
        for path in (REQUIREMENTS.parent / "benchmarks").rglob("*.py")
        if "from nvidia" in (text := path.read_text("utf-8")) or "import nvidia" in text
    ]
    assert readers == ["dali_loader.py"]


@needs_dali
def test_dali_is_chosen_where_it_is_there_and_leaves_nothing_running(dali: MicroBatches) -> None:
    assert dali is not native
    before = threads()
    assert choose_loader("dali", CPU) is dali
    gc.collect()
    assert comes_true(lambda: threads() == before)


@needs_dali
def test_dali_is_warmed_up_by_the_choice_on_the_device_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[torch.device] = []
    monkeypatch.setattr("benchmarks.bert.data.dali_loader.warm_up", seen.append)
    choose_loader("dali", CPU)
    assert seen == [CPU]


@needs_dali
@pytest.mark.parametrize(
    ("device", "device_id", "tensors_on"), [(CPU, None, "cpu"), (torch.device("cuda", 3), 3, "gpu")], ids=str
)
def test_the_pipeline_is_of_the_ranks_device_and_lengths_stay_on_the_host(
    device: torch.device, device_id: int | None, tensors_on: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Laid out only, so that it needs no GPU."""
    from nvidia.dali import Pipeline

    from benchmarks.bert.data import dali_loader

    outputs: list[str] = []
    monkeypatch.setattr(Pipeline, "set_outputs", lambda self, *nodes: outputs.extend(node.device for node in nodes))
    pipeline = dali_loader._pipeline(iter(()), 4, device)
    assert (pipeline.device_id, pipeline.max_batch_size) == (device_id, 4)
    assert outputs == [tensors_on] * 9 + ["cpu"] * 2


# The same stream


@needs_dali
@pytest.mark.parametrize("num_micro_batches", [1, 2, 3])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_batches_are_equal_bit_for_bit(made: Made, dali: MicroBatches, strategy: str, num_micro_batches: int) -> None:
    rows = rows_of(made, strategy)
    expected = stream(native, made, rows, num_micro_batches=num_micro_batches)
    assert stream(dali, made, rows, num_micro_batches=num_micro_batches) == expected
    assert stream(dali, made, rows[::-1], num_micro_batches=num_micro_batches) != expected


@needs_dali
def test_a_plan_gone_on_with_in_the_middle_is_the_rest_of_it(made: Made, dali: MicroBatches) -> None:
    whole = stream(dali, made, rows_of(made, "stratified_presort"))
    assert stream(dali, made, rows_of(made, "stratified_presort", start=5, num_steps=7)) == whole[5:]
    assert whole[5:] != whole[:7]


@needs_dali
def test_rows_of_fewer_samples_make_fewer_micro_batches(made: Made, dali: MicroBatches) -> None:
    rows = [np.array([4, 2, 0]), np.array([1]), np.array([6, 5, 3, 7, 8]), np.array([9, 10])]
    steps = stream(dali, made, rows, num_micro_batches=3)
    assert [len(batches) for batches in steps] == [3, 1, 3, 2]
    assert steps == stream(native, made, rows, num_micro_batches=3)


@needs_dali
def test_what_finishes_a_batch_does_so_here_too(made: Made, dali: MicroBatches) -> None:
    rows = rows_of(made, "global_presort")
    finish = partial(pad_tail, multiple=64)
    padded = stream(dali, made, rows, finish=finish)
    assert padded == stream(native, made, rows, finish=finish)
    assert padded != stream(dali, made, rows)


@needs_dali
def test_a_plan_of_no_steps_gives_no_batches(made: Made, dali: MicroBatches) -> None:
    assert stream(dali, made, []) == []


@needs_dali
def test_batches_stay_what_they_are_while_and_after_later_ones_are_read(made: Made, dali: MicroBatches) -> None:
    store = made.data.open("headers")
    rows = rows_of(made, "random")
    steps = dali(store, rows, num_micro_batches=2, device=CPU)
    kept, seen = [], []
    for batches in steps:
        kept.append(batches)
        seen.append([values_of(batch) for batch in batches])
    del steps
    gc.collect()
    assert [[values_of(batch) for batch in batches] for batches in kept] == seen


# Errors and ends


@needs_dali
def test_a_shard_that_vanishes_is_refused_at_the_step_that_touches_it_first(tmp_path: Path, dali: MicroBatches) -> None:
    made = make_folder(tmp_path, COUNTS)
    store = made.data.open("content")
    plan = [np.array([0]), np.array([1]), np.array([30]), np.array([81]), np.array([2])]
    steps = dali(store, read_ahead(plan, store.prefetch, 1), num_micro_batches=1, device=CPU)
    made.path(2).unlink()
    assert len(list(islice(steps, 3))) == 3
    with pytest.raises(ShardError, match=r"2\.hdf5: no such shard"):
        next(steps)
    assert own_threads() == []


@needs_dali
@pytest.mark.parametrize("broken", [0, 1, 5])
@pytest.mark.parametrize("where", ["prefetch", "pack", "plan", "finish"])
@pytest.mark.parametrize(
    ("error", "seen_as", "says"),
    [
        (OSError("no descriptors"), OSError, "no descriptors"),
        (SystemExit("killed"), LoaderError, "the reading thread was ended by SystemExit: killed"),
    ],
    ids=["error", "exit"],
)
def test_what_ends_the_reading_is_raised_at_its_step(
    made: Made,
    dali: MicroBatches,
    error: BaseException,
    seen_as: type[Exception],
    says: str,
    where: str,
    broken: int,
) -> None:
    good, raised = good_steps(dali, made, where, broken, error)
    assert isinstance(raised, seen_as)
    assert says in str(raised)
    assert good == good_steps(native, made, where, broken, error)[0]
    assert good == broken or where == "plan"  # which is gone through ahead
    assert own_threads() == []


def good_steps(
    loader: MicroBatches, made: Made, where: str, broken: int, error: BaseException
) -> tuple[int, Exception | None]:
    """Steps that come before the error that is raised for one row, and the error that comes."""
    store = made.data.open("headers")
    packed: list[int] = []

    def raise_at(place: str, number: int) -> None:
        if (place, number) == (where, broken):
            raise error

    def plan() -> Iterator[np.ndarray]:
        for number in range(9):
            raise_at("plan", number)
            yield np.array([number])

    class Store:
        def pack(self, row: np.ndarray) -> PackedBatch:
            raise_at("pack", int(row[0]))
            packed.append(int(row[0]))
            return store.pack(row)

    def finish(batch: PackedBatch) -> PackedBatch:
        raise_at("finish", packed[-1])
        return batch

    rows = read_ahead(plan(), lambda row: raise_at("prefetch", int(row[0])), 2)
    good = 0
    try:
        for _ in loader(Store(), rows, num_micro_batches=1, device=CPU, finish=finish):
            good += 1
    except Exception as raised:
        return good, raised
    return good, None


@needs_dali
@pytest.mark.parametrize("num_taken", [0, 1, 7])
def test_closing_early_ends_all_threads(made: Made, dali: MicroBatches, num_taken: int) -> None:
    gc.collect()
    before = threads()
    store = made.data.open("headers")
    endless = (np.array([0, 1]) for _ in iter(int, 1))
    steps = dali(store, read_ahead(endless, store.prefetch), num_micro_batches=1, device=CPU)
    taken = list(islice(steps, num_taken))
    assert (threads() > before) == (num_taken > 0)
    steps.close()  # type: ignore[attr-defined]
    assert own_threads() == []
    assert comes_true(lambda: threads() == before)
    assert len(taken) == num_taken


def own_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith(("loader", "read-ahead"))]


def threads() -> int:
    """Of this process, DALI's and all others."""
    return len(os.listdir("/proc/self/task"))


def comes_true(fact: Callable[[], bool]) -> bool:
    """A thread that was waited for may be listed by the kernel for a moment more."""
    deadline = time.monotonic() + 30
    while not fact() and time.monotonic() < deadline:
        time.sleep(0.01)
    return fact()
