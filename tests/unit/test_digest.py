"""The content digest: as defined, whatever the shards; and refused for a folder that is not whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.bert.data.manifest import MANIFEST, ManifestError
from benchmarks.bert.data.shards import ShardError
from benchmarks.bert.prepare import digest as digest_module
from benchmarks.bert.prepare.build import build
from benchmarks.bert.prepare.digest import content_digest
from tests.support.corpora import SHORT_RECIPE, make_documents, make_vocabulary, write_text, write_words
from tests.support.reference_oracle import Drawn, reference_samples
from tests.support.reference_oracle import content_digest as oracle_digest


def oracle(text: Path) -> list[Drawn]:
    return reference_samples(
        text.read_bytes(),
        make_vocabulary(),
        seed=SHORT_RECIPE.seed,
        max_length=SHORT_RECIPE.max_length,
        max_predictions=SHORT_RECIPE.max_predictions,
        duplicates=SHORT_RECIPE.duplicates,
        short_share=SHORT_RECIPE.short_share,
    )


@pytest.fixture
def texts(tmp_path: Path) -> list[Path]:
    return [write_text(tmp_path / f"{seed}.txt", make_documents(4 + seed, seed)) for seed in range(3)]


def built(tmp_path: Path, texts: list[Path]) -> Path:
    vocabulary = write_words(tmp_path / "vocab.txt")
    build(
        texts, vocabulary, tmp_path / "data", recipe=SHORT_RECIPE, num_shards=None, num_processes=1, say=lambda _: None
    )
    return tmp_path / "data"


def test_each_file_makes_the_samples_that_it_makes_alone_and_the_digest_takes_them_as_one(
    tmp_path: Path, texts: list[Path]
) -> None:
    expected = [sample for text in texts for sample in oracle(text)]
    assert content_digest(built(tmp_path, texts)) == oracle_digest(expected, make_vocabulary())


def test_the_order_of_the_files_is_part_of_the_content(tmp_path: Path, texts: list[Path]) -> None:
    expected = [sample for text in texts for sample in oracle(text)]
    assert content_digest(built(tmp_path, texts[::-1])) != oracle_digest(expected, make_vocabulary())


def test_an_unfinished_folder_has_no_digest(tmp_path: Path, texts: list[Path]) -> None:
    folder = built(tmp_path, texts)
    (folder / MANIFEST).unlink()
    with pytest.raises(ManifestError, match="the preparation is unfinished"):
        content_digest(folder)


def test_a_flipped_bit_has_no_digest(tmp_path: Path, texts: list[Path]) -> None:
    folder = built(tmp_path, texts)
    shard = sorted(folder.glob("*.hdf5"))[1]
    content = bytearray(shard.read_bytes())
    content[2100] ^= 1
    shard.write_bytes(content)
    with pytest.raises(ShardError, match=shard.name):
        content_digest(folder)


def test_more_tokens_than_int32_offsets_reach_are_refused(
    tmp_path: Path, texts: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digest_module, "_MOST", 100)
    with pytest.raises(ManifestError, match=r"tokens, the digest's int32 offsets reach 100; compare the checksums"):
        content_digest(built(tmp_path, texts))
