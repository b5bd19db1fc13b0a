"""A configuration in, what a simulation needs to know of it out: one frozen record."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from benchmarks.bert.config import Config
from benchmarks.bert.data.plan import Layout
from benchmarks.bert.growth.plan import GrowthPlan, Size, Stage
from benchmarks.bert.growth.stages import plan_of
from benchmarks.bert.model.bert import BertShape
from benchmarks.bert.schedule import EvaluationSchedule, rule_interval
from benchmarks.bert.trainer import shape_of

BERT_LARGE = BertShape()
EVALUATION_SAMPLES = 10_000  # the benchmark's
_FLOAT_BYTES = 4
_SCALE_THAT_FITS = 1024.0  # loss scale below which the record's logs skip no more steps


@dataclass(frozen=True)
class Habits:
    """What trainers do beside the arithmetic; the defaults are this project's."""

    step_waits: bool = False  # exchange, indices and overflow checks let the accelerator run dry at every step
    hook_waits: bool = False  # so does the communication hook for each bucket
    starts_workers: bool = False  # processes that load batches, after run_start
    skipped_steps: int = 0  # that a loss scale which starts too high costs


@dataclass(frozen=True)
class Job:
    name: str
    layout: Layout
    loading: str = "stratified_presort"
    num_strata: int = 4
    packed: bool = False  # samples come in packs of the longest length, two on average, in place of `loading`
    micro_batches: int = 1
    shape: BertShape = BERT_LARGE
    last_layer: str = "only_read"
    growth: GrowthPlan = field(default_factory=lambda: GrowthPlan((Stage(1, Size(24, 1024)),)))
    clip: str = "bucket_before"
    bucket_mb: float = 25.0
    gradient_bytes: int = 2
    optimizer: str = "adam"
    shards: int = 1  # that the optimizer's work is cut into
    gathers_weights: bool = False  # whether updated weights travel, beyond what the all-reduce moves
    graphs: bool = False  # kernels are replayed, not started one by one
    fp8: bool = False
    algorithm: str = "auto"  # of the all-reduce
    samples_to_target: float = 0.0
    evaluation: EvaluationSchedule = EvaluationSchedule(1, 1)
    evaluation_samples: int = EVALUATION_SAMPLES
    evaluation_batch: int = 16
    habits: Habits = Habits()

    @property
    def num_steps(self) -> int:
        """Optimizer steps to the target."""
        return math.ceil(self.samples_to_target / self.layout.global_batch)

    def shape_at(self, stage: Stage) -> BertShape:
        """As `of_stage` makes it: heads keep their width, the feed-forward part its proportion."""
        width, of = stage.size.hidden_size, self.shape.hidden_size
        return replace(
            self.shape,
            num_layers=stage.size.num_layers,
            hidden_size=width,
            num_heads=self.shape.num_heads * width // of,
            ffn_size=self.shape.ffn_size * width // of,
        )


def of_config(config: Config, *, samples_to_target: float, num_vocabulary: int = 30522, name: str = "run") -> Job:
    """This project's own trainer with this configuration: fp32 gradients, nothing that waits for the accelerator."""
    ranks_per_node = config.ranks_per_node * config.virtual_ranks
    num_ranks = config.num_nodes * ranks_per_node
    return Job(
        name=name,
        layout=Layout(config.num_nodes, ranks_per_node, config.batch_size),
        loading=config.loading,
        num_strata=config.num_strata,
        micro_batches=config.gradient_accumulation_steps,
        shape=shape_of(config, num_vocabulary),
        last_layer=config.last_layer,
        growth=plan_of(config),
        clip=config.clip,
        bucket_mb=config.bucket_mb,
        gradient_bytes=_FLOAT_BYTES,
        optimizer=config.optimizer,
        shards=num_ranks if config.shard_optimizer else 1,
        gathers_weights=config.shard_optimizer,
        graphs=config.cuda_graphs,
        samples_to_target=samples_to_target,
        evaluation=EvaluationSchedule(config.eval_start_samples, config.eval_interval_samples),
        evaluation_batch=config.eval_batch_size,
        habits=Habits(skipped_steps=_skipped_steps(config)),
    )


def _skipped_steps(config: Config) -> int:
    """Each halves the loss scale."""
    if config.precision != "fp16":
        return 0
    return max(0, math.ceil(math.log2(config.loss_scale / _SCALE_THAT_FITS)))


def rule_schedule(global_batch: int) -> EvaluationSchedule:
    interval = rule_interval(global_batch)
    return EvaluationSchedule(interval, interval)
