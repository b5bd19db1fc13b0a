"""A prepared folder in, all that is wrong with it out: shard by shard in parallel, then as a whole."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np

from benchmarks.bert.data.manifest import LENGTHS, MANIFEST, Manifest, ManifestError, read_lengths, read_manifest
from benchmarks.bert.data.shards import ShardError
from benchmarks.bert.files import sha256_of
from benchmarks.bert.prepare import pool
from benchmarks.bert.prepare.check import finding as kinds
from benchmarks.bert.prepare.check.finding import Finding, Severity
from benchmarks.bert.prepare.check.lengths import what_is_odd
from benchmarks.bert.prepare.check.repeats import Hashes, Repeats
from benchmarks.bert.prepare.check.rows import Expected, Rows, Tally, Vocabulary, check_block
from benchmarks.bert.prepare.check.shard import Checked, Task, check_shard, hash_pairs, read_rows
from benchmarks.bert.prepare.check.shard_file import open_shard_file
from benchmarks.bert.prepare.lock import LOCK
from benchmarks.bert.prepare.meter import Meter
from benchmarks.bert.prepare.samples import Recipe
from benchmarks.bert.prepare.wordpiece import CLS, MASK, PAD, SEP, VocabularyError, read_vocabulary

# The vocabulary of the benchmark: where the file is not at hand, its checksum says enough.
_KNOWN = {
    "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3": Vocabulary(
        size=30522, cls=101, sep=102, mask=103, pad=0
    )
}
_VOCABULARY = "vocab.txt"
_GUESSED_FROM = 1000  # samples
_SHARED = 0.2  # of a shard's samples that stand in others too
_REPEATED = 1e-4  # of all samples, repeated with their masks
_HELD_OUT = 0.01  # of the evaluation samples, found in training
_FEW = 2000  # predictions or labels, which tell nothing of shares
_SLACK, _SIGMAS = 0.005, 5.0
_ROWS = 1 << 10


@dataclass(frozen=True)
class Report:
    findings: tuple[Finding, ...]
    num_shards: int
    num_samples: int
    num_tokens: int

    def count(self, severity: Severity) -> int:
        return sum(finding.rank == severity for finding in self.findings)


def check_folder(
    folder: Path, *, vocabulary: Path | None = None, against: Path | None = None, num_processes: int
) -> Report:
    """Everything that is found; raises ManifestError or VocabularyError where nothing can be judged."""
    manifest = read_manifest(folder)
    findings = list(_unknown_files(folder, manifest))
    lengths = _lengths(folder, manifest, findings)
    expected = Expected(
        _vocabulary(folder, manifest, vocabulary, findings), manifest.max_length, _num_predictions(folder, manifest)
    )
    held_out = _HeldOut(against, manifest, expected, findings) if against else None
    tasks = []
    first = 0
    for name, count, sha256 in manifest.shards:
        own = None if lengths is None else lengths[first : first + count]
        hashes = held_out.hashes if held_out else None
        tasks.append(Task(folder / name, count, sha256, manifest.vocabulary_sha256, expected, own, hashes))
        first += count
    with Hashes() as all_hashes:
        checked = _check_shards(tasks, all_hashes, num_processes)
        for each in checked:
            findings += each.findings
        findings += _whole(folder, manifest, tasks, checked)
        findings += _repeats(folder, tasks, checked, all_hashes.find())
    if held_out:
        findings += held_out.found_in(tasks, checked)
    return Report(
        tuple(findings),
        len(manifest.shards),
        sum(each.num_samples for each in checked),
        sum(each.num_tokens for each in checked),
    )


def _check_shards(tasks: Sequence[Task], all_hashes: Hashes, num_processes: int) -> list[Checked]:
    checked = [Checked(Tally(np.zeros(0, np.int64))) for _ in tasks]
    total = sum(task.path.stat().st_size for task in tasks if task.path.is_file())
    meter = Meter("check", total, "samples")
    try:
        for number, each in pool.each(check_shard, tasks, num_processes=num_processes):
            all_hashes.add(number, each.hashes)
            each.hashes = each.hashes[:0]  # they wait on the disk
            checked[number] = each
            meter.done(each.num_bytes, each.num_samples)
    finally:
        meter.close()
    return checked


def _unknown_files(folder: Path, manifest: Manifest) -> Iterator[Finding]:
    known = {name for name, *_ in manifest.shards} | {MANIFEST, LENGTHS, LOCK, _VOCABULARY}
    for path in sorted(folder.iterdir()):
        if path.name in known:
            continue
        if path.suffix in (".hdf5", ".h5"):
            yield Finding(kinds.UNKNOWN_SHARD, path, f"{MANIFEST} does not name it, so no run reads it")
        else:
            yield Finding(kinds.UNKNOWN_FILE, path, f"{MANIFEST} does not name it")


def _lengths(folder: Path, manifest: Manifest, findings: list[Finding]) -> np.ndarray | None:
    try:
        return read_lengths(folder, manifest)
    except (ManifestError, ValueError) as error:
        text = str(error).removeprefix(f"{folder / LENGTHS}: ").partition(";")[0]
        findings.append(Finding(kinds.LENGTHS_FILE, folder / LENGTHS, text))
        return None


def _vocabulary(folder: Path, manifest: Manifest, path: Path | None, findings: list[Finding]) -> Vocabulary:
    """Of the file that is named or lies in or beside the folder; else the benchmark's, if it is that; else guessed."""
    beside = [folder / _VOCABULARY, folder.absolute().parent / _VOCABULARY]
    for candidate in [path] if path else [each for each in beside if each.is_file()]:
        entries = read_vocabulary(candidate)
        if (found := sha256_of(candidate)) == manifest.vocabulary_sha256:
            return Vocabulary(len(entries), *map(entries.index, (CLS, SEP, MASK, PAD)))
        findings.append(
            Finding(
                kinds.VOCABULARY,
                candidate,
                f"sha256 {found}, but {folder} was made with a vocabulary of sha256 {manifest.vocabulary_sha256}",
            )
        )
    if manifest.vocabulary_sha256 in _KNOWN:
        return _KNOWN[manifest.vocabulary_sha256]
    findings.append(
        Finding(
            kinds.NO_VOCABULARY,
            folder,
            f"no vocabulary of sha256 {manifest.vocabulary_sha256} is at hand: special ids are guessed, others pass",
        )
    )
    return _guess(folder, manifest)


