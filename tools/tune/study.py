"""A plan of a study and a folder in, trials chosen by Optuna and run in parallel, the study's state on disk out.

The study is `study.db` (SQLite) and a folder of logs for each set of values, so that whatever is killed, the next call
goes on: what was running is asked for again, and its finished logs are read.
"""

from __future__ import annotations

import hashlib
import json
import threading
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState
from sqlalchemy.exc import SQLAlchemyError

from benchmarks.bert.complaint import describe
from tools.pool import trial_pool
from tools.trial import (
    Evaluations,
    RefusedTrialError,
    Stop,
    Trial,
    TrialError,
    as_one_process,
    checked,
    never,
    run_trial,
)
from tools.tune.choices import AnyRange, Choice
from tools.tune.plan import Plan
from tools.tune.worth import worth

DATABASE = "study.db"
CENSORED = 1e12  # more samples than any run has; what did not reach the target lies above, by its accuracy
REFUSED_VALUE = 3 * CENSORED
_INSTEAD_OF = "instead of"  # of a trial that is asked for again, the number of the one that was killed
_SAMPLES = "samples"  # which a trial took, where it is told what they are worth
_BEGUN = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.RUNNING)
Locks = defaultdict[str, threading.Lock]  # of folders: equal values that run at once share one
PRUNERS: dict[str, Callable[[], optuna.pruners.BasePruner]] = {
    "median": lambda: optuna.pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=2),
    "halving": lambda: optuna.pruners.SuccessiveHalvingPruner(min_resource=2),
    "none": optuna.pruners.NopPruner,
}


@contextmanager
def named_errors(folder: Path) -> Iterator[None]:
    """Raise TrialError with the file's name where a full disk or damage keeps it from being read or written."""
    try:
        yield
    except (optuna.exceptions.StorageInternalError, SQLAlchemyError) as error:
        reason = describe(getattr(error.__cause__, "orig", None) or getattr(error, "orig", None) or error)
        raise TrialError(
            f"{folder / DATABASE}: cannot be read or written ({reason}); make room on its disk, or delete it: a study "
            "without it is made anew from the logs beside it"
        ) from error


def open_study(folder: Path, plan: Plan) -> optuna.Study:
    """The study in `folder`, new or as it was left. Raises RefusedTrialError for one of another plan."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(
        storage=f"sqlite:///{folder.resolve() / DATABASE}",
        study_name="tune",
        load_if_exists=True,
        pruner=PRUNERS[plan.pruner](),
    )
    identity = json.loads(json.dumps(plan.identity()))
    _check_same(study.user_attrs.get("plan", identity), identity, folder)
    study.set_user_attr("plan", identity)
    _ask_again(study)
    return study


def _ask_again(study: optuna.Study) -> None:
    """What a killed call left running is due again, once, also where this call is killed in between."""
    trials = study.get_trials(deepcopy=False)
    asked = {trial.user_attrs.get(_INSTEAD_OF) for trial in trials}
    for trial in trials:
        if trial.state == TrialState.RUNNING:
            if trial.number not in asked:
                study.enqueue_trial(trial.params, user_attrs={_INSTEAD_OF: trial.number})
            study.tell(trial.number, state=TrialState.FAIL)


def _check_same(known: dict[str, Any], identity: dict[str, Any], folder: Path) -> None:
    for name in sorted({*known, *identity}):
        there, here = known.get(name, "not set"), identity.get(name, "not set")
        if there != here:
            raise RefusedTrialError(
                f"{folder}: holds a study of another configuration: {name} is {there}, here it is {here}; "
                "choose another --study"
            )


def _num_begun(study: optuna.Study) -> int:
    """Of trials that are done or run now: not of those that a killed call left."""
    return len(study.get_trials(deepcopy=False, states=_BEGUN))


def run_study(
    study: optuna.Study,
    plan: Plan,
    folder: Path,
    *,
    num_trials: int,
    jobs: int = 1,
    threads: int = 1,
    say: Callable[[str], None] = print,
) -> None:
    """Until `num_trials` are done in all, `jobs` at a time. Raises TrialError for a run that broke.

    An error or a signal ends what else is running.
    """
    running: dict[Future[None], optuna.Trial] = {}
    locks: Locks = defaultdict(threading.Lock)
    with trial_pool(jobs) as (pool, cancelled):
        while True:
            while len(running) < jobs and (number := _num_begun(study)) < num_trials:
                trial = _ask(study, plan, number)
                run_one = partial(run_trial, threads=threads, cancelled=cancelled)
                running[pool.submit(_run, study, plan, folder, trial, run_one, locks)] = trial
            if not running:
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                trial = running.pop(future)
                future.result()
                say(_line(study.trials[trial.number]))


def _ask(study: optuna.Study, plan: Plan, index: int) -> optuna.Trial:
    """The next values: drawn by what is done and `index`, so that a killed study goes on alike."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        study.sampler = optuna.samplers.TPESampler(seed=plan.sampler_seed + index, constant_liar=True)
    return study.ask({each.name: _distribution(each) for each in plan.ranges})


