"""A trial is what its log says: read where it is whole, run again where it was killed, never where it was pruned."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

from tests.support.tiny import make_tiny_data, tiny_variables
from tests.support.trials import write_trial
from tools import trial as module
from tools.pool import trial_pool
from tools.trial import (
    LOG,
    OutOfTimeError,
    RefusedTrialError,
    TrialError,
    as_one_process,
    exports_of,
    only_user,
    run_trial,
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_data(tmp_path_factory.mktemp("data"))


@pytest.fixture
def no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **options: object) -> NoReturn:
        raise AssertionError("a process was started")

    monkeypatch.setattr(subprocess, "Popen", refuse)


@pytest.fixture
def endless(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """In place of runs, processes that do nothing; those that were started, and the environment of each."""
    start, started = subprocess.Popen, []

    def sleep(arguments: object, *, env: dict[str, str], **options: Any) -> Any:
        started.append((start(["sleep", "30"], **options), env))
        return started[-1][0]

    monkeypatch.setattr(subprocess, "Popen", sleep)
    return started


def variables(data: Path = Path("data/none"), **changed: str) -> dict[str, str]:
    return tiny_variables(data, Path("unused.txt")) | changed


# --- real runs


def test_a_killed_run_is_set_aside_and_run_again_to_its_target(data: Path, tmp_path: Path) -> None:
    """Though its base keeps checkpoints and traces, and both are there."""
    base = variables(data, CHECKPOINT_INTERVAL_STEPS="2", PROFILE_START_STEP="1", PROFILE_NUM_STEPS="1")
    write_trial(tmp_path, base, [(64, 0.5)], killed=True)
    (tmp_path / "checkpoints" / "step_00000002").mkdir(parents=True)
    (tmp_path / "profile").mkdir()
    (tmp_path / "profile" / "rank_0.json").write_text("{}")
    done = run_trial(base, tmp_path)
    assert done.reached
    assert not done.pruned
    assert done.samples == done.evaluations[-1][0] == 64
    assert (tmp_path / "killed_1.txt").exists()
    assert (tmp_path / "killed_1_profile" / "rank_0.json").read_text() == "{}"
    assert "traceEvents" in (tmp_path / "profile" / "rank_0.json").read_text()
    assert run_trial(base, tmp_path) == done  # reads what the first call wrote
    assert not (tmp_path / "killed_2.txt").exists()


def test_a_run_that_misses_its_target_is_censored_not_an_error(data: Path, tmp_path: Path) -> None:
    done = run_trial(variables(data, TARGET_ACCURACY="0.99"), tmp_path)
    assert not done.reached
    assert not done.pruned
    assert done.samples is None
    assert [samples for samples, _ in done.evaluations] == [64, 128, 192]
    assert "not reached within MAX_STEPS=12" in done.reason


def test_a_run_that_is_told_to_stop_is_pruned_for_good(data: Path, tmp_path: Path) -> None:
    long = variables(data, TARGET_ACCURACY="0.99", MAX_STEPS="1000000")
    done = run_trial(long, tmp_path, stop=lambda evaluations: "enough" if len(evaluations) >= 2 else "")
    assert done.pruned
    assert not done.reached
    assert done.reason == "enough"
    assert len(done.evaluations) >= 2
    assert run_trial(long, tmp_path) == done


def test_what_the_run_itself_refuses_raises_its_words(tmp_path: Path) -> None:
    with pytest.raises(RefusedTrialError, match="absent"):
        run_trial(variables(tmp_path / "absent"), tmp_path / "trial")


def test_a_deadline_stops_a_run_and_keeps_no_outcome(data: Path, tmp_path: Path) -> None:
    long = variables(data, TARGET_ACCURACY="0.99", MAX_STEPS="1000000")
    with pytest.raises(OutOfTimeError):
        run_trial(long, tmp_path, deadline=time.monotonic() + 0.5)
    with pytest.raises(OutOfTimeError):
        run_trial(long, tmp_path, deadline=0)


@pytest.mark.parametrize(
    "is_time",
    [
        pytest.param(lambda started: True, id="before it begins"),
        pytest.param(lambda started: len(started) == 1, id="while it runs"),
    ],
)
def test_a_cancelled_run_ends(tmp_path: Path, endless: list[Any], is_time: Callable[[list[Any]], bool]) -> None:
    with pytest.raises(TrialError, match="not run to its end") as raised:
        run_trial(variables(), tmp_path, cancelled=lambda: is_time(endless))
    assert not isinstance(raised.value, OutOfTimeError)
    assert all(process.poll() is not None for process, _ in endless)


@pytest.mark.parametrize("fails", [pytest.param(True, id="error"), pytest.param(False, id="none")])
def test_what_runs_is_told_of_an_error_beside_it_and_of_nothing_else(fails: bool) -> None:
    last_look = 6_000 if fails else 1

    def is_told(cancelled: Callable[[], bool]) -> bool:
        return any(cancelled() or time.sleep(0.01) for _ in range(last_look))

    with contextlib.suppress(KeyboardInterrupt), trial_pool(1) as (pool, cancelled):
        future = pool.submit(is_told, cancelled)
        if fails:
            raise KeyboardInterrupt
    assert future.result() == fails


# --- logs


@pytest.mark.parametrize(
    ("ending", "rank"),
    [
        pytest.param({"reached": True}, (0, 128.0), id="reached"),
        pytest.param({"reached": False}, (1, -0.6), id="censored"),
        pytest.param({"pruned": "too slow"}, (1, -0.6), id="pruned"),
    ],
)
def test_an_ended_log_is_read_and_not_run(
    tmp_path: Path, no_process: None, ending: dict, rank: tuple[int, float]
) -> None:
    write_trial(tmp_path, variables(), [(64, 0.5), (128, 0.6)], **ending)
    done = run_trial(variables(), tmp_path, deadline=0)
    assert done.rank == rank
    assert done.evaluations == ((64, 0.5), (128, 0.6))


def test_a_killed_log_is_not_read(tmp_path: Path, no_process: None) -> None:
    write_trial(tmp_path, variables(), [(64, 0.5)], killed=True)
    with pytest.raises(AssertionError, match="a process was started"):
        run_trial(variables(), tmp_path)


def test_a_log_cut_inside_its_configuration_is_not_read(tmp_path: Path, no_process: None) -> None:
    write_trial(tmp_path, variables(), [(64, 0.5)])
    (tmp_path / LOG).write_bytes((tmp_path / LOG).read_bytes()[:300])
    with pytest.raises(AssertionError, match="a process was started"):
        run_trial(variables(), tmp_path)


def test_a_log_of_other_variables_is_refused(tmp_path: Path, no_process: None) -> None:
    write_trial(tmp_path, variables(), [(64, 0.5)])
    with pytest.raises(TrialError, match=r"LEARNING_RATE=0\.01, not 0\.02"):
        run_trial(variables(LEARNING_RATE="0.02"), tmp_path)


def test_a_folder_in_place_of_a_log_is_named(tmp_path: Path, no_process: None) -> None:
    (tmp_path / LOG).mkdir()
    with pytest.raises(TrialError, match=rf"{LOG}: cannot read the log .*; move it away"):
        run_trial(variables(), tmp_path)


@pytest.mark.parametrize(
    ("changed", "is_same"),
    [
        pytest.param({"RESUME": "if_any", "CHECKPOINT_INTERVAL_STEPS": "5"}, True, id="checkpoints"),
        pytest.param({"PROFILE_DIR": "elsewhere", "CHECKPOINT_DIR": "elsewhere"}, True, id="places"),
        pytest.param({"PROFILE_START_STEP": "2"}, False, id="profiled steps"),
    ],
)
def test_what_each_trial_sets_itself_makes_no_other_run(
    tmp_path: Path, no_process: None, changed: dict[str, str], is_same: bool
) -> None:
    write_trial(tmp_path, variables(**changed), [(64, 0.5)])
    if is_same:
        assert run_trial(variables(), tmp_path).reached
    else:
        with pytest.raises(TrialError, match="choose another folder"):
            run_trial(variables(), tmp_path)


def test_a_trial_writes_into_its_folder_alone(tmp_path: Path, endless: list[Any]) -> None:
    base = variables(CHECKPOINT_INTERVAL_STEPS="5", RESUME="yes", PROFILE_DIR="elsewhere", CHECKPOINT_DIR="elsewhere")
    with pytest.raises(TrialError):
        run_trial(base, tmp_path, cancelled=lambda: bool(endless))
    [(_, environment)] = endless
    assert (environment["CHECKPOINT_INTERVAL_STEPS"], environment["RESUME"]) == ("0", "no")
    for name in ("RESULT_FILE", "CHECKPOINT_DIR", "PROFILE_DIR"):
        assert Path(environment[name]).parent == tmp_path


# --- configurations


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        pytest.param({"LEARNIN_RATE": "1"}, "nearest valid one is LEARNING_RATE", id="unknown"),
        pytest.param({"BETA_2": "1.5"}, "BETA_2=1.5", id="out of range"),
        pytest.param({"NUM_HEADS": "3"}, "NUM_HEADS=3", id="contradiction"),
    ],
)
def test_a_configuration_is_refused_before_a_process(
    tmp_path: Path, no_process: None, changed: dict[str, str], words: str
) -> None:
    with pytest.raises(RefusedTrialError, match=words):
        run_trial(variables(**changed), tmp_path)


def test_ranks_become_virtual_ones_of_one_process() -> None:
    one = as_one_process(variables(NUM_NODES="3", RANKS_PER_NODE="2", VIRTUAL_RANKS="4"))
    assert (one["NUM_NODES"], one["RANKS_PER_NODE"], one["VIRTUAL_RANKS"]) == ("1", "1", "24")


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        pytest.param(
            {"CUDA_GRAPHS": "1", "NUM_LAYERS": "2"}, "as one process, VIRTUAL_RANKS=2: CUDA_GRAPHS", id="graphs"
        ),
        pytest.param({"LOADING": "stratified_local", "NUM_NODES": "2"}, "LOADING=stratified_local draws", id="nodes"),
    ],
)
def test_what_is_another_run_as_one_process_is_refused(changed: dict[str, str], words: str) -> None:
    module.checked(variables(**changed))
    with pytest.raises(RefusedTrialError, match=words):
        as_one_process(variables(**changed))
    as_one_process(variables(**changed | {"NUM_NODES": "1", "RANKS_PER_NODE": "1"}))


def test_a_launchers_variables_do_not_reach_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "SLURM_PROCID", "SEED"):
        monkeypatch.setenv(name, "5")
    monkeypatch.setenv("KEPT", "5")
    environment = module._environment({"LEARNING_RATE": "0.1"}, threads=3)
    assert environment.keys() & {"RANK", "SLURM_PROCID", "SEED"} == set()
    assert (environment["KEPT"], environment["OMP_NUM_THREADS"], environment["LEARNING_RATE"]) == ("5", "3", "0.1")


def test_a_files_exports_are_texts_that_give_the_same_again(tmp_path: Path) -> None:
    file = tmp_path / "config_x.sh"
    file.write_text("export LEARNING_RATE=1e-05\nexport CLEAR_CACHES=1\nexport DATA_DIR='data/a b'\n")
    exports = exports_of(file)
    assert exports == {"LEARNING_RATE": "1e-05", "CLEAR_CACHES": "1", "DATA_DIR": "data/a b"}
    assert module.checked(exports) == module.checked({}, file)


def test_what_0_stands_for_is_found_when_the_rest_is_known(tmp_path: Path) -> None:
    file = tmp_path / "config_x.sh"
    file.write_text("export MAX_STEPS=20000\nexport DECAY_STEPS=0\nexport EVAL_INTERVAL_SAMPLES=0\n")
    exports = exports_of(file)
    assert (exports["DECAY_STEPS"], exports["EVAL_INTERVAL_SAMPLES"]) == ("0", "0")
    assert module.checked(exports).decay_steps == 20_000
    assert module.checked(exports | {"MAX_STEPS": "50000"}).decay_steps == 50_000


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(TrialError, match=r"file: cannot write there .*; choose another folder"),
        only_user(tmp_path / "file"),
    ):
        pass


def test_a_folder_has_one_user(tmp_path: Path) -> None:
    with only_user(tmp_path), pytest.raises(TrialError, match="another process works there"), only_user(tmp_path):
        pass
    with only_user(tmp_path):  # free again
        pass
