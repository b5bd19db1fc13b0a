"""The check of a data folder: a good one passes, and each way to spoil it is found, and nothing else."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import NoReturn

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.bert.data.manifest import LENGTHS, MANIFEST, Manifest, read_manifest, write_lengths, write_manifest
from benchmarks.bert.data.shards import SampleArrays, open_shard, write_shard
from benchmarks.bert.files import sha256_of
from benchmarks.bert.prepare import __main__ as command_line
from benchmarks.bert.prepare.check import folder as folder_module
from benchmarks.bert.prepare.check import hashes
from benchmarks.bert.prepare.check import shard as shard_module
from benchmarks.bert.prepare.check.finding import Finding, Severity, lines
from benchmarks.bert.prepare.check.folder import check_folder
from benchmarks.bert.prepare.check.lengths import what_is_odd
from benchmarks.bert.prepare.check.repeats import Hashes
from benchmarks.bert.prepare.samples import Recipe
from tests.support.corpora import SPECIAL, write_words
from tests.support.sample_files import changed, joined, make_word_samples, rows_of, use_threads

RECIPE = Recipe(max_length=64, max_predictions=10, short_share=0.3, duplicates=3)
PARTS = [make_word_samples(150, seed, RECIPE) for seed in (1, 2, 3)]
PART = PARTS[1]
WORD = 20
Spoil = Callable[[SampleArrays], SampleArrays]


class Data:
    """A folder of three shards and its vocabulary beside it."""

    def __init__(self, root: Path) -> None:
        self.vocabulary = write_words(root / "vocab.txt")
        self.folder = root / "train"
        self.write(PARTS)

    def write(self, parts: list[SampleArrays], folder: Path | None = None, **fields: object) -> Path:
        folder = folder or self.folder
        shards = []
        vocabulary_sha256 = sha256_of(self.vocabulary)
        for number, part in enumerate(parts):
            name = f"part_{number:05d}_of_{len(parts):05d}.hdf5"
            checksum = write_shard(folder / name, part, vocabulary_sha256=vocabulary_sha256, recipe="{}")
            shards.append((name, len(part), checksum))
        lengths = np.concatenate([part.lengths for part in parts]).clip(1, 65535)
        recipe = json.dumps(asdict(RECIPE))
        num_tokens = sum(len(part.tokens) for part in parts)
        manifest = Manifest(
            len(lengths), num_tokens, 64, 10, vocabulary_sha256, recipe, write_lengths(folder, lengths), tuple(shards)
        )
        write_manifest(folder, replace(manifest, **fields))  # type: ignore[arg-type]
        return folder

    def spoil(self, samples: SampleArrays) -> None:
        """Put these samples in place of the second shard's; manifest and lengths agree."""
        self.write([PARTS[0], samples, PARTS[2]])

    def edit(self, **fields: object) -> None:
        write_manifest(self.folder, replace(read_manifest(self.folder), **fields))  # type: ignore[arg-type]

    def shard(self, number: int = 1) -> Path:
        return self.folder / f"part_{number:05d}_of_00003.hdf5"

    def check(self, **options: object) -> list[Finding]:
        return list(check_folder(self.folder, **({"num_processes": 1} | options)).findings)  # type: ignore[arg-type]

    def kinds(self, **options: object) -> set[str]:
        return {finding.kind.id for finding in self.check(**options)}


@pytest.fixture(autouse=True)
def _threads(monkeypatch: pytest.MonkeyPatch) -> None:
    use_threads(monkeypatch)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Data(tmp_path_factory.mktemp("good")).folder.parent


@pytest.fixture
def data(good: Path, tmp_path: Path) -> Data:
    shutil.copytree(good, tmp_path, dirs_exist_ok=True)
    found = Data.__new__(Data)
    found.vocabulary, found.folder = tmp_path / "vocab.txt", tmp_path / "train"
    return found


def predictions(samples: SampleArrays) -> tuple[np.ndarray, np.ndarray]:
    """Row, and place among all tokens, of every prediction."""
    rows = np.repeat(np.arange(len(samples)), np.diff(samples.mlm_offsets))
    return rows, samples.token_offsets[rows] + samples.mlm_positions


