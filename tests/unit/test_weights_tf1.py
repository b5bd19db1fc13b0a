"""TensorFlow checkpoints: TensorFlow's own are read bit for bit, ours are theirs, and what is damaged is refused."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.bert.weights import WeightsError, read_weights, write_weights
from benchmarks.bert.weights.bundle import Entry, build_index, parse_index
from benchmarks.bert.weights.checksum import masked_crc
from benchmarks.bert.weights.names import names
from benchmarks.bert.weights.shapes import shapes
from benchmarks.bert.weights.table import build_table, parse_table
from benchmarks.bert.weights.wire import FormatError, bytes_field, number_field
from tests.support.weights import SIZES, assert_same, flip, random_tensors

GOLDEN = Path(__file__).parents[1] / "golden" / "tf1_tiny"
GOLDEN_SIZES = replace(SIZES, num_vocabulary=16)
NORM, QUERY = "bert/embeddings/LayerNorm/beta", "bert/encoder/layer_0/attention/self/query/kernel"


def golden_value(name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """What tests/golden/tf1_tiny/make.py gave the tensor of this name, in the reference's layout."""
    start = sum(name.encode()) % 97 - 48
    return torch.from_numpy((np.arange(np.prod(shape), dtype=np.float32) / 64 + start).reshape(shape))


def golden_tensors() -> dict[str, torch.Tensor]:
    shape_of = shapes(GOLDEN_SIZES)
    return {
        row.ours: golden_value(row.reference, shape_of[row.ours][::-1]).T
        if row.transposed
        else golden_value(row.reference, shape_of[row.ours])
        for row in names(2)
    }


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """The prefix of a copy of the golden checkpoint."""
    for file in GOLDEN.glob("model.ckpt-7.*"):
        shutil.copy(file, tmp_path)
    return tmp_path / "model.ckpt-7"


def data_of(prefix: Path) -> Path:
    return prefix.with_name(f"{prefix.name}.data-00000-of-00001")


def index_of(prefix: Path) -> Path:
    return prefix.with_name(f"{prefix.name}.index")


def change_entry(prefix: Path, name: str, **changed: object) -> None:
    """Write the index anew with one entry changed."""
    _, entries = parse_index(index_of(prefix).read_bytes())
    entries[name] = replace(entries[name], **changed)  # type: ignore[arg-type]
    index_of(prefix).write_bytes(build_index(entries))


@pytest.mark.parametrize("prefix", ["model.ckpt-7", "sharded.ckpt"])
def test_tensorflows_own_checkpoint_is_read_bit_for_bit(prefix: str) -> None:
    found = read_weights(GOLDEN / prefix)
    assert found.form == "tensorflow"
    assert_same(found.tensors, golden_tensors())


def test_the_golden_values_tell_tensors_and_layouts_apart() -> None:
    expected = golden_tensors()
    square = expected["layers.0.attention.query.weight"]
    assert not torch.equal(square, square.T)
    assert not torch.equal(square, expected["layers.0.attention.key.weight"])
    assert not torch.equal(square, expected["layers.1.attention.query.weight"])


def test_what_the_optimizer_left_is_ignored_and_counted() -> None:
    ignored = read_weights(GOLDEN / "model.ckpt-7").ignored
    assert len(ignored) == 2 * 46 + 3
    assert {"global_step", "beta1_power", "beta2_power", f"{NORM}/adam_m", f"{NORM}/adam_v"} <= set(ignored)
    assert read_weights(GOLDEN / "sharded.ckpt").ignored == ()


@pytest.mark.parametrize("slot", ["LAMB", "LAMB_1", "Adam", "Adam_1", "AdamWeightDecayOptimizer_1"])
def test_other_optimizers_moments_are_ignored_too(copied: Path, slot: str) -> None:
    _, entries = parse_index(index_of(copied).read_bytes())
    entries[f"{NORM}/{slot}"] = entries.pop(f"{NORM}/adam_m")
    index_of(copied).write_bytes(build_index(entries))
    assert f"{NORM}/{slot}" in read_weights(copied).ignored


