"""Tuning finds the fewest samples to target, goes on where it was killed, and says what it cannot use."""

from __future__ import annotations

import errno
import importlib.util
import io
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import pytest

from benchmarks.bert.config import load
from tests.support.trials import write_trial
from tests.support.tuning import BASE, SIZES, SPLIT
from tools.trial import LOG, Evaluations, RefusedTrialError, Trial, TrialError, checked, read_trial
from tools.tune import __main__ as command
from tools.tune.options import parse_range

needs_optuna = pytest.mark.skipif(
    importlib.util.find_spec("optuna") is None, reason="needs Optuna: pip install -r requirements-tune.txt"
)
BEST_RATE = 4e-3
OF_GROWTH = (  # of trials that all take 1,200 samples, 150 steps
    *(word for name, value in SIZES.items() for word in ("--set", f"{name}={value}")),
    *("--set", f"LEARNING_RATE={BEST_RATE}", "--set", f"GROWTH={SPLIT}", "--pruner", "none"),
    *("--range", "first=0.1:0.8", "--range", "embeddings=frozen|train"),
)
RANGES = ("--range", "LEARNING_RATE=1e-4:1e-1:log", "--range", "WARMUP_STEPS=1:50")


class Killed(BaseException):
    """In place of a signal that no process survives."""


class Runs:
    """In place of training: the nearer the rate to `BEST_RATE`, the sooner the target; far away it is never reached."""

    def __init__(self) -> None:
        self.started: list[Mapping[str, str]] = []
        self.killed_at = -1
        self.lock = threading.Lock()

    def __call__(
        self,
        variables: Mapping[str, str],
        folder: Path,
        *,
        threads: int,
        stop: Callable[[Evaluations], str],
        cancelled: Callable[[], bool],
    ) -> Trial:
        config = checked(variables)
        if (known := read_trial(folder, config)) is not None:
            return known
        with self.lock:
            self.started.append(variables)
            if len(self.started) == self.killed_at:
                raise Killed
        distance = abs(config.learning_rate / BEST_RATE - 1)
        needed = int(1_000 * (1 + distance)) + config.seed
        evaluations, pruned = [], ""
        for samples in range(200, 2_200, 200):
            evaluations.append((samples, min(0.5, 0.4 * samples / needed)))
            if evaluations[-1][1] >= 0.4:
                break
            if pruned := stop(tuple(evaluations)):
                break
        write_trial(folder, variables, evaluations, reached=evaluations[-1][1] >= 0.4, pruned=pruned)
        trial = read_trial(folder, config)
        assert trial is not None
        return trial


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    made_up = Runs()
    monkeypatch.setattr("tools.tune.study.run_trial", made_up)
    return made_up


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config_base.sh"
    path.write_text("".join(f"export {name}={value}\n" for name, value in BASE.items()))
    return path


@pytest.fixture
def tune(monkeypatch: pytest.MonkeyPatch, config: Path, tmp_path: Path) -> Callable[..., int]:
    def call(*arguments: object, study: str = "study") -> int:
        fixed = ("--config", config, "--study", tmp_path / study)
        monkeypatch.setattr(sys, "argv", ["tune", *map(str, (*fixed, *arguments))])
        return command.main()

    return call


def tried(runs: Runs) -> list[str]:
    return [variables["LEARNING_RATE"] for variables in runs.started]


# --- the study


