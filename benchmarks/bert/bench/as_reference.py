"""A text and a vocabulary in, the recipe's samples out with the work that the reference script does: a yardstick.

What that script does for each character, token and sample is done here too, with the same kinds of Python objects
(lists of characters, of tokens and of candidates; a dictionary for the vocabulary), so that the seconds compare. Left
out is what needs TensorFlow: turning a sample's lists of numbers into a record.
"""

from __future__ import annotations

import unicodedata
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from benchmarks.bert.prepare.samples import Recipe

Document = list[list[str]]  # tokens of each sentence
Features = tuple[list[int], list[int], list[int], list[int], list[int], list[float], int]

_IDEOGRAPHS = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)


class Masked(NamedTuple):
    place: int
    label: str


@dataclass
class Instance:
    tokens: list[str]
    segments: list[int]
    positions: list[int]
    labels: list[str]
    is_random: bool

    @property
    def boundary(self) -> int:
        return self.segments.count(0)


def read_documents(text: str, ids: OrderedDict[str, int]) -> list[Document]:
    documents: list[Document] = [[]]
    for raw in text.replace("\r", "").split("\n"):
        line = raw.strip()
        if not line:
            documents.append([])
        if tokens := tokenize(line, ids):
            documents[-1].append(tokens)
    return [document for document in documents if document]


def tokenize(line: str, ids: OrderedDict[str, int]) -> list[str]:
    tokens = []
    for word in words(line):
        for piece in pieces(word, ids):
            tokens.append(piece)
    return tokens


def words(line: str) -> list[str]:
    """Four passes: without control characters, with spaces around ideographs, without accents, cut at punctuation."""
    cleaned = []
    for character in line:
        if ord(character) in (0, 0xFFFD) or is_control(character):
            continue
        cleaned.append(" " if is_space(character) else character)
    spaced = []
    for character in "".join(cleaned):
        if is_ideograph(ord(character)):
            spaced += [" ", character, " "]
        else:
            spaced.append(character)
    found = []
    for word in "".join(spaced).split():
        bare = []
        for character in unicodedata.normalize("NFD", word.lower()):
            if unicodedata.category(character) != "Mn":
                bare.append(character)
        found.extend(parts("".join(bare)))
    return " ".join(found).split()


def parts(word: str) -> list[str]:
    cut: list[list[str]] = []
    begins = True
    for character in list(word):
        if is_punctuation(character):
            cut.append([character])
            begins = True
        elif begins:
            cut.append([character])
            begins = False
        else:
            cut[-1].append(character)
    return ["".join(part) for part in cut]


def pieces(word: str, ids: OrderedDict[str, int]) -> list[str]:
    characters = list(word)
    if len(characters) > 200:
        return ["[UNK]"]
    found = []
    start = 0
    while start < len(characters):
        stop = len(characters)
        while start < stop:
            entry = "".join(characters[start:stop])
            if start > 0:
                entry = "##" + entry
            if entry in ids:
                break
            stop -= 1
        else:
            return ["[UNK]"]
        found.append(entry)
        start = stop
    return found


def is_space(character: str) -> bool:
    return character in (" ", "\t", "\n", "\r") or unicodedata.category(character) == "Zs"


def is_control(character: str) -> bool:
    return character not in ("\t", "\n", "\r") and unicodedata.category(character) in ("Cc", "Cf")


def is_punctuation(character: str) -> bool:
    point = ord(character)
    if 33 <= point <= 47 or 58 <= point <= 64 or 91 <= point <= 96 or 123 <= point <= 126:
        return True
    return unicodedata.category(character).startswith("P")


def is_ideograph(point: int) -> bool:
    return any(first <= point <= last for first, last in _IDEOGRAPHS) if point > 0x33FF else False


def make_instances(documents: list[Document], recipe: Recipe, ids: OrderedDict[str, int]) -> list[Instance]:
    rng = Random(recipe.seed)
    rng.shuffle(documents)
    entries = list(ids)
    instances: list[Instance] = []
    for _ in range(recipe.duplicates):
        for number in range(len(documents)):
            instances.extend(instances_of(documents, number, recipe, entries, rng))
    rng.shuffle(instances)
    return instances


