"""Variables and evaluations in, the folder of a trial that came to them out, as a real run would leave it."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from mlperf_log_utils import RunLog
from tools.trial import LOG, PRUNED, as_one_process, checked


class KilledError(BaseException):
    """What ends a made-up run before its time."""


def write_trial(
    folder: Path,
    variables: Mapping[str, str],
    evaluations: Sequence[tuple[int, float]],
    *,
    reached: bool = True,
    killed: bool = False,
    pruned: str = "",
) -> None:
    """The log of a run that reached its target or not, was killed by a signal, or pruned with this reason."""
    config = checked(as_one_process(variables) | {"RESULT_FILE": str(folder / LOG)})
    log = RunLog(folder / LOG)
    with log.init_phase():
        log.event("configuration", config.resolved())
    with contextlib.suppress(KilledError), log.run_phase(eval_samples=10) as outcome:
        for samples, accuracy in evaluations:
            with log.evaluation(samples):
                log.accuracy(accuracy, samples)
            outcome.samples = samples
        outcome.reached = reached and not (killed or pruned)
        outcome.reason = f"accuracy {config.target_accuracy} not reached within MAX_STEPS={config.max_steps}"
        if killed or pruned:
            raise KilledError("SIGTERM")
    if pruned:
        (folder / PRUNED).write_text(pruned, "utf-8")
