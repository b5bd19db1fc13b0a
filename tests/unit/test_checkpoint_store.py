"""A folder of checkpoints and what one holds: order, manifests, the lock, names given and taken, copies, what fits."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.bert.checkpoint import saver
from benchmarks.bert.checkpoint.resume import identity_of
from benchmarks.bert.checkpoint.state import check_fit, copy_to_host, read_tensors
from benchmarks.bert.checkpoint.store import (
    MANIFEST,
    REPLICATED,
    CheckpointError,
    Manifest,
    check_file,
    checkpoints_in,
    folder_of,
    lock,
    partial_of,
    publish,
    rank_file,
    read_manifest,
    remove,
    write_manifest,
)
from benchmarks.bert.config import Config
from benchmarks.bert.data.manifest import Manifest as DataManifest
from benchmarks.bert.files import sha256_of
from tests.support.checkpoints import Clock, ToyTrainer, alter_manifest, save_step, toy_saver

MANIFEST_OF_STEP_8 = Manifest(8, 7, (0.1, 1 / 3), {"LEARNING_RATE": "0.01", "threads": 1}, {"part": (3, "abc")})
CPU = torch.device("cpu")


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_the_newest_comes_first_by_number_also_beyond_eight_digits(tmp_path: Path) -> None:
    for step in (2, 99_999_999, 100_000_000, 10, 1_000_000_001):
        folder_of(tmp_path, step).mkdir()
    for other in (".lock", ".step_00000011.a.partial", ".step_00000012.deleting", "step_00000013.refused-a", "step_14"):
        (tmp_path / other).mkdir()
    found = [int(path.name.removeprefix("step_")) for path in checkpoints_in(tmp_path)]
    assert found == [1_000_000_001, 100_000_000, 99_999_999, 10, 2]
    by_name = sorted((path.name for path in checkpoints_in(tmp_path)), reverse=True)
    assert by_name[0] == "step_99999999"  # what an order by name would take


def test_a_folder_that_is_not_there_holds_none(tmp_path: Path) -> None:
    assert checkpoints_in(tmp_path / "none") == []


def test_a_manifest_comes_back_as_it_was(tmp_path: Path) -> None:
    write_manifest(tmp_path, MANIFEST_OF_STEP_8)
    assert read_manifest(tmp_path) == MANIFEST_OF_STEP_8
    alter_manifest(tmp_path, lambda fields: fields.update(accuracies=[0.1, 0.33333333]))
    assert read_manifest(tmp_path) != MANIFEST_OF_STEP_8


def valid(**changed: Any) -> str:
    fields = {"step": 8, "seed": 7, "accuracies": [], "identity": {}, "files": {}} | changed
    return json.dumps({name: value for name, value in fields.items() if value is not ...})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "null",
        "[1, 2]",
        '"text"',
        "\udcff",
        valid(step=...),
        valid(step=None),
        valid(step="eight"),
        valid(step=float("inf")),
        valid(seed=[]),
        valid(accuracies=None),
        valid(accuracies=["high"]),
        valid(identity=["LEARNING_RATE"]),
        valid(identity=7),
        valid(files=[]),
        valid(files={"part": 3}),
        valid(files={"part": [3]}),
        valid(unknown=1),
    ],
)
def test_any_other_manifest_is_damaged(tmp_path: Path, text: str) -> None:
    (tmp_path / MANIFEST).write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(CheckpointError, match=rf"^{tmp_path / MANIFEST}: damaged \("):
        read_manifest(tmp_path)


def test_the_same_manifest_unaltered_is_read_and_one_that_is_missing_was_not_finished(tmp_path: Path) -> None:
    (tmp_path / MANIFEST).write_text(valid())
    assert read_manifest(tmp_path) == Manifest(8, 7, (), {})
    (tmp_path / MANIFEST).unlink()
    with pytest.raises(CheckpointError, match=r"no manifest\.json, so it was not finished"):
        read_manifest(tmp_path)


def test_a_file_that_is_not_the_one_written_is_told(tmp_path: Path) -> None:
    part = tmp_path / "part"
    part.write_bytes(b"abc")
    manifest = Manifest(8, 7, (), {}, {"part": (3, sha256_of(part))})
    check_file(tmp_path, manifest, "part")
    part.write_bytes(b"ab")
    with pytest.raises(CheckpointError, match=r"part: 2 bytes, 3 were written: torn"):
        check_file(tmp_path, manifest, "part")
    part.write_bytes(b"abd")
    with pytest.raises(CheckpointError, match=r"part: its sha256 is not the one written: damaged"):
        check_file(tmp_path, manifest, "part")
    part.unlink()
    with pytest.raises(CheckpointError, match=r"part: cannot read it \(No such file or directory\)"):
        check_file(tmp_path, manifest, "part")
    with pytest.raises(CheckpointError, match=r"its manifest knows no rank_00002\.safetensors"):
        check_file(tmp_path, manifest, rank_file(2))


def test_one_at_a_time_holds_a_folder_and_what_the_last_one_left_half_written_goes(tmp_path: Path) -> None:
    directory = tmp_path / "new" / "folder"
    held = lock(directory)
    for left in (partial_of(directory, 4, "a"), directory / ".step_00000002.deleting", folder_of(directory, 3)):
        left.mkdir()
        (left / "part").touch()
    with pytest.raises(CheckpointError, match="another run keeps its checkpoints there; name another folder"):
        lock(directory)
    assert len(names(directory)) == 4  # nothing of the run that lives is touched
    os.close(held)
    lock(directory)
    assert names(directory) == [".lock", "step_00000003"]


@pytest.mark.parametrize("below", [".", "below/it"])
def test_a_folder_that_cannot_be_is_refused(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match=r"^CHECKPOINT_DIR=.*: cannot write there \("):
        lock(tmp_path / "file" / below)


def test_a_file_system_without_locks_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", refuse)
    with pytest.raises(CheckpointError, match="cannot lock it"):
        lock(tmp_path)


def test_publishing_gives_the_name_and_sets_aside_what_had_it(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, 8)
    for content in ("first", "second"):
        partial = partial_of(tmp_path, 8, content)
        partial.mkdir()
        (partial / "part").write_text(content)
        publish(partial, folder, content)
        assert not partial.exists()
        assert (folder / "part").read_text() == content
    assert names(tmp_path) == ["step_00000008", "step_00000008.refused-second"]
    assert (tmp_path / "step_00000008.refused-second" / "part").read_text() == "first"
    assert checkpoints_in(tmp_path) == [folder]


def test_removing_takes_the_folder_and_one_that_is_gone_is_fine(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, 8)
    folder.mkdir()
    (folder / "part").touch()
    for _ in range(2):
        remove(folder)
        assert names(tmp_path) == []


def test_a_removal_that_is_cut_leaves_no_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cut(path: Path) -> None:
        (path / "part").unlink()
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    folder = folder_of(tmp_path, 8)
    folder.mkdir()
    (folder / "part").touch()
    monkeypatch.setattr("shutil.rmtree", cut)
    with pytest.raises(OSError, match="Input/output error"):
        remove(folder)
    assert checkpoints_in(tmp_path) == []


def test_host_copies_stay_when_the_tensors_change() -> None:
    live = {"a": torch.arange(6.0).view(2, 3).T, "step": torch.tensor(3, dtype=torch.int32)}
    expected = {name: tensor.tolist() for name, tensor in live.items()}
    copies: dict[str, torch.Tensor] = {}
    copy_to_host(live, copies)
    places = [copy.data_ptr() for copy in copies.values()]
    copy_to_host(live, copies)
    assert [copy.data_ptr() for copy in copies.values()] == places
    for tensor in live.values():
        tensor.add_(1)
    assert {name: copy.tolist() for name, copy in copies.items()} == expected
    assert {name: tensor.tolist() for name, tensor in live.items()} != expected
    assert {name: (copy.dtype, copy.shape) for name, copy in copies.items()} == {
        name: (tensor.dtype, tensor.shape) for name, tensor in live.items()
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda found: found.pop("b"), "lacks b"),
        (lambda found: found.update(c=torch.zeros(1)), "has c, which this run has not"),
        (
            lambda found: found.update(a=torch.zeros(3, 2)),
            "a is torch.float32 (3, 2), this run's is torch.float32 (2, 3)",
        ),
        (lambda found: found.update(b=torch.zeros(())), "b is torch.float32 (), this run's is torch.int64 ()"),
        (
            lambda found: found.clear() or found.update(c=torch.zeros(1)),
            "has c, which this run has not; lacks a; lacks b",
        ),
        (
            lambda found: found.update({f"x{number}": torch.zeros(1) for number in range(7)}),
            "; ".join(f"has x{number}, which this run has not" for number in range(5)) + ", and 2 more",
        ),
    ],
)
def test_tensors_that_do_not_fit_are_named(change: Any, message: str) -> None:
    live = {"a": torch.zeros(2, 3), "b": torch.tensor(0)}
    found = {name: tensor + 1 for name, tensor in live.items()}
    check_fit(Path("file"), found, live)
    change(found)
    with pytest.raises(CheckpointError) as error:
        check_fit(Path("file"), found, live)
    assert str(error.value) == f"file: {message}"


def test_what_is_no_safetensors_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / REPLICATED).write_bytes(b"12345678901234567890")
    with pytest.raises(CheckpointError, match="not a readable safetensors file"):
        read_tensors(tmp_path / REPLICATED)


def of_data(checksum: str) -> DataManifest:
    return DataManifest(10, 100, 32, 5, "of the vocabulary", "recipe", "of the lengths", (("part", 10, checksum),))


def test_a_run_is_another_one_by_whatever_changes_its_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    data, other_data = of_data("a"), of_data("b")
    same = identity_of(Config(), data, CPU)
    free = Config(
        max_steps=5, decay_steps=0, data_dir=Path("elsewhere"), target_accuracy=0.5, seed=3, checkpoint_keep=7
    )
    assert identity_of(free, data, CPU) == same
    assert identity_of(Config(learning_rate=1e-5), data, CPU) != same
    assert identity_of(Config(), other_data, CPU) != same
    for name, value in {"__version__": "1.0", "get_num_threads": lambda: 99}.items():
        with monkeypatch.context() as patch:
            patch.setattr(torch, name, value)
            assert identity_of(Config(), data, CPU) != same
    monkeypatch.setattr("torch.backends.cpu.get_cpu_capability", lambda: "another")
    assert identity_of(Config(), data, CPU) != same


def keeping(directory: Path, **changed: Any) -> Config:
    return Config(checkpoint_dir=directory, **{"checkpoint_interval_steps": 1, "checkpoint_keep": 2} | changed)


def full_disk(*_: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_the_last_k_are_kept_those_of_before_included_and_no_foreign_one_goes(tmp_path: Path) -> None:
    trainer = ToyTrainer()
    save_step(trainer, [toy_saver(trainer, keeping(tmp_path))], 3)
    folder_of(tmp_path, 1).mkdir()  # foreign, and not among the earlier ones
    later = toy_saver(trainer, keeping(tmp_path), earlier=[folder_of(tmp_path, 3)])
    for step, kept in ((4, (1, 3, 4)), (5, (1, 4, 5)), (6, (1, 5, 6))):
        save_step(trainer, [later], step)
        assert names(tmp_path) == [folder_of(tmp_path, each).name for each in kept]
    newest = folder_of(tmp_path, 6)
    manifest = read_manifest(newest)
    assert (manifest.step, manifest.seed, manifest.accuracies, manifest.identity) == (6, 7, (0.06,), {"of": "toys"})
    assert names(newest) == [MANIFEST, rank_file(0), REPLICATED]
    assert read_tensors(newest / REPLICATED)["model/value"].tolist() == [6.0] * 1000


def test_only_every_so_many_steps_one_is_due(tmp_path: Path) -> None:
    trainer = ToyTrainer()
    every_third = toy_saver(trainer, keeping(tmp_path, checkpoint_interval_steps=3))
    for step in range(1, 8):
        save_step(trainer, [every_third], step)
    assert names(tmp_path) == ["step_00000003", "step_00000006"]


def test_what_is_written_is_the_state_of_the_step_though_the_loop_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = ToyTrainer()
    trainer.value.fill_(1)
    write = saver.save_file

    def late(tensors: Any, path: Path) -> None:
        trainer.value.fill_(99)
        write(tensors, path)

    monkeypatch.setattr(saver, "save_file", late)
    ours = toy_saver(trainer, keeping(tmp_path))
    ours.after(1, [])
    ours.finish()
    assert trainer.value[0] == 99
    assert read_tensors(folder_of(tmp_path, 1) / REPLICATED)["model/value"].tolist() == [1.0] * 1000


def test_a_full_disk_is_a_warning_and_the_next_one_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = ToyTrainer()
    ours = toy_saver(trainer, keeping(tmp_path))
    save_step(trainer, [ours], 1)
    assert capsys.readouterr().err == ""
    with monkeypatch.context() as patch:
        patch.setattr(saver, "save_file", full_disk)
        save_step(trainer, [ours], 2)
    assert capsys.readouterr().err == "warning: rank 0: no checkpoint: OSError: [Errno 28] No space left on device\n"
    assert names(tmp_path) == ["step_00000001"]
    save_step(trainer, [ours], 3)
    assert names(tmp_path) == ["step_00000001", "step_00000003"]


def test_a_checkpoint_deleted_by_hand_is_no_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trainer = ToyTrainer()
    ours = toy_saver(trainer, keeping(tmp_path, checkpoint_keep=1))
    save_step(trainer, [ours], 1)
    remove(folder_of(tmp_path, 1))
    save_step(trainer, [ours], 2)
    assert capsys.readouterr().err == ""
    assert names(tmp_path) == ["step_00000002"]


def test_a_rank_that_cannot_write_is_waited_for_less_long_than_a_collective_would_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The other ranks may stand in the next step's all-reduce meanwhile, and would give up."""
    clock = Clock()
    monkeypatch.setattr(saver, "time", clock)
    trainer = ToyTrainer()
    config = keeping(tmp_path, collective_timeout_s=60)
    first, second = (toy_saver(trainer, config, rank, 2) for rank in range(2))
    with monkeypatch.context() as patch:
        patch.setattr(saver, "save_file", full_disk)
        save_step(trainer, [second], 1)
    save_step(trainer, [first], 1)
    warnings = capsys.readouterr().err.splitlines()
    assert [line.partition(": no checkpoint: ")[0] for line in warnings] == ["warning: rank 1", "warning: rank 0"]
    assert "rank_00001.safetensors was not written in time" in warnings[1]
    assert 0 < clock.now_s <= 45
    assert names(tmp_path) == []
    save_step(trainer, [first, second], 2)
    assert names(tmp_path) == ["step_00000002"]
