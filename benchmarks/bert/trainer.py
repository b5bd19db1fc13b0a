"""Configuration and world in, everything that a training step works with out; built before the clock starts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from benchmarks.bert.comm.hook import CLIP_VARIANTS, BucketClip
from benchmarks.bert.config import NONE, Config, ConfigError
from benchmarks.bert.data.batch import PackedBatch
from benchmarks.bert.growth.stages import freeze, of_stage, plan_of
from benchmarks.bert.loss import pretraining_loss
from benchmarks.bert.model.attention import efficient, flash
from benchmarks.bert.model.bert import Bert, BertShape
from benchmarks.bert.model.graphs import GraphedLayers
from benchmarks.bert.model.init import INITIALISATIONS
from benchmarks.bert.model.kernels import Kernels, choose_kernels
from benchmarks.bert.optim.adam import Adam
from benchmarks.bert.optim.groups import decay_groups
from benchmarks.bert.optim.lamb import Lamb
from benchmarks.bert.optim.lans import Lans
from benchmarks.bert.optim.layerwise import Layerwise
from benchmarks.bert.optim.loss_scale import UNSCALED, LossScale, NoScale
from benchmarks.bert.optim.lr import Rewarmed, Schedule, build_schedule
from benchmarks.bert.optim.sharded import Groups, Sharded
from benchmarks.bert.random_states import RandomStates
from benchmarks.bert.weights import load_into, read_weights
from benchmarks.bert.world import World

OPTIMIZERS: dict[str, type[Adam] | type[Lamb] | type[Lans]] = {"adam": Adam, "lamb": Lamb, "lans": Lans}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
Precision = Callable[[], AbstractContextManager[object]]  # the arithmetic of a forward pass; weights stay fp32


@dataclass
class Trainer:
    """Growth replaces the first three where a stage begins."""

    ddp: DistributedDataParallel
    gradient: BucketClip
    optimizer: Adam | Layerwise | Sharded
    learning_rate: Schedule
    loss_scale: LossScale | NoScale
    precision: Precision
    device: torch.device
    skipped_steps: Tensor  # a count, on the device
    random: RandomStates  # of each rank that this process acts as

    @property
    def model(self) -> Bert:
        model = self.ddp.module
        assert isinstance(model, Bert)
        return model

    def step(self, step: int, *of_ranks: Sequence[PackedBatch]) -> Tensor:
        """The `step`-th optimizer step, counted from 1; returns the last micro-batch's loss. It waits for no GPU.

        `of_ranks` are the micro-batches of each rank that this process acts as, most often of one.
        """
        for turn, micro_batches in enumerate(of_ranks):
            self.random.turn_to(turn)
            for batch in self.gradient.accumulate(micro_batches, turn, len(of_ranks)):
                with self.precision():
                    loss = pretraining_loss(self.ddp(batch), batch)
                self.loss_scale.scaled(loss).backward()  # clips each bucket and starts its all-reduce as it fills
        non_finite = self.gradient.found_non_finite()
        self.optimizer.set_learning_rate(self.learning_rate.at(step))
        self.optimizer.step_unless(non_finite)
        self.optimizer.zero_grad()
        self.loss_scale.update(non_finite)
        self.skipped_steps.add_(non_finite)
        return loss.detach()  # its graph would keep the parameters, which growth may replace

    def tensors(self) -> dict[str, Tensor]:
        """What a step changes on all ranks alike, by name: the live tensors themselves. Equal on all ranks.

        Those of the optimizer appear with its first step; of a sharded one they are in `own_tensors`.
        """
        state = {f"model/{name}": parameter.detach() for name, parameter in self.model.named_parameters()}
        if not isinstance(self.optimizer, Sharded):
            state |= self._moments()
        state |= {f"loss_scale/{name}": value for name, value in self.loss_scale.tensors().items()}
        return state | {"skipped_steps": self.skipped_steps}

    def own_tensors(self) -> dict[str, Tensor]:
        """What a step changes on this rank and no other holds, named as in `tensors`: its share of sharded moments."""
        return self._moments() if isinstance(self.optimizer, Sharded) else {}

    def _moments(self) -> dict[str, Tensor]:
        return {
            f"optimizer/{name}/{key}": value
            for name, parameter in self.model.named_parameters()
            for key, value in self.optimizer.state.get(parameter, {}).items()
        }


def build_trainer(
    config: Config,
    world: World,
    device: torch.device,
    seed: int,
    num_vocabulary: int,
    sizes: Sequence[int] = (),
    num_done: int = 0,
) -> Trainer:
    """Ranks hold equal weights, those of rank 0; their dropout draws differ.

    A model that grows is in the stage of the `num_done`-th step, or the first. `sizes` are the numbers of tokens that
    CUDA graphs are made for, if any. Raises ConfigError and WeightsError for what this machine cannot do and for
    initial weights that do not fit.
    """
    ranks = range(world.rank * config.virtual_ranks, (world.rank + 1) * config.virtual_ranks)
    plan = plan_of(config)
    stage = plan.at(max(1, num_done))
    torch.manual_seed(seed)
    model = initial_model(of_stage(config, stage), device, num_vocabulary, is_reader=world.is_main)
    model.to(device)
    freeze(model, stage)
    precision = choose_precision(config.precision, device, caches_casts=not sizes)
    if sizes:
        model.inner_layers = _graphed(model, config, sizes, precision)
    loss_scale: LossScale | NoScale = UNSCALED
    if config.precision == "fp16":
        loss_scale = LossScale(config.loss_scale, config.loss_scale_growth_steps, device)
    ddp, gradient, optimizer = assemble(model, config, loss_scale)
    return Trainer(
        ddp=ddp,
        gradient=gradient,
        optimizer=optimizer,
        learning_rate=Rewarmed.of(build_schedule(config), plan.rate_factor)
        if plan.rewarm_steps
        else build_schedule(config),
        loss_scale=loss_scale,
        precision=precision,
        device=device,
        skipped_steps=torch.zeros((), device=device),
        random=RandomStates(device, seed, ranks),
    )


def assemble(
    model: Bert, config: Config, loss_scale: LossScale | NoScale
) -> tuple[DistributedDataParallel, BucketClip, Adam | Layerwise | Sharded]:
    """What a step needs beside the model; only what requires a gradient is in it. DDP sends rank 0's weights to all."""
    ddp = DistributedDataParallel(model, bucket_cap_mb=config.bucket_mb, gradient_as_bucket_view=True)
    gradient = CLIP_VARIANTS[config.clip](ddp, config.max_norm, loss_scale)
    return ddp, gradient, _optimizer(config, decay_groups(model, config.weight_decay))


