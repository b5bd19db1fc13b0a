"""What growth makes of weights and moments: whose copy a layer is, the logits kept, ADAM's next update as derived."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from benchmarks.bert.data.batch import PackedBatch
from benchmarks.bert.growth import preserving
from benchmarks.bert.growth.notation import GrowthError
from benchmarks.bert.growth.operators import OPERATORS, Change, grow_moments, grow_weights
from benchmarks.bert.growth.plan import Size
from benchmarks.bert.growth.preserving import layer_of
from benchmarks.bert.loss import pretraining_loss
from benchmarks.bert.model.bert import NORMS, Bert, BertShape
from benchmarks.bert.model.init import standard
from benchmarks.bert.model.kernels import PORTABLE
from benchmarks.bert.optim.adam import Adam
from benchmarks.bert.optim.groups import decay_groups
from tests.support.float64 import InFloat64
from tests.unit.test_model import SHAPE, make_model, make_pack, make_rows

Tensors = dict[str, Tensor]

SMALL = Size(SHAPE.num_layers, SHAPE.hidden_size)
DEEP = Size(2 * SHAPE.num_layers, SHAPE.hidden_size)
WIDE = Size(SHAPE.num_layers, 2 * SHAPE.hidden_size)
PRESERVING = {"deepen": DEEP, "widen": WIDE}
RATE, DECAY, BETAS = 1e-3, 0.01, (0.9, 0.999)

every_norm = pytest.mark.parametrize("norm", NORMS)
every_preserving = pytest.mark.parametrize("origin", PRESERVING)


def shape_of(size: Size, norm: str = "post", dropout: float = 0.0) -> BertShape:
    scale = size.hidden_size // SHAPE.hidden_size
    return replace(
        SHAPE,
        num_layers=size.num_layers,
        hidden_size=size.hidden_size,
        num_heads=scale * SHAPE.num_heads,
        ffn_size=scale * SHAPE.ffn_size,
        norm=norm,
        dropout=dropout,
    )


def weights_of(model: Bert) -> Tensors:
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def model_of(weights: Tensors, shape: BertShape, last_layer: str = "only_read") -> Bert:
    """With these weights and no others, each of its shape."""
    model = Bert(shape, PORTABLE, last_layer).to(next(iter(weights.values())).dtype)
    model.load_state_dict(weights)
    return model


def batch_of(seed: int) -> PackedBatch:
    return make_pack(make_rows(seed=seed))


def gradients_of(model: Bert, batch: PackedBatch) -> Tensors:
    model.zero_grad()
    with InFloat64() if model.masked_lm.bias.dtype == torch.float64 else nullcontext():
        pretraining_loss(model(batch), batch).backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def logits_of(model: Bert) -> Tensor:
    model.eval()
    with torch.no_grad(), InFloat64() if model.masked_lm.bias.dtype == torch.float64 else nullcontext():
        words_MV, pairs_B2 = model(batch_of(5))
    return torch.cat([words_MV[:, : SHAPE.num_vocabulary].flatten(), pairs_B2.flatten()])


# --- copies, fresh layers and stacks


def numbered(size: Size) -> Tensors:
    """Each layer's tensors hold its number, all others -1."""
    model = Bert(shape_of(size))
    return {
        name: torch.full_like(parameter, -1.0 if (layer := layer_of(name)) is None else layer).detach()
        for name, parameter in model.named_parameters()
    }


def sources_of(origin: str, before: int, after: int) -> list[int]:
    """By layer of the grown model, which layer of the small one it holds; 100 more is one that was drawn."""
    change = Change(Size(before, SHAPE.hidden_size), Size(after, SHAPE.hidden_size), "post")
    drawn = {name: tensor + 100 for name, tensor in numbered(change.after).items()}
    grown = grow_weights(origin, numbered(change.before), change, drawn)
    assert {name: tensor.shape for name, tensor in grown.items()} == {name: t.shape for name, t in drawn.items()}
    assert all((tensor == -1).all() for name, tensor in grown.items() if layer_of(name) is None)
    found = [{tensor.unique().item() for name, tensor in grown.items() if layer_of(name) == i} for i in range(after)]
    return [int(number) for [number] in found]


@pytest.mark.parametrize(
    ("origin", "before", "after", "sources"),
    [
        ("same", 2, 2, [0, 1]),
        ("copy", 3, 6, [0, 1, 2, 0, 1, 2]),
        ("copy", 3, 5, [0, 1, 2, 1, 2]),
        ("copy", 3, 4, [0, 1, 2, 2]),
        ("fresh", 2, 3, [0, 1, 102]),
        ("fresh", 1, 4, [0, 101, 102, 103]),
        ("stack", 3, 6, [0, 1, 2, 0, 1, 2]),
        ("stack", 1, 2, [0, 0]),
    ],
)
def test_each_layer_of_the_grown_model_is_the_one_it_is_to_be(
    origin: str, before: int, after: int, sources: list[int]
) -> None:
    assert sources_of(origin, before, after) == sources