def _distribution(each: AnyRange) -> BaseDistribution:
    if isinstance(each, Choice):
        return CategoricalDistribution(each.values)
    if each.is_whole:
        return IntDistribution(int(each.low), int(each.high), log=each.log)
    return FloatDistribution(each.low, each.high, log=each.log)


def _run(
    study: optuna.Study, plan: Plan, folder: Path, trial: optuna.Trial, run_one: Callable[..., Trial], locks: Locks
) -> None:
    """Run the seeds one after the other and tell the study; after a seed that misses the target there is no other."""
    variables = plan.variables(trial.params)
    try:
        config = checked(as_one_process(variables))
    except RefusedTrialError as error:  # values that are each fine alone
        trial.set_user_attr("refused", str(error).replace("\n", "; "))
        study.tell(trial, REFUSED_VALUE)
        return
    verdict = _verdict(trial, config.target_accuracy)
    outcomes: list[Trial] = []
    for seed in plan.seeds:
        stop = never if outcomes else verdict  # others are compared by their first seed
        place = folder / "trials" / _name(variables) / f"seed_{seed}"
        with locks[str(place)]:
            outcomes.append(run_one({**variables, "SEED": str(seed)}, place, stop=stop))
        if stop(outcomes[-1].evaluations) or not outcomes[-1].reached:
            break
    trial.set_user_attr("accuracy", max(outcome.best_accuracy for outcome in outcomes))
    trial.set_user_attr("folder", _name(variables))
    if verdict(outcomes[0].evaluations) or outcomes[0].pruned:
        study.tell(trial, state=TrialState.PRUNED)
    else:
        trial.set_user_attr(_SAMPLES, value_of(outcomes))
        study.tell(trial, value_of(outcomes, partial(worth, config)))


def value_of(outcomes: Sequence[Trial], of_samples: Callable[[int], float] = float) -> float:
    """The mean over the seeds of what the samples to target are worth; above CENSORED where the last one missed it."""
    reached = [of_samples(outcome.samples) for outcome in outcomes if outcome.samples is not None]
    if len(reached) < len(outcomes):
        return CENSORED * (2.0 - outcomes[-1].best_accuracy)
    return sum(reached) / len(reached)


def _verdict(trial: optuna.Trial, target: float) -> Stop:
    """The pruner's, asked once for each evaluation in turn: it depends on no clock, nor on what is read from a log.

    Evaluations are compared by their number: all trials evaluate after the same samples, up to a step.
    """
    num_told, verdict = 0, ""

    def stop(evaluations: Evaluations) -> str:
        nonlocal num_told, verdict
        for samples, accuracy in evaluations[num_told:]:
            if verdict:
                break
            trial.report(1.0 - accuracy, num_told)
            num_told += 1
            if accuracy < target and trial.should_prune():
                verdict = f"pruned at {samples} samples with accuracy {accuracy:.4f}"
        return verdict

    return stop


def _name(variables: Mapping[str, str]) -> str:
    """A folder's: equal values have equal logs, whatever the trial's number."""
    return hashlib.sha256(json.dumps(dict(sorted(variables.items()))).encode()).hexdigest()[:12]


def _line(trial: optuna.trial.FrozenTrial) -> str:
    values = " ".join(f"{name}={shown(value)}" for name, value in trial.params.items())
    return f"trial {trial.number}: {outcome_of(trial)}; {values}"


def shown(value: float | str) -> str:
    """Of a choice as it is."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def outcome_of(trial: optuna.trial.FrozenTrial) -> str:
    if "refused" in trial.user_attrs:
        return f"refused ({trial.user_attrs['refused']})"
    accuracy = f"accuracy {trial.user_attrs.get('accuracy', 0):.4f}"
    if trial.state == TrialState.PRUNED:
        return f"pruned at {accuracy}"
    assert trial.value is not None
    if trial.value >= CENSORED:
        return f"not reached, {accuracy}"
    samples = trial.user_attrs.get(_SAMPLES, trial.value)
    if samples == trial.value:
        return f"{samples:,.0f} samples"
    return f"{trial.value:,.0f} samples' worth ({samples:,.0f} samples)"
