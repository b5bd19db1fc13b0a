"""A sharded optimizer's weights and moments are, bit for bit, a replicated one's; one may go on from the other."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from benchmarks.bert.checkpoint.store import (
    checkpoints_in,
    files_of_all,
    folder_of,
    read_manifest,
    share_file,
)
from benchmarks.bert.optim import sharded
from benchmarks.bert.optim.groups import decay_groups
from benchmarks.bert.optim.sharded import Sharded, deal, state_bytes
from benchmarks.bert.trainer import OPTIMIZERS, Trainer
from benchmarks.bert.warm_up import warm_up
from tests.support.checkpoints import alter_manifest, evaluations, reseal, said, statuses, trial
from tests.support.ranks import run_ranks
from tests.support.records import read_records
from tests.support.tiny import make_tiny_data
from tests.support.trainers import CASES, Case, make_case, micro_batches
from tests.unit.test_no_synchronisation import Watch, step_of, warm_trainer

NUM_STEPS = 5
PACKED_BELOW = 1000  # elements: of the tiny model's tensors some are sent whole

ON_FOUR: list[Case] = [
    ("adam", "bucket_before", "fp16", 2),
    ("lamb", "global_before", "fp32", 2),
    ("lamb", "global_after", "fp16", 1),
    ("lans", "none", "fp32", 1),
]


# --- who owns what


@given(st.lists(st.integers(1, 1000), max_size=40), st.integers(1, 12))
def test_no_rank_owns_more_than_a_fair_share_and_one_tensor(sizes: list[int], num_ranks: int) -> None:
    owners = deal(sizes, num_ranks)
    assert len(owners) == len(sizes)
    loads = [sum(size for size, owner in zip(sizes, owners, strict=True) if owner == rank) for rank in range(num_ranks)]
    assert max(loads) <= sum(sizes) / num_ranks + max(sizes, default=0)
    assert sum(loads) == sum(sizes)


def test_the_largest_comes_first_and_of_equals_the_first_rank() -> None:
    assert deal([1, 5, 3, 3, 2], 2) == [1, 0, 1, 1, 0]
    assert deal([2, 2, 2], 4) == [0, 1, 2]


# --- the same bits


def trained(rank: int, num_ranks: int, case: Case, **changed: Any) -> tuple[Trainer, list[dict[str, Tensor]]]:
    """The trainer after some steps, and copies of all its state after each of them."""
    of_these: dict[str, Any] = {"learning_rate": 1e-2, "loss_scale": 2.0**18}  # in fp16 the first steps overflow
    trainer, config = make_case(rank, num_ranks, case, **of_these, **changed)
    warm_up(trainer, config)
    copies = []
    for step in range(1, NUM_STEPS + 1):
        trainer.step(step, micro_batches(rank, step, case[3]))
        live = trainer.tensors() | trainer.own_tensors()
        copies.append({name: tensor.clone() for name, tensor in live.items()})
    return trainer, copies


def both(rank: int, cases: list[Case], fault: str | None = None) -> dict[Case, dict[str, Any]]:
    """By case: what of the sharded trainer's differs from the replicated one's, and what it holds."""
    results, num_ranks = {}, dist.get_world_size()
    for case in cases:
        _, expected = trained(rank, num_ranks, case)
        with mock.patch.object(sharded, "_PACKED_BELOW", PACKED_BELOW), FAULTS[fault]():
            trainer, found = trained(rank, num_ranks, case, shard_optimizer=True)
        assert isinstance(trainer.optimizer, Sharded)
        results[case] = {
            "differing": [
                name
                for ours, theirs in zip(found, expected, strict=True)
                for name in ours
                if not torch.equal(ours[name], theirs[name])
            ],
            "own": sorted(trainer.own_tensors()),
            "lacking": sorted(expected[-1].keys() - found[-1].keys()),
            "skipped": int(trainer.skipped_steps),
            "moved": sum(
                not torch.equal(found[0][name], found[-1][name]) for name in found[0] if name.startswith("model/")
            ),
            "bytes": state_bytes(trainer.optimizer),
        }
    return results


@pytest.mark.parametrize(("num_ranks", "cases"), [(2, CASES), (4, ON_FOUR), (1, ON_FOUR[:2])], ids=["2", "4", "1"])
def test_weights_and_moments_are_bit_for_bit_those_of_a_replicated_optimizer(num_ranks: int, cases: list[Case]) -> None:
    of_ranks = run_ranks(both, num_ranks, cases, timeout_s=240.0)
    skipped = set()
    for case in cases:
        results = [of_rank[case] for of_rank in of_ranks]
        assert [result["differing"] for result in results] == [[]] * num_ranks, case
        owned = [name for result in results for name in result["own"]]
        assert len(set(owned)) == len(owned), case  # each moment is on one rank
        for result in results:
            assert set(result["own"]) | set(result["lacking"]) == set(owned), case
            assert all(name.startswith("optimizer/") for name in result["lacking"])
            assert result["moved"] > 15, case
        assert sum(result["bytes"][0] for result in results) == results[0]["bytes"][1]
        assert max(result["bytes"][0] for result in results) < 1.1 * results[0]["bytes"][1] / num_ranks
        skipped |= {(case[2], result["skipped"]) for result in results}
    assert {number for precision, number in skipped if precision == "fp32"} == {0}
    assert all(0 < number < NUM_STEPS for precision, number in skipped if precision == "fp16")


# --- what the comparison must see


class _Sent:
    def wait(self) -> None: ...


@contextmanager
def nothing_sent() -> Iterator[None]:
    with mock.patch.object(sharded.dist, "broadcast", return_value=_Sent()):
        yield


@contextmanager
def only_large_ones_sent() -> Iterator[None]:
    with mock.patch.object(sharded.torch, "_foreach_copy_"):
        yield


@contextmanager
def gradients_of_others_kept() -> Iterator[None]:
    def zero_grad(optimizer: Sharded) -> None:
        optimizer._own.zero_grad()  # type: ignore[attr-defined]

    with mock.patch.object(Sharded, "zero_grad", zero_grad):
        yield


@contextmanager
def overflow_not_seen() -> Iterator[None]:
    real = Sharded.step_unless
    with mock.patch.object(Sharded, "step_unless", lambda optimizer, _: real(optimizer, torch.zeros(()))):
        yield


@contextmanager
def moments_not_put_back() -> Iterator[None]:
    """By the warm-up: from then on it sees them."""
    real, seen = Trainer.own_tensors, []

    def own_tensors(trainer: Trainer) -> dict[str, Tensor]:
        seen.append(trainer)
        return real(trainer) if len(seen) > 2 else {}

    with mock.patch.object(Trainer, "own_tensors", own_tensors):
        yield


FAULTS: dict[str | None, Callable[[], Any]] = {
    None: nullcontext,
    "nothing sent": nothing_sent,
    "only large ones sent": only_large_ones_sent,
    "gradients of others kept": gradients_of_others_kept,
    "overflow not seen": overflow_not_seen,
    "moments not put back": moments_not_put_back,
}


@pytest.mark.parametrize("fault", [name for name in FAULTS if name])
def test_a_fault_is_seen_in_the_bits(fault: str) -> None:
    """The must-fail twin; with an overflow the warm-up leaves no moments, without one no step is left out."""
    cases: list[Case] = [("lamb", "global_after", precision, 2) for precision in ("fp32", "fp16")]
    assert any(of_rank[case]["differing"] for of_rank in run_ranks(both, 2, cases, fault) for case in cases)


# --- few parameters, and none


def few(rank: int, num_matrices: int) -> dict[str, Any]:
    """Four steps of a model of as many matrices and a bias, by each optimizer, replicated and sharded."""
    results = {}
    for name, kind in OPTIMIZERS.items():
        make_optimizer = partial(kind, learning_rate=0.1, betas=(0.9, 0.99), epsilon=1e-6)
        ends = []
        for is_sharded in (False, True):
            torch.manual_seed(1)
            model = nn.Sequential(*(nn.Linear(3, 3, bias=index == 0) for index in range(num_matrices)))
            groups = decay_groups(model, 0.01)
            optimizer = Sharded(groups, make_optimizer) if is_sharded else make_optimizer(groups)
            for _ in range(4):
                model(torch.ones(3)).sum().backward()
                optimizer.step_unless(torch.zeros(()))
                optimizer.zero_grad()
            ends.append(list(model.parameters()))
        results[name] = all(torch.equal(*pair) for pair in zip(*ends, strict=True)), len(optimizer.state)
    return results


@pytest.mark.parametrize(("num_matrices", "of_ranks"), [(1, [1, 1, 0]), (2, [1, 1, 1]), (3, [2, 1, 1])])
def test_fewer_parameters_than_ranks_leave_the_last_ranks_without(num_matrices: int, of_ranks: list[int]) -> None:
    results = run_ranks(few, 3, num_matrices)
    for name in OPTIMIZERS:
        assert [result[name] for result in results] == [(True, count) for count in of_ranks]


def watched(rank: int) -> dict[str, tuple[list[str], bool]]:
    results = {}
    for name in OPTIMIZERS:
        step = step_of(warm_trainer(optimizer=name, shard_optimizer=True), 1)
        with Watch() as watch:
            step()
        results[name] = watch.seen, watch.ran("c10d::broadcast_")
    return results


def test_a_step_asks_for_no_value() -> None:
    assert run_ranks(watched, 1)[0] == {name: ([], True) for name in OPTIMIZERS}


# --- checkpoints

LAMB = {"OPTIMIZER": "lamb", "LEARNING_RATE": "3e-2"}
SHARDED = {"SHARD_OPTIMIZER": "1"}
CUT, LAST = 8, 12  # steps


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def wholes(data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    """The folders of a replicated and of a sharded run that were not cut."""
    folders = {}
    for is_sharded in (False, True):
        folders[is_sharded] = tmp_path_factory.mktemp("whole")
        ranks = trial(data, folders[is_sharded], **LAMB, **(SHARDED if is_sharded else {}))
        assert statuses(ranks) == [1, 1]
    return folders


def cut(whole: Path, folder: Path) -> Path:
    """A folder with the checkpoint of step CUT alone."""
    kept = folder_of(whole / "checkpoints", CUT)
    shutil.copytree(kept, folder_of(folder / "checkpoints", CUT))
    return folder_of(folder / "checkpoints", CUT)


def state_at(folder: Path, step: int) -> dict[str, Tensor]:
    checkpoint = folder_of(folder / "checkpoints", step)
    files = files_of_all(read_manifest(checkpoint))
    return {name: tensor for file in files for name, tensor in load_file(checkpoint / file).items()}


def differing(here: dict[str, Tensor], there: dict[str, Tensor]) -> list[str]:
    assert here.keys() == there.keys()
    return [name for name in here if not torch.equal(here[name], there[name])]


def resumed(data: Path, folder: Path, num_ranks: int, is_sharded: bool, **changed: str) -> list[tuple[int, str, Any]]:
    changed |= LAMB | {"RESUME": "yes", "BATCH_SIZE": str(64 // num_ranks)} | (SHARDED if is_sharded else {})
    if num_ranks != 2:
        changed["RESUME_WORLD"] = "any"
    return trial(data, folder, num_ranks=num_ranks, **changed)


def test_each_moment_is_in_one_rank_s_file_alone(wholes: dict[bool, Path]) -> None:
    checkpoint = folder_of(wholes[True] / "checkpoints", LAST)
    shares = [load_file(checkpoint / share_file(rank)) for rank in range(2)]
    assert files_of_all(read_manifest(checkpoint)) == ["replicated.safetensors", share_file(0), share_file(1)]
    assert all(share and not share.keys() & load_file(checkpoint / "replicated.safetensors").keys() for share in shares)
    assert not shares[0].keys() & shares[1].keys()
    assert differing(state_at(wholes[True], LAST), state_at(wholes[False], LAST)) == []
    assert evaluations(wholes[True] / "result.txt") == evaluations(wholes[False] / "result.txt")
    assert files_of_all(read_manifest(folder_of(wholes[False] / "checkpoints", LAST))) == ["replicated.safetensors"]


@pytest.mark.parametrize(
    ("then", "now"),
    [(True, True), (True, False), (False, True)],
    ids=["sharded, sharded", "sharded, replicated", "replicated, sharded"],
)
def test_a_resumed_run_ends_bit_for_bit_like_one_that_was_not_cut(
    data: Path, wholes: dict[bool, Path], tmp_path: Path, then: bool, now: bool
) -> None:
    cut(wholes[then], tmp_path)
    ranks = resumed(data, tmp_path, 2, now)
    assert statuses(ranks) == [1, 1]
    assert not any("bit for bit" in line for line in said(ranks))
    for step in (CUT + 2, LAST):
        assert differing(state_at(tmp_path, step), state_at(wholes[False], step)) == []
    assert evaluations(tmp_path / "result.txt") == evaluations(wholes[False] / "result.txt")[-2:]


@pytest.mark.parametrize("num_ranks", [1, 4])
def test_with_other_ranks_it_ends_like_a_replicated_run_that_went_on_with_them(
    data: Path, wholes: dict[bool, Path], tmp_path: Path, num_ranks: int
) -> None:
    for is_sharded in (False, True):
        cut(wholes[is_sharded], tmp_path / str(is_sharded))
        ranks = resumed(data, tmp_path / str(is_sharded), num_ranks, is_sharded)
        assert statuses(ranks) == [1] * num_ranks, said(ranks)
    ends = [state_at(tmp_path / str(is_sharded), LAST) for is_sharded in (False, True)]
    assert differing(*ends) == []
    assert differing(ends[0], state_at(wholes[False], CUT)) != []


def zeroed_moment(folder: Path) -> None:
    tensors = load_file(folder / share_file(1))
    name = next(name for name in sorted(tensors) if name.endswith("/m"))
    tensors[name] = torch.zeros_like(tensors[name])
    save_file(tensors, folder / share_file(1))
    reseal(folder)


def test_with_one_moment_of_a_share_changed_it_ends_otherwise(
    data: Path, wholes: dict[bool, Path], tmp_path: Path
) -> None:
    """The must-fail twin."""
    zeroed_moment(cut(wholes[True], tmp_path))
    assert statuses(resumed(data, tmp_path, 2, is_sharded=True)) == [1, 1]
    assert differing(state_at(tmp_path, LAST), state_at(wholes[False], LAST)) != []


def altered(folder: Path) -> None:
    path = folder / share_file(1)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def missing(folder: Path) -> None:
    (folder / share_file(1)).unlink()


def not_named(folder: Path) -> None:
    alter_manifest(folder, lambda fields: fields["files"].pop(share_file(1)))


REFUSED = {
    "altered": (altered, "share_00001.safetensors: its sha256 is not the one written: damaged"),
    "missing": (missing, "share_00001.safetensors: cannot read it (No such file or directory)"),
    "not named": (not_named, "step_00000008: lacks optimizer/"),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("num_ranks", [2, 1])
def test_a_share_that_is_not_whole_is_refused(
    data: Path, wholes: dict[bool, Path], tmp_path: Path, name: str, num_ranks: int
) -> None:
    spoil, reason = REFUSED[name]
    spoil(cut(wholes[True], tmp_path))
    # A rank that was refused stays here, so another one may wait so long for it.
    ranks = resumed(data, tmp_path, num_ranks, is_sharded=True, COLLECTIVE_TIMEOUT_S="5")
    assert statuses(ranks) == [2] * num_ranks
    assert any(reason in line for line in said(ranks)), said(ranks)
    assert [path.name for path in checkpoints_in(tmp_path / "checkpoints")] == ["step_00000008"]


def test_the_bytes_of_the_state_are_said_and_logged(data: Path, wholes: dict[bool, Path], tmp_path: Path) -> None:
    def bytes_in(folder: Path) -> tuple[int, int]:
        values = [record.value for record in read_records(folder / "result.txt") if record.key == "tracked_stats"]
        return values[0]["optimizer_state_bytes"], values[0]["optimizer_state_bytes_of_all"]

    replicated, spread = bytes_in(wholes[False]), bytes_in(wholes[True])
    assert replicated[0] == replicated[1] == spread[1]
    assert 0.4 < spread[0] / spread[1] < 0.6
    lines = said(trial(data, tmp_path, MAX_STEPS="2", CHECKPOINT_INTERVAL_STEPS="0", **LAMB, **SHARDED))
    mebibytes = [f"{number / 2**20:.1f}" for number in spread]
    assert any(f"optimizer state {mebibytes[0]} MiB of {mebibytes[1]} on this rank" in line for line in lines)