@needs_optuna
def test_the_best_is_found_and_is_a_configuration(
    tune: Callable[..., int], runs: Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "config_best.sh"
    assert tune(*RANGES, "--trials", 25, "--out", out) == 0
    best = load({"CONFIG": str(out)})
    assert best.learning_rate == pytest.approx(BEST_RATE, rel=0.3)
    assert (best.batch_size, best.max_steps, best.seed) == (8, 1000, -1)
    printed = capsys.readouterr().out
    assert out.read_text() in printed
    assert "importance:" in printed
    rows = [line for line in printed.splitlines() if line.startswith("| ")][1:]
    assert len(rows) == 25
    assert f"{best.learning_rate:.4g}" in rows[0]


@needs_optuna
def test_what_missed_the_target_ranks_behind_by_its_accuracy() -> None:
    from tools.tune.study import CENSORED, value_of

    def outcome(samples: int | None, accuracy: float) -> Trial:
        return Trial(samples is not None, samples, ((samples or 9_000, accuracy),), 1.0, "")

    worst_reached = value_of([outcome(10**9, 0.4), outcome(10**9, 0.4)])
    near, far = value_of([outcome(None, 0.39)]), value_of([outcome(None, 0.1)])
    half = value_of([outcome(100, 0.4), outcome(None, 0.39)])
    assert worst_reached == 10**9
    assert worst_reached < CENSORED < half
    assert CENSORED < near < far
    assert value_of([outcome(100, 0.4), outcome(300, 0.4)]) == 200


@needs_optuna
def test_all_seeds_of_a_trial_that_reaches_the_target_are_run(tune: Callable[..., int], runs: Runs) -> None:
    assert tune("--range", "LEARNING_RATE=3e-3:5e-3", "--trials", 2, "--seeds", "1,5,6", "--pruner", "none") == 0
    assert [variables["SEED"] for variables in runs.started] == ["1", "5", "6"] * 2


@needs_optuna
def test_where_nothing_reaches_the_target_there_is_no_configuration(
    tune: Callable[..., int], runs: Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("--range", "LEARNING_RATE=0.05:0.1", "--seeds", "1,2", "--trials", 2)
    assert tune(*arguments, "--out", tmp_path / "best.sh") == 1
    assert "no trial reached the target" in capsys.readouterr().err
    assert not (tmp_path / "best.sh").exists()
    assert [variables["SEED"] for variables in runs.started] == ["1", "1"]


@needs_optuna
@pytest.mark.parametrize("pruner", ["median", "halving"])
def test_bad_trials_are_pruned_and_are_not_the_best(
    tune: Callable[..., int], runs: Runs, tmp_path: Path, pruner: str
) -> None:
    assert tune(*RANGES, "--trials", 20, "--pruner", pruner, "--out", tmp_path / "best.sh") == 0
    assert list((tmp_path / "study").rglob("pruned.txt"))
    assert load({"CONFIG": str(tmp_path / "best.sh")}).learning_rate == pytest.approx(BEST_RATE, rel=0.4)


@needs_optuna
def test_without_a_pruner_nothing_is(tune: Callable[..., int], runs: Runs, tmp_path: Path) -> None:
    tune(*RANGES, "--trials", 10, "--pruner", "none")
    assert not list((tmp_path / "study").rglob("pruned.txt"))


@needs_optuna
def test_one_job_draws_the_same_again_and_another_seed_does_not(tune: Callable[..., int], runs: Runs) -> None:
    drawn = []
    for study, seed in (("a", 0), ("b", 0), ("c", 1)):
        runs.started.clear()
        tune(*RANGES, "--trials", 14, "--sampler-seed", seed, study=study)
        drawn.append(tried(runs))
    assert drawn[0] == drawn[1] != drawn[2]


@needs_optuna
@pytest.mark.parametrize("killed_at", [1, 4, 12])
def test_a_killed_study_goes_on_as_if_it_had_not_been(tune: Callable[..., int], runs: Runs, killed_at: int) -> None:
    tune(*RANGES, "--trials", 14, study="whole")
    whole = tried(runs)
    runs.started.clear()
    runs.killed_at = killed_at
    with pytest.raises(Killed):
        tune(*RANGES, "--trials", 14)
    assert tune(*RANGES, "--trials", 14) == 0
    again = tried(runs)
    assert again[killed_at - 1] == again[killed_at]  # what was running is asked for again
    assert again[:killed_at] + again[killed_at + 1 :] == whole


@needs_optuna
@pytest.mark.parametrize("killed_at", [2, 12])
def test_a_killed_study_of_choices_and_placeholders_goes_on_too(
    tune: Callable[..., int], runs: Runs, killed_at: int
) -> None:
    arguments = (*OF_GROWTH, "--range", "CLIP=none|global_after", "--trials", 14)
    tune(*arguments, study="whole")
    whole = list(runs.started)
    assert len({(each["CLIP"], each["GROWTH"].partition("=")[2]) for each in whole}) == 4
    runs.started.clear()
    runs.killed_at = killed_at
    with pytest.raises(Killed):
        tune(*arguments)
    assert tune(*arguments) == 0
    assert runs.started[killed_at - 1] == runs.started[killed_at]
    assert runs.started[:killed_at] + runs.started[killed_at + 1 :] == whole


@needs_optuna
def test_a_finished_study_runs_nothing(tune: Callable[..., int], runs: Runs) -> None:
    tune(*RANGES, "--trials", 5)
    runs.started.clear()
    assert tune(*RANGES, "--trials", 5) == 0
    assert runs.started == []


@needs_optuna
def test_a_study_that_was_lost_is_made_anew_from_its_logs(tune: Callable[..., int], runs: Runs, tmp_path: Path) -> None:
    tune(*RANGES, "--trials", 8)
    (tmp_path / "study" / "study.db").unlink()
    runs.started.clear()
    assert tune(*RANGES, "--trials", 8) == 0
    assert runs.started == []


@needs_optuna
def test_several_jobs_come_to_as_many_trials(tune: Callable[..., int], runs: Runs) -> None:
    assert tune(*RANGES, "--trials", 9, "--jobs", 3, "--pruner", "none") == 0
    assert len(runs.started) == 9


@needs_optuna
def test_values_that_do_not_go_together_are_a_bad_trial_not_an_end(
    tune: Callable[..., int], runs: Runs, capsys: pytest.CaptureFixture[str]
) -> None:
    heads = ("--set", "HIDDEN_SIZE=96", "--set", "LEARNING_RATE=4e-3", "--range", "NUM_HEADS=1:16")
    assert tune(*heads, "--trials", 10) == 0
    assert "must be a multiple of NUM_HEADS" in capsys.readouterr().err
    assert 0 < len(runs.started) < 10


@needs_optuna
@pytest.mark.parametrize(
    ("changed", "words"),
    [
        pytest.param(("--set", "BATCH_SIZE=16"), "BATCH_SIZE is 8, here it is 16", id="base"),
        pytest.param(("--seeds", "2"), r"seeds is \[1\], here it is \[2\]", id="seeds"),
        pytest.param(("--range", "BETA_2=0.9:0.99"), "--range BETA_2 is not set", id="ranges"),
        pytest.param(("--range", "CLIP=none|global_after"), "--range CLIP is not set", id="choice"),
    ],
)
def test_a_study_of_another_configuration_is_refused(
    tune: Callable[..., int], runs: Runs, capsys: pytest.CaptureFixture[str], changed: tuple[str, str], words: str
) -> None:
    tune(*RANGES, "--trials", 1)
    runs.started.clear()
    assert tune(*RANGES, *changed, "--trials", 2) == 2
    assert re.search(words, capsys.readouterr().err)
    assert runs.started == []


@needs_optuna
def test_a_run_that_breaks_ends_the_study(
    tune: Callable[..., int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*arguments: object, **options: object) -> Trial:
        raise RefusedTrialError("DATA_DIR='data/none': no such folder")

    monkeypatch.setattr("tools.tune.study.run_trial", broken)
    assert tune(*RANGES) == 2
    assert "data/none" in capsys.readouterr().err


@needs_optuna
def test_a_signal_to_the_process_alone_ends_what_runs(
    tune: Callable[..., int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = []

    def run(*arguments: object, cancelled: Callable[[], bool], **options: object) -> NoReturn:
        ended.append(any(cancelled() or time.sleep(0.01) for _ in range(6_000)))
        raise TrialError("not run to its end")

    monkeypatch.setattr("tools.tune.study.run_trial", run)
    monkeypatch.setattr("tools.tune.study.wait", lambda *a, **k: signal.raise_signal(signal.SIGINT))
    assert tune(*RANGES) == 130
    assert ended == [True]
    assert "the same command goes on" in capsys.readouterr().err


@needs_optuna
def test_what_was_running_is_asked_for_once_though_the_next_call_is_killed_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import optuna
    from optuna.trial import TrialState

    from tools.tune.study import Plan, _ask, open_study

    def killed(*arguments: object, **options: object) -> NoReturn:
        raise Killed

    plan = Plan(BASE, [parse_range("LEARNING_RATE=1e-4:1e-1:log")], [1])
    left = _ask(open_study(tmp_path, plan), plan, 0)
    with monkeypatch.context() as patch:
        patch.setattr(optuna.Study, "tell", killed)
        with pytest.raises(Killed):
            open_study(tmp_path, plan)
    study = open_study(tmp_path, plan)
    assert [trial.state for trial in study.trials] == [TrialState.FAIL, TrialState.WAITING]
    assert _ask(study, plan, 0).params == left.params
    assert [trial.state for trial in open_study(tmp_path, plan).trials][2:] == [
        TrialState.WAITING
    ]  # as often as killed


@needs_optuna
@pytest.mark.parametrize("damage", ["a folder", "before", "during"])
def test_a_study_that_cannot_be_read_is_one_error_with_its_file(
    tune: Callable[..., int],
    runs: Runs,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    damage: str,
) -> None:
    database = tmp_path / "study" / "study.db"

    def run(*arguments: Any, **options: Any) -> Trial:
        database.write_bytes(b"no database" * 9_000)
        return runs(*arguments, **options)

    if damage == "a folder":
        database.mkdir(parents=True)
    elif damage == "before":
        database.parent.mkdir()
        database.write_bytes(b"no database" * 9_000)
    else:
        monkeypatch.setattr("tools.tune.study.run_trial", run)
    assert tune(*RANGES, "--trials", 2) == 1
    error = capsys.readouterr().err
    assert f"error: {database}: cannot be read or written" in error
    assert error.count("error: ") == 1
    assert "Traceback" not in error


@needs_optuna
def test_a_log_that_cannot_be_read_is_one_error_with_its_file(
    tune: Callable[..., int], runs: Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tune("--range", "LEARNING_RATE=3e-3:5e-3", "--trials", 1)
    [log] = (tmp_path / "study").rglob(LOG)
    log.unlink()
    log.mkdir()
    (tmp_path / "study" / "study.db").unlink()
    assert tune("--range", "LEARNING_RATE=3e-3:5e-3", "--trials", 1) == 1
    assert f"error: {log}: cannot read the log" in capsys.readouterr().err


# --- growth plans


@needs_optuna
def test_the_best_split_is_the_cheapest_of_those_that_need_equal_samples(
    tune: Callable[..., int], runs: Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tools.tune.worth import worth

    out = tmp_path / "config_best.sh"
    assert tune(*OF_GROWTH, "--trials", 10, "--out", out) == 0
    costs = {variables["GROWTH"]: worth(checked(variables), 1_200) for variables in runs.started}
    cheapest = min(costs, key=costs.__getitem__)
    assert cheapest != runs.started[0]["GROWTH"]  # which would be the best by samples alone
    assert load({"CONFIG": str(out)}).growth == cheapest
    assert f"export GROWTH={cheapest} # tuned\n" in out.read_text()
    assert "export HIDDEN_SIZE=16\n" in out.read_text()
    said = f"{costs[cheapest]:,.0f} samples' worth (1,200 samples)"
    assert f"tuned: {said} to target" in out.read_text()
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")][1:]
    assert said in rows[0]


@needs_optuna
def test_without_growth_samples_are_worth_themselves_exactly() -> None:
    from tools.tune.worth import worth

    for batch_size in (1, 3, 7, 49):
        config = checked({**BASE, "BATCH_SIZE": str(batch_size)})
        assert all(worth(config, samples) == samples for samples in range(1, 500))
    assert any(samples / 49 * 49 != samples for samples in range(1, 500))  # as it would be the plain way


@needs_optuna
def test_samples_of_a_cheap_stage_are_worth_its_share(tmp_path: Path) -> None:
    from benchmarks.bert.growth.relative import stage_cost
    from benchmarks.bert.growth.stages import plan_of
    from tools.tune.worth import worth

    (tmp_path / "vocab.txt").write_text("word\n" * 104)
    config = checked({**BASE, **SIZES, "GROWTH": "mslt:2,4@0.25,0.25+joint", "DATA_DIR": str(tmp_path)})
    costs = [stage_cost(config, stage, 104) for stage in plan_of(config).stages]
    assert costs[1] < costs[2] == 1
    assert worth(config, 320) == pytest.approx(320 * costs[0])
    assert worth(config, 480) == pytest.approx(320 * costs[0] + 160 * costs[1])
    assert worth(config, 1_000) == pytest.approx(320 * costs[0] + 320 * costs[1] + 360)


@needs_optuna
def test_where_all_trials_are_refused_the_last_refusal_is_said(
    tune: Callable[..., int], runs: Runs, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = (*OF_GROWTH[:-4], "--range", "first=0.96:0.99", "--range", "embeddings=frozen|train")
    assert tune(*bad, "--trials", 3) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert re.search(r"error: all 3 trials were refused .* \+joint needs a part of the run", last)
    assert runs.started == []


@needs_optuna
def test_one_trial_that_ran_is_not_all_refused(
    tune: Callable[..., int], runs: Runs, capsys: pytest.CaptureFixture[str]
) -> None:
    heads = ("--set", "HIDDEN_SIZE=96", "--set", "LEARNING_RATE=0.1", "--range", "NUM_HEADS=1:16")
    assert tune(*heads, "--trials", 10) == 1
    error = capsys.readouterr().err
    assert "must be a multiple of NUM_HEADS" in error
    assert error.splitlines()[-1].startswith("error: no trial reached the target")
    assert runs.started


@needs_optuna
@pytest.mark.parametrize("pruner", ["median", "halving"])
@pytest.mark.parametrize(
    "growth",
    [
        pytest.param(("--range", "GROWTH=none|mslt:2,4@0.2,0.2+joint"), id="choice"),
        pytest.param(("--set", "GROWTH=mslt:2,4@{a},0.2+joint", "--range", "a=0.1:0.5"), id="placeholder"),
    ],
)
def test_pruners_that_compare_equal_samples_are_refused_with_growth(
    tune: Callable[..., int],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    growth: tuple[str, ...],
    pruner: str,
) -> None:
    assert tune(*growth, "--pruner", pruner) == 2
    assert re.search(rf"--pruner {pruner}: .* equal samples.*; use --pruner none", capsys.readouterr().err)
    assert not (tmp_path / "study").exists()


# --- placeholders and the base file


@needs_optuna
def test_what_only_some_values_contradict_is_for_the_study_to_find(
    tune: Callable[..., int], runs: Runs, capsys: pytest.CaptureFixture[str]
) -> None:
    """Defaults in a placeholder's place would refuse both: BERT-large has 16 heads."""
    values = ("HIDDEN_SIZE=60", "NUM_HEADS={heads}", "BATCH_SIZE=20", "GRADIENT_ACCUMULATION_STEPS={heads}")
    sizes = [word for value in (*values, f"LEARNING_RATE={BEST_RATE}") for word in ("--set", value)]
    assert tune(*sizes, "--range", "heads=7|5|4", "--trials", 8, "--pruner", "none") == 0
    said = capsys.readouterr()
    assert "8 trials were refused, the last: HIDDEN_SIZE=60 must be a multiple of NUM_HEADS=7" in said.err
    [row, *_] = [line for line in said.out.splitlines() if "refused" in line]
    assert row.count("=7") == 2  # both problems, on one line
    assert said.out.index("refused") > said.out.rindex("samples |")
    assert tune(*sizes, "--set", "BETA_2=2", "--range", "heads=4|5|7", study="other") == 2
    assert "BETA_2=2.0" in capsys.readouterr().err


@needs_optuna
def test_the_base_file_may_hold_placeholders_and_is_checked_but_for_them(
    tune: Callable[..., int], runs: Runs, config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = "".join(f"export {name}={value}\n" for name, value in SIZES.items())
    ranges = ("--range", "first=0.1:0.8", "--range", "embeddings=frozen|train", "--pruner", "none", "--trials", 3)
    config.write_text(f"{config.read_text()}{own}export GROWTH='{SPLIT}'\nexport LAMB_BIAS_CORRECTION='{{on}}'\n")
    assert tune(*ranges, "--range", "on=0|1", "--set", f"LEARNING_RATE={BEST_RATE}") == 0
    assert len(runs.started) == 3
    config.write_text(f"{config.read_text()}export BETA_2=2\n")
    assert tune(*ranges, "--range", "on=0|1", study="other") == 2
    error = capsys.readouterr().err
    assert f"BETA_2=2.0 (from {config})" in error
    assert "GROWTH" not in error.splitlines()[-1]
    assert not (tmp_path / "other").exists()


# --- input


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        pytest.param(("--set", "BETA_2=2"), "BETA_2=2", id="value"),
        pytest.param(("--config", "absent.sh"), "absent.sh", id="no file"),
        pytest.param(("--range", "CLIP=1:2"), "not a number", id="range"),
        pytest.param(("--set", "SEED=99"), "use --seeds", id="seed"),
        pytest.param(("--set", "BETA_2=0.9", "--set", "BETA_2=0.99"), "BETA_2 is given twice", id="set twice"),
        pytest.param(("--range", "OPTIMIZER=sgd|adam"), "OPTIMIZER must be one of", id="choice"),
        pytest.param(("--set", "GROWTH=mslt:2,4@{a},0.1+joint"), "no range for {a}", id="placeholder"),
        pytest.param(
            ("--set", "GROWTH={a}", "--range", "a=1:2", "--set", "BETA_2=2"),
            "BETA_2=2",
            id="value beside a placeholder",
        ),
        pytest.param(("--set", "RESULT_FILE=x.txt"), "lies in --study", id="result file"),
        pytest.param(("--set", "CUDA_GRAPHS=1", "--set", "RANKS_PER_NODE=2"), "as one process", id="one process"),
        pytest.param(("--set", "LOADING=stratified_local", "--set", "NUM_NODES=2"), "LOADING", id="one node"),
    ],
)
@needs_optuna
def test_bad_input_is_one_error_and_makes_no_folder(
    tune: Callable[..., int],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    words: str,
) -> None:
    assert tune(*arguments) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("error: ") == 1
    assert not (tmp_path / "study").exists()


@needs_optuna
def test_a_full_disk_under_standard_output_is_named(
    tune: Callable[..., int], runs: Runs, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Full(io.StringIO):
        def flush(self) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(sys, "stdout", Full())
    assert tune(*RANGES, "--trials", 1) == 1
    assert "error: standard output: No space left" in capsys.readouterr().err


def test_without_optuna_the_remedy_is_said(
    tune: Callable[..., int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    find: Any = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "optuna" else find(name))
    assert tune(*RANGES) == 2
    assert "pip install -r requirements-tune.txt" in capsys.readouterr().err


@needs_optuna
def test_two_calls_on_one_study_are_refused(
    tune: Callable[..., int], runs: Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tools.trial import only_user

    with only_user(tmp_path / "study"):
        assert tune(*RANGES) == 1
    assert "another process works there" in capsys.readouterr().err
    assert not list((tmp_path / "study").rglob(LOG))


def test_a_log_of_other_values_is_no_trial_of_these(tmp_path: Path) -> None:
    write_trial(tmp_path, BASE, [(100, 0.4)])
    with pytest.raises(TrialError):
        read_trial(tmp_path, checked({**BASE, "BETA_2": "0.9"}))
