"""Weights into a model: all of it, its encoder, or nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from benchmarks.bert.model.bert import Bert, BertShape
from benchmarks.bert.weights import Weights, WeightsError, load_into
from benchmarks.bert.weights.names import is_head
from benchmarks.bert.weights.shapes import Sizes
from tests.support.weights import SHAPE, SIZES, assert_same, random_tensors

WORD, BIAS = "embeddings.word.weight", "masked_lm.bias"


def weights_of(tensors: dict[str, Tensor], num_heads: int | None = None) -> Weights:
    return Weights(tensors, "pt", (), Path("x.pt"), num_heads)


def make_model(shape: BertShape = SHAPE) -> Bert:
    torch.manual_seed(5)
    model = Bert(shape)
    with torch.no_grad():
        model.embeddings.word.weight[shape.num_vocabulary :] = 0
    return model


def state_of(model: Bert) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def encoder_of(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in tensors.items() if not is_head(name)}


def padded(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The vocabulary's tensors with three rows more, which are not zeros."""
    return tensors | {name: torch.cat([tensors[name], torch.ones_like(tensors[name][:3])]) for name in (WORD, BIAS)}


@pytest.mark.parametrize("pad", [False, True])
def test_all_weights_come_into_a_model_whose_padding_stays_zero(pad: bool) -> None:
    model, tensors = make_model(), random_tensors()
    places = {name: parameter.data_ptr() for name, parameter in model.named_parameters()}
    load_into(model, weights_of(padded(tensors) if pad else tensors), num_vocabulary=13, parts="all")
    state = state_of(model)
    assert state[WORD].shape == (16, 8)
    assert not state[WORD][13:].any()
    assert_same(state | {WORD: state[WORD][:13]}, tensors)
    assert {name: parameter.data_ptr() for name, parameter in model.named_parameters()} == places
    assert all(parameter.requires_grad and parameter.is_leaf for parameter in model.parameters())


@pytest.mark.parametrize("has_heads", [False, True])
def test_an_encoder_leaves_the_heads_as_they_are(has_heads: bool) -> None:
    model, tensors = make_model(), random_tensors()
    before = state_of(model)
    given = tensors if has_heads else encoder_of(tensors)
    load_into(model, weights_of(given), num_vocabulary=13, parts="encoder")
    after = state_of(model)
    assert_same(after | {WORD: after[WORD][:13]}, before | encoder_of(tensors))
    assert not torch.equal(before["next_sentence.pooler.weight"], after["next_sentence.pooler.weight"])


def refused(model: Bert, weights: Weights, parts: str = "all", num_vocabulary: int = 13) -> str:
    """The text of the refusal, after which the model is as it was."""
    before = state_of(model)
    with pytest.raises(WeightsError) as error:
        load_into(model, weights, num_vocabulary=num_vocabulary, parts=parts)
    assert_same(state_of(model), before)
    return str(error.value)


def test_an_encoder_in_place_of_all_is_refused_with_its_remedy() -> None:
    message = refused(make_model(), weights_of(encoder_of(random_tensors())))
    first, *rest = message.splitlines()
    assert first == (
        "x.pt: its weights do not fit the model: 7 thing(s) wrong; "
        "these are an encoder's weights only; INITIAL_PARTS=encoder takes them and draws the heads afresh"
    )
    assert sorted(rest) == sorted(f"{name} is missing" for name in random_tensors() if is_head(name))


@pytest.mark.parametrize(
    ("sizes", "remedy"),
    [
        (replace(SIZES, num_layers=3), "set NUM_LAYERS=3 as the file has them (the model: NUM_LAYERS=2)"),
        (replace(SIZES, num_layers=1), "set NUM_LAYERS=1 as the file has them (the model: NUM_LAYERS=2)"),
        (replace(SIZES, hidden_size=16), "set HIDDEN_SIZE=16 as the file has them (the model: HIDDEN_SIZE=8)"),
        (replace(SIZES, ffn_size=32), "set FFN_SIZE=32 as the file has them (the model: FFN_SIZE=16)"),
        (replace(SIZES, max_length=9), "set MAX_LENGTH=9 as the file has them (the model: MAX_LENGTH=8)"),
        (
            replace(SIZES, num_layers=4, hidden_size=4),
            "set NUM_LAYERS=4 HIDDEN_SIZE=4 as the file has them (the model: NUM_LAYERS=2 HIDDEN_SIZE=8)",
        ),
        (
            replace(SIZES, num_vocabulary=30522),
            "prepare the data with the vocabulary that the weights were trained with "
            "(30,522 entries, the data's has 13)",
        ),
    ],
)
def test_weights_of_other_sizes_are_refused_with_the_variables_to_set(sizes: Sizes, remedy: str) -> None:
    for parts in ("all", "encoder"):
        message = refused(make_model(), weights_of(random_tensors(sizes)), parts)
        assert message.splitlines()[0].endswith(f"thing(s) wrong; {remedy}")


def test_a_remedy_names_everything_that_differs() -> None:
    sizes = replace(SIZES, num_layers=1, num_vocabulary=20)
    message = refused(make_model(), weights_of(random_tensors(sizes)))
    assert "set NUM_LAYERS=1 as" in message
    assert " and prepare the data with the vocabulary" in message
    assert "and 8 more" in message  # a layer's 16 tensors and two of the vocabulary


@pytest.mark.parametrize("rows", [12, 14, 15, 17, 24])
def test_a_vocabulary_that_is_not_padded_to_the_next_multiple_of_eight_is_refused(rows: int) -> None:
    tensors = random_tensors(replace(SIZES, num_vocabulary=rows))
    assert f"{WORD} is ({rows}, 8), not (13, 8)" in refused(make_model(), weights_of(tensors))


def test_one_misshapen_tensor_is_refused() -> None:
    tensors = random_tensors() | {"layers.1.ffn_norm.bias": torch.zeros(7)}
    message = refused(make_model(), weights_of(tensors))
    assert message.endswith("take whole weights of the same network\nlayers.1.ffn_norm.bias is (7,), not (8,)")


def test_missing_and_unknown_tensors_are_listed_together() -> None:
    tensors = random_tensors() | {"extra": torch.zeros(1)}
    del tensors["embeddings.norm.bias"]
    message = refused(make_model(), weights_of(tensors))
    assert message.splitlines()[1:] == ["embeddings.norm.bias is missing", "extra is unknown"]


def test_another_number_of_heads_is_refused_where_it_is_known() -> None:
    message = refused(make_model(), weights_of(random_tensors(), num_heads=4))
    assert message == "x.pt: its config tells 4 heads; set NUM_HEADS=4 (the model: NUM_HEADS=2)"
    load_into(make_model(), weights_of(random_tensors(), num_heads=2), num_vocabulary=13, parts="all")


def test_a_model_without_padding_takes_padded_weights() -> None:
    sizes = replace(SIZES, num_vocabulary=16)
    model = make_model(replace(SHAPE, num_vocabulary=16))
    load_into(model, weights_of(random_tensors(sizes)), num_vocabulary=16, parts="all")
    assert_same(state_of(model), random_tensors(sizes))