def instances_of(
    documents: list[Document], number: int, recipe: Recipe, entries: list[str], rng: Random
) -> list[Instance]:
    document = documents[number]
    room = recipe.max_length - 3
    target = rng.randint(2, room) if rng.random() < recipe.short_share else room
    instances = []
    chunk: Document = []
    length = place = 0
    while place < len(document):
        chunk.append(document[place])
        length += len(document[place])
        if place == len(document) - 1 or length >= target:
            cut = rng.randint(1, len(chunk) - 1) if len(chunk) >= 2 else 1
            first: list[str] = []
            for sentence in chunk[:cut]:
                first.extend(sentence)
            is_random = len(chunk) == 1 or rng.random() < 0.5
            if is_random:
                second = stranger(documents, number, target - len(first), rng)
                place -= len(chunk) - cut
            else:
                second = []
                for sentence in chunk[cut:]:
                    second.extend(sentence)
            truncate(first, second, room, rng)
            instances.append(instance_of(first, second, is_random, recipe, entries, rng))
            chunk, length = [], 0
        place += 1
    return instances


def stranger(documents: list[Document], number: int, wanted: int, rng: Random) -> list[str]:
    for _ in range(10):
        other = rng.randint(0, len(documents) - 1)
        if other != number:
            break
    second: list[str] = []
    for place in range(rng.randint(0, len(documents[other]) - 1), len(documents[other])):
        second.extend(documents[other][place])
        if len(second) >= wanted:
            break
    return second


def truncate(first: list[str], second: list[str], room: int, rng: Random) -> None:
    while len(first) + len(second) > room:
        longer = first if len(first) > len(second) else second
        if rng.random() < 0.5:
            del longer[0]
        else:
            longer.pop()


def instance_of(
    first: list[str], second: list[str], is_random: bool, recipe: Recipe, entries: list[str], rng: Random
) -> Instance:
    tokens, segments = ["[CLS]"], [0]
    for part, segment in ((first, 0), (second, 1)):
        for token in [*part, "[SEP]"]:
            tokens.append(token)
            segments.append(segment)
    candidates = []  # each a list, for whole words could be masked as one
    for place, token in enumerate(tokens):
        if token not in ("[CLS]", "[SEP]"):
            candidates.append([place])
    rng.shuffle(candidates)
    limit = min(recipe.max_predictions, max(1, round(len(tokens) * recipe.masked_share)))
    shown = list(tokens)
    masked: list[Masked] = []
    covered: set[int] = set()
    for candidate in candidates:
        if len(masked) >= limit:
            break
        if len(masked) + len(candidate) > limit or not covered.isdisjoint(candidate):
            continue
        for place in candidate:
            covered.add(place)
            if rng.random() < 0.8:
                shown[place] = "[MASK]"
            elif rng.random() >= 0.5:
                shown[place] = entries[rng.randint(0, len(entries) - 1)]
            masked.append(Masked(place, tokens[place]))
    masked.sort(key=lambda each: each.place)
    return Instance(shown, segments, [each.place for each in masked], [each.label for each in masked], is_random)


def features(instances: list[Instance], recipe: Recipe, ids: OrderedDict[str, int]) -> Iterator[Features]:
    """Each sample's numbers, padded one by one: ids, mask, segments, positions, labels, weights, label."""
    for instance in instances:
        input_ids = [ids[token] for token in instance.tokens]
        mask, segments = [1] * len(input_ids), list(instance.segments)
        while len(input_ids) < recipe.max_length:
            input_ids.append(0)
            mask.append(0)
            segments.append(0)
        positions, labels = list(instance.positions), [ids[token] for token in instance.labels]
        weights = [1.0] * len(labels)
        while len(positions) < recipe.max_predictions:
            positions.append(0)
            labels.append(0)
            weights.append(0.0)
        yield input_ids, mask, segments, positions, labels, weights, int(instance.is_random)
