"""Steps in, evaluations at the schedule's points, their records and the run's outcome out."""

from __future__ import annotations

from benchmarks.bert.config import Config
from benchmarks.bert.evaluate import EvaluationSet, is_stuck, masked_lm_accuracy
from benchmarks.bert.progress import Progress, Silent
from benchmarks.bert.schedule import EvaluationSchedule
from benchmarks.bert.stepclock import StepClock
from benchmarks.bert.trainer import Trainer
from mlperf_log_utils import Outcome, RunLog


class Judge:
    def __init__(
        self,
        config: Config,
        trainer: Trainer,
        evaluation: EvaluationSet,
        log: RunLog,
        outcome: Outcome,
        progress: Progress | Silent,
        clock: StepClock,
    ) -> None:
        self._schedule = EvaluationSchedule(config.eval_start_samples, config.eval_interval_samples)
        self._global_batch = config.global_batch
        self._target = config.target_accuracy
        self._trainer = trainer
        self._evaluation = evaluation
        self._log = log
        self._outcome = outcome
        self._progress = progress
        self._clock = clock

    def after(self, step: int) -> None:
        """Evaluate, if it is time to, and say in the outcome what came of it."""
        if self._schedule.is_due((step - 1) * self._global_batch, step * self._global_batch):
            self._evaluate(step)
            self._clock.pause()

    def _evaluate(self, step: int) -> None:
        """A skipped step trained on nothing, so its samples do not count."""
        trainer, outcome = self._trainer, self._outcome
        skipped = int(trainer.skipped_steps)
        outcome.samples = (step - skipped) * self._global_batch
        with self._log.evaluation(outcome.samples):
            accuracy = masked_lm_accuracy(trainer.model, self._evaluation.batches(), trainer.precision, trainer.device)
            self._log.accuracy(accuracy, outcome.samples)
        statistics = {"skipped_steps": skipped, **self._clock.statistics()}
        self._log.event("tracked_stats", statistics, samples_count=outcome.samples)
        self._progress.evaluated(outcome.samples, accuracy)
        outcome.accuracies.append(accuracy)
        if is_stuck(outcome.accuracies):
            self._progress.say(
                f"warning: three evaluations gave one accuracy, the model does not train; {skipped} skipped steps"
            )
        outcome.reached = accuracy >= self._target