def _guess(folder: Path, manifest: Manifest) -> Vocabulary:
    """Special ids from where they stand in the first shard that can be read."""
    for name, *_ in manifest.shards:
        try:
            with open_shard_file(folder / name) as file:
                samples = read_rows(file, 0, min(_GUESSED_FROM, file.sizes["nsp"]))
        except (ShardError, ValueError):
            continue
        if not len(samples):
            continue
        counts = np.diff(samples.mlm_offsets)
        places = samples.token_offsets[:-1].repeat(counts) + samples.mlm_positions
        cls, sep, mask = (
            int(np.bincount(samples.tokens[at]).argmax())
            for at in (samples.token_offsets[:-1], samples.token_offsets[1:] - 1, places)
        )
        return Vocabulary(1 << 16, cls, sep, mask)
    raise VocabularyError(f"{folder}: no shard can be read; run the preparation again")


def _num_predictions(folder: Path, manifest: Manifest) -> np.ndarray:
    """By length; imported samples say no recipe and are held to the benchmark's share."""
    try:
        said = json.loads(manifest.recipe)
        known = {each.name for each in fields(Recipe)}
        recipe = Recipe(
            **{name: value for name, value in said.items() if name in known}
            | {"max_length": manifest.max_length, "max_predictions": manifest.max_predictions}
        )
    except (ValueError, TypeError, AttributeError) as error:
        raise ManifestError(
            f"{folder / MANIFEST}: its recipe is damaged ({error}); run the preparation again"
        ) from error
    return np.array([max(0, recipe.num_predictions(length)) for length in range(manifest.max_length + 1)])


def _whole(folder: Path, manifest: Manifest, tasks: Sequence[Task], checked: Sequence[Checked]) -> Iterator[Finding]:
    """What sums tell."""
    num_tokens = sum(each.num_tokens for each in checked)
    if num_tokens != manifest.num_tokens and all(each.num_samples for each in checked):
        yield Finding(kinds.COUNT, folder / MANIFEST, f"{manifest.num_tokens:,} tokens, the shards hold {num_tokens:,}")
    for text in what_is_odd(sum(each.tally.num_lengths for each in checked)):  # type: ignore[arg-type]
        yield Finding(kinds.HISTOGRAM, folder, text)
    size = tasks[0].expected.vocabulary.size if tasks else 1
    odd_shards = False
    for task, each in zip(tasks, checked, strict=True):
        if text := _odd_shares(each.tally, size):
            odd_shards = True
            yield Finding(kinds.SHARES, task.path, text)
    total = Tally(np.zeros(0, np.int64))
    for each in checked:
        total.shown += each.tally.shown
        total.nsp += each.tally.nsp
    if not odd_shards and (text := _odd_shares(total, size)):
        yield Finding(kinds.SHARES, folder, text)
    count = int(total.nsp.sum())
    share = total.nsp[1] / max(1, count)
    if count >= _FEW and (share < 0.5 - _slack(0.5, count) or share == 1):
        yield Finding(kinds.NSP_SHARE, folder, f"B is random in {share:.1%} of {count:,} samples")


