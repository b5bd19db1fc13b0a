"""Packing loses and invents nothing, and the loader hands every rank its samples in order, by one thread that ends."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from benchmarks.bert.data.batch import PackedBatch, PackLayout, pack, synthetic_batch
from benchmarks.bert.data.loader import micro_batches
from benchmarks.bert.data.manifest import Manifest
from benchmarks.bert.data.shards import SampleArrays, ShardError, write_shard
from benchmarks.bert.data.store import SampleStore

CPU = torch.device("cpu")
VOCABULARY = "5a" * 32
WORDS = st.integers(0, 65535)

few = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])


class Sample(NamedTuple):
    tokens: list[int]
    boundary: int
    masked: list[int]
    labels: list[int]
    nsp: int


@st.composite
def samples(draw: st.DrawFn) -> Sample:
    tokens = draw(st.lists(WORDS, min_size=1, max_size=12))
    masked = sorted(draw(st.sets(st.integers(0, len(tokens) - 1))))
    labels = draw(st.lists(WORDS, min_size=len(masked), max_size=len(masked)))
    return Sample(tokens, draw(st.integers(0, len(tokens))), masked, labels, draw(st.integers(0, 1)))


def to_arrays(rows: Sequence[Sample]) -> SampleArrays:
    def flat(lists: list[list[int]]) -> np.ndarray:
        return np.array([x for one in lists for x in one], np.uint16)

    def offsets(lists: list[list[int]]) -> np.ndarray:
        return np.cumsum([0, *map(len, lists)])

    tokens, masked = [row.tokens for row in rows], [row.masked for row in rows]
    return SampleArrays(
        tokens=flat(tokens),
        token_offsets=offsets(tokens),
        boundary=np.array([row.boundary for row in rows], np.uint16),
        mlm_positions=flat(masked),
        mlm_ids=flat([row.labels for row in rows]),
        mlm_offsets=offsets(masked),
        nsp=np.array([row.nsp for row in rows], np.uint8),
    )


def numbered(count: int) -> list[Sample]:
    """Samples of 3 to 7 tokens that all are the sample's own number, so that a pack says who is in it."""
    return [Sample([n] * (3 + n % 5), 2, [n % 3], [n], n % 2) for n in range(count)]


def unpack(batch: PackedBatch) -> list[Sample]:
    """The samples of a pack, read back from its tensors alone."""
    found = []
    ends = batch.layout.cu_lengths.tolist()
    for start, end, nsp in zip(ends, ends[1:], batch.nsp_B.tolist(), strict=False):
        masked_M = batch.read_Q[batch.masked_M]
        inside = (masked_M >= start) & (masked_M < end)
        found.append(
            Sample(
                batch.tokens_T[start:end].tolist(),
                int((batch.segments_T[start:end] == 0).sum()),
                (masked_M[inside] - start).tolist(),
                batch.labels_M[inside].tolist(),
                nsp,
            )
        )
    return found


def numbers_in(batch: PackedBatch) -> list[int]:
    return [sample.tokens[0] for sample in unpack(batch)]


def memory_store(count: int, seen: Callable[[Sequence[int]], None] = lambda _: None) -> SimpleNamespace:
    """What `micro_batches` needs of a store, in memory; `seen` is told what is packed."""
    arrays = to_arrays(numbered(count))

    def pack_numbers(numbers: Sequence[int]) -> PackedBatch:
        seen(numbers)
        return pack([(arrays, int(number)) for number in numbers])

    return SimpleNamespace(pack=pack_numbers)


def disk_store(folder: Path, shards: list[list[Sample]], told: list[int] | None = None) -> SampleStore:
    """`told` are the lengths that the folder's index claims, in place of the true ones."""
    written = []
    for i, rows in enumerate(shards):
        checksum = write_shard(folder / f"{i}.h5", to_arrays(rows), vocabulary_sha256=VOCABULARY, recipe="")
        written.append((f"{i}.h5", len(rows), checksum))
    lengths = [len(row.tokens) for rows in shards for row in rows]
    manifest = Manifest(len(lengths), sum(lengths), 16, 5, VOCABULARY, "", "", tuple(written))
    return SampleStore(folder, manifest, np.array(told or lengths, np.uint16))


def loader_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("loader")]


@few
@given(st.lists(samples(), min_size=1, max_size=6))
@example([Sample([1], 0, [], [], 0)])
@example([Sample([7, 7], 2, [0, 1], [0, 65535], 1), Sample([9], 1, [0], [3], 0)])
def test_a_pack_holds_its_samples_and_nothing_else(rows: list[Sample]) -> None:
    arrays = to_arrays(rows)
    batch = pack([(arrays, i) for i in range(len(rows))])
    assert unpack(batch) == rows
    assert len(batch.tokens_T) == len(batch.positions_T) == len(batch.segments_T) == sum(len(r.tokens) for r in rows)
    assert len(batch.masked_M) == len(batch.labels_M) == sum(len(row.masked) for row in rows)


