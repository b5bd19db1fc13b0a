"""A configuration in, its growth plan and each stage's model out: its sizes, and what of it is frozen."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.bert.config import Config
from benchmarks.bert.growth.notation import parse
from benchmarks.bert.growth.plan import GrowthPlan, Size, Stage
from benchmarks.bert.model.bert import Bert
from benchmarks.bert.model.frozen import train_only


def plan_of(config: Config) -> GrowthPlan:
    return parse(config.growth, Size(config.num_layers, config.hidden_size), config.decay_steps)


def of_stage(config: Config, stage: Stage) -> Config:
    """Heads are as wide at all sizes, and the feed-forward part and the number of heads in proportion."""
    width, of = stage.size.hidden_size, config.hidden_size
    return replace(
        config,
        num_layers=stage.size.num_layers,
        hidden_size=width,
        num_heads=config.num_heads * width // of,
        ffn_size=config.ffn_size * width // of,
    )


def freeze(model: Bert, stage: Stage) -> None:
    """Of a stage in which everything trains, nothing: such a model is as without growth."""
    if stage.num_frozen or not stage.embeddings_train:
        train_only(model, stage.num_frozen, embeddings=stage.embeddings_train, decoder=stage.decoder_trains)