def test_an_unknown_name_is_refused(copied: Path) -> None:
    _, entries = parse_index(index_of(copied).read_bytes())
    entries[f"{NORM}/momentum"] = entries.pop(f"{NORM}/adam_m")
    index_of(copied).write_bytes(build_index(entries))
    with pytest.raises(WeightsError, match=rf"model\.ckpt-7: .*1 thing\(s\) wrong.*\n{NORM}/momentum is unknown"):
        read_weights(copied)


def test_ours_is_what_tensorflow_writes(tmp_path: Path) -> None:
    """The data byte for byte, the index entry for entry (TensorFlow shortens keys in it, which we do not)."""
    prefix = tmp_path / "model.ckpt-7"
    write_weights(prefix, golden_tensors(), "tensorflow", num_vocabulary=16)
    _, ours = parse_index(index_of(prefix).read_bytes())
    num_shards, theirs = parse_index((GOLDEN / "sharded.ckpt.index").read_bytes())
    assert num_shards == 2
    assert {name: replace(entry, shard=0, offset=0) for name, entry in theirs.items()} == {
        name: replace(entry, offset=0) for name, entry in ours.items()
    }
    assert sorted(ours, key=lambda name: ours[name].offset) == sorted(ours)  # as in TensorFlow's file, see below
    shards = [(GOLDEN / f"sharded.ckpt.data-0000{n}-of-00002").read_bytes() for n in range(2)]
    written = data_of(prefix).read_bytes()
    assert len(written) == sum(map(len, shards))
    for name, entry in theirs.items():
        expected = shards[entry.shard][entry.offset : entry.offset + entry.num_bytes]
        assert written[ours[name].offset : ours[name].offset + ours[name].num_bytes] == expected
    assert_same(read_weights(prefix).tensors, golden_tensors())


def test_tensorflow_lays_tensors_out_by_name() -> None:
    _, theirs = parse_index(index_of(GOLDEN / "model.ckpt-7").read_bytes())
    assert sorted(theirs, key=lambda name: theirs[name].offset) == sorted(theirs)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    for file in GOLDEN.glob("sharded.ckpt.*"):
        shutil.copy(file, tmp_path)
    (tmp_path / "sharded.ckpt.data-00001-of-00002").unlink()
    with pytest.raises(WeightsError, match=r"sharded\.ckpt\.data-00001-of-00002: no such file.*copy all files"):
        read_weights(tmp_path / "sharded.ckpt")


@pytest.mark.parametrize("name", [NORM, QUERY])
def test_a_flipped_bit_of_a_tensor_is_refused_and_the_tensor_named(copied: Path, name: str) -> None:
    _, entries = parse_index(index_of(copied).read_bytes())
    flip(data_of(copied), entries[name].offset + entries[name].num_bytes - 1, bit=7)
    with pytest.raises(WeightsError, match=rf"data-00000-of-00001: the checksum of {name} is wrong.*copy it again"):
        read_weights(copied)


def test_a_flipped_bit_of_a_moment_harms_nobody(copied: Path) -> None:
    _, entries = parse_index(index_of(copied).read_bytes())
    flip(data_of(copied), entries[f"{NORM}/adam_m"].offset)
    assert_same(read_weights(copied).tensors, golden_tensors())


