"""A configuration whose values are each fine alone in, the problems that they make together out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.bert.data.plan import STRATEGIES
from benchmarks.bert.growth import notation as growth

if TYPE_CHECKING:
    from benchmarks.bert.config import Config


def contradictions(config: Config) -> list[str]:
    """Problems of values that are each fine alone."""
    found = []
    if config.hidden_size % config.num_heads:
        found.append(f"HIDDEN_SIZE={config.hidden_size} must be a multiple of NUM_HEADS={config.num_heads}")
    if config.batch_size % config.gradient_accumulation_steps:
        found.append(
            f"BATCH_SIZE={config.batch_size} must be a multiple of "
            f"GRADIENT_ACCUMULATION_STEPS={config.gradient_accumulation_steps}"
        )
    if config.max_length < config.num_strata:
        found.append(f"NUM_STRATA={config.num_strata} must be at most MAX_LENGTH={config.max_length}")
    if config.initialisation == "relative_offset" and config.hidden_size // config.num_heads % 2:
        found.append("INITIALISATION=relative_offset needs an even head width, HIDDEN_SIZE / NUM_HEADS")
    if config.norm == "pre" and str(config.initial_checkpoint) != "none":
        found.append(
            f"NORM=pre contradicts INITIAL_CHECKPOINT={config.initial_checkpoint}: published weights are those of "
            "post-LN networks; set NORM=post, or INITIAL_CHECKPOINT=none"
        )
    found += _of_cuda_graphs(config)
    found += _of_schedule(config)
    found += _of_growth(config)
    if config.profile_start_step > config.max_steps:
        found.append(
            f"PROFILE_START_STEP={config.profile_start_step} must be at most MAX_STEPS={config.max_steps}; 0 records "
            "nothing"
        )
    last = config.max_steps * config.global_batch
    if config.eval_start_samples > last:
        found.append(
            f"the first evaluation is due after {config.eval_start_samples} samples, but MAX_STEPS="
            f"{config.max_steps} x {config.global_batch} ends at {last}: no accuracy would ever be logged; lower "
            "EVAL_START_SAMPLES or EVAL_INTERVAL_SAMPLES, or raise MAX_STEPS"
        )
    return found


def _of_cuda_graphs(config: Config) -> list[str]:
    if not config.cuda_graphs:
        return []
    found = []
    if config.num_layers < 2:
        found.append("CUDA_GRAPHS=1 needs NUM_LAYERS of at least 2: the last layer is not in the graph")
    if not STRATEGIES[config.loading].promises.fixed_count:
        found.append(
            f"CUDA_GRAPHS=1 needs as many samples at every step, which LOADING={config.loading} does not promise; "
            "use LOADING=global_presort"
        )
    if config.norm == "pre":
        found.append("CUDA_GRAPHS=1 needs NORM=post: what pre-LN layers hand on is fp32 beside 16 bit branches")
    if config.virtual_ranks > 1:
        found.append("CUDA_GRAPHS=1 needs VIRTUAL_RANKS=1: a graph draws its dropout from one generator")
    if config.growth != growth.NONE:
        found.append("CUDA_GRAPHS=1 needs GROWTH=none: a graph is of layers that are always there")
    return found


def _of_growth(config: Config) -> list[str]:
    try:
        plan = growth.parse(config.growth, growth.Size(config.num_layers, config.hidden_size), config.decay_steps)
    except growth.GrowthError as error:
        return [f"GROWTH={config.growth}: {error}"]
    if config.growth == growth.NONE:
        return []
    found = []
    if plan.layer_drop is not None and config.norm != "pre":
        found.append(f"GROWTH={config.growth} needs NORM=pre: a post-LN network cannot do without a layer")
    if config.shard_optimizer and len(plan.stages) > 1:
        found.append("GROWTH needs SHARD_OPTIMIZER=0: moments go from one stage to the next on each rank")
    if plan.stages[0].size != plan.stages[-1].size and str(config.initial_checkpoint) != "none":
        found.append(
            f"GROWTH={config.growth} begins as {plan.stages[0].size}, the weights of INITIAL_CHECKPOINT="
            f"{config.initial_checkpoint} are those of a whole model; set one of them to none"
        )
    smallest = min(stage.size.hidden_size for stage in plan.stages)
    if config.num_heads * smallest % config.hidden_size or config.ffn_size * smallest % config.hidden_size:
        found.append(
            f"GROWTH={config.growth}: at the width {smallest} NUM_HEADS={config.num_heads} and FFN_SIZE="
            f"{config.ffn_size} are, in proportion to HIDDEN_SIZE={config.hidden_size}, no whole numbers"
        )
    return found


def _of_schedule(config: Config) -> list[str]:
    found, name = [], config.schedule
    if config.decay_start_step >= config.decay_steps:
        found.append(f"DECAY_START_STEP={config.decay_start_step} must be below DECAY_STEPS={config.decay_steps}")
    if name != "polynomial" and config.decay_start_step != -1:
        found.append(f"DECAY_START_STEP={config.decay_start_step} needs SCHEDULE=polynomial, not {name}; set it to -1")
    if name != "polynomial" and config.decay_power != 1:
        found.append(f"DECAY_POWER={config.decay_power} needs SCHEDULE=polynomial: that of {name} is a line, power 1")
    if name != "lans" and config.constant_steps:
        found.append(f"CONSTANT_STEPS={config.constant_steps} needs SCHEDULE=lans, not {name}; set it to 0")
    peak_until = config.warmup_steps + config.start_warmup_step + config.constant_steps
    if name == "lans" and peak_until >= config.decay_steps:
        found.append(
            f"WARMUP_STEPS={config.warmup_steps} from START_WARMUP_STEP={config.start_warmup_step} and CONSTANT_STEPS="
            f"{config.constant_steps} end at step {peak_until}, which must be below DECAY_STEPS={config.decay_steps}"
        )
    if name == "record" and config.warmup_steps >= config.decay_steps:
        found.append(
            f"WARMUP_STEPS={config.warmup_steps} must be below DECAY_STEPS={config.decay_steps} with SCHEDULE=record, "
            "whose decay counts from there"
        )
    return found
