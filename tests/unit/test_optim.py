"""ADAM against its formula, decay groups, and what every optimizer promises of steps left out, state and fp32."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from benchmarks.bert.comm.group import process_group
from benchmarks.bert.config import OPTIMIZERS, Config
from benchmarks.bert.data.batch import synthetic_batch
from benchmarks.bert.model.bert import Bert, BertShape
from benchmarks.bert.optim.adam import Adam
from benchmarks.bert.optim.groups import decay_groups
from benchmarks.bert.optim.lamb import Lamb
from benchmarks.bert.optim.lans import Lans
from benchmarks.bert.optim.layerwise import TOGETHER, Layerwise
from benchmarks.bert.optim.lr import PolynomialSchedule
from benchmarks.bert.record import record_hyperparameters
from benchmarks.bert.trainer import OPTIMIZERS as BUILT
from benchmarks.bert.trainer import build_trainer
from benchmarks.bert.world import World
from mlperf_log_utils import RunLog
from tests.support.optim import (
    BETAS,
    DECAYS,
    EPSILON,
    Kind,
    Questions,
    bits,
    error,
    exact,
    make,
    make_gradients,
    make_groups,
    make_weights,
    rate,
    take,
    train,
)
from tests.support.trainers import SMALL

CPU = torch.device("cpu")
ALONE = World(rank=0, num_ranks=1, local_rank=0, ranks_per_node=1, rendezvous=None)
MAKERS: dict[str, dict[str, Any]] = {
    "adam": {"kind": Adam},
    "lamb": {"kind": Lamb},
    "lamb with options": {"kind": Lamb, "bias_correction": False, "max_trust_ratio": 1.1},
    "lans": {"kind": Lans},
    "lans with options": {"kind": Lans, "bias_correction": False, "max_trust_ratio": 1.1},
}
every_optimizer = pytest.mark.parametrize("options", MAKERS.values(), ids=MAKERS)


# --- ADAM


def oracle(weights: Sequence[Tensor], gradients: Sequence[Sequence[Tensor]], coupled: bool = False) -> list[np.ndarray]:
    """ADAM with decoupled weight decay in float64, from the formula; coupled, another algorithm."""
    (b1, b2), results = BETAS, []
    for i, decay in enumerate(DECAYS):
        w = exact(weights[i])
        m, v = np.zeros_like(w), np.zeros_like(w)
        for t, step_gradients in enumerate(gradients, start=1):
            g = exact(step_gradients[i]) + (decay * w if coupled else 0.0)
            m = b1 * m + (1 - b1) * g
            v = b2 * v + (1 - b2) * g * g
            u = (m / (1 - b1**t)) / (np.sqrt(v / (1 - b2**t)) + EPSILON)
            w = w - rate(t) * (u + (0.0 if coupled else decay * w))
        results.append(w)
    return results


def test_fifty_steps_are_those_of_the_formula_in_float64() -> None:
    weights, gradients = make_weights(), make_gradients()
    expected = oracle(weights, gradients)
    train(make(Adam, weights), weights, gradients)
    for weight, right in zip(weights, expected, strict=True):
        assert error(weight, right) < 1e-5


def test_decay_that_enters_the_gradient_would_differ() -> None:
    weights, gradients = make_weights(), make_gradients()
    wrong = oracle(weights, gradients, coupled=True)
    train(make(Adam, weights), weights, gradients)
    assert error(weights[0], wrong[0]) > 1e-3


def test_it_is_torchs_unfused_adamw() -> None:
    ours, theirs = make_weights(), make_weights()
    train(make(Adam, ours), ours, make_gradients())
    adamw = torch.optim.AdamW(make_groups(theirs), lr=1e-2, betas=BETAS, eps=EPSILON, fused=False)
    for step, gradients in enumerate(make_gradients(), start=1):
        for weight, gradient in zip(theirs, gradients, strict=True):
            weight.grad = gradient.clone()
        for group in adamw.param_groups:
            group["lr"] = rate(step)
        adamw.step()
    for weight, right in zip(ours, theirs, strict=True):
        torch.testing.assert_close(weight, right, atol=1e-6, rtol=1e-5)


# --- groups


def test_matrices_decay_and_biases_and_norms_do_not() -> None:
    with torch.device("meta"):
        model = Bert(BertShape(num_layers=2))
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    decaying, others = decay_groups(model, 0.01)
    assert (decaying["weight_decay"], others["weight_decay"]) == (0.01, 0.0)
    assert {names[id(p)] for p in decaying["params"]} == {
        name for name in names.values() if name.endswith(".weight") and "norm" not in name
    }
    assert {names[id(p)] for p in others["params"]} == {
        name for name in names.values() if name.endswith(".bias") or "norm" in name
    }


def test_frozen_parameters_are_in_no_group() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[0].requires_grad_(False)
    decaying, others = decay_groups(model, 0.01)
    assert [id(p) for p in decaying["params"]] == [id(model[1].weight)]
    assert [id(p) for p in others["params"]] == [id(model[1].bias)]


@every_optimizer
def test_the_learning_rate_set_is_every_groups(options: dict[str, Any]) -> None:
    optimizer = make(weights=make_weights(), **options)
    assert [group["lr"] for group in optimizer.param_groups] == [1e-2, 1e-2]
    optimizer.set_learning_rate(0.125)
    assert [group["lr"] for group in optimizer.param_groups] == [0.125, 0.125]


# --- steps left out

BAD = [1.0, 1e30, float("nan"), float("inf"), float("-inf")]


@every_optimizer
@pytest.mark.parametrize("bad", BAD)
def test_a_step_left_out_changes_no_bit(bad: float, options: dict[str, Any]) -> None:
    weights = make_weights()
    with torch.no_grad():
        weights[0][0, 0] = -0.0  # of which adding 0 would make 0
    optimizer = make(weights=weights, **options)
    train(optimizer, weights, make_gradients(3))
    with torch.no_grad():
        weights[0][0, 0] = -0.0
    before = bits(optimizer, weights)
    take(optimizer, weights, [torch.full_like(weight, bad) for weight in weights], found=1.0)
    assert len(before) == 4 * len(weights)
    assert bits(optimizer, weights) == before


@every_optimizer
@pytest.mark.parametrize("bad", BAD)
def test_the_very_first_step_left_out_changes_no_bit(bad: float, options: dict[str, Any]) -> None:
    weights = make_weights()
    before = [weight.detach().numpy().tobytes() for weight in weights]
    optimizer = make(weights=weights, **options)
    take(optimizer, weights, [torch.full_like(weight, bad) for weight in weights], found=1.0)
    assert [weight.detach().numpy().tobytes() for weight in weights] == before
    assert all(not value.any() for weight in weights for value in optimizer.state[weight].values())


@every_optimizer
def test_the_same_step_taken_changes_weights_moments_and_count(options: dict[str, Any]) -> None:
    weights = make_weights()
    optimizer = make(weights=weights, **options)
    train(optimizer, weights, make_gradients(3))
    before = bits(optimizer, weights)
    take(optimizer, weights, [torch.ones_like(weight) for weight in weights])
    assert not any(one == other for one, other in zip(before, bits(optimizer, weights), strict=True))


@every_optimizer
@pytest.mark.parametrize("left_out", [(1,), (3,), (1, 2), (4, 6)], ids=str)
def test_after_steps_left_out_the_run_is_as_if_they_had_not_been(
    left_out: tuple[int, ...], options: dict[str, Any]
) -> None:
    without, with_some, gradients = make_weights(), make_weights(), make_gradients(6)
    control, optimizer = make(weights=without, **options), make(weights=with_some, **options)
    train(control, without, gradients)
    for step, step_gradients in enumerate(gradients, start=1):
        optimizer.set_learning_rate(rate(step))
        if step in left_out:
            take(optimizer, with_some, [torch.full_like(weight, float("nan")) for weight in with_some], found=1.0)
        take(optimizer, with_some, step_gradients)
    assert bits(optimizer, with_some) == bits(control, without)


@every_optimizer
def test_no_gradient_at_all_is_no_step(options: dict[str, Any]) -> None:
    weights = make_weights()
    before = [weight.detach().numpy().tobytes() for weight in weights]
    take(make(weights=weights, **options), weights, [None] * len(weights))
    assert [weight.detach().numpy().tobytes() for weight in weights] == before


# --- no questions


@every_optimizer
@pytest.mark.parametrize("found", [0.0, 1.0])
def test_a_step_asks_the_host_nothing(found: float, options: dict[str, Any]) -> None:
    weights = make_weights()
    optimizer = make(weights=weights, **options)
    with Questions() as questions:
        take(optimizer, weights, make_gradients(1)[0], found)
        take(optimizer, weights, make_gradients(1)[0], found)
    assert questions.count == 0
    with Questions() as questions:
        bool(torch.tensor(found))
    assert questions.count == 1


# --- state


@every_optimizer
def test_state_written_and_read_back_goes_on_bit_for_bit(options: dict[str, Any]) -> None:
    weights, gradients = make_weights(), make_gradients(8)
    optimizer = make(weights=weights, **options)
    train(optimizer, weights, gradients[:4])
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    resumed_weights = [nn.Parameter(weight.detach().clone()) for weight in weights]
    forgetful_weights = [nn.Parameter(weight.detach().clone()) for weight in weights]
    resumed = make(weights=resumed_weights, betas=(0.1, 0.1), **options)
    forgetful = make(weights=forgetful_weights, **options)
    resumed.load_state_dict(torch.load(file))
    assert resumed.param_groups[0]["betas"] == BETAS
    train(optimizer, weights, gradients[4:])
    train(resumed, resumed_weights, gradients[4:])
    train(forgetful, forgetful_weights, gradients[4:])
    assert bits(resumed, resumed_weights) == bits(optimizer, weights)
    assert bits(forgetful, forgetful_weights) != bits(optimizer, weights)


@pytest.mark.parametrize("kind", [Lamb, Lans])
def test_parts_and_pieces_that_share_the_scratch_memory_step_as_if_each_had_its_own(
    kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights, gradients = make_weights(), make_gradients(6)
    optimizer = make(kind, weights)
    train(optimizer, weights, gradients)
    monkeypatch.setitem(TOGETHER, "cpu", 16)
    cut_weights = make_weights()
    cut = make(kind, cut_weights)
    train(cut, cut_weights, gradients)
    assert isinstance(optimizer, Layerwise)
    assert isinstance(cut, Layerwise)
    assert [len(of_group) for of_group in optimizer._parts] == [1, 1]
    assert [len(of_group) for of_group in cut._parts] == [2, 1]
    assert bits(cut, cut_weights) == bits(optimizer, weights)


@pytest.mark.parametrize("kind", [Lamb, Lans])
def test_groups_may_be_empty(kind: Kind) -> None:
    """As a rank's share of a sharded optimizer may be."""
    weights, gradients = make_weights(), make_gradients(3)
    vectors = [weights[1], weights[3]]
    take(make(kind, vectors), vectors, [gradients[0][1], gradients[0][3]])
    take(make(kind, []), [], [])