def test_a_truncated_data_file_is_refused_and_a_tensor_named(copied: Path) -> None:
    content = data_of(copied).read_bytes()
    for size in (0, len(content) // 2):
        data_of(copied).write_bytes(content[:size])
        with pytest.raises(WeightsError, match=r"data-00000-of-00001: it ends before \S+ does, at [\d,]+ bytes"):
            read_weights(copied)


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("damaged")
    shutil.copy(data_of(GOLDEN / "model.ckpt-7"), folder)
    return folder / "model.ckpt-7"


@settings(max_examples=200, deadline=None)
@given(place=st.integers(0, 4621), bit=st.integers(0, 7))
def test_a_flipped_bit_of_the_index_is_refused_or_harmless(damaged: Path, place: int, bit: int) -> None:
    index_of(damaged).write_bytes(index_of(GOLDEN / "model.ckpt-7").read_bytes())
    flip(index_of(damaged), place, bit)
    try:
        found = read_weights(damaged)
    except WeightsError as error:
        assert "model.ckpt-7" in str(error)  # noqa: PT017  # the index may also be unharmed
    else:
        assert_same(found.tensors, golden_tensors())


@settings(max_examples=100, deadline=None)
@given(size=st.integers(0, 4621))
def test_a_truncated_index_is_refused(damaged: Path, size: int) -> None:
    index_of(damaged).write_bytes(index_of(GOLDEN / "model.ckpt-7").read_bytes()[:size])
    with pytest.raises(WeightsError, match=r"model\.ckpt-7\.index: .*cut off.*copy it again"):
        read_weights(damaged)


def test_a_wrong_checksum_of_a_block_is_refused(copied: Path) -> None:
    flip(index_of(copied), 20)
    with pytest.raises(WeightsError, match=r"\.index: the checksum of the block at 0 is wrong"):
        read_weights(copied)


def test_a_wrong_magic_is_refused(copied: Path) -> None:
    flip(index_of(copied), -1)
    with pytest.raises(WeightsError, match=r"\.index: its last 8 bytes are not those of a TensorFlow index"):
        read_weights(copied)


def test_a_compressed_block_is_refused(copied: Path) -> None:
    content = bytearray(index_of(copied).read_bytes())
    # The first block ends, before its type and its checksum, where its checksum says.
    size = next(
        n for n in range(len(content)) if masked_crc(bytes(content[:n])) == int.from_bytes(content[n : n + 4], "little")
    )
    content[size - 1] = 1  # snappy
    content[size : size + 4] = masked_crc(bytes(content[:size])).to_bytes(4, "little")
    index_of(copied).write_bytes(content)
    with pytest.raises(WeightsError, match=r"\.index: the block at 0 is compressed \(type 1\)"):
        read_weights(copied)


def test_a_big_endian_checkpoint_is_refused(copied: Path) -> None:
    table = parse_table(index_of(copied).read_bytes())
    table[b""] = number_field(1, 1) + number_field(2, 1)
    index_of(copied).write_bytes(build_table(table))
    with pytest.raises(WeightsError, match=r"\.index: its tensors are big-endian"):
        read_weights(copied)


def test_an_index_without_header_is_refused(copied: Path) -> None:
    table = parse_table(index_of(copied).read_bytes())
    del table[b""]
    index_of(copied).write_bytes(build_table(table))
    with pytest.raises(WeightsError, match=r"\.index: it has no header"):
        read_weights(copied)


@pytest.mark.parametrize("dtype", [2, 3, 7, 9])
def test_an_unsupported_type_is_refused_and_named(copied: Path, dtype: int) -> None:
    change_entry(copied, QUERY, dtype=dtype)
    with pytest.raises(WeightsError, match=rf"data-00000-of-00001: {QUERY} is of TensorFlow's type {dtype};"):
        read_weights(copied)


def test_a_sliced_tensor_is_refused_and_named(copied: Path) -> None:
    table = parse_table(index_of(copied).read_bytes())
    table[QUERY.encode()] += bytes_field(7, b"")
    table[b"\0" + QUERY.encode()] = table[QUERY.encode()]  # where TensorFlow puts the slices themselves
    index_of(copied).write_bytes(build_table(table))
    with pytest.raises(WeightsError, match=rf"data-00000-of-00001: {QUERY} is stored in slices"):
        read_weights(copied)


def test_a_sliced_moment_harms_nobody(copied: Path) -> None:
    table = parse_table(index_of(copied).read_bytes())
    moment = f"{QUERY}/adam_m".encode()
    table[moment] += bytes_field(7, b"")
    table[b"\0" + moment + b"\0\1\1"] = table[moment]
    index_of(copied).write_bytes(build_table(table))
    assert_same(read_weights(copied).tensors, golden_tensors())


def test_a_shape_that_its_bytes_do_not_fill_is_refused(copied: Path) -> None:
    change_entry(copied, NORM, shape=(9,))
    with pytest.raises(WeightsError, match=rf"{NORM} of shape \(9,\) has 32 bytes"):
        read_weights(copied)


@pytest.mark.parametrize("shape", [(0,), (0, 2**63)])  # torch cannot take the second one, even of no bytes
def test_an_empty_tensor_is_refused_and_named(copied: Path, shape: tuple[int, ...]) -> None:
    change_entry(copied, NORM, shape=shape, num_bytes=0, crc=masked_crc(b""))
    with pytest.raises(WeightsError, match=rf"data-00000-of-00001: {NORM} of shape \(0,.*\) is empty"):
        read_weights(copied)


def test_more_dimensions_than_a_tensor_can_have_are_refused(copied: Path) -> None:
    """Of very many, already the product would take for ever."""
    change_entry(copied, NORM, shape=(8,) + (1,) * 7)
    assert len(parse_index(index_of(copied).read_bytes())[1][NORM].shape) == 8
    change_entry(copied, NORM, shape=(8,) + (1,) * 8)
    with pytest.raises(WeightsError, match=rf"\.index: {NORM} has more than 8 dimensions, .*copy it again"):
        read_weights(copied)


@pytest.mark.parametrize(("dtype", "number"), [(torch.float32, 1), (torch.float16, 19), (torch.bfloat16, 14)])
@pytest.mark.parametrize("gap", [0, 1])
def test_floats_are_read_exactly_wherever_they_lie_and_come_aligned(
    tmp_path: Path, dtype: torch.dtype, number: int, gap: int
) -> None:
    prefix, tensors = tmp_path / "half.ckpt", {k: v.to(dtype) for k, v in random_tensors().items()}
    data, entries = b"\0" * gap, {}
    for row in names(2):
        tensor = tensors[row.ours]
        tensor = (tensor.T if row.transposed else tensor).contiguous()
        content = tensor.view(torch.uint8).numpy().tobytes()
        entries[row.reference] = Entry(number, tuple(tensor.shape), 0, len(data), len(content), masked_crc(content))
        data += content
    data_of(prefix).write_bytes(data)
    index_of(prefix).write_bytes(build_index(entries))
    found = read_weights(prefix).tensors
    assert_same(found, {name: tensor.float() for name, tensor in tensors.items()})
    assert all(tensor.data_ptr() % 4 == 0 for tensor in found.values())


def test_many_blocks_and_shared_beginnings_of_keys_are_read() -> None:
    """TensorFlow's own index shares beginnings of keys; ours, read by the same reader, has whole ones."""
    theirs = parse_table((GOLDEN / "model.ckpt-7.index").read_bytes())
    assert parse_table(build_table(theirs)) == theirs
    assert len(theirs) == 1 + 3 * 46 + 3
    assert (GOLDEN / "model.ckpt-7.index").stat().st_size < len(build_table(theirs))


def test_bytes_that_are_no_message_are_refused() -> None:
    for message in (b"\x80", b"\x08", b"\x0a\x05ab", b"\x0b", b"\x80" * 11, b"\x12\x01\x08"):
        with pytest.raises(FormatError):
            parse_index(build_table({b"": number_field(1, 1), b"name": message}))


def test_the_masked_checksum_is_tensorflows() -> None:
    """Of the four bytes that hold fp32's 0.9, as the golden checkpoint's index has it for beta1_power."""
    _, entries = parse_index(index_of(GOLDEN / "model.ckpt-7").read_bytes())
    value = np.float32(0.9)
    assert masked_crc(value.tobytes()) == masked_crc(np.array([value])) == entries["beta1_power"].crc
    assert masked_crc(np.float32(0.8).tobytes()) != entries["beta1_power"].crc


def test_the_same_tensors_make_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a.ckpt", "b.ckpt"):
        write_weights(tmp_path / name, random_tensors(), "tensorflow", num_vocabulary=13)
    for of in (data_of, index_of):
        assert of(tmp_path / "a.ckpt").read_bytes() == of(tmp_path / "b.ckpt").read_bytes()