@pytest.mark.parametrize("origin", ["copy", "stack"])
@pytest.mark.parametrize("power", [1, 2])
def test_a_copied_layer_has_copies_of_the_moments_and_what_has_none_gets_none(origin: str, power: int) -> None:
    """As after a stage in which only the second layer and the heads have trained."""
    moments = {name: tensor + 1 for name, tensor in numbered(SMALL).items() if layer_of(name) in (1, None)}
    grown = grow_moments(origin, moments, Change(SMALL, DEEP, "post"), power)
    assert {layer_of(name) for name in grown} == {1, 3, None}
    for name, tensor in grown.items():
        assert (tensor == (0 if layer_of(name) is None else 2)).all(), name


@pytest.mark.parametrize("origin", sorted(OPERATORS.keys() - {"same", "fresh"}))
@every_norm
def test_counts_of_steps_are_those_of_what_a_tensor_comes_from(origin: str, norm: str) -> None:
    after = PRESERVING.get(origin, DEEP)
    counts = {name: torch.full_like(p, 7).detach() for name, p in Bert(shape_of(SMALL, norm)).named_parameters()}
    grown = grow_moments(origin, counts, Change(SMALL, after, norm), 0)
    expected = weights_of(Bert(shape_of(after, norm)))
    assert grown.keys() == expected.keys()
    for name, tensor in grown.items():
        assert torch.equal(tensor, torch.full_like(expected[name], 7)), name


def test_fresh_layers_have_no_moments() -> None:
    moments = numbered(SMALL)
    grown = grow_moments("fresh", moments, Change(SMALL, DEEP, "post"), 1)
    assert grown.keys() == moments.keys()


@pytest.mark.parametrize("origin", OPERATORS)
@every_norm
def test_nothing_is_changed_in_place_and_no_two_results_share_memory(origin: str, norm: str) -> None:
    after = SMALL if origin == "same" else PRESERVING.get(origin, DEEP)
    change = Change(SMALL, after, norm)
    weights = weights_of(Bert(shape_of(SMALL, norm)))
    kept = {name: tensor.clone() for name, tensor in weights.items()}
    drawn = weights_of(Bert(shape_of(after, norm)))
    for grown in (
        grow_weights(origin, weights, change, drawn),
        grow_moments(origin, weights, change, 1),
        grow_moments(origin, weights, change, 2),
    ):
        addresses = [tensor.data_ptr() for tensor in grown.values()]
        assert len(addresses) == len(set(addresses))
        assert not set(addresses) & {tensor.data_ptr() for tensor in drawn.values()}
    for name, tensor in weights.items():
        assert torch.equal(tensor, kept[name]), name


@pytest.mark.parametrize(
    ("origin", "after", "needed"),
    [
        ("same", DEEP, "the same size"),
        ("copy", SMALL, "more layers, at most twice as many"),
        ("copy", Size(5, 24), "more layers, at most twice as many"),
        ("copy", Size(3, 48), "the same width"),
        ("fresh", Size(1, 24), "more layers"),
        ("stack", Size(3, 24), "twice the layers"),
        ("deepen", WIDE, "twice the layers"),
        ("widen", DEEP, "twice the width"),
        ("widen", Size(4, 48), "twice the width"),
    ],
)
def test_a_size_that_an_operator_does_not_make_is_refused_with_both_sizes(
    origin: str, after: Size, needed: str
) -> None:
    change = Change(SMALL, after, "post")
    for grow in (lambda: grow_weights(origin, {}, change, {}), lambda: grow_moments(origin, {}, change, 1)):
        with pytest.raises(GrowthError, match=f"{origin} does not make {after} of {SMALL}.*{needed}"):
            grow()


# --- operators that keep the logits


def error_of(origin: str, norm: str, dtype: torch.dtype, last_layer: str = "only_read") -> float:
    """Of the grown model's logits, relative to the largest."""
    weights = weights_of(make_model(shape_of(SMALL, norm)).to(dtype))
    small = model_of(weights, shape_of(SMALL, norm), last_layer)
    grown = grow_weights(origin, weights, Change(SMALL, PRESERVING[origin], norm), {})
    large = model_of(grown, shape_of(PRESERVING[origin], norm), last_layer)
    expected = logits_of(small)
    return ((logits_of(large) - expected).abs().max() / expected.abs().max()).item()


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-11), (torch.float32, 2e-6)], ids=["fp64", "fp32"])
@every_norm
@every_preserving
def test_logits_are_kept_to_rounding(origin: str, norm: str, dtype: torch.dtype, tolerance: float) -> None:
    assert error_of(origin, norm, dtype) < tolerance