# --- fp32 under 16 bit


def trained(optimizer: str, precision: str) -> dict[str, Tensor]:
    """The tensors of a trainer after two steps."""
    config = Config(**SMALL, optimizer=optimizer, precision=precision, learning_rate=1e-4, batch_size=4)
    with process_group(ALONE, CPU, 30):
        trainer = build_trainer(config, ALONE, CPU, seed=3, num_vocabulary=101)
        with trainer.gradient.discovering():
            for step in (1, 2):
                trainer.step(step, [synthetic_batch(4, 8, 101, 2)])
        return {name: tensor.clone() for name, tensor in trainer.tensors().items()}


def in_16_bit(tensors: Mapping[str, Tensor]) -> list[str]:
    """Those that hold 16 bit, by their type or by their values: none of their bits is beyond bf16's."""
    return [
        name
        for name, tensor in tensors.items()
        if tensor.dtype != torch.float32 or (tensor.ndim > 1 and torch.equal(tensor, tensor.bfloat16().float()))
    ]


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_weights_and_moments_stay_fp32(optimizer: str, precision: str) -> None:
    tensors = {name: each for name, each in trained(optimizer, precision).items() if not name.startswith("loss_scale/")}
    assert sum(name.startswith("optimizer/") for name in tensors) > 30
    assert float(tensors.pop("skipped_steps")) == 0
    assert in_16_bit(tensors) == []


