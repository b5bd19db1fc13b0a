"""Configuration and world in, everything that the loop works with out; built before the clock starts."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from benchmarks.bert.comm.hook import CLIP_VARIANTS, BucketClip
from benchmarks.bert.config import Config, ConfigError
from benchmarks.bert.data.batch import synthetic_batch
from benchmarks.bert.loss import pretraining_loss
from benchmarks.bert.model.attention import choose_attention
from benchmarks.bert.model.bert import Bert, BertShape
from benchmarks.bert.model.init import INITIALISATIONS
from benchmarks.bert.optim.adam import Adam
from benchmarks.bert.optim.groups import decay_groups
from benchmarks.bert.optim.lamb import Lamb
from benchmarks.bert.optim.lr import PolynomialSchedule
from benchmarks.bert.world import World

OPTIMIZERS: dict[str, type[Adam] | type[Lamb]] = {"adam": Adam, "lamb": Lamb}
Precision = Callable[[], AbstractContextManager[object]]  # the arithmetic of a forward pass

_WARM_UP_PASSES = 3  # DDP has its final buckets from the second on, and the third shows that they stay


@dataclass(frozen=True)
class Trainer:
    ddp: DistributedDataParallel
    gradient: BucketClip
    optimizer: Adam | Lamb
    learning_rate: PolynomialSchedule
    precision: Precision
    device: torch.device
    skipped_steps: Tensor  # a count, on the device


def build_trainer(config: Config, world: World, device: torch.device, seed: int, num_vocabulary: int) -> Trainer:
    """A warmed-up trainer. Ranks hold equal weights; their dropout draws differ."""
    torch.manual_seed(seed)
    model = Bert(_shape(config, num_vocabulary), choose_attention(config.attention, device))
    INITIALISATIONS[config.initialisation](model, config.init_std)
    torch.manual_seed(seed + 1 + world.rank)
    ddp = DistributedDataParallel(model.to(device), bucket_cap_mb=config.bucket_mb, gradient_as_bucket_view=True)
    trainer = Trainer(
        ddp=ddp,
        gradient=CLIP_VARIANTS[config.clip](ddp, config.max_norm),
        optimizer=OPTIMIZERS[config.optimizer](
            decay_groups(model, config.weight_decay),
            learning_rate=config.learning_rate,
            betas=(config.beta_1, config.beta_2),
            epsilon=config.epsilon,
        ),
        learning_rate=PolynomialSchedule(
            base=config.learning_rate,
            end=config.end_learning_rate,
            warmup_steps=config.warmup_steps,
            start_warmup_step=config.start_warmup_step,
            decay_steps=config.decay_steps,
            power=config.decay_power,
            decay_start_step=config.decay_start_step,
        ),
        precision=choose_precision(config.precision, device),
        device=device,
        skipped_steps=torch.zeros((), device=device),
    )
    _warm_up(trainer, num_vocabulary)
    return trainer


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


def choose_precision(name: str, device: torch.device) -> Precision:
    if name == "fp32":
        return nullcontext
    return lambda: torch.autocast(device.type, torch.bfloat16)


def _shape(config: Config, num_vocabulary: int) -> BertShape:
    return BertShape(
        num_vocabulary=num_vocabulary,
        max_length=config.max_length,
        num_layers=config.num_layers,
        hidden_size=config.hidden_size,
        num_heads=config.num_heads,
        ffn_size=config.ffn_size,
        dropout=config.dropout,
    )


def _warm_up(trainer: Trainer, num_vocabulary: int) -> None:
    """Passes on made-up tokens, so that buckets, communicators and kernels are in place. Weights stay as they were."""
    batch = synthetic_batch(num_sequences=2, length=8, num_vocabulary=num_vocabulary, num_masked=2).to(trainer.device)
    with torch.random.fork_rng(), trainer.gradient.discovering():
        for _ in range(_WARM_UP_PASSES):
            for made_up in trainer.gradient.accumulate([batch]):
                with trainer.precision():
                    loss = pretraining_loss(trainer.ddp(made_up), made_up)
                loss.backward()
    trainer.optimizer.zero_grad()
