"""A study in, a table of its trials and a ready configuration file out."""

from __future__ import annotations

import re
import warnings

import optuna
from optuna.trial import FrozenTrial, TrialState

from tools.tune.plan import Plan
from tools.tune.study import CENSORED, outcome_of, shown

_FEWEST_FOR_IMPORTANCE = 8
_PLAIN = re.compile(r"[\w@%+=:,./-]+")


def ranked(study: optuna.Study) -> list[FrozenTrial]:
    """The trials that are done, the best first; then the pruned ones, by their accuracy, and the refused."""
    done = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED))
    return sorted(done, key=lambda trial: (*_rank(trial), trial.number))


def _rank(trial: FrozenTrial) -> tuple[int, float]:
    if "refused" in trial.user_attrs:
        return 2, 0.0
    if trial.state == TrialState.PRUNED or trial.value is None:
        return 1, -float(trial.user_attrs.get("accuracy", 0))
    return 0, trial.value


def best(study: optuna.Study) -> FrozenTrial | None:
    """None where no trial reached the target with all its seeds."""
    first = next(iter(ranked(study)), None)
    return first if first and _rank(first) < (0, CENSORED) else None


def refusals(study: optuna.Study) -> list[str]:
    """A line that says how many trials the configuration refused, and why the last of them; none where none was."""
    trials = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    refused = [trial.user_attrs["refused"] for trial in trials if "refused" in trial.user_attrs]
    return [f"{len(refused)} of {len(trials)} trials were refused, the last: {refused[-1]}"] if refused else []


def table(study: optuna.Study) -> str:
    """Markdown: the trials, the best first, and what each variable mattered where there are enough of them."""
    trials = ranked(study)
    names = list(trials[0].params) if trials else []
    rows = [
        f"| {trial.number} | {outcome_of(trial)} | {' | '.join(shown(trial.params[name]) for name in names)} |"
        for trial in trials
    ]
    head = [f"| trial | outcome | {' | '.join(names)} |", f"|---|---|{'---|' * len(names)}"]
    return "\n".join([*head, *rows, *_importances(study, names)])


def _importances(study: optuna.Study, names: list[str]) -> list[str]:
    """By PED-ANOVA, which asks how the best trials' values differ from all: cheap, and needs no other package."""
    complete = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    if len(complete) < _FEWEST_FOR_IMPORTANCE or len(names) < 2:
        return []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of few trials, which then come out equal
        found = optuna.importance.get_param_importances(
            study, evaluator=optuna.importance.PedAnovaImportanceEvaluator()
        )
    return ["", "importance: " + ", ".join(f"{name} {share:.0%}" for name, share in found.items())]


def why_none(study: optuna.Study) -> str:
    """Of a study without a best trial."""
    trials = ranked(study)
    refusals = {trial.number: trial.user_attrs["refused"] for trial in trials if "refused" in trial.user_attrs}
    if refusals and len(refusals) == len(trials):
        return (
            f"all {len(trials)} trials were refused before they ran; change the ranges or what is fixed. The last one: "
            f"{refusals[max(refusals)]}"
        )
    return "no trial reached the target; widen the ranges, raise MAX_STEPS or --trials"


def config_file(base_name: str, plan: Plan, trial: FrozenTrial) -> str:
    """A `config_*.sh` of the trial's variables; those that were tuned say so."""
    lines = [
        "# shellcheck shell=bash",
        f"# {base_name}, tuned: {outcome_of(trial)} to target in the mean of {len(plan.seeds)} seeds.",
    ]
    for name, value in plan.variables(trial.params).items():
        lines.append(f"export {name}={_quoted(value)}{' # tuned' if name in plan.tuned() else ''}")
    return "\n".join(lines) + "\n"


def _quoted(value: str) -> str:
    """As the shell and the configuration's reader both take it."""
    if _PLAIN.fullmatch(value):
        return value
    return f"'{value}'" if "'" not in value else f'"{value}"'
