"""Configuration, world and live optimizer in, the events that the rules ask for before the clock starts out."""

from __future__ import annotations

import torch
import torch.distributed as dist

from benchmarks.bert.config import Config
from benchmarks.bert.optim.lr import Schedule
from benchmarks.bert.optim.sharded import Sharded
from benchmarks.bert.weights.names import names
from benchmarks.bert.world import World
from mlperf_log_utils import RunLog


def record_cache_clear(log: RunLog, config: Config, world: World) -> None:
    """One record per node, true only where its launcher did drop the page caches."""
    cleared = [None] * world.num_ranks
    dist.all_gather_object(cleared, config.caches_cleared)
    for node in range(world.num_nodes):
        log.event("cache_clear", cleared[node * world.ranks_per_node], node=node)


def record_submission(log: RunLog, config: Config, seed: int) -> None:
    log.event("submission_benchmark", "bert")
    log.event("submission_org", config.submission_org)
    log.event("submission_platform", config.submission_platform)
    log.event("submission_division", config.division)
    log.event("submission_status", config.submission_status)
    log.event("seed", seed)
    log.event("target_accuracy", config.target_accuracy)
    log.event("configuration", config.resolved())


def record_weights(log: RunLog, config: Config) -> None:
    """One record per initialised tensor, by the reference's names: the rules of the rounds 2.0 and 2.1 ask for them."""
    if config.ruleset in ("2.0.0", "2.1.0"):
        for name in names(config.num_layers):
            log.event("weights_initialization", tensor=name.reference)


def record_hyperparameters(
    log: RunLog,
    config: Config,
    optimizer: torch.optim.Optimizer | Sharded,
    schedule: Schedule,
    num_buckets: int,
    max_predictions: int,
) -> None:
    """Optimizer values are read from the optimizer that will run, so that log and run cannot differ."""
    log.event("global_batch_size", config.global_batch)
    log.event("gradient_accumulation_steps", config.virtual_ranks * config.gradient_accumulation_steps)
    log.event("max_sequence_length", config.max_length)
    log.event("max_predictions_per_seq", max_predictions)
    decaying = optimizer.param_groups[0]
    log.event("opt_name", config.optimizer)
    log.event("opt_base_learning_rate", schedule.base)
    log.event("opt_learning_rate_decay_schedule", config.schedule)
    log.event("opt_learning_rate_training_steps", schedule.decay_steps)
    log.event("opt_learning_rate_warmup_steps", schedule.warmup_steps)
    log.event("num_warmup_steps", schedule.warmup_steps)
    log.event("start_warmup_step", schedule.start_warmup_step)
    # The rules name these keys after LAMB for whichever optimizer; the key of epsilon changed in round 2.1.
    log.event("opt_lamb_beta_1", decaying["betas"][0])
    log.event("opt_lamb_beta_2", decaying["betas"][1])
    log.event("opt_lamb_weight_decay_rate", decaying["weight_decay"])
    log.event("opt_lamb_epsilon", decaying["eps"])
    log.event("opt_epsilon", decaying["eps"])
    log.event("opt_clip", config.clip, max_norm=config.max_norm, num_buckets=num_buckets)
