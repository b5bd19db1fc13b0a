"""A configuration in, what its stages cost out, in steps of its whole model: FLOPs of matrix products."""

from __future__ import annotations

from benchmarks.bert.config import Config
from benchmarks.bert.growth.cost import Sample, dropping_flops, stage_flops, summed
from benchmarks.bert.growth.plan import Size, Stage
from benchmarks.bert.growth.stages import of_stage, plan_of
from benchmarks.bert.model.bert import BertShape
from benchmarks.bert.trainer import shape_of

_MASKED_SHARE = 0.15


def whole_steps(config: Config, num_steps: float, num_vocabulary: int) -> float:
    """As many steps of the whole model cost what the first `num_steps` (above 0) of the configuration's plan do."""
    plan = plan_of(config)
    if (drop := plan.layer_drop) is not None:
        shape = shape_of(config, num_vocabulary)
        dropped = dropping_flops(shape, drop, num_steps, sample_of(config), config.last_layer)
        return num_steps * dropped / _whole_flops(config, num_vocabulary)
    return summed(plan, num_steps, lambda stage: stage_cost(config, stage, num_vocabulary))


def stage_cost(config: Config, stage: Stage, num_vocabulary: int) -> float:
    """Of a step, over one in which the whole model trains; no layer is left out by chance."""
    return _flops(config, stage, num_vocabulary) / _whole_flops(config, num_vocabulary)


def sample_of(config: Config) -> Sample:
    """As long as can be."""
    return Sample(config.max_length, round(_MASKED_SHARE * config.max_length))


def vocabulary_of(config: Config) -> tuple[int, str]:
    """Entries of the data's vocabulary, and where that is known from; BERT's where there is no data."""
    path = config.data_dir / "vocab.txt"
    try:
        return len(path.read_bytes().removesuffix(b"\n").split(b"\n")), str(path)
    except OSError:
        return BertShape.num_vocabulary, f"BERT's; {path} is not there"


def _whole_flops(config: Config, num_vocabulary: int) -> float:
    return _flops(config, Stage(1, Size(config.num_layers, config.hidden_size)), num_vocabulary)


def _flops(config: Config, stage: Stage, num_vocabulary: int) -> float:
    return stage_flops(shape_of(of_stage(config, stage), num_vocabulary), stage, sample_of(config), config.last_layer)
