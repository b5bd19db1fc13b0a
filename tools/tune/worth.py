"""A configuration and samples that it trained on in, how many of its whole model cost as much out."""

from __future__ import annotations

from benchmarks.bert.config import Config
from benchmarks.bert.growth.relative import vocabulary_of, whole_steps


def worth(config: Config, samples: int) -> float:
    """In FLOPs of matrix products. Without growth it is `samples`, exactly."""
    num_steps = samples / config.global_batch
    num_vocabulary, _ = vocabulary_of(config)
    return samples * (whole_steps(config, num_steps, num_vocabulary) / num_steps)