def _optimizer(config: Config, groups: Groups) -> Adam | Layerwise | Sharded:
    kind = OPTIMIZERS[config.optimizer]
    options: dict[str, Any] = {
        "learning_rate": config.learning_rate,
        "betas": (config.beta_1, config.beta_2),
        "epsilon": config.epsilon,
    }
    if issubclass(kind, Layerwise):
        options |= {"bias_correction": config.lamb_bias_correction, "max_trust_ratio": config.max_trust_ratio}
    return Sharded(groups, partial(kind, **options)) if config.shard_optimizer else kind(groups, **options)


def initial_model(config: Config, device: torch.device, num_vocabulary: int, *, is_reader: bool) -> Bert:
    """The model of a configuration with its first weights, on the host; INITIAL_CHECKPOINT's where `is_reader`."""
    model = Bert(shape_of(config, num_vocabulary), kernels_of(config, device), config.last_layer)
    INITIALISATIONS[config.initialisation](model, config.init_std)
    if config.initial_checkpoint != NONE and is_reader:
        weights = read_weights(config.initial_checkpoint)
        load_into(model, weights, num_vocabulary=num_vocabulary, parts=config.initial_parts)
    return model


def _graphed(model: Bert, config: Config, sizes: Sequence[int], precision: Precision) -> GraphedLayers:
    if model.kernels.attention not in (flash, efficient):
        raise ConfigError(
            f"CUDA_GRAPHS=1 needs a GPU and flash or efficient attention; this run has {model.kernels.name}"
        )
    num_sequences = config.batch_size // config.gradient_accumulation_steps
    with precision():
        return GraphedLayers(model.layers[:-1], sizes, num_sequences, config.max_length, dtype=DTYPES[config.precision])


def kernels_of(config: Config, device: torch.device) -> Kernels:
    return choose_kernels(
        config.attention,
        config.fusion,
        device=device,
        dtype=DTYPES[config.precision],
        head_width=config.hidden_size // config.num_heads,
    )


def choose_device(name: str, local_rank: int) -> torch.device:
    """`auto` is this rank's GPU where torch finds one, else the CPU. Raises ConfigError where there is no such GPU."""
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if local_rank >= (found := torch.cuda.device_count()):
        raise ConfigError(
            f"DEVICE={name}: local rank {local_rank} has no GPU, torch finds {found}; "
            "lower RANKS_PER_NODE or set DEVICE=cpu"
        )
    return torch.device("cuda", local_rank)


def choose_precision(name: str, device: torch.device, *, caches_casts: bool = True) -> Precision:
    """Autocast for 16 bit. CUDA graphs cannot share weights that it has cast once for all its uses."""
    if name == "fp32":
        return nullcontext
    return lambda: torch.autocast(device.type, DTYPES[name], cache_enabled=caches_casts)


def shape_of(config: Config, num_vocabulary: int) -> BertShape:
    """The sizes of a configuration's whole model."""
    return BertShape(
        num_vocabulary=num_vocabulary,
        max_length=config.max_length,
        num_layers=config.num_layers,
        hidden_size=config.hidden_size,
        num_heads=config.num_heads,
        ffn_size=config.ffn_size,
        dropout=config.dropout,
        norm=config.norm,
    )