def test_16_bit_would_be_seen() -> None:
    weight = torch.randn(3, 2)
    tensors = {"fp32": weight, "bf16": weight.bfloat16(), "fp16": weight.half(), "rounded": weight.bfloat16().float()}
    assert in_16_bit(tensors) == ["bf16", "fp16", "rounded"]


# --- the log and the configuration


class Events:
    """What record.py writes, by key."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}

    def event(self, key: str, value: object = None, **_: object) -> None:
        self.values[key] = value


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_log_reads_the_live_optimizers_values(name: str) -> None:
    optimizer = make(BUILT[name], make_weights(), betas=(0.7, 0.77), decay=0.123)
    schedule = PolynomialSchedule(0.5, 0.0, warmup_steps=3, start_warmup_step=0, decay_steps=9, power=1.0)
    log = Events()
    record_hyperparameters(
        cast(RunLog, log), Config(optimizer=name), optimizer, schedule, num_buckets=1, max_predictions=76
    )
    read = {
        "opt_name": name,
        "opt_lamb_beta_1": 0.7,
        "opt_lamb_beta_2": 0.77,
        "opt_lamb_weight_decay_rate": 0.123,
        "opt_lamb_epsilon": EPSILON,
        "opt_epsilon": EPSILON,
    }
    assert {key: log.values[key] for key in read} == read


def test_the_configurations_optimizers_are_those_that_are_built() -> None:
    assert set(BUILT) == set(OPTIMIZERS)
    assert (BUILT["adam"], BUILT["lamb"], BUILT["lans"]) == (Adam, Lamb, Lans)


@pytest.mark.parametrize("name", ["lamb", "lans"])
def test_the_options_reach_the_optimizer(name: str) -> None:
    def ratios(**options: Any) -> list[float]:
        config = Config(optimizer=name, **SMALL, **options)
        with process_group(ALONE, CPU, 30):
            optimizer = build_trainer(config, ALONE, CPU, seed=3, num_vocabulary=101).optimizer
        assert isinstance(optimizer, Layerwise)
        found = optimizer._trust_ratios(torch.tensor([5.0, 0.5]), torch.tensor([1.0, 1.0])).tolist()
        return [*found, float(optimizer._bias_correction)]

    assert ratios() == [5.0, 0.5, 1.0]
    assert ratios(lamb_bias_correction=False, max_trust_ratio=2.0) == [2.0, 0.5, 0.0]
