"""One rank's timed run: the environment in, a trained model and a result log out. `python -m benchmarks.bert.train`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator

import numpy as np
import torch
import torch.distributed as dist

from benchmarks.bert.binding import bind_to
from benchmarks.bert.comm.group import (
    OtherRankError,
    agree_on_seed,
    check_agreement,
    first_failure_named,
    process_group,
)
from benchmarks.bert.complaint import FAILED, REFUSED, complain, describe
from benchmarks.bert.config import Config, ConfigError, load
from benchmarks.bert.data.batch import PackedBatch
from benchmarks.bert.data.dataset import check_lengths, count_vocabulary, read_data_set
from benchmarks.bert.data.loader import micro_batches
from benchmarks.bert.data.manifest import ManifestError
from benchmarks.bert.data.plan import Layout, PlanError, Strata, check_plan, plan_steps
from benchmarks.bert.data.shards import ShardError
from benchmarks.bert.evaluate import deal_evaluation, evaluation_batches, is_stuck, masked_lm_accuracy
from benchmarks.bert.loss import pretraining_loss
from benchmarks.bert.progress import Progress, Silent
from benchmarks.bert.record import record_cache_clear, record_hyperparameters, record_submission
from benchmarks.bert.schedule import EvaluationSchedule
from benchmarks.bert.shutdown import Interrupted, end_with_parent, interruptible, signals_first
from benchmarks.bert.trainer import Trainer, build_trainer, choose_device
from benchmarks.bert.world import World, WorldError, check_world, from_launcher
from mlperf_log_utils import Outcome, RunLog

REFUSALS = (ConfigError, WorldError, ManifestError, ShardError, PlanError)  # of the input: their text is the message


def main() -> int:
    """Exit status: 0 the target was reached, 1 it was not or the run broke, 2 the input was refused, 128 + signal."""
    end_with_parent()
    try:
        config = load()
        world = from_launcher(config.launcher)
        check_world(world, num_nodes=config.num_nodes, ranks_per_node=config.ranks_per_node)
        device = choose_device(config.device, world.local_rank)
        if config.binding == "auto":
            bind_to(device)
        log = RunLog(config.result_file if world.is_main else None)
    except REFUSALS as error:
        return complain(error, REFUSED)
    except FileExistsError:
        return complain(
            f"RESULT_FILE={config.result_file}: holds a result or is being written; it is never overwritten", REFUSED
        )
    except OSError as error:
        return complain(f"RESULT_FILE={config.result_file}: cannot write it ({error.strerror})", REFUSED)
    progress = Progress(config.max_steps, config.global_batch, config.target_accuracy) if world.is_main else Silent()
    try:
        with interruptible(log.abort) as check_signals, process_group(world, device, config.collective_timeout_s):
            outcome = run(config, world, device, log, progress, check_signals)
    except Interrupted as signal:
        status = 128 + signal.number
        return complain(f"rank 0: stopped by {signal}", status) if world.is_main else status
    except OtherRankError as error:  # the other one says why
        return REFUSED if isinstance(error.__cause__, REFUSALS) else FAILED
    except REFUSALS as error:
        return complain(error, REFUSED)
    except Exception as error:  # a fault of the code or the machine; the log has its stop
        return complain(f"rank {world.rank}: {describe(error)}", FAILED)
    if not outcome.reached:
        return complain(outcome.reason, FAILED) if world.is_main else FAILED
    return 0


def run(
    config: Config,
    world: World,
    device: torch.device,
    log: RunLog,
    progress: Progress | Silent,
    check_signals: Callable[[], None],
) -> Outcome:
    """Initialise, then train inside the clock."""
    record_cache_clear(log, config, world)
    with log.init_phase(), first_failure_named(world.rank):
        seed = agree_on_seed(config.seed)
        record_submission(log, config, seed)
        training, held_out = (read_data_set(config.data_dir / part) for part in ("train", "eval"))
        for data in (training, held_out):
            check_lengths(data, config.max_length)
        check_agreement([config.common(), training.manifest, held_out.manifest, np.__version__, torch.__version__])
        layout = Layout(config.num_nodes, config.ranks_per_node, config.batch_size)
        check_plan(len(training.lengths), layout)
        num_vocabulary = count_vocabulary(config.data_dir / "vocab.txt", training, held_out)
        trainer = build_trainer(config, world, device, seed, num_vocabulary)
        num_buckets = trainer.gradient.num_buckets
        record_hyperparameters(log, config, trainer.optimizer, trainer.learning_rate, num_buckets)
        progress.say(f"seed {seed}, {device}, {num_buckets} gradient buckets; the log is {config.result_file}")
        dist.barrier()
        check_signals()
    run_phase = log.run_phase(eval_samples=len(held_out.lengths))
    with run_phase as outcome, signals_first(check_signals), first_failure_named(world.rank):
        dist.barrier()  # until rank 0 has logged run_start, no other rank may go on
        # Only from here on are samples touched, and only here is their order drawn.
        plan = plan_steps(
            training.lengths, layout, Strata(config.num_strata, config.max_length), strategy=config.loading, seed=seed
        )
        steps = micro_batches(
            training.open(config.max_length),
            plan,
            rank=world.rank,
            num_micro_batches=config.gradient_accumulation_steps,
            device=device,
        )
        evaluation = evaluation_batches(
            held_out.open(config.max_length),
            deal_evaluation(held_out.lengths, world.rank, world.num_ranks),
            config.eval_batch_size,
            device,
        )
        train(config, trainer, steps, evaluation, log, outcome, progress, check_signals)
    return outcome


def train(
    config: Config,
    trainer: Trainer,
    steps: Iterator[list[PackedBatch]],
    evaluation: list[PackedBatch],
    log: RunLog,
    outcome: Outcome,
    progress: Progress | Silent,
    check_signals: Callable[[], None],
) -> None:
    """The loop. Returns once the target is reached or the steps are used up; `outcome` says which."""
    schedule = EvaluationSchedule(config.eval_start_samples, config.eval_interval_samples)
    for step, batches in zip(range(1, config.max_steps + 1), steps, strict=False):
        check_signals()
        for batch in trainer.gradient.accumulate(batches):
            with trainer.precision():
                loss = pretraining_loss(trainer.ddp(batch), batch)
            loss.backward()  # clips each bucket and starts its all-reduce as it fills (comm/hook.py)
        non_finite = trainer.gradient.found_non_finite()
        trainer.optimizer.set_learning_rate(trainer.learning_rate.at(step))
        trainer.optimizer.step_unless(non_finite)
        trainer.optimizer.zero_grad()
        trainer.skipped_steps.add_(non_finite)
        progress.step(step, loss)
        if schedule.is_due((step - 1) * config.global_batch, step * config.global_batch):
            evaluate(config, trainer, step, evaluation, log, outcome, progress)
            if outcome.reached:
                return
    outcome.reason = f"accuracy {config.target_accuracy} not reached within MAX_STEPS={config.max_steps}"


def evaluate(
    config: Config,
    trainer: Trainer,
    step: int,
    evaluation: list[PackedBatch],
    log: RunLog,
    outcome: Outcome,
    progress: Progress | Silent,
) -> None:
    """Measure, log and judge the accuracy. A skipped step trained on nothing, so its samples do not count."""
    skipped = int(trainer.skipped_steps)
    outcome.samples = (step - skipped) * config.global_batch
    with log.evaluation(outcome.samples):
        accuracy = masked_lm_accuracy(trainer.ddp.module, evaluation, trainer.precision, trainer.device)
        log.accuracy(accuracy, outcome.samples)
    log.event("tracked_stats", {"skipped_steps": skipped}, samples_count=outcome.samples)
    progress.evaluated(outcome.samples, accuracy)
    outcome.accuracies.append(accuracy)
    if is_stuck(outcome.accuracies):
        progress.say(f"warning: three evaluations gave one accuracy, the model does not train; {skipped} skipped steps")
    outcome.reached = accuracy >= config.target_accuracy


if __name__ == "__main__":
    exit_status = main()
    sys.stdout.flush()
    # Without the interpreter's own end: after an error a communication thread may still wait for a dead rank.
    os._exit(exit_status)
