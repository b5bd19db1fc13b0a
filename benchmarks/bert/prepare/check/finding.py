"""What a check found, and the lines that say it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

_MOST_FILES = 3  # named of one kind
_MAKE = "make the shard again: delete it and run the preparation"


class Severity(IntEnum):
    NOTE = 0  # worth knowing
    WARNING = 1  # perhaps not what was meant
    ERROR = 2  # nobody should train on it


@dataclass(frozen=True)
class Kind:
    """One thing that is checked."""

    id: str
    expected: str
    remedy: str = _MAKE
    severity: Severity = Severity.ERROR


@dataclass(frozen=True)
class Finding:
    kind: Kind
    path: Path
    found: str
    row: int | None = None  # the first, from 0
    num_rows: int = 0  # in this file
    severity: Severity | None = None  # other than the kind's

    @property
    def rank(self) -> Severity:
        return self.kind.severity if self.severity is None else self.severity


UNREADABLE = Kind("unreadable", "a whole shard of this format", "copy it again from where it was whole, or " + _MAKE)
MISSING = Kind("missing-shard", "every shard of the manifest", "copy it from where it was made, or run the preparation")
CHANGED = Kind("changed", "shards that nobody writes", "check again when the preparation has ended")
CHECKSUM = Kind("checksum", "the checksum that it was made with", "copy it again from where it was whole, or " + _MAKE)
OFFSETS = Kind("offsets", "data sets that fit one another")
COUNT = Kind("count", "the number of samples that the manifest and the shard's own attributes say")
LENGTHS_FILE = Kind("lengths", "lengths.npy as the manifest and the shards say", "run the preparation again")
UNKNOWN_SHARD = Kind(
    "unknown-shard", "every shard in the manifest", "remove it, or run the preparation again so that it counts"
)
UNKNOWN_FILE = Kind(
    "unknown-file", "a manifest, lengths and shards alone", "move it out of the folder", Severity.WARNING
)
VOCABULARY = Kind(
    "vocabulary", "one vocabulary for all", "give the right vocab.txt, or prepare the samples again with it"
)
NO_VOCABULARY = Kind("no-vocabulary", "vocab.txt beside the folder or --vocab", "give --vocab", Severity.WARNING)
OUT_OF_VOCABULARY = Kind("id", "ids below the size of the vocabulary", "make the samples with this vocabulary")
TOO_LONG = Kind("length", "from 5 tokens to the recipe's maximum")
FIRST_TOKEN = Kind("cls", "[CLS] first")
LAST_TOKEN = Kind("sep", "[SEP] last, and last of A")
BOUNDARY = Kind("boundary", "a token of A and a token of B at least")
POSITION_OUTSIDE = Kind("position-outside", "masked positions inside the sample")
POSITION_ORDER = Kind("position-order", "masked positions ascending, none twice")
POSITION_SPECIAL = Kind("position-special", "no prediction of [CLS] or [SEP]")
MASK_LABEL = Kind("mask-label", "the token that stood there before masking")
SPECIAL_LABEL = Kind("special-label", "a token of the text")
STRAY = Kind("stray", "special tokens at their places or at masked ones alone")
PREDICTIONS = Kind("predictions", "min(most, max(1, round(share x length))) predictions, halves to even")
NSP = Kind("nsp", "0 or 1")
SHARES = Kind("masking", "80 % [MASK], 10 % the token itself, 10 % a random one")
NSP_SHARE = Kind("nsp-share", "a random B in half of the samples at least, but not in all")
HISTOGRAM = Kind(
    "histogram", "lengths as this recipe makes them", "prepare the samples again, and lose none on the way"
)
SAME_SHARD = Kind(
    "same-shard", "other samples in every shard", "make the shards again with a tool that deals each sample once"
)
SHARED = Kind(
    "shared-samples", "each sample in one shard", "make the shards again with a tool that deals each sample once"
)
REPEATED = Kind(
    "repeated-samples", "no sample twice with the same mask", "make the samples again, each text file named once"
)
LEAK = Kind("evaluation", "no evaluation article in training", "hold the articles out (prepare wiki, split)")


def lines(findings: Sequence[Finding]) -> Iterator[str]:
    """Worst first; of one kind the first few files, the others as a number."""
    kinds: dict[tuple[int, str], list[Finding]] = {}
    for finding in findings:
        kinds.setdefault((-finding.rank, finding.kind.id), []).append(finding)
    for (_, name), own in sorted(kinds.items(), key=lambda item: item[0][0]):
        for finding in own[:_MOST_FILES]:
            row = f": row {finding.row}" if finding.row is not None else ""
            rows = f" ({finding.num_rows:,} rows)" if finding.num_rows > 1 else ""
            yield (
                f"{finding.rank.name.lower()} [{name}] {finding.path}{row}: {finding.found}{rows}; "
                f"expected {finding.kind.expected}; {finding.kind.remedy}"
            )
        if others := own[_MOST_FILES:]:
            rows = f", {num_rows:,} rows" if (num_rows := sum(finding.num_rows for finding in others)) else ""
            yield f"{others[0].rank.name.lower()} [{name}] the same in {len(others):,} more files{rows}"
