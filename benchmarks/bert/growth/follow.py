"""A plan and a trainer in, the same trainer brought into each step's stage out.

The loop calls `before(step)` and knows nothing else of growth. All ranks take the same steps, so all change at the same
one; each computes the grown weights by itself, and DDP then sends rank 0's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from benchmarks.bert.config import Config
from benchmarks.bert.growth.memory import peak_bytes, reset_peak
from benchmarks.bert.growth.notation import NONE
from benchmarks.bert.growth.operators import Change, grow_moments, grow_weights
from benchmarks.bert.growth.plan import GrowthPlan, LayerDrop, Size, Stage
from benchmarks.bert.growth.stages import freeze, of_stage, plan_of
from benchmarks.bert.model.bert import Bert
from benchmarks.bert.model.layer_drop import keep_layers
from benchmarks.bert.trainer import Trainer, assemble, initial_model, kernels_of, shape_of
from benchmarks.bert.warm_up import warm_up
from mlperf_log_utils import RunLog

# Of the tensors of an optimizer's state (ADAM's; LAMB's and LANS's), which power of the gradient they are the mean of.
# The number of steps is of the power 0.
_POWERS = {"step": 0, "exp_avg": 1, "exp_avg_sq": 2, "t": 0, "m": 1, "v": 2}


class Growth(Protocol):
    def before(self, step: int) -> None:
        """Bring the trainer into the stage of this step, counted from 1; call it before each."""

    def finish(self) -> None:
        """The last step is done."""


class NoGrowth:
    def before(self, step: int) -> None: ...

    def finish(self) -> None: ...


class Dropping(NoGrowth):
    """Progressive layer dropping: all ranks draw the same layers, from seed and step."""

    def __init__(self, drop: LayerDrop, trainer: Trainer, seed: int) -> None:
        self._drop, self._trainer, self._seed = drop, trainer, seed

    def before(self, step: int) -> None:
        model = self._trainer.model
        keep = self._drop.keep(step, len(model.layers))
        drawn = np.random.default_rng([self._seed, step]).random(len(keep))
        keep_layers(model, [bool(d < p) for d, p in zip(drawn, keep, strict=True)], [1 / p for p in keep])


class Growing:
    """The stages of a plan, one after the other."""

    def __init__(
        self,
        plan: GrowthPlan,
        trainer: Trainer,
        config: Config,
        seed: int,
        num_done: int,
        log: RunLog,
        say: Callable[[str], None],
    ) -> None:
        """The trainer is in the stage of the `num_done`-th step, or the first."""
        self._plan, self._trainer, self._config, self._seed = plan, trainer, config, seed
        self._log, self._say = log, say
        self._number = plan.number_at(max(1, num_done))
        reset_peak(trainer.device)
        self._announce()

    def before(self, step: int) -> None:
        if (number := self._plan.number_at(step)) != self._number:
            self.finish()
            reset_peak(self._trainer.device)  # so that the stage's peak has that of its boundary
            enter(self._trainer, self._plan.stages[number], self._config, seed=(self._seed, number))
            self._number = number
            self._announce()

    def finish(self) -> None:
        """The stage is done: log its peak memory."""
        self._log.event("tracked_stats", {"growth_stage": self._number, "peak_bytes": peak_bytes(self._trainer.device)})

    def _announce(self) -> None:
        model, gradient = self._trainer.model, self._trainer.gradient
        training = [p for p in model.parameters() if p.requires_grad]
        facts = {
            "growth_stage": self._number,
            "first_step": self._plan.stages[self._number].first_step,
            "layers": len(model.layers),
            "layers_trained": sum(next(layer.parameters()).requires_grad for layer in model.layers),
            "hidden_size": model.shape.hidden_size,
            "parameters": model.num_parameters,
            "bytes_reduced_per_step": sum(p.nbytes for p in training),
            "buckets": gradient.num_buckets,
        }
        self._log.event("tracked_stats", facts)
        self._say(
            f"stage {self._number + 1} of {len(self._plan.stages)} from step {facts['first_step']}: "
            f"{facts['layers_trained']} of {facts['layers']} layers train, "
            f"{facts['bytes_reduced_per_step'] / 2**20:.1f} MiB are reduced in {facts['buckets']} buckets"
        )


def enter(trainer: Trainer, stage: Stage, config: Config, *, seed: tuple[int, int]) -> None:
    """Replace the trainer's model, gradient buckets and optimizer by those of the stage, made of what they hold."""
    _replace(trainer, stage, config, seed)  # apart, so that its locals are gone when the warm-up takes memory
    trainer.random.turn_to(0)
    warm_up(trainer, config)