def kept(samples: SampleArrays, *, last: bool = False, first: bool = False) -> int:
    """A prediction that shows the token itself, in a sample of several; its last or first one, if asked for."""
    rows, places = predictions(samples)
    fits = samples.tokens[places] == samples.mlm_ids
    counts = np.diff(samples.mlm_offsets)[rows]
    fits &= counts > 1
    if last:
        fits &= np.append(rows[1:] != rows[:-1], True)
    if first:
        fits &= np.append(True, rows[1:] != rows[:-1])
    return int(fits.argmax())


def unmasked_word(samples: SampleArrays) -> int:
    """The place of a word of A that is not predicted and not the first."""
    _, places = predictions(samples)
    row = int(((samples.boundary > 8) & (np.arange(len(samples)) > 3)).argmax())
    own = np.arange(samples.token_offsets[row] + 2, samples.token_offsets[row] + samples.boundary[row] - 1)
    return int(np.setdiff1d(own, places)[0])


def drop(samples: SampleArrays, at: int) -> SampleArrays:
    row = predictions(samples)[0][at]
    offsets = samples.mlm_offsets.copy()
    offsets[row + 1 :] -= 1
    return replace(
        samples,
        mlm_positions=np.delete(samples.mlm_positions, at),
        mlm_ids=np.delete(samples.mlm_ids, at),
        mlm_offsets=offsets,
    )


def swap(samples: SampleArrays) -> SampleArrays:
    positions, ids = samples.mlm_positions.copy(), samples.mlm_ids.copy()
    row = int((np.diff(samples.mlm_offsets) > 1).argmax())
    own = slice(samples.mlm_offsets[row], samples.mlm_offsets[row] + 2)
    positions[own], ids[own] = positions[own][::-1].copy(), ids[own][::-1].copy()
    return replace(samples, mlm_positions=positions, mlm_ids=ids)


def show_all(samples: SampleArrays) -> SampleArrays:
    tokens = samples.tokens.copy()
    tokens[predictions(samples)[1]] = samples.mlm_ids
    return replace(samples, tokens=tokens)


def on_sep(samples: SampleArrays) -> SampleArrays:
    at = kept(samples, last=True)
    return changed(samples, "mlm_positions", at, samples.lengths[predictions(samples)[0][at]] - 1)


def on_middle_sep(samples: SampleArrays) -> SampleArrays:
    rows, places = predictions(samples)
    middle = samples.boundary[rows].astype(np.int64) - 1
    positions = samples.mlm_positions.astype(np.int64)
    is_last_of_a = (positions < middle) & np.append((rows[1:] != rows[:-1]) | (positions[1:] > middle[:-1]), True)
    at = int(((samples.tokens[places] == samples.mlm_ids) & is_last_of_a).argmax())
    return changed(samples, "mlm_positions", at, int(middle[at]))


def long_row(samples: SampleArrays) -> int:
    return int((np.diff(samples.mlm_offsets) >= 8).argmax())