@few
@given(st.lists(samples(), min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_samples_come_from_several_arrays_in_the_order_given(rows: list[Sample], shuffler: Random) -> None:
    parts = [(to_arrays(rows), i) for i in range(len(rows))] + [(to_arrays([row]), 0) for row in rows]
    expected = rows + rows
    order = list(range(len(parts)))
    shuffler.shuffle(order)
    assert unpack(pack([parts[i] for i in order])) == [expected[i] for i in order]


@few
@given(st.lists(samples(), min_size=1, max_size=6))
def test_positions_restart_and_segments_change_once_in_every_sequence(rows: list[Sample]) -> None:
    batch = pack([(to_arrays(rows), i) for i in range(len(rows))])
    for positions, segments, row in zip(
        batch.positions_T.split(batch.layout.lengths), batch.segments_T.split(batch.layout.lengths), rows, strict=True
    ):
        assert positions.tolist() == list(range(len(row.tokens)))
        assert segments.tolist() == [0] * row.boundary + [1] * (len(row.tokens) - row.boundary)


def test_the_layout_says_the_lengths_on_the_host_and_where_sequences_end_on_the_device() -> None:
    batch = pack([(to_arrays(numbered(3)), i) for i in (2, 0, 1)])
    assert batch.layout.lengths == (5, 3, 4)
    assert all(type(length) is int for length in batch.layout.lengths)
    assert batch.layout.cu_lengths.tolist() == [0, 5, 8, 12]
    assert batch.layout.cu_lengths.dtype == torch.int32


def test_what_is_read_of_each_sequence_is_its_first_token_and_then_its_masked_ones() -> None:
    batch = pack([(to_arrays(numbered(3)), i) for i in (2, 0, 1)])  # of 5, 3 and 4 tokens, masked at 2, 0 and 1
    assert batch.read_Q.tolist() == [0, 2, 5, 5, 8, 9]
    assert batch.read_layout.lengths == (2, 2, 2)
    assert batch.read_layout.cu_lengths.tolist() == [0, 2, 4, 6]
    assert batch.masked_M.tolist() == [1, 3, 5]


def test_all_other_tensors_are_int64_and_survive_a_move() -> None:
    batch = pack([(to_arrays(numbered(3)), i) for i in range(3)])
    moved = batch.to(CPU)
    for name, tensor in vars(batch).items():
        if not isinstance(tensor, PackLayout):
            assert tensor.dtype == torch.int64, name
            assert torch.equal(tensor, getattr(moved, name)), name
    assert moved.layout.lengths == batch.layout.lengths
    assert torch.equal(moved.layout.cu_lengths, batch.layout.cu_lengths)


def test_a_synthetic_batch_is_a_valid_pack() -> None:
    batch = synthetic_batch(num_sequences=3, length=8, num_vocabulary=5, num_masked=2)
    rows = unpack(batch)
    assert [len(row.tokens) for row in rows] == [8, 8, 8]
    assert [row.masked for row in rows] == [[1, 2]] * 3
    assert [row.nsp for row in rows] == [0, 1, 0]
    assert max(*batch.tokens_T.tolist(), *batch.labels_M.tolist()) < 5
    again = pack([(to_arrays(rows), i) for i in range(3)])
    for name in ("tokens_T", "segments_T", "positions_T", "read_Q", "masked_M", "labels_M", "nsp_B"):
        assert torch.equal(getattr(batch, name), getattr(again, name)), name
        assert getattr(batch, name).dtype == torch.int64, name
    assert batch.layout.lengths == again.layout.lengths
    assert torch.equal(batch.layout.cu_lengths, again.layout.cu_lengths)


@pytest.mark.parametrize("told", [[3, 4, 5, 6, 8], [4, 3, 5, 6, 7]])
def test_lengths_that_are_not_the_shards_are_refused(tmp_path: Path, told: list[int]) -> None:
    rows = numbered(5)
    disk_store(tmp_path, [rows[:2], rows[2:]], told=[3, 4, 5, 6, 7]).pack([0, 4])
    with pytest.raises(ShardError, match="number or lengths"):
        disk_store(tmp_path, [rows[:2], rows[2:]], told=told).pack([0, len(told) - 1])


def test_a_store_finds_samples_across_shard_borders_and_empty_shards(tmp_path: Path) -> None:
    rows = numbered(9)
    store = disk_store(tmp_path, [rows[:3], [], rows[3:4], rows[4:]])
    order = [8, 0, 2, 3, 4, 2]
    assert unpack(store.pack(order)) == [rows[n] for n in order]
    assert unpack(store.pack(np.arange(9))) == rows


@pytest.mark.parametrize("number", [-1, 9])
def test_a_sample_number_that_does_not_exist_is_an_error(tmp_path: Path, number: int) -> None:
    store = disk_store(tmp_path, [numbered(9)])
    with pytest.raises((IndexError, ValueError)):
        store.pack([0, number])


@few
@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 3), st.integers(1, 5))
def test_every_rank_gets_its_row_of_the_plan_in_micro_batches(
    num_ranks: int, num_micro_batches: int, per_micro_batch: int, num_steps: int
) -> None:
    shape = (num_steps, num_ranks, num_micro_batches * per_micro_batch)
    plan = np.random.default_rng(0).permutation(np.prod(shape)).reshape(shape)
    store = memory_store(plan.size)
    for rank in range(num_ranks):
        steps = list(micro_batches(store, plan[:, rank], num_micro_batches=num_micro_batches, device=CPU))
        assert len(steps) == num_steps
        for batches, row in zip(steps, plan[:, rank], strict=True):
            assert [len(numbers_in(batch)) for batch in batches] == [per_micro_batch] * num_micro_batches
            assert [numbers_in(batch) for batch in batches] == [
                row[first::num_micro_batches].tolist() for first in range(num_micro_batches)
            ]
            assert sorted(n for batch in batches for n in numbers_in(batch)) == sorted(row)


