"""A sample file in, its form out, found by its content."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import h5py

from benchmarks.bert.data.shards import FORMAT, SampleArrays
from benchmarks.bert.prepare.forms import fixed_hdf5, tfrecord, varlen_hdf5
from benchmarks.bert.prepare.forms.source import Rules, SourceError, reading

TFRECORD, FIXED, VARLEN = "tfrecord", "fixed", "varlen"
FORMS = (TFRECORD, FIXED, VARLEN)

_HEAD_BYTES = 512
_HDF5 = b"\x89HDF\r\n\x1a\n"
_PACKED = {  # by first bytes: the name of the packer, and what unpacks
    b"\x1f\x8b": ("gzip", "gunzip"),
    b"\xfd7zXZ\x00": ("xz", "unxz"),
    b"BZh": ("bzip2", "bunzip2"),
    b"\x28\xb5\x2f\xfd": ("zstd", "unzstd"),
    b"PK\x03\x04": ("zip", "unzip"),
}


@dataclass(frozen=True)
class Contents:
    """What a file holds, as far as its reader wants to know it beforehand."""

    form: str
    num_rows: int
    places: array[int] | None = None  # of a TFRecord


def find_form(path: Path) -> str:
    """The file's form; raises SourceError for what is no sample file, with the way to go from there."""
    if path.is_dir():
        raise SourceError(_what_to_do_with(path))
    with reading(path), open(path, "rb") as file:
        head = file.read(_HEAD_BYTES)
    if not head:
        raise SourceError(f"{path}: an empty file; copy or make it again")
    for magic, (packer, unpacker) in _PACKED.items():
        if head.startswith(magic):
            raise SourceError(f"{path}: packed with {packer}; unpack it first ({unpacker} {path})")
    if head.startswith(_HDF5):
        return _form_of_hdf5(path)
    if tfrecord.begins(head):
        return TFRECORD
    if _is_text(head):
        raise SourceError(f"{path}: text, not samples; make samples of it with {_samples_of(str(path))}")
    raise SourceError(
        f"{path}: neither TFRecord nor HDF5, or damaged at its very beginning; expected a TFRecord of "
        "tf.train.Example, fixed-length HDF5 or variable-length HDF5"
    )


def look(path: Path, form: str | None) -> Contents:
    """The file's form, found by content if none is given, and its number of rows."""
    form = form or find_form(path)
    if form == TFRECORD:
        return Contents(form, *tfrecord.places(path))
    return Contents(form, (fixed_hdf5 if form == FIXED else varlen_hdf5).count(path))


def read(path: Path, contents: Contents, start: int, stop: int, rules: Rules) -> Iterator[SampleArrays]:
    """The samples of rows `start` to before `stop`, block by block; raises SourceError."""
    if contents.form == TFRECORD:
        return tfrecord.read(path, start, stop, rules, contents.places)
    return (fixed_hdf5 if contents.form == FIXED else varlen_hdf5).read(path, start, stop, rules)


def _form_of_hdf5(path: Path) -> str:
    with reading(path), h5py.File(path, "r") as file:
        own = file.attrs.get("format")
        keys = {key: file[key] for key in file if isinstance(file[key], h5py.Dataset)}
        if own == FORMAT.encode():
            raise SourceError(f"{path}: a shard of this harness already; name its folder as DATA_DIR, or export it")
        if "packed_input_len" in keys:
            raise SourceError(f"{path}: samples packed to 512 (packed_input_len); import the files that were packed")
        if "input_ids" not in keys:
            raise SourceError(f"{path}: HDF5 without input_ids, has {', '.join(file) or 'nothing'}; give a sample file")
        is_varlen = h5py.check_vlen_dtype(keys["input_ids"].dtype) is not None
        return VARLEN if is_varlen else FIXED


def _what_to_do_with(folder: Path) -> str:
    if any(folder.rglob("*.txt")):
        return f"{folder}: a folder of text, not of samples; make samples of it with {_samples_of(f'{folder}/*.txt')}"
    return f"{folder}: a folder; name the files in it ({folder}/*)"


def _samples_of(text: str) -> str:
    return f"python -m benchmarks.bert.prepare samples {text} --vocab VOCAB --out DIR"


def _is_text(head: bytes) -> bool:
    try:
        text = head.decode("utf-8")
    except UnicodeDecodeError as error:
        if error.start < len(head) - 4:
            return False
        text = head[: error.start].decode("utf-8")
    return all(character.isprintable() or character.isspace() for character in text)