SPOILED: dict[str, tuple[Spoil, set[str]]] = {
    "an id outside the vocabulary": (lambda s: changed(s, "tokens", unmasked_word(s), 306), {"id"}),
    "a label outside the vocabulary": (lambda s: changed(s, "mlm_ids", 3, 60000), {"id"}),
    "no [CLS]": (lambda s: changed(s, "tokens", s.token_offsets[7], WORD), {"cls"}),
    "no [SEP] last": (lambda s: changed(s, "tokens", s.token_offsets[7] - 1, WORD), {"sep"}),
    "no [SEP] behind A": (lambda s: changed(s, "tokens", s.token_offsets[7] + s.boundary[7] - 1, WORD), {"sep"}),
    "a boundary outside": (lambda s: changed(s, "boundary", 7, 65), {"boundary", "stray"}),
    "a masked position outside": (
        lambda s: changed(s, "mlm_positions", kept(s, last=True), 64),
        {"position-outside"},
    ),
    "masked positions that fall": (swap, {"position-order"}),
    "a masked position twice": (
        lambda s: changed(s, "mlm_positions", kept(s, last=True), s.mlm_positions[kept(s, last=True) - 1]),
        {"position-order"},
    ),
    "[CLS] masked": (lambda s: changed(s, "mlm_positions", kept(s, first=True), 0), {"position-special"}),
    "the last [SEP] masked": (on_sep, {"position-special"}),
    "the first [SEP] masked": (on_middle_sep, {"position-special"}),
    "a label that is [MASK]": (lambda s: changed(s, "mlm_ids", 3, SPECIAL.mask), {"mask-label"}),
    "a label that is [CLS]": (lambda s: changed(s, "mlm_ids", 3, SPECIAL.cls), {"special-label"}),
    "[MASK] where nothing is predicted": (lambda s: changed(s, "tokens", unmasked_word(s), SPECIAL.mask), {"stray"}),
    "[SEP] inside": (lambda s: changed(s, "tokens", unmasked_word(s), SPECIAL.sep), {"stray"}),
    "[PAD] inside": (lambda s: changed(s, "tokens", unmasked_word(s), 0), {"stray"}),
    "a prediction too few": (lambda s: drop(s, kept(s)), {"predictions"}),
    "another label than 0 and 1": (lambda s: changed(s, "nsp", 7, 2), {"nsp"}),
    "tokens that are all shown": (show_all, {"masking"}),
    "a sample twice": (lambda s: joined([s, rows_of(s, long_row(s), long_row(s) + 1)]), {"repeated-samples"}),
    "the samples of another shard": (lambda s: PARTS[0], {"same-shard", "repeated-samples"}),
    "the samples of another shard backwards": (
        lambda s: joined([rows_of(PARTS[0], row, row + 1) for row in reversed(range(len(PARTS[0])))]),
        {"shared-samples", "repeated-samples"},
    ),
    "offsets that fall": (lambda s: changed(s, "token_offsets", 7, s.token_offsets[6] - 1), {"offsets"}),
    "offsets that end early": (lambda s: changed(s, "mlm_offsets", -1, s.mlm_offsets[-1] - 1), {"offsets"}),
    "an empty sample": (lambda s: changed(s, "token_offsets", 7, s.token_offsets[8]), {"offsets"}),
}


def test_a_good_folder_has_no_finding(data: Data) -> None:
    assert data.check() == []
    assert data.check(num_processes=3) == []
    assert sum(map(len, PARTS)) > 2000


@pytest.mark.parametrize(("spoil", "kinds"), SPOILED.values(), ids=SPOILED)
def test_a_spoiled_shard_is_found_and_nothing_else(data: Data, spoil: Spoil, kinds: set[str]) -> None:
    data.spoil(spoil(PART))
    findings = [finding for finding in data.check() if finding.rank == Severity.ERROR]
    assert {finding.kind.id for finding in findings} == kinds
    assert all(finding.path == data.shard() for finding in findings)


def test_rows_are_counted_and_the_first_is_named(data: Data) -> None:
    spoiled = PART
    for row in (5, 9, 300):
        spoiled = changed(spoiled, "nsp", row, 7)
    data.spoil(spoiled)
    (finding,) = data.check()
    assert (finding.row, finding.num_rows, finding.found) == (5, 3, "next-sentence label 7")
    (line,) = lines([finding])
    assert line == (
        f"error [nsp] {data.shard()}: row 5: next-sentence label 7 (3 rows); expected 0 or 1; "
        "make the shard again: delete it and run the preparation"
    )


def test_many_files_of_a_kind_are_folded() -> None:
    finding = Finding(folder_module.kinds.NSP, Path("x"), "text", 3, 2)
    found = list(lines([replace(finding, path=Path(f"p{number}")) for number in range(9)]))
    assert len(found) == 4
    assert found[-1] == "error [nsp] the same in 6 more files, 12 rows"


def test_the_published_fault_every_shard_the_same(data: Data) -> None:
    data.write([PART, PART, PART])
    findings = [finding for finding in data.check() if finding.kind.id == "same-shard"]
    assert [finding.path for finding in findings] == [data.shard(1), data.shard(2)]
    assert findings[0].found == f"its {len(PART):,} samples are those of part_00000_of_00003.hdf5"


def test_the_same_text_with_another_mask_is_no_repeat(data: Data) -> None:
    other = make_word_samples(150, 2, replace(RECIPE, seed=777))
    data.write([PART, other, PARTS[2]])
    assert data.check() == []