def test_micro_batches_of_presorted_samples_are_level() -> None:
    """Samples come longest first; cut in blocks, the first micro-batch would hold all the long ones."""
    rows = [Sample([1] * length, 1, [0], [1], 0) for length in range(40, 0, -1)]
    arrays = to_arrays(rows)
    store = SimpleNamespace(pack=lambda numbers: pack([(arrays, int(n)) for n in numbers]))
    plan = np.arange(40).reshape(1, 40)
    [batches] = micro_batches(store, plan, num_micro_batches=4, device=CPU)
    tokens = [len(batch.tokens_T) for batch in batches]
    assert max(tokens) - min(tokens) <= 40


def test_a_row_shorter_than_the_number_of_micro_batches_makes_one_of_each_sample() -> None:
    plan = [np.array([4, 2, 0]), np.array([1]), np.array([6, 5, 3])]
    steps = list(micro_batches(memory_store(7), plan, num_micro_batches=2, device=CPU))
    assert [[numbers_in(batch) for batch in batches] for batches in steps] == [[[4, 0], [2]], [[1]], [[6, 3], [5]]]


def test_no_more_than_two_steps_are_prepared_ahead() -> None:
    packed: list[int] = []
    store = memory_store(12, seen=lambda numbers: packed.append(int(numbers[0])))
    steps = micro_batches(store, np.arange(12).reshape(12, 1), num_micro_batches=1, device=CPU)
    assert packed == []
    for step in range(12):
        assert numbers_in(next(steps)[0]) == [step]
        assert packed == list(range(len(packed)))
        assert step < len(packed) <= step + 3


@pytest.mark.parametrize("broken", [0, 1, 2, 5])
def test_an_error_of_the_reading_thread_surfaces_at_its_step(broken: int) -> None:
    def fail(numbers: Sequence[int]) -> None:
        if broken in numbers:
            raise ShardError(f"sample {broken} cannot be read")

    steps = micro_batches(memory_store(8, seen=fail), np.arange(8).reshape(8, 1), num_micro_batches=1, device=CPU)
    for step in range(broken):
        assert numbers_in(next(steps)[0]) == [step]
    with pytest.raises(ShardError, match=f"sample {broken} cannot be read"):
        next(steps)
    assert loader_threads() == []


def test_closing_the_loader_early_stops_its_thread_and_packs_no_more() -> None:
    packed: list[int] = []
    store = memory_store(100, seen=lambda numbers: packed.append(int(numbers[0])))

    def endless() -> Iterator[np.ndarray]:
        while True:
            yield np.zeros(1, np.int64)

    steps = micro_batches(store, endless(), num_micro_batches=1, device=CPU)
    next(steps)
    assert len(loader_threads()) == 1
    steps.close()
    assert loader_threads() == []
    assert len(packed) <= 3


def test_a_plan_of_no_steps_gives_no_batches() -> None:
    assert list(micro_batches(memory_store(1), [], num_micro_batches=1, device=CPU)) == []
    assert loader_threads() == []