def _odd_shares(tally: Tally, vocabulary_size: int) -> str:
    count = int(tally.shown.sum())
    if count < _FEW:
        return ""
    by_chance = 0.1 / vocabulary_size  # random entries that are [MASK], or the token itself
    usual = np.array([0.8 + by_chance, 0.1 + by_chance, 0.1 - 2 * by_chance])
    shares = tally.shown / count
    if (np.abs(shares - usual) <= _slack(usual, count)).all():
        return ""
    return "{:.2%} [MASK], {:.2%} the token itself, {:.2%} another".format(*shares) + f" of {count:,} predictions"


def _slack(share: float | np.ndarray, count: int) -> float | np.ndarray:
    return _SLACK + _SIGMAS * np.sqrt(share * (1 - share) / count)


def _repeats(folder: Path, tasks: Sequence[Task], checked: Sequence[Checked], repeats: Repeats) -> Iterator[Finding]:
    first: dict[str, Path] = {}
    same = set()
    for number, (task, each) in enumerate(zip(tasks, checked, strict=True)):
        if each.sha256 and each.num_samples and (other := first.setdefault(each.sha256, task.path)) != task.path:
            same.add(number)
            yield Finding(kinds.SAME_SHARD, task.path, f"its {each.num_samples:,} samples are those of {other.name}")
    shared: dict[int, Counter[int]] = {}
    for (shard, before), count in repeats.across.items():
        shared.setdefault(max(shard, before), Counter())[min(shard, before)] = count
    for number, others in sorted(shared.items()):
        if number not in same and others.total() > _SHARED * checked[number].num_samples:
            most_like, count = others.most_common(1)[0]
            yield Finding(
                kinds.SHARED,
                tasks[number].path,
                f"{others.total():,} of its {checked[number].num_samples:,} samples stand in other shards, "
                f"{count:,} in {tasks[most_like].path.name}",
            )
    if repeats.first_long is not None:
        shard, row, before, row_before = repeats.first_long
        total = sum(each.num_samples for each in checked)
        yield Finding(
            kinds.REPEATED,
            tasks[shard].path,
            f"the same as row {row_before} of {tasks[before].path.name}, mask and all; "
            f"{repeats.num_long:,} of {total:,} samples in the folder are such",
            row,
            severity=Severity.ERROR if repeats.num_long > _REPEATED * total else Severity.NOTE,
        )


class _HeldOut:
    """The evaluation samples, and which of them stand in training.

    An article is cut and masked otherwise each time, so what is compared is A and B, each by itself and with the masked
    tokens put back.
    """

    def __init__(self, folder: Path, training: Manifest, expected: Expected, findings: list[Finding]) -> None:
        self._folder = folder
        manifest = read_manifest(folder)
        if manifest.vocabulary_sha256 != training.vocabulary_sha256:
            findings.append(
                Finding(
                    kinds.VOCABULARY,
                    folder / MANIFEST,
                    f"made with a vocabulary of sha256 {manifest.vocabulary_sha256}, training with one of "
                    f"{training.vocabulary_sha256}",
                )
            )
        hashes, rows = [np.empty(0, np.uint64)], [np.empty(0, np.int64)]
        first = 0
        for name, *_ in manifest.shards:
            path = folder / name
            tally = Tally(np.zeros(expected.max_length + 1, np.int64))
            try:
                with open_shard_file(path) as file:
                    for start in range(0, file.sizes["nsp"], _ROWS):
                        samples = read_rows(file, start, min(start + _ROWS, file.sizes["nsp"]))
                        text = check_block(samples, expected, Rows(path, tally), tally)
                        own, own_rows = hash_pairs(text, samples, expected.max_length)
                        hashes.append(own)
                        rows.append(own_rows + first + start)
                    first += file.sizes["nsp"]
            except ShardError as error:
                raise ManifestError(f"{path}: {error}; check {folder} by itself first") from error
        all_hashes, all_rows = np.concatenate(hashes), np.concatenate(rows)
        order = np.argsort(all_hashes, kind="stable")
        self.hashes, self._rows = all_hashes[order], all_rows[order]

    def found_in(self, tasks: Sequence[Task], checked: Sequence[Checked]) -> Iterator[Finding]:
        found: set[int] = set()
        place: tuple[Path, int] | None = None
        example = 0
        for task, each in zip(tasks, checked, strict=True):
            for value, row in each.held_out.items():
                start, stop = (
                    np.searchsorted(self.hashes, np.uint64(value), "left"),
                    np.searchsorted(self.hashes, np.uint64(value), "right"),
                )
                own = self._rows[start:stop].tolist()
                found.update(own)
                if place is None:
                    place, example = (task.path, row), own[0]
        total = len(np.unique(self._rows))
        if place is not None:
            yield Finding(
                kinds.LEAK,
                place[0],
                f"A or B of evaluation sample {example} of {self._folder} stands here; so it is with {len(found):,} of "
                f"{total:,} long enough to tell",
                place[1],
                severity=Severity.ERROR if len(found) > _HELD_OUT * total else Severity.WARNING,
            )
