"""The loss scale against its rule in float64, over steps that overflow and steps that do not."""

from __future__ import annotations

import random

import pytest
import torch

from benchmarks.bert.optim.loss_scale import UNSCALED, LossScale
from tests.unit.test_no_synchronisation import Watch

CPU = torch.device("cpu")
GOOD, BAD = torch.zeros(()), torch.ones(())


def scales(start: float, growth_steps: int, is_bad: list[bool]) -> list[float]:
    """The scale after each step."""
    loss_scale, found = LossScale(start, growth_steps, CPU), []
    for bad in is_bad:
        loss_scale.update(BAD if bad else GOOD)
        found.append(float(loss_scale.scale))
    return found


def by_rule(start: float, growth_steps: int, is_bad: list[bool]) -> list[float]:
    """The same in Python's float64."""
    scale, num_good, found = start, 0, []
    for bad in is_bad:
        num_good = 0 if bad else num_good + 1
        if bad:
            scale /= 2
        elif num_good == growth_steps:
            scale, num_good = scale * 2, 0
        found.append(scale)
    return found


def test_a_step_that_overflowed_halves_it_at_once_every_time() -> None:
    assert scales(1024.0, 3, [True] * 4) == [512.0, 256.0, 128.0, 64.0]


def test_it_doubles_after_as_many_good_steps_as_given_and_does_not_move_in_between() -> None:
    assert scales(1024.0, 3, [False] * 7) == [1024.0, 1024.0, 2048.0, 2048.0, 2048.0, 4096.0, 4096.0]


def test_only_good_steps_in_a_row_count() -> None:
    steps = [False, False, True, False, False, False]
    assert scales(1024.0, 3, steps) == [1024.0, 1024.0, 512.0, 512.0, 512.0, 1024.0]


@pytest.mark.parametrize(("growth_steps", "share_bad"), [(1, 0.5), (2, 0.3), (2, 0.05), (7, 0.1), (50, 0.01)])
def test_two_hundred_random_steps_follow_the_rule_exactly(growth_steps: int, share_bad: float) -> None:
    rng = random.Random(growth_steps)
    is_bad = [rng.random() < share_bad for _ in range(200)]
    assert 0 < sum(is_bad) < 200
    found = scales(1024.0, growth_steps, is_bad)
    assert found == by_rule(1024.0, growth_steps, is_bad)
    assert found != by_rule(1024.0, growth_steps + 1, is_bad)


def test_it_never_grows_beyond_what_fp32_holds() -> None:
    assert scales(2.0**126, 1, [False] * 3) == [2.0**127] * 3
    assert scales(2.0**126, 1, [False, False, True]) == [2.0**127, 2.0**127, 2.0**126]


def test_the_loss_is_multiplied_by_it_and_so_are_its_gradients() -> None:
    loss_scale, weight = LossScale(1024.0, 3, CPU), torch.tensor(3.0, requires_grad=True)
    loss_scale.scaled(weight**2).backward()
    assert weight.grad == 6.0 * 1024
    loss_scale.update(BAD)
    assert loss_scale.scaled(torch.tensor(1.0)) == 512.0


def test_its_state_is_live_so_that_it_can_be_kept_and_put_back() -> None:
    loss_scale = LossScale(1024.0, 3, CPU)
    kept = {name: tensor.clone() for name, tensor in loss_scale.tensors().items()}
    for bad in (BAD, GOOD, GOOD):
        loss_scale.update(bad)
    assert {name: float(tensor) for name, tensor in loss_scale.tensors().items()} == {"scale": 512, "good_steps": 2}
    for name, tensor in loss_scale.tensors().items():
        tensor.copy_(kept[name])
    assert (float(loss_scale.scale), float(loss_scale.tensors()["good_steps"])) == (1024, 0)


def test_a_step_of_it_asks_the_host_for_nothing() -> None:
    loss_scale, loss = LossScale(1024.0, 3, CPU), torch.ones((), requires_grad=True)
    with Watch() as watch:
        loss_scale.scaled(loss).backward()
        loss_scale.update(BAD)
    assert watch.ran("aten::_amp_update_scale_")
    assert watch.seen == []
    with Watch() as watch:
        assert loss_scale.scale > 1
    assert watch.seen


def test_fp32_and_bf16_have_none() -> None:
    loss = torch.tensor(2.0)
    assert UNSCALED.scaled(loss) is loss
    assert UNSCALED.scale == 1.0
    assert UNSCALED.tensors() == {}
    UNSCALED.update(BAD)
    assert UNSCALED.scale == 1.0
