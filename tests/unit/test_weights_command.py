"""The command line of weights: what it shows, what it converts, and what it refuses with status 2."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.bert.weights import read_weights, write_weights
from benchmarks.bert.weights.__main__ import main
from benchmarks.bert.weights.spelling import to_pytorch
from tests.support.weights import SIZES, assert_same, random_tensors

CHECKOUT = Path(__file__).parents[2]
GOLDEN = CHECKOUT / "tests" / "golden" / "tf1_tiny" / "model.ckpt-7"


Command = Callable[..., tuple[int, str, str]]  # arguments -> exit status, stdout, stderr


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["weights", *map(str, arguments)])
        status = main()
        return status, *capsys.readouterr()

    return run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_weights(tmp_path / "hf", random_tensors(), "huggingface", num_vocabulary=13, num_heads=4)
    return tmp_path / "hf"


def test_show_tells_form_sizes_parameters_and_what_is_ignored() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.bert.weights", "show", GOLDEN.relative_to(CHECKOUT)],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    first, sizes, counts, ignored = done.stdout.splitlines()
    assert first == "tests/golden/tf1_tiny/model.ckpt-7: a TensorFlow checkpoint"
    assert sizes == "2 layers, hidden size 8, feed-forward size 16, 8 positions, 16 vocabulary entries"
    assert counts == "1,618 parameters in 46 tensors, with heads"
    assert ignored.startswith("95 ignored: bert/embeddings/LayerNorm/beta/adam_m, ")
    assert ignored.endswith(", …")


def test_show_with_v_lists_every_tensor(command: Command, folder: Path) -> None:
    status, brief, _ = command("show", folder)
    assert status == 0
    assert "hidden size 8 in 4 heads, " in brief
    _, full, _ = command("show", folder, "-v")
    assert full.startswith(brief)
    table = [line.split(maxsplit=1) for line in full[len(brief) :].splitlines()]
    assert dict(table)["layers.1.ffn_in.weight"] == "16 x 8"
    assert [name for name, _ in table] == [*read_weights(folder).tensors]


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("model.ckpt-1", "tensorflow"),
        ("x.pt", "pt"),
        ("x", "huggingface"),
        ("x.bin", "huggingface"),
    ],
)
def test_the_form_is_told_by_the_name(command: Command, folder: Path, tmp_path: Path, name: str, form: str) -> None:
    status, told, _ = command("convert", folder, tmp_path / name)
    assert status == 0
    assert "46 tensors from a Hugging Face folder" in told
    found = read_weights(tmp_path / name)
    assert found.form == form
    assert_same(found.tensors, random_tensors())


def test_a_form_that_is_asked_for_wins_over_the_name(command: Command, folder: Path, tmp_path: Path) -> None:
    assert command("convert", folder, tmp_path / "x.bin", "--form", "pt")[0] == 0
    assert read_weights(tmp_path / "x.bin").form == "pt"


def test_heads_come_from_the_config_unless_they_are_given(command: Command, folder: Path, tmp_path: Path) -> None:
    for name, more, expected in (("a", (), 4), ("b", ("--num-heads", 2), 2)):
        status, told, _ = command("convert", folder, tmp_path / name, *more)
        assert status == 0
        assert "assumed" not in told
        assert json.loads((tmp_path / name / "config.json").read_text())["num_attention_heads"] == expected


def test_heads_that_nothing_tells_are_assumed_and_said(command: Command, tmp_path: Path) -> None:
    wide = random_tensors(replace(SIZES, hidden_size=128))
    write_weights(tmp_path / "x.pt", wide, "pt", num_vocabulary=13)
    status, told, _ = command("convert", tmp_path / "x.pt", tmp_path / "hf")
    assert status == 0
    assert "2 heads assumed, 64 wide, as no config beside " in told
    assert json.loads((tmp_path / "hf" / "config.json").read_text())["num_attention_heads"] == 2


def test_heads_that_cannot_be_assumed_are_asked_for(command: Command, tmp_path: Path) -> None:
    write_weights(tmp_path / "x.pt", random_tensors(), "pt", num_vocabulary=13)
    status, told, complaint = command("convert", tmp_path / "x.pt", tmp_path / "hf")
    assert (status, told) == (2, "")
    assert complaint.endswith("x.pt: no config beside it tells how many heads it has; give --num-heads\n")
    assert not (tmp_path / "hf").exists()


@pytest.mark.parametrize(
    ("num_entries", "num_more", "last_bias", "num_kept"),
    [
        (13, 3, 0.0, 13),
        (13, 3, 1.0, 16),  # a row that holds something is an entry
        (12, 1, 0.0, 13),  # 13 is no multiple of eight, so nobody padded
        (13, 11, 0.0, 17),  # nobody pads by eight rows or more
    ],
)
def test_zero_rows_that_fill_up_a_multiple_of_eight_are_left_out(
    command: Command, tmp_path: Path, num_entries: int, num_more: int, last_bias: float, num_kept: int
) -> None:
    named = to_pytorch(random_tensors(replace(SIZES, num_vocabulary=num_entries)))
    for name in ("bert.embeddings.word_embeddings.weight", "cls.predictions.bias"):
        named[name] = torch.cat([named[name], torch.zeros(num_more, *named[name].shape[1:])])
    named["cls.predictions.bias"][-1] = last_bias
    torch.save({"model": named}, tmp_path / "fat.pt")
    status, told, _ = command("convert", tmp_path / "fat.pt", tmp_path / "thin.pt")
    assert status == 0
    num_rows = num_entries + num_more
    saying = f"{num_rows} vocabulary rows, the last {num_rows - num_kept} of them zeros: left out as padding"
    assert (saying in told) == (num_kept < num_rows)
    assert len(read_weights(tmp_path / "thin.pt").tensors["masked_lm.bias"]) == num_kept


def test_bad_input_is_one_complaint_and_status_2(command: Command, folder: Path, tmp_path: Path) -> None:
    for arguments in (
        ("show", tmp_path / "absent"),
        ("convert", folder, folder),
        ("convert", folder, tmp_path / "y", "--num-heads", 3),
    ):
        status, told, complaint = command(*arguments)
        assert (status, told) == (2, "")
        assert complaint.startswith("error: ")
        assert complaint.count("\n") == 1


@pytest.mark.parametrize("name", ["x.pt", "x.ckpt", "x"])
@pytest.mark.parametrize("limit", [0, 1_000, 5_000])  # bytes: at once, within the tensors, near the end
def test_a_disk_that_is_full_is_one_complaint_and_leaves_nothing(
    command: Command, folder: Path, tmp_path: Path, name: str, limit: int
) -> None:
    (tmp_path / "new").mkdir()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        status, told, complaint = command("convert", folder, tmp_path / "new" / "a" / "b" / name)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (status, told) == (2, "")
    assert complaint.startswith(f"error: {tmp_path / 'new' / 'a' / 'b' / name}: not written (")
    assert "File too large" in complaint  # what the system says beyond the limit, in place of "No space left"
    assert complaint.count("\n") == 1
    assert not list((tmp_path / "new").iterdir())


@pytest.mark.parametrize("name", ["x.pt", "x.ckpt", "x"])
def test_a_disk_that_fails_as_the_last_file_takes_its_name_leaves_nothing(
    command: Command, folder: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "theirs").touch()
    replace_file, last = os.replace, {"x.ckpt": "x.ckpt.index", "x": "model.safetensors"}.get(name, name)

    def fail(source: Path, target: Path) -> None:
        if Path(target).name == last:
            raise OSError(5, "Input/output error")
        replace_file(source, target)

    monkeypatch.setattr(os, "replace", fail)
    status, _, complaint = command("convert", folder, tmp_path / "new" / name)
    assert status == 2
    assert complaint.startswith(f"error: {tmp_path / 'new' / name}: not written (OSError: [Errno 5] Input/output error")
    assert [file.name for file in (tmp_path / "new").iterdir()] == ["theirs"]


def test_the_folder_that_one_stands_in_is_a_path_too(
    command: Command, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    assert command("show", ".")[:2] == (0, command("show", folder)[1].replace(str(folder), "."))
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    status, _, complaint = command("show", ".")
    assert (status, complaint[: complaint.index(";")]) == (2, "error: .: no weights in this folder")
    status, _, complaint = command("convert", folder, ".", "--form", "tensorflow")
    assert (status, complaint) == (2, "error: .: no name for a checkpoint's files; give one, as in model.ckpt\n")
    assert command("convert", folder, ".")[0] == 0
    assert_same(read_weights(tmp_path / "other").tensors, random_tensors())


def test_an_encoder_alone_is_shown_and_not_converted(command: Command, tmp_path: Path) -> None:
    named = {name: tensor for name, tensor in to_pytorch(random_tensors()).items() if name.startswith("bert.")}
    torch.save(named, tmp_path / "encoder.pt")
    assert "39 tensors, an encoder without heads" in command("show", tmp_path / "encoder.pt")[1]
    status, _, complaint = command("convert", tmp_path / "encoder.pt", tmp_path / "x", "--num-heads", 2)
    assert status == 2
    assert "not written: 7 thing(s) wrong; only a whole BERT with its heads is written" in complaint
