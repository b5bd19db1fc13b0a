"""One shard and what is expected of it in, findings and what the folder is judged by out: the work of one process."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.bert.data.manifest import LENGTHS
from benchmarks.bert.data.shards import FORMAT, SampleArrays, ShardError
from benchmarks.bert.prepare.check import finding as kinds
from benchmarks.bert.prepare.check import hashes
from benchmarks.bert.prepare.check.finding import Finding
from benchmarks.bert.prepare.check.rows import Expected, Rows, Tally, check_block
from benchmarks.bert.prepare.check.shard_file import ShardFile, open_shard_file

_TOKENS = 1 << 18  # of a block, at most
_LONGEST_RANGE = 32  # tokens from which on A or B tells its article


@dataclass(frozen=True)
class Task:
    path: Path
    num_samples: int
    sha256: str
    vocabulary_sha256: str
    expected: Expected
    lengths: np.ndarray | None  # uint16, as lengths.npy says
    held_out: np.ndarray | None  # uint64, ascending: hashes of the evaluation samples' A and B


@dataclass
class Checked:
    tally: Tally
    sha256: str = ""
    num_samples: int = 0
    num_tokens: int = 0
    num_bytes: int = 0
    hashes: np.ndarray = field(default_factory=lambda: np.empty(0, np.uint64))
    held_out: dict[int, int] = field(default_factory=dict)  # hashes of evaluation found here, and the first row of each
    findings: list[Finding] = field(default_factory=list)


def check_shard(task: Task) -> Checked:
    """Never raises for what is wrong with the shard: that is a finding."""
    checked = Checked(Tally(np.zeros(task.expected.max_length + 1, np.int64)))
    if not task.path.exists():
        checked.findings.append(Finding(kinds.MISSING, task.path, "it is not there"))
        return checked
    try:
        with open_shard_file(task.path) as file:
            if (form := file.attributes.get("format")) != FORMAT:
                raise ShardError(f"its format is {form!r}, not {FORMAT!r}")
            _check(file, task, checked)
            if file.is_replaced():
                checked.findings.append(Finding(kinds.CHANGED, task.path, "it was written while it was read"))
    except ShardError as error:
        checked.findings.append(Finding(kinds.UNREADABLE, task.path, str(error)))
    checked.findings += checked.tally.found.values()
    return checked


def _check(file: ShardFile, task: Task, checked: Checked) -> None:
    def add(kind: kinds.Kind, found: str, row: int | None = None, num_rows: int = 0) -> None:
        checked.findings.append(Finding(kind, task.path, found, row, num_rows))

    checked.num_bytes = task.path.stat().st_size
    checked.num_samples, checked.num_tokens = file.sizes["nsp"], file.sizes["tokens"]
    checked.sha256 = file.sha256()
    for source, sha256 in (("the manifest", task.sha256), ("its attributes", file.attributes.get("sha256"))):
        if checked.sha256 != sha256:
            add(kinds.CHECKSUM, f"sha256 {checked.sha256} of the content, {source} say {sha256}")
            break
    if (sha256 := file.attributes.get("vocabulary_sha256")) != task.vocabulary_sha256:
        add(kinds.VOCABULARY, f"made with a vocabulary of sha256 {sha256}, the manifest says {task.vocabulary_sha256}")
    attribute = file.attributes.get("num_samples")
    if not checked.num_samples == task.num_samples == attribute:
        add(
            kinds.COUNT,
            f"{checked.num_samples:,} samples, the manifest says {task.num_samples:,}, its attributes {attribute}",
        )
    if odd := _odd_offsets(file):
        add(kinds.OFFSETS, odd)
        return
    rows = Rows(task.path, checked.tally)
    num_at_once = max(1, _TOKENS // task.expected.max_length)
    parts = []
    for start in range(0, checked.num_samples, num_at_once):
        rows.first = start
        samples = read_rows(file, start, min(start + num_at_once, checked.num_samples))
        if task.lengths is not None and len(task.lengths) == checked.num_samples:
            _compare_lengths(samples.lengths, task.lengths[start : start + len(samples)], rows)
        text = check_block(samples, task.expected, rows, checked.tally)
        parts.append(hashes.of_samples(samples))
        if task.held_out is not None:
            _look_for(task.held_out, text, samples, start, task.expected.max_length, checked.held_out)
    checked.hashes = np.concatenate(parts) if parts else checked.hashes


def _compare_lengths(lengths: np.ndarray, said: np.ndarray, rows: Rows) -> None:
    rows.note(kinds.LENGTHS_FILE, lengths != said, lambda row: f"{lengths[row]} tokens, {LENGTHS} says {said[row]}")


def read_rows(file: ShardFile, start: int, stop: int) -> SampleArrays:
    """Samples `start` to before `stop`, their offsets from 0 on."""
    tokens, predictions = (file.read(name, start, stop + 1) for name in ("token_offsets", "mlm_offsets"))
    return SampleArrays(
        tokens=file.read("tokens", tokens[0], tokens[-1]),
        token_offsets=tokens - tokens[0],
        boundary=file.read("boundary", start, stop),
        mlm_positions=file.read("mlm_positions", predictions[0], predictions[-1]),
        mlm_ids=file.read("mlm_ids", predictions[0], predictions[-1]),
        mlm_offsets=predictions - predictions[0],
        nsp=file.read("nsp", start, stop),
    )


def hash_pairs(text: np.ndarray, samples: SampleArrays, max_length: int) -> tuple[np.ndarray, np.ndarray]:
    """Hashes of each sample's A and B, as far as they are long enough to tell an article, and their rows."""
    first, end = samples.token_offsets[:-1], samples.token_offsets[1:]
    middle = first + np.clip(samples.boundary.astype(np.int64), 0, samples.lengths)
    starts = np.stack([first + 1, middle], 1).ravel()
    stops = np.stack([middle - 1, end - 1], 1).ravel()
    long = np.flatnonzero(stops - starts >= min(_LONGEST_RANGE, max_length // 4))
    return hashes.of_ranges(text, starts[long], stops[long]), long // 2


def _look_for(
    held_out: np.ndarray, text: np.ndarray, samples: SampleArrays, first: int, max_length: int, found: dict[int, int]
) -> None:
    own, rows = hash_pairs(text, samples, max_length)
    if not len(held_out):
        return
    at = np.minimum(np.searchsorted(held_out, own), len(held_out) - 1)
    for hit in np.flatnonzero(held_out[at] == own).tolist():
        found.setdefault(int(own[hit]), first + int(rows[hit]))


def _odd_offsets(file: ShardFile) -> str:
    """What does not fit, if anything: then rows cannot be told apart."""
    sizes = file.sizes
    if sizes["boundary"] != sizes["nsp"]:
        return f"{sizes['boundary']:,} boundaries for {sizes['nsp']:,} labels"
    if sizes["mlm_ids"] != sizes["mlm_positions"]:
        return f"{sizes['mlm_ids']:,} mlm_ids for {sizes['mlm_positions']:,} mlm_positions"
    for name, values, least in (("token_offsets", "tokens", 1), ("mlm_offsets", "mlm_ids", 0)):
        if sizes[name] != sizes["nsp"] + 1:
            return f"{sizes[name]:,} {name} for {sizes['nsp']:,} samples"
        before = 0
        for start in range(0, sizes[name], _TOKENS):
            offsets = file.read(name, start, min(start + _TOKENS, sizes[name]))
            steps = np.diff(offsets, prepend=before if start else offsets[0] - least)
            if (not start and offsets[0]) or steps.min() < least:
                row = max(0, start + int((steps < least).argmax()) - 1)
                return f"{name} do not rise from 0 at row {row}"
            before = offsets[-1]
        if before != sizes[values]:
            return f"{name} end at {before:,}, there are {sizes[values]:,} {values}"
    return ""