def test_a_few_repeats_among_very_many_samples_are_a_note(data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    data.spoil(SPOILED["a sample twice"][0](PART))
    row = long_row(PART)
    (finding,) = data.check()
    assert finding.found.startswith(f"the same as row {row} of {data.shard().name}, mask and all; 1 of ")
    assert (finding.row, finding.rank) == (len(PART), Severity.ERROR)
    monkeypatch.setattr(folder_module, "_REPEATED", 0.1)
    (finding,) = data.check()
    assert finding.rank == Severity.NOTE


def test_a_missing_shard_and_a_cut_one(data: Data) -> None:
    data.shard(0).unlink()
    data.shard(1).write_bytes(data.shard(1).read_bytes()[:-1000])
    found = {finding.path: finding.kind.id for finding in data.check()}
    assert found == {data.shard(0): "missing-shard", data.shard(1): "unreadable"}


def test_a_directory_a_foreign_file_and_an_empty_one_in_a_shards_place(data: Data) -> None:
    for number in range(3):
        data.shard(number).unlink()
    data.shard(0).mkdir()
    data.shard(1).write_text("text")
    data.shard(2).touch()
    assert data.kinds() == {"unreadable"}


def test_a_wrong_count(data: Data) -> None:
    manifest = read_manifest(data.folder)
    (name, count, checksum), *others = manifest.shards
    shards = ((name, count - 1, checksum), *others)
    lengths = np.concatenate([part.lengths for part in PARTS])[1:]
    data.edit(shards=shards, num_samples=manifest.num_samples - 1, lengths_sha256=write_lengths(data.folder, lengths))
    # What a wrong count moves in lengths.npy is found with it.
    assert data.kinds() >= {"count"}
    assert any(f"{count:,} samples, the manifest says {count - 1:,}" in finding.found for finding in data.check())


def test_a_shard_without_a_count(data: Data) -> None:
    with h5py.File(data.shard(), "r+") as file:
        del file.attrs["num_samples"]
    (finding,) = data.check()
    assert (finding.kind.id, finding.found.split()[-1]) == ("count", "None")


def test_a_wrong_number_of_tokens(data: Data) -> None:
    data.edit(num_tokens=5)
    assert data.kinds() == {"count"}


def test_a_changed_byte_fails_the_checksum(data: Data) -> None:
    whole = bytearray(data.shard().read_bytes())
    whole[whole.index(PART.nsp.tobytes()) + 4] ^= 1
    data.shard().write_bytes(whole)
    assert data.kinds() == {"checksum"}


def test_lengths_that_do_not_fit(data: Data) -> None:
    lengths = np.concatenate([part.lengths for part in PARTS])
    lengths[len(PARTS[0]) + 4] += 1
    sha256 = write_lengths(data.folder, lengths)
    (finding,) = data.check()
    assert (finding.kind.id, finding.path.name) == ("lengths", LENGTHS)
    data.edit(lengths_sha256=sha256)
    (finding,) = data.check()
    assert (finding.kind.id, finding.path, finding.row) == ("lengths", data.shard(), 4)
    (data.folder / LENGTHS).unlink()
    assert data.kinds() == {"lengths"}


def test_another_vocabulary(data: Data) -> None:
    vocabulary = data.vocabulary.read_text()
    checksum = write_shard(data.shard(), PART, vocabulary_sha256="0" * 64, recipe="{}")
    assert checksum == read_manifest(data.folder).shards[1][2]
    assert data.kinds() == {"vocabulary"}
    data.spoil(PART)
    data.vocabulary.write_text(vocabulary + "another\n")
    assert data.kinds() == {"vocabulary", "no-vocabulary"}
    data.vocabulary.unlink()
    (finding,) = data.check()
    assert (finding.kind.id, finding.rank) == ("no-vocabulary", Severity.WARNING)
    (elsewhere := data.folder.parent / "words.txt").write_text(vocabulary)
    assert data.check(vocabulary=elsewhere) == []


def test_without_its_vocabulary_special_ids_are_guessed(data: Data) -> None:
    data.spoil(changed(PART, "mlm_ids", 3, SPECIAL.mask))
    data.vocabulary.unlink()
    assert data.kinds() == {"no-vocabulary", "mask-label"}


def test_files_that_the_manifest_does_not_know(data: Data) -> None:
    shutil.copy(data.shard(0), data.folder / "part_00003_of_00004.hdf5")
    (data.folder / "notes.txt").write_text("x")
    (data.folder / ".lock").touch()
    found = {finding.path.name: (finding.kind.id, finding.rank) for finding in data.check()}
    assert found == {
        "part_00003_of_00004.hdf5": ("unknown-shard", Severity.ERROR),
        "notes.txt": ("unknown-file", Severity.WARNING),
    }


def test_a_sample_longer_than_the_recipe_allows(data: Data) -> None:
    data.edit(max_length=63)
    assert data.kinds() == {"length"}


def test_no_random_b_or_nothing_else(data: Data) -> None:
    for label in (0, 1):
        data.write([replace(part, nsp=np.full_like(part.nsp, label)) for part in PARTS])
        assert data.kinds() == {"nsp-share"}


def test_evaluation_samples_in_training(data: Data) -> None:
    other = data.write([make_word_samples(30, 99, RECIPE)], data.folder.parent / "other")
    assert data.check(against=other) == []
    same_text = make_word_samples(150, 2, replace(RECIPE, seed=5, duplicates=1))
    evaluation = data.write([rows_of(same_text, 0, 40)], data.folder.parent / "eval")
    (finding,) = data.check(against=evaluation)
    assert (finding.kind.id, finding.rank, finding.path) == ("evaluation", Severity.ERROR, data.shard())
    assert f"of {evaluation} stands here" in finding.found
    mixed = joined([make_word_samples(30, 99, RECIPE), rows_of(same_text, 0, 6)])
    data.write([mixed], evaluation)
    assert data.kinds(against=evaluation) == {"evaluation"}


def test_an_evaluation_set_of_another_vocabulary(data: Data) -> None:
    evaluation = data.write(
        [make_word_samples(30, 99, RECIPE)], data.folder.parent / "eval", vocabulary_sha256="0" * 64
    )
    assert data.kinds(against=evaluation) == {"vocabulary"}


def test_a_disk_that_fails_and_one_that_reads_little_at_once(data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    read = os.pread
    monkeypatch.setattr(os, "pread", lambda descriptor, size, place: read(descriptor, min(size, 999), place))
    assert data.check() == []

    def fail(descriptor: int, size: int, place: int) -> NoReturn:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "pread", fail)
    findings = data.check()
    assert {finding.kind.id for finding in findings} == {"unreadable"}
    assert findings[0].found == "cannot read it (Input/output error)"
    monkeypatch.setattr(os, "pread", lambda descriptor, size, place: b"")
    assert "it ends at byte" in data.check()[0].found


def test_a_shard_that_is_replaced_while_it_is_read(data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    check_block = shard_module.check_block

    def replaced(*arguments: object) -> np.ndarray:
        if data.shard(2).exists():
            data.shard(2).replace(data.shard(0))
        return check_block(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(shard_module, "check_block", replaced)
    found = {finding.path: finding.kind.id for finding in data.check()}
    assert found == {data.shard(0): "changed", data.shard(2): "missing-shard"}


def test_exit_statuses(data: Data, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def run() -> tuple[int, list[str], str]:
        monkeypatch.setattr(sys, "argv", ["prepare", "check", str(data.folder), "--processes", "1"])
        status = command_line.main()
        out, err = capsys.readouterr()
        return status, out.splitlines(), err

    num_samples, num_tokens = sum(map(len, PARTS)), sum(len(part.tokens) for part in PARTS)
    whole = f"{data.folder}: 3 shards, {num_samples:,} samples, {num_tokens:,} tokens; "
    assert run() == (0, [whole + "0 errors, 0 warnings"], "")
    (data.folder / "notes.txt").touch()
    status, out, _ = run()
    assert (status, out[-1]) == (0, whole + "0 errors, 1 warnings")
    data.spoil(changed(PART, "nsp", 7, 2))
    status, out, _ = run()
    assert (status, out[-1]) == (1, whole + "1 errors, 1 warnings")
    assert out[0].startswith("error [nsp] ")
    assert out[1].startswith("warning [unknown-file] ")
    (data.folder / MANIFEST).unlink()
    status, out, err = run()
    assert (status, out) == (2, [])
    assert err.startswith(f"error: {data.folder / MANIFEST}: missing")


def test_shards_open_as_the_run_opens_them(data: Data) -> None:
    """The good data are good for the trainer too."""
    manifest = read_manifest(data.folder)
    for (name, count, checksum), part in zip(manifest.shards, PARTS, strict=True):
        found = open_shard(
            data.folder / name, vocabulary_sha256=manifest.vocabulary_sha256, max_length=64, sha256=checksum
        )
        assert len(found) == count == len(part)


def usual_lengths(num_samples: int = 1_000_000, most: int = 512) -> np.ndarray:
    """A histogram as of an encyclopedia: a quarter at the maximum, short ones more frequent than long ones."""
    counts = np.exp(-np.arange(most + 1) / 150)
    counts[:5] = 0
    counts *= 0.75 / counts.sum()
    counts[most] = 0.25
    return np.random.default_rng(0).poisson(counts * num_samples / 10) * 10


def test_a_usual_histogram_is_not_odd() -> None:
    for num_samples in (100, 1000, 10_000, 100_000, 10_000_000, 156_700_000):
        assert list(what_is_odd(usual_lengths(num_samples))) == []
    assert list(what_is_odd(np.zeros(513, np.int64))) == []


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda counts: counts.__setitem__(512, 0), "no sample of 512 tokens, the maximum, but"),  # known fault 3
        (lambda counts: counts.__setitem__(slice(129, None), 0), "no sample"),
        (lambda counts: counts.__setitem__(slice(256, 320), 0), "no sample of 256 to 319 tokens, but about"),
        (lambda counts: counts.__setitem__(77, 0), "no sample of 77 tokens, but about"),
        (lambda counts: counts.__setitem__(slice(0, 64), 0), "no sample shorter than 64 tokens"),
        (lambda counts: counts.__setitem__(slice(0, 512), 0), "no sample shorter than 512 tokens"),
    ],
    ids=["no maximum", "cut", "a gap", "a length", "no short ones", "only the maximum"],
)
def test_an_odd_histogram(spoil: Callable[[np.ndarray], None], message: str) -> None:
    counts = usual_lengths()
    if message == "no sample":
        counts[128] += counts[129:].sum()
        message = "a peak at 128 tokens"
    spoil(counts)
    (text,) = what_is_odd(counts)
    assert text.startswith(message)


def test_an_odd_histogram_is_a_finding(data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_module, "what_is_odd", lambda counts: [f"{counts.sum()} samples"])
    (finding,) = data.check()
    assert (finding.kind.id, finding.found) == ("histogram", f"{sum(map(len, PARTS))} samples")


@settings(deadline=None, max_examples=40)
@given(shards=st.lists(st.lists(st.integers(0, 40), max_size=30), min_size=1, max_size=4), at_once=st.integers(1, 50))
def test_repeats_are_those_of_a_count_whatever_is_sorted_at_once(shards: list[list[int]], at_once: int) -> None:
    scrambled = [hashes._mixed(np.array(shard, np.uint64)) for shard in shards]
    long = Counter(int(value) for shard in scrambled for value in shard if value & np.uint64(1))
    with Hashes(at_once) as found, Hashes() as at_one_time:
        for number in reversed(range(len(shards))):
            found.add(number, scrambled[number])
            at_one_time.add(number, scrambled[number])
        repeats = found.find()
        assert repeats.num_long == sum(count - 1 for count in long.values())
        assert repeats == at_one_time.find()
        assert (repeats.first_long is None) == (repeats.num_long == 0)


def test_a_samples_hash_is_its_own_wherever_it_stands() -> None:
    whole = hashes.of_samples(PART)
    for start, stop in ((0, 1), (3, 90), (17, len(PART))):
        assert np.array_equal(hashes.of_samples(rows_of(PART, start, stop)), whole[start:stop])
    assert len(set((whole >> np.uint64(1)).tolist())) > 0.95 * len(PART)  # the shortest do repeat


@pytest.mark.parametrize("name", ["tokens", "boundary", "mlm_positions", "mlm_ids", "nsp"])
def test_any_change_changes_a_samples_hash(name: str) -> None:
    few = rows_of(PART, 0, 5)
    before = hashes.of_samples(few)
    for place in range(len(getattr(few, name))):
        other = hashes.of_samples(changed(few, name, place, int(getattr(few, name)[place]) ^ 1))
        assert np.count_nonzero(other != before) == 1


def test_swapped_tokens_change_a_samples_hash() -> None:
    few = rows_of(PART, 0, 1)
    before = hashes.of_samples(few)
    for place in range(2, len(few.tokens)):
        one, two = few.tokens[place - 1 : place + 1].tolist()
        swapped = changed(changed(few, "tokens", place, one), "tokens", place - 1, two)
        assert (hashes.of_samples(swapped) != before) == (one != two)
