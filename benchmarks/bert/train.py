"""One rank's timed run: the environment in, a trained model and a result log out. `python -m benchmarks.bert.train`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
import torch.distributed as dist

from benchmarks.bert.binding import bind_to
from benchmarks.bert.checkpoint.resume import find_start, identity_of
from benchmarks.bert.checkpoint.saver import keep_checkpoints
from benchmarks.bert.comm.group import (
    OtherRankError,
    agree_on_seed,
    check_agreement,
    everywhere,
    first_failure_named,
    process_group,
)
from benchmarks.bert.complaint import FAILED, REFUSED, complain, describe
from benchmarks.bert.config import Config, load
from benchmarks.bert.data.ahead import read_ahead
from benchmarks.bert.data.batch import pad_tail
from benchmarks.bert.data.dataset import DataSet, check_lengths, check_shards, count_vocabulary, read_data_set
from benchmarks.bert.data.deal import token_work
from benchmarks.bert.data.loader import as_packed, by_step
from benchmarks.bert.data.loaders import choose_loader
from benchmarks.bert.data.manifest import samples_of_node
from benchmarks.bert.data.plan import STRATEGIES, Layout, Planner, plan_in_turns
from benchmarks.bert.data.strata import Strata
from benchmarks.bert.division import warnings
from benchmarks.bert.evaluate import EvaluationSet, deal_evaluation, evaluation_batches
from benchmarks.bert.growth.follow import growth_of
from benchmarks.bert.judge import Judge
from benchmarks.bert.model.graphs import graph_sizes
from benchmarks.bert.optim.sharded import state_bytes
from benchmarks.bert.profile import profile_of
from benchmarks.bert.progress import Progress, Silent
from benchmarks.bert.record import record_cache_clear, record_hyperparameters, record_submission, record_weights
from benchmarks.bert.refusals import REFUSAL_NAMES, REFUSALS
from benchmarks.bert.shutdown import Interrupted, end, end_with_parent, interruptible, signals_first
from benchmarks.bert.stepclock import StepClock
from benchmarks.bert.trainer import build_trainer, choose_device
from benchmarks.bert.warm_up import warm_up
from benchmarks.bert.world import World, check_world, from_launcher
from mlperf_log_utils import Outcome, RunLog


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
        return REFUSED if isinstance(error.__cause__, REFUSALS) or error.kind in REFUSAL_NAMES else FAILED
    except REFUSALS as error:
        return complain(error, REFUSED)
    except Exception as error:  # a fault of the code or the machine; the log has its stop
        return complain(f"rank {world.rank}: {describe(error)}", FAILED)
    if not outcome.is_result:
        return complain(outcome.why_not, FAILED) if world.is_main else FAILED
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
        training, held_out = everywhere(partial(_read_data, config))
        check_agreement([config.common(), training.manifest, held_out.manifest, np.__version__, torch.__version__])
        num_vocabulary = everywhere(partial(_check_data, config, world, training, held_out))
        planner = Planner(
            training.lengths,
            Layout(config.num_nodes, config.ranks_per_node * config.virtual_ranks, config.batch_size),
            Strata(config.num_strata, config.max_length),
            strategy=config.loading,
            per_token=token_work(config.hidden_size, config.ffn_size),
        )
        identity = identity_of(config, training.manifest, device)
        start = find_start(config, identity, world, progress.say)
        seed = agree_on_seed(start.seed if start.seed is not None else config.seed)
        record_submission(log, config, seed)
        for warning in warnings(config):
            progress.say(f"warning: {warning}")
        samples = config.batch_size // config.gradient_accumulation_steps
        sizes = graph_sizes(training.lengths, samples, config.max_length) if config.cuda_graphs else []
        micro_batches = choose_loader(config.loader, device)
        trainer = build_trainer(config, world, device, seed, num_vocabulary, sizes, num_done=start.step)
        record_weights(log, config)
        warm_up(trainer, config)
        start.restore(trainer, world)
        checkpoints = keep_checkpoints(config, trainer, world, start, identity, seed)
        profile = everywhere(partial(profile_of, config, trainer, world, start.step))
        num_buckets = trainer.gradient.num_buckets
        record_hyperparameters(
            log, config, trainer.optimizer, trainer.learning_rate, num_buckets, training.manifest.max_predictions
        )
        own_bytes, all_bytes = state_bytes(trainer.optimizer)
        log.event("tracked_stats", {"optimizer_state_bytes": own_bytes, "optimizer_state_bytes_of_all": all_bytes})
        progress.say(
            f"seed {seed}, {device}, {trainer.model.num_parameters:,} parameters in {num_buckets} gradient buckets, "
            f"optimizer state {own_bytes / 2**20:.1f} MiB of {all_bytes / 2**20:.1f} on this rank, "
            f"{trainer.model.kernels.name}; the log is {config.result_file}"
        )
        dist.barrier()
        check_signals()
    share = deal_evaluation(held_out.lengths, world.rank, world.num_ranks)
    run_phase = log.run_phase(eval_samples=len(held_out.lengths))
    with profile, run_phase as outcome, signals_first(check_signals), first_failure_named(world.rank):
        dist.barrier()  # until rank 0 has logged run_start, no other rank may go on
        clock = StepClock(device)
        # Only from here on are samples touched, and only here is their order drawn.
        evaluation = EvaluationSet(
            lambda: evaluation_batches(held_out.open(config.data_check), share, config.eval_batch_size, device)
        )
        store = training.open(config.data_check)
        rows = plan_in_turns(planner, seed=seed, ranks=trainer.random.ranks, start=start.step)
        batches = micro_batches(
            store,
            read_ahead(rows, store.prefetch),
            num_micro_batches=config.gradient_accumulation_steps,
            device=device,
            finish=partial(pad_tail, multiple=config.max_length) if config.cuda_graphs else as_packed,
        )
        start.announce(log, outcome, config, trainer)
        if outcome.invalid:
            progress.say(f"warning: {outcome.invalid}")
        judge = Judge(config, trainer, evaluation, log, outcome, progress, clock)
        growth = growth_of(config, trainer, seed=seed, num_done=start.step, log=log, say=progress.say)
        steps = by_step(batches, config.virtual_ranks)
        for step, of_ranks in zip(range(start.step + 1, config.max_steps + 1), steps, strict=False):
            check_signals()
            growth.before(step)
            profile.before(step)
            loss = trainer.step(step, *of_ranks)
            clock.tick()
            progress.step(step, loss)
            judge.after(step)
            if outcome.reached:
                break
            checkpoints.after(step, outcome.accuracies)
        else:
            outcome.reason = f"accuracy {config.target_accuracy} not reached within MAX_STEPS={config.max_steps}"
        growth.finish()
    checkpoints.finish()
    return outcome


def _read_data(config: Config) -> tuple[DataSet, DataSet]:
    """What is known of the samples for training and for evaluation."""
    training, held_out = (read_data_set(config.data_dir / part) for part in ("train", "eval"))
    for data in (training, held_out):
        check_lengths(data, config.max_length)
    return training, held_out


def _check_data(config: Config, world: World, training: DataSet, held_out: DataSet) -> int:
    """Refuse a folder that lacks a shard which this node will read, or the samples' vocabulary; its entries."""
    own_nodes = (world.node, config.num_nodes) if STRATEGIES[config.loading].promises.node_local else (0, 1)
    check_shards(training, samples_of_node(len(training.lengths), *own_nodes))
    check_shards(held_out, range(len(held_out.lengths)))
    return count_vocabulary(config.data_dir / "vocab.txt", training, held_out)


if __name__ == "__main__":
    end(main())
