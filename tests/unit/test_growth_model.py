"""Frozen layers and layers left out: no gradient, no graph, and what trains has the gradients that it always had."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from benchmarks.bert.loss import pretraining_loss
from benchmarks.bert.model.attention import plain, split
from benchmarks.bert.model.bert import LAST_LAYER, NORMS, Bert
from benchmarks.bert.model.frozen import train_only
from benchmarks.bert.model.kernels import FUSIONS, Kernels
from benchmarks.bert.model.layer_drop import keep_layers
from tests.unit.test_model import SHAPE, make_model, make_pack, make_rows

NUM_LAYERS = 4
WORD = "embeddings.word.weight"
BATCH = make_pack(make_rows())
every_norm = pytest.mark.parametrize("norm", NORMS)
every_last_layer = pytest.mark.parametrize("last_layer", LAST_LAYER)


def model_of(norm: str = "post", last_layer: str = "only_read", kernels: Kernels | None = None, **sizes: float) -> Bert:
    shape = replace(SHAPE, num_layers=NUM_LAYERS, norm=norm, **sizes)
    model = Bert(shape, kernels or Kernels("of a test", split), last_layer)
    model.load_state_dict(make_model(shape).state_dict())
    return model


def gradients_of(model: Bert) -> dict[str, Tensor]:
    """Of what has one."""
    model.zero_grad()
    pretraining_loss(model(BATCH), BATCH).backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def in_layers(names: Sequence[str], layers: Sequence[int]) -> set[str]:
    return {name for name in names if name.startswith(tuple(f"layers.{layer}." for layer in layers))}


# --- frozen layers


def names_that_train(num_frozen: int, embeddings: bool, decoder: bool) -> set[str]:
    names = [name for name, _ in model_of().named_parameters()]
    frozen = in_layers(names, range(num_frozen))
    if not embeddings:
        frozen |= {name for name in names if name.startswith("embeddings.")} - ({WORD} if decoder else set())
    return set(names) - frozen


@pytest.mark.parametrize("decoder", [False, True], ids=["decoder frozen", "decoder trains"])
@pytest.mark.parametrize("embeddings", [False, True], ids=["embeddings frozen", "embeddings train"])
@pytest.mark.parametrize("num_frozen", range(NUM_LAYERS))
def test_what_is_frozen_has_no_gradient_and_all_else_has_the_one_it_always_had(
    num_frozen: int, embeddings: bool, decoder: bool
) -> None:
    expected = gradients_of(model_of())
    model = model_of()
    train_only(model, num_frozen, embeddings=embeddings, decoder=decoder)
    found = gradients_of(model)
    assert found.keys() == names_that_train(num_frozen, embeddings, decoder)
    assert found.keys() == {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    for name, gradient in found.items():
        if name != WORD or embeddings:
            torch.testing.assert_close(gradient, expected[name], atol=0, rtol=0, msg=name)


@every_last_layer
@every_norm
@pytest.mark.parametrize("attention", [plain, split])
def test_so_with_every_norm_last_layer_and_attention(norm: str, last_layer: str, attention: Callable) -> None:
    kernels = Kernels("of a test", attention)
    expected = gradients_of(model_of(norm, last_layer, kernels))
    model = model_of(norm, last_layer, kernels)
    train_only(model, 2, embeddings=False, decoder=False)
    found = gradients_of(model)
    assert in_layers(list(found), range(NUM_LAYERS)) == in_layers(list(expected), [2, 3])
    for name, gradient in found.items():
        assert torch.equal(gradient, expected[name]), name


def test_compiled_kernels_freeze_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    compile_ = torch.compile
    monkeypatch.setattr(torch, "compile", lambda function: compile_(function, backend="aot_eager"))
    kernels = Kernels("of a test", split, *FUSIONS["compiled"](torch.device("cpu")))
    expected = gradients_of(model_of(kernels=kernels))
    model = model_of(kernels=kernels)
    train_only(model, 2, embeddings=False, decoder=False)
    found = gradients_of(model)
    assert in_layers(list(found), [0, 1]) == set()
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, expected[name], msg=name)


def logits_of(model: Bert) -> tuple[Tensor, Tensor]:
    torch.manual_seed(3)
    with torch.no_grad():
        return model(BATCH)


@every_norm
def test_logits_are_those_of_the_model_that_trains_whole_bit_for_bit_with_dropout_too(norm: str) -> None:
    model, frozen = model_of(norm, dropout=0.3), model_of(norm, dropout=0.3)
    train_only(frozen, 3, embeddings=False, decoder=True)
    for found, expected in zip(logits_of(frozen), logits_of(model), strict=True):
        assert torch.equal(found, expected)


def decoder_gradient() -> Tensor:
    """Of the word matrix where it is read as the head's alone: the lookup's part is of a copy."""
    model = model_of()
    lookup = model.embeddings.word.weight.detach().clone()
    model.embeddings.word.register_forward_hook(
        lambda _module, tokens, _out: torch.nn.functional.embedding(tokens[0], lookup)
    )
    return gradients_of(model)[WORD]


@pytest.mark.parametrize("num_frozen", [0, 2])
def test_the_decoder_trains_through_the_head_alone(num_frozen: int) -> None:
    model = model_of()
    train_only(model, num_frozen, embeddings=False, decoder=True)
    found = gradients_of(model)[WORD]
    assert torch.equal(found, decoder_gradient())
    assert (found - gradients_of(model_of())[WORD]).abs().max() > 1e-3


def test_the_decoder_trains_in_16_bit_too() -> None:
    """The lookup without a graph must leave no cast of the matrix behind that the head then takes without one."""
    model = model_of()
    train_only(model, 2, embeddings=False, decoder=True)
    with torch.autocast("cpu", torch.bfloat16):
        loss = pretraining_loss(model(BATCH), BATCH)
    loss.backward()
    assert model.embeddings.word.weight.grad is not None
    assert model.layers[3].ffn_in.weight.grad.any()


def test_what_was_frozen_can_train_again() -> None:
    model = model_of()
    train_only(model, 3, embeddings=False, decoder=False)
    train_only(model, 0, embeddings=True, decoder=True)
    expected = gradients_of(model_of())
    found = gradients_of(model)
    assert found.keys() == expected.keys()
    for name, gradient in found.items():
        assert torch.equal(gradient, expected[name]), name


@pytest.mark.parametrize("num_frozen", [-1, NUM_LAYERS, NUM_LAYERS + 1])
def test_a_stage_in_which_no_layer_trains_is_refused(num_frozen: int) -> None:
    model = model_of()
    with pytest.raises(ValueError, match=f"{num_frozen} frozen layers of 4: expected 0 to 3"):
        train_only(model, num_frozen, embeddings=True, decoder=True)
    assert all(parameter.requires_grad for parameter in model.parameters())


def saved_bytes(freeze: Callable[[Bert], None]) -> int:
    """What a forward pass keeps for backward, parameters not counted."""
    model = model_of()
    freeze(model)
    own = {parameter.data_ptr() for parameter in model.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        if tensor.data_ptr() not in own:
            kept[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = pretraining_loss(model(BATCH), BATCH)  # while it lives no address is used twice
    assert loss.requires_grad
    return sum(kept.values())


def frozen(num_frozen: int, *, embeddings: bool = False) -> Callable[[Bert], None]:
    return lambda model: train_only(model, num_frozen, embeddings=embeddings, decoder=False)


def only_not_required(num_frozen: int) -> Callable[[Bert], None]:
    """The fault: parameters that need no gradient, in layers that run with a graph all the same."""
    return lambda model: train_only(model, num_frozen, embeddings=True, decoder=False)


def test_nothing_is_kept_for_frozen_layers_and_as_much_less_for_each() -> None:
    whole = saved_bytes(lambda model: None)
    by_frozen = [saved_bytes(frozen(number)) for number in range(NUM_LAYERS)]
    per_layer = [before - after for before, after in pairwise(by_frozen)]
    assert whole > by_frozen[0] > by_frozen[1] > by_frozen[2] > by_frozen[3]
    assert per_layer[0] == per_layer[1]
    assert saved_bytes(only_not_required(2)) > by_frozen[2] + per_layer[0]


def test_no_node_of_the_graph_is_a_frozen_layers() -> None:
    model = model_of()
    outputs: list[Tensor] = []
    for layer in model.layers:
        layer.register_forward_hook(lambda _module, _x, out: outputs.append(out))
    train_only(model, 2, embeddings=False, decoder=False)
    model(BATCH)
    assert [out.requires_grad for out in outputs] == [False, False, True, True]
    outputs.clear()
    train_only(model, 2, embeddings=True, decoder=False)
    model(BATCH)
    assert [out.requires_grad for out in outputs] == [True] * 4


# --- layers left out


def without(model: Bert, left_out: Sequence[int]) -> Bert:
    """A model of the other layers."""
    kept = [layer for layer in range(NUM_LAYERS) if layer not in left_out]
    state = {
        name.replace(f"layers.{old}.", f"layers.{new}."): tensor
        for new, old in enumerate(kept)
        for name, tensor in model.state_dict().items()
        if name.startswith(f"layers.{old}.")
    }
    state |= {name: tensor for name, tensor in model.state_dict().items() if not name.startswith("layers.")}
    smaller = Bert(replace(model.shape, num_layers=len(kept)), model.kernels)
    smaller.last_layer = model.last_layer
    smaller.load_state_dict(state)
    return smaller


ONES = [1.0] * NUM_LAYERS


@every_last_layer
@pytest.mark.parametrize("left_out", [(), (1,), (1, 2), (3,), (0, 1, 2)], ids=str)
def test_a_model_without_some_layers_is_the_model_of_the_others(left_out: tuple[int, ...], last_layer: str) -> None:
    model = model_of("pre", last_layer)
    expected = gradients_of(without(model, left_out))
    keep_layers(model, [layer not in left_out for layer in range(NUM_LAYERS)], ONES)
    found = gradients_of(model)
    kept = [layer for layer in range(NUM_LAYERS) if layer not in left_out]
    for new, old in enumerate(kept):
        for name in in_layers(list(expected), [new]):
            gradient = found.pop(name.replace(f"layers.{new}.", f"layers.{old}."))
            torch.testing.assert_close(gradient, expected[name], atol=1e-6, rtol=1e-5)
    dropped = in_layers(list(found), left_out)
    assert len(dropped) == 16 * len(left_out)
    assert not any(found[name].any() for name in dropped)
    for name in found.keys() - dropped:
        torch.testing.assert_close(found[name], expected[name], atol=1e-6, rtol=1e-5)


def test_the_last_layer_left_out_leaves_what_is_read_as_many_places() -> None:
    model = model_of("pre", "only_read")
    keep_layers(model, [True, True, True, False], ONES)
    assert model(BATCH)[0].shape[0] == len(BATCH.masked_M)


def test_both_branches_of_a_layer_are_multiplied_by_its_scale() -> None:
    """As output projections that are so much larger do."""
    model, larger = model_of("pre"), model_of("pre")
    with torch.no_grad():
        for linear in (larger.layers[2].attention.output, larger.layers[2].ffn_out):
            linear.weight *= 1.6
            linear.bias *= 1.6
    keep_layers(model, [True] * NUM_LAYERS, [1.0, 1.0, 1.6, 1.0])
    for found, expected in zip(logits_of(model), logits_of(larger), strict=True):
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    keep_layers(model, [True] * NUM_LAYERS, [1.0, 1.6, 1.0, 1.0])
    assert (logits_of(model)[1] - logits_of(larger)[1]).abs().max() > 1e-3


def test_a_layer_left_out_is_not_computed() -> None:
    model, called = model_of("pre"), []
    for number, layer in enumerate(model.layers):
        layer.register_forward_pre_hook(lambda _module, _x, number=number: called.append(number))
    keep_layers(model, [True, False, True, False], ONES)
    gradients_of(model)
    assert called == [0, 2]


def test_with_all_kept_and_unscaled_it_is_the_model_bit_for_bit() -> None:
    expected = gradients_of(model_of("pre"))
    model = model_of("pre")
    keep_layers(model, [True] * NUM_LAYERS, ONES)
    for name, gradient in gradients_of(model).items():
        assert torch.equal(gradient, expected[name]), name


def test_evaluation_uses_all_layers_unscaled() -> None:
    model, expected = model_of("pre"), logits_of(model_of("pre"))
    keep_layers(model, [True, False, True, True], [1.0, 1.0, 1.5, 2.0])
    assert not torch.equal(logits_of(model)[1], expected[1])
    model.eval()
    assert torch.equal(logits_of(model)[1], expected[1])
    model.train()
    assert not torch.equal(logits_of(model)[1], expected[1])


@pytest.mark.parametrize("dtype", [None, torch.bfloat16], ids=["fp32", "bf16"])
def test_gradients_of_zero_have_their_parameters_dtype(dtype: torch.dtype | None) -> None:
    model = model_of("pre")
    keep_layers(model, [True, False, True, False], ONES)
    with torch.autocast("cpu", dtype) if dtype else nullcontext():
        loss = pretraining_loss(model(BATCH), BATCH)
    loss.backward()
    for parameter in model.layers[1].parameters():
        assert parameter.grad.dtype == torch.float32
        assert not parameter.grad.any()


def test_post_norm_layers_and_another_number_of_layers_are_refused() -> None:
    with pytest.raises(ValueError, match="a post-LN model cannot leave layers out; set NORM=pre"):
        keep_layers(model_of("post"), [True] * NUM_LAYERS, ONES)
    for kept, scales in (([True] * 3, ONES), ([True] * 4, ONES[:3])):
        with pytest.raises(ValueError, match=r"layers and . scales for a model of 4 layers"):
            keep_layers(model_of("pre"), kept, scales)
