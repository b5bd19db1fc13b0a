"""The table of names: it is the list that the official checker holds a log against, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.bert.model.bert import Bert
from benchmarks.bert.weights.names import count_layers, is_head, names
from benchmarks.bert.weights.shapes import padded, shapes, shapes_of, sizes_of
from tests.support.weights import SHAPE, SIZES, random_tensors


def official_names() -> list[str]:
    """The tensors that mlperf_logging's rules of ruleset 2.0.0 want to be logged."""
    package = pytest.importorskip("mlperf_logging").__path__[0]
    rules = Path(package) / "compliance_checker" / "training_2.0.0" / "closed_bert.yaml"
    return re.findall(r'"((?:bert|cls)/[^"]+)"', rules.read_text("utf-8"))


def test_the_references_names_are_the_398_of_the_official_checker() -> None:
    ours = [row.reference for row in names(24)]
    assert len(ours) == 398
    assert sorted(ours) == sorted(official_names())


@pytest.mark.parametrize("num_layers", [23, 25])
def test_another_number_of_layers_makes_another_list(num_layers: int) -> None:
    assert sorted(row.reference for row in names(num_layers)) != sorted(official_names())


@pytest.mark.parametrize("form", ["ours", "reference", "pytorch"])
def test_no_two_tensors_share_a_name(form: str) -> None:
    rows = [getattr(row, form) for row in names(24)]
    assert len(set(rows)) == len(rows)


def test_our_names_and_shapes_are_the_models() -> None:
    expected = shapes_of(dict(Bert(SHAPE).named_parameters()))
    assert expected["embeddings.word.weight"] == (16, 8)
    expected["embeddings.word.weight"] = (13, 8)  # the table knows no padding
    assert shapes(SIZES) == expected


def test_kernels_are_transposed_and_nothing_else_is() -> None:
    assert {row.ours for row in names(1) if row.transposed} == {
        *(f"layers.0.attention.{part}.weight" for part in ("query", "key", "value", "output")),
        "layers.0.ffn_in.weight",
        "layers.0.ffn_out.weight",
        "masked_lm.transform.weight",
        "next_sentence.pooler.weight",
    }
    assert all(row.transposed == row.reference.endswith("/kernel") for row in names(24))


def test_seven_tensors_are_the_heads() -> None:
    assert sum(is_head(row.ours) for row in names(24)) == 7
    assert not is_head("next_sentence.pooler.weight")


@pytest.mark.parametrize("form", ["ours", "reference", "pytorch"])
def test_layers_are_counted_in_any_form_and_not_by_their_numbers(form: str) -> None:
    assert count_layers(getattr(row, form) for row in names(12)) == 12
    assert count_layers(["bert/encoder/layer_3/output/dense/bias", "layers.999999999.ffn_in.bias"]) == 2


def test_sizes_are_read_off_the_shapes() -> None:
    assert sizes_of(shapes(SIZES)) == SIZES
    assert sizes_of({"embeddings.word.weight": (13, 8)}) is None
    assert shapes_of(random_tensors()) == shapes(SIZES)


@pytest.mark.parametrize(("entries", "rows"), [(30522, 30528), (30528, 30528), (1, 8)])
def test_vocabularies_are_padded_to_multiples_of_eight(entries: int, rows: int) -> None:
    assert padded(entries) == rows