def test_pre_norm_layers_that_are_put_in_keep_the_logits_bit_for_bit() -> None:
    """Where the layer that was the last one is computed at as many places as before."""
    assert error_of("deepen", "pre", torch.float32, "whole") == 0


FAULTS: dict[str, tuple[str, str, Callable[[pytest.MonkeyPatch], None]]] = {
    "read-outs not halved": (
        "widen",
        "post",
        lambda monkeypatch: monkeypatch.setitem(preserving._SPECIAL, "masked_lm.norm.weight", preserving._PAIR),
    ),
    "blocks beside the diagonal not 0": (
        "widen",
        "pre",
        lambda monkeypatch: monkeypatch.setattr(
            preserving, "_MATRIX", preserving._Rule(preserving._blocks, *[None] * 2)
        ),
    ),
    "an output projection's bias not 0": (
        "deepen",
        "pre",
        lambda monkeypatch: monkeypatch.setattr(preserving, "_OUTPUTS", ("attention.output.weight", "ffn_out.weight")),
    ),
    "the last norm's gain not moved": (
        "deepen",
        "post",
        lambda monkeypatch: monkeypatch.setattr(preserving, "_LAST_NORM", ()),
    ),
    "the new layer's first norm left as it was": (
        "deepen",
        "post",
        lambda monkeypatch: monkeypatch.setattr(preserving, "_FIRST_NORM", ()),
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_operator_changes_the_logits(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    origin, norm, make = FAULTS[fault]
    make(monkeypatch)
    assert error_of(origin, norm, torch.float64) > 1e-3


# --- ADAM's moments and next update


def adam_of(model: Bert, epsilon: float) -> Adam:
    return Adam(decay_groups(model, DECAY), learning_rate=RATE, betas=BETAS, epsilon=epsilon)


def step(model: Bert, optimizer: Adam, batch: PackedBatch) -> None:
    gradients_of(model, batch)
    optimizer.step_unless(torch.zeros(()))


def moments_of(model: Bert, optimizer: Adam) -> tuple[Tensors, Tensors, Tensor]:
    """First and second moments by name, and the step count, which is one for all."""
    states = {name: optimizer.state[parameter] for name, parameter in model.named_parameters()}
    first, second = ({name: state[key] for name, state in states.items()} for key in ("exp_avg", "exp_avg_sq"))
    return first, second, next(iter(states.values()))["step"]


def updates_of(before: Tensors, after: Tensors) -> Tensors:
    """By how much of the learning rate each element moved against its gradient; its decay is taken out."""
    return {
        name: (weight * (1 - RATE * (DECAY if weight.ndim > 1 else 0)) - after[name]) / RATE
        for name, weight in before.items()
    }


def next_updates(
    origin: str,
    norm: str,
    epsilons: tuple[float, float] = (1e-14, 1e-14),
    powers: tuple[int, int] = (1, 2),
) -> tuple[Tensors, Tensors]:
    """After five steps, the update that a sixth makes in the small model, and in the one grown from it.

    `epsilons` are those of that step in each.
    """
    small = make_model(shape_of(SMALL, norm)).double()
    optimizer = adam_of(small, 1e-6)
    for seed in range(5):
        step(small, optimizer, batch_of(seed))
    change = Change(SMALL, PRESERVING[origin], norm)
    before = {name: tensor.clone() for name, tensor in weights_of(small).items()}
    first, second, count = moments_of(small, optimizer)
    grown = grow_weights(origin, before, change, {})
    large = model_of(grown, shape_of(PRESERVING[origin], norm))
    first, second = (
        grow_moments(origin, moments, change, power) for moments, power in zip((first, second), powers, strict=True)
    )
    of_large = adam_of(large, epsilons[1])
    for name, parameter in large.named_parameters():
        of_large.state[parameter] = {
            "step": count.clone(),
            "exp_avg": first[name].clone(),
            "exp_avg_sq": second[name].clone(),
        }
    for group in optimizer.param_groups:
        group["eps"] = epsilons[0]
    step(small, optimizer, batch_of(9))
    step(large, of_large, batch_of(9))
    return updates_of(before, weights_of(small)), updates_of(grown, weights_of(large))


def assert_updates(found: Tensors, expected: Tensors, tolerance: float = 1e-5) -> None:
    """A key's bias adds one number to all scores of a token: its gradient, and so its update, is rounding alone."""
    for name, update in expected.items():
        if not name.endswith("attention.key.bias"):
            assert (found[name] - update).abs().max() < tolerance, name


@every_norm
def test_in_a_wider_model_each_entrys_next_update_is_that_of_the_entry_it_gets_its_gradient_from(norm: str) -> None:
    small, large = next_updates("widen", norm)
    expected = {name: preserving._rule(name, update).places(update) for name, update in small.items()}
    assert_updates(large, expected)
    assert large["layers.0.ffn_in.weight"][: SHAPE.ffn_size, SHAPE.hidden_size :].abs().max() > 0.1


@pytest.mark.parametrize("powers", [(1, 1), (2, 2)])
def test_moments_with_another_factor_give_another_update(powers: tuple[int, int]) -> None:
    small, large = next_updates("widen", "pre", powers=powers)
    expected = {name: preserving._rule(name, update).places(update) for name, update in small.items()}
    with pytest.raises(AssertionError):
        assert_updates(large, expected)


@pytest.mark.parametrize(("of_small", "is_equal"), [(2e-3, True), (1e-3, False)])
def test_epsilon_counts_twice_where_gradients_are_halved(of_small: float, is_equal: bool) -> None:
    small, large = next_updates("widen", "pre", epsilons=(of_small, 1e-3))
    name = "layers.1.ffn_in.weight"
    assert ((large[name] - small[name].repeat(2, 2)).abs().max() < 1e-9) == is_equal


# Of a layer that was put in: no gradient comes through the projections of 0 that follow these.
PASSIVE = ("query.weight", "query.bias", "key.weight", "key.bias", "value.weight", "value.bias", "ffn_in.weight")


@every_norm
def test_in_a_deeper_model_each_old_tensors_next_update_is_as_before_and_new_ones_take_small_steps(norm: str) -> None:
    small, large = next_updates("deepen", norm)
    expected = {}
    for name, update in small.items():
        layer = layer_of(name)
        is_moved = norm == "post" and name.endswith(("ffn_norm.weight", "ffn_norm.bias"))
        expected[name if layer is None else preserving.in_layer(2 * layer + is_moved, name)] = update
    assert_updates(large, expected)
    new = {name: update for name, update in large.items() if name not in expected}
    assert len(new) == 16 * SHAPE.num_layers
    for name, update in new.items():
        if name.endswith(PASSIVE):
            assert not update.any(), name
        if name.endswith(preserving._OUTPUTS):
            assert 0 < update.abs().max() < 1, name


@every_norm
@every_preserving
def test_gradients_are_those_of_the_small_model_where_they_are_to_be(origin: str, norm: str) -> None:
    small = make_model(shape_of(SMALL, norm)).double()
    change = Change(SMALL, PRESERVING[origin], norm)
    large = model_of(grow_weights(origin, weights_of(small), change, {}), shape_of(change.after, norm))
    found = gradients_of(large, batch_of(3))
    # The moments after one step of ADAM are the gradient times 1 - b, so they are grown alike. New tensors have other
    # gradients than the moments say, which are 0.
    expected = grow_moments(origin, gradients_of(small, batch_of(3)), change, 1)
    scale = max(gradient.abs().max() for gradient in expected.values())
    for name, gradient in expected.items():
        if gradient.any():
            assert (found[name] - gradient).abs().max() < 1e-11 * scale, name


# --- the two halves of a wider model


def halves_differ(dropout: float) -> bool:
    """After a few steps, whether the two halves of the position embeddings are no longer the same."""
    small = make_model(shape_of(SMALL, "pre")).double()
    grown = grow_weights("widen", weights_of(small), Change(SMALL, WIDE, "pre"), {})
    large = model_of(grown, shape_of(WIDE, "pre", dropout))
    optimizer = adam_of(large, 1e-6)
    for seed in range(3):
        step(large, optimizer, batch_of(seed))
    one, other = large.embeddings.position.weight.detach().chunk(2, dim=1)
    return (one - other).abs().max().item() > 1e-6


def test_the_halves_stay_equal_without_dropout_and_part_with_it() -> None:
    assert not halves_differ(0.0)
    assert halves_differ(0.1)


def test_a_model_grown_with_drawn_layers_has_what_was_drawn() -> None:
    torch.manual_seed(1)
    large = Bert(shape_of(DEEP))
    standard(large, 0.02)
    small = make_model()
    grown = grow_weights("fresh", weights_of(small), Change(SMALL, DEEP, "post"), weights_of(large))
    for name, tensor in grown.items():
        is_new = layer_of(name) is not None and layer_of(name) >= SMALL.num_layers
        assert torch.equal(tensor, weights_of(large if is_new else small)[name]), name