def _replace(trainer: Trainer, stage: Stage, config: Config, seed: tuple[int, int]) -> None:
    before = trainer.model
    change = Change(_size_of(before), stage.size, config.norm)
    own, num_vocabulary = of_stage(config, stage), before.shape.num_vocabulary
    if stage.origin == "fresh":
        grown = drawn_model(own, trainer.device, num_vocabulary, seed)
    else:
        grown = _empty_model(own, trainer.device, num_vocabulary)
    tensors = {name: parameter.detach() for name, parameter in grown.named_parameters()}
    weights = {name: parameter.detach() for name, parameter in before.named_parameters()}
    for name, tensor in grow_weights(stage.origin, weights, change, tensors).items():
        tensors[name].copy_(tensor)
    state = _grown_state(trainer, before, stage, change) if stage.keeps_moments else {}
    freeze(grown, stage)
    trainer.ddp, trainer.gradient, trainer.optimizer = assemble(grown, config, trainer.loss_scale)
    for name, parameter in grown.named_parameters():
        if parameter.requires_grad and name in state:
            trainer.optimizer.state[parameter] = state[name]


def drawn_model(config: Config, device: torch.device, num_vocabulary: int, seed: tuple[int, int]) -> Bert:
    """With first weights: alike on all ranks, and no other trial's."""
    with torch.random.fork_rng([]):
        # Not a GPU's generator, which dropout draws from.
        torch.default_generator.manual_seed(int(np.random.SeedSequence(seed).generate_state(1)[0]))
        return initial_model(config, device, num_vocabulary, is_reader=False).to(device)


def _empty_model(config: Config, device: torch.device, num_vocabulary: int) -> Bert:
    """With memory for weights that are all yet to come."""
    with torch.device("meta"):
        model = Bert(shape_of(config, num_vocabulary), kernels_of(config, device), config.last_layer)
    return model.to_empty(device=device)


def growth_of(
    config: Config, trainer: Trainer, *, seed: int, num_done: int, log: RunLog, say: Callable[[str], None]
) -> Growth:
    plan = plan_of(config)
    if plan.layer_drop is not None:
        return Dropping(plan.layer_drop, trainer, seed)
    if config.growth == NONE:
        return NoGrowth()
    return Growing(plan, trainer, config, seed, num_done, log, say)


def _size_of(model: Bert) -> Size:
    return Size(len(model.layers), model.shape.hidden_size)


def _grown_state(trainer: Trainer, before: Bert, stage: Stage, change: Change) -> dict[str, dict[str, Tensor]]:
    """The optimizer's state of the grown model's parameters, by name; none of what did not train before."""
    old = {name: trainer.optimizer.state[p] for name, p in before.named_parameters() if trainer.optimizer.state.get(p)}
    grown: dict[str, dict[str, Tensor]] = {}
    for key in next(iter(old.values()), {}):
        # A count is one number for all elements; operators work on elements.
        of_key = {name: state[key].expand_as(before.get_parameter(name)) for name, state in old.items()}
        for name, tensor in grow_moments(stage.origin, of_key, change, _POWERS[key]).items():
            grown.setdefault(name, {})[key] = tensor if _POWERS[key] else tensor.flatten()[0].clone()
    return grown
