"""The ablation's plan depends on what is done alone, so a partial one goes on; its table says what is missing."""

from __future__ import annotations

import signal
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn

import pytest

from tests.support.trials import write_trial
from tools import trial as trial_module
from tools.ablation import __main__ as command
from tools.ablation.grid import fill
from tools.ablation.plan import (
    BATCHES,
    CENTRES,
    CLIPS,
    OPTIMIZERS,
    Cell,
    Run,
    cells_of,
    is_at_edge,
    next_place,
    next_run,
    samples_to_beat,
)
from tools.ablation.plot import svg
from tools.ablation.proxy import make_data, variables_of
from tools.ablation.table import BEGIN, END, markdown, put_between_marks, rows_of
from tools.trial import OutOfTimeError, Trial, TrialError, checked

CELL = Cell("adam", "none", 64)
SEEDS = (1, 2, 3)


def reached(samples: int) -> Trial:
    return Trial(True, samples, ((samples, 0.3),), 1.0, "target reached")


def missed(accuracy: float = 0.1, samples: int = 9_000) -> Trial:
    return Trial(False, None, ((samples, accuracy),), 1.0, "accuracy 0.2 not reached")


def curve(optimum: int) -> Mapping[int, int]:
    """Samples by place, fewest at `optimum`."""
    return {place: 1_000 + 100 * abs(place - optimum) for place in range(-9, 10)}


def climb(optimum: int, num_rates: int) -> dict[int, Trial]:
    tried: dict[int, Trial] = {}
    while (place := next_place(tried, num_rates)) is not None:
        tried[place] = reached(curve(optimum)[place])
    return tried


# --- plan


def test_the_grid_is_the_whole_product() -> None:
    cells = cells_of(BATCHES)
    assert len(cells) == len(set(cells)) == len(OPTIMIZERS) * len(CLIPS) * len(BATCHES) == 36
    assert [cell.batch for cell in cells] == sorted(cell.batch for cell in cells)


@pytest.mark.parametrize(
    ("optimum", "places"),
    [
        pytest.param(0, [0, 1, -1], id="at the centre"),
        pytest.param(1, [0, 1, 2], id="one above"),
        pytest.param(-1, [0, 1, -1, -2], id="one below"),
        pytest.param(2, [0, 1, 2, 3], id="two above"),
    ],
)
def test_the_ladder_ends_when_the_best_has_both_neighbours(optimum: int, places: list[int]) -> None:
    tried = climb(optimum, 9)
    assert list(tried) == places
    assert not is_at_edge(tried)


def test_the_ladder_ends_with_its_tries_and_the_best_is_known_to_be_at_the_edge() -> None:
    tried = climb(9, 5)
    assert list(tried) == [0, 1, 2, 3, 4]
    assert is_at_edge(tried)


def test_rates_that_miss_the_target_are_left_by_their_accuracy() -> None:
    assert next_place({0: missed(0.1), 1: missed(0.15)}, 9) == 2
    assert next_place({0: missed(0.15), 1: missed(0.1)}, 9) == -1
    assert next_place({0: missed(0.15), 1: reached(8_000)}, 9) == 2


def test_only_the_best_rate_is_run_with_the_other_seeds() -> None:
    done = {(place, 1): trial for place, trial in climb(1, 5).items()}
    assert next_run(CELL, done, SEEDS, 5) == Run(CELL, 1, 2)
    done[1, 2] = reached(900)
    assert next_run(CELL, done, SEEDS, 5) == Run(CELL, 1, 3)
    done[1, 3] = missed()
    assert next_run(CELL, done, SEEDS, 5) is None


def test_a_rate_may_be_ended_that_cannot_be_the_best_and_a_seed_never() -> None:
    done = {(0, 1): reached(1_000), (1, 1): missed()}
    assert samples_to_beat(Run(CELL, -1, 1), done, 1) == 1_000
    assert samples_to_beat(Run(CELL, 0, 2), done, 1) == float("inf")
    assert samples_to_beat(Run(CELL, 0, 1), {}, 1) == float("inf")


def test_rates_grow_with_the_root_of_the_batch() -> None:
    assert float(Cell("lamb", "none", 64).rate(0)) == CENTRES["lamb"]
    assert float(Cell("lamb", "none", 6400).rate(0)) == pytest.approx(10 * CENTRES["lamb"])
    assert float(Cell("lamb", "none", 64).rate(4)) == pytest.approx(10 * CENTRES["lamb"])


# --- filling


def record(cells: list[Cell], limit: int = 10_000) -> tuple[list[Run], dict]:
    """All runs in their order; after `limit` no time is left."""
    runs: list[Run] = []

    def run_one(run: Run, samples: float, cancelled: Callable[[], bool]) -> Trial:
        if len(runs) >= limit:
            raise OutOfTimeError("no time is left")
        runs.append(run)
        return reached(curve(1)[run.place] + run.seed)

    return runs, fill(cells, run_one, seeds=SEEDS, num_rates=5)


def test_cells_of_a_batch_advance_together_and_the_smallest_batch_is_first() -> None:
    cells = cells_of((512, 64))
    runs, results = record(cells)
    assert [run.cell for run in runs[:12]] == cells[:12]
    assert [run.place for run in runs[:24]] == [0] * 12 + [1] * 12
    batches = [run.cell.batch for run in runs]
    assert batches == sorted(batches)
    assert all(next_run(cell, done, SEEDS, 5) is None for cell, done in results.items())


def test_when_time_ends_every_cell_is_left_with_what_it_has() -> None:
    runs, results = record(cells_of((64,)), limit=14)
    assert len(runs) == 14
    assert sorted(len(done) for done in results.values()) == [1] * 10 + [2] * 2


def test_an_error_of_a_run_ends_the_whole_and_what_runs_beside_it() -> None:
    told = []

    def run_one(run: Run, samples: float, cancelled: Callable[[], bool]) -> NoReturn:
        if run.cell == CELL:
            raise TrialError("broken")
        told.append(any(cancelled() or time.sleep(0.01) for _ in range(6_000)))
        raise TrialError("told to end")

    with pytest.raises(TrialError, match="broken"):
        fill([CELL, Cell("lamb", "none", 64)], run_one, seeds=SEEDS, num_rates=3, jobs=2)
    assert told == [True]


def test_a_signal_to_the_process_alone_ends_what_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told = []

    def run(*arguments: object, cancelled: Callable[[], bool], **options: object) -> NoReturn:
        told.append(any(cancelled() or time.sleep(0.01) for _ in range(6_000)))
        raise TrialError("told to end")

    monkeypatch.setattr(command, "run_trial", run)
    monkeypatch.setattr("tools.ablation.grid.wait", lambda *a, **k: signal.raise_signal(signal.SIGINT))
    assert call(monkeypatch, "--out", tmp_path, "--jobs", 1) == 130
    assert told == [True]
    assert "the same command goes on" in capsys.readouterr().err


# --- configurations of runs


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_cell_is_a_configuration_of_its_batch(optimizer: str, batch: int) -> None:
    for clip in CLIPS:
        config = checked(variables_of(Run(Cell(optimizer, clip, batch), 1, 2)))
        assert config.global_batch == batch
        assert (config.optimizer, config.clip, config.seed) == (optimizer, clip, 2)
        assert config.batch_size * config.gradient_accumulation_steps == 8
        assert config.eval_interval_samples >= batch
        assert config.warmup_steps < config.max_steps


def test_without_the_default_data_set_the_remedy_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tools.ablation.proxy.ROOT", tmp_path)
    with pytest.raises(TrialError, match=r"\./init_datasets\.sh"):
        make_data()


# --- table and plot


def results_of(**trials: dict[tuple[int, int], Trial]) -> dict[Cell, dict[tuple[int, int], Trial]]:
    return {Cell("adam", clip, 64): done for clip, done in trials.items()}


FINISHED = {(0, 1): reached(1_280), (1, 1): missed(), (-1, 1): missed(), (0, 2): reached(1_600), (0, 3): reached(1_920)}


def line(table: str, clip: str) -> str:
    (found,) = [line for line in table.splitlines() if f"`{clip}`" in line]
    return found


def test_a_row_is_the_best_rates_mean_and_spread() -> None:
    row = line(markdown(rows_of(results_of(none=FINISHED), 1), 3), "none")
    assert row == "| adam | `none` | **1,600 ± 320** | 25 | 3 of 3 | 0.003 | 3 |"


def test_a_seed_that_missed_the_target_makes_a_bound_that_is_never_the_best() -> None:
    spoilt = FINISHED | {(0, 2): reached(1_281), (0, 3): missed(samples=9_000)}
    table = markdown(rows_of(results_of(none=spoilt, global_after=FINISHED), 1), 3)
    assert "2 of 3" in line(table, "none")
    assert "others above 9,000" in line(table, "none")
    assert "**" not in line(table, "none")
    assert "**" in line(table, "global_after")


def test_what_is_not_done_is_said() -> None:
    table = markdown(rows_of(results_of(none={(0, 1): reached(640)}, global_after={(0, 1): missed()}), 1), 3)
    assert "1 of 1, 2 to run" in line(table, "none")
    assert "best at the edge" in line(table, "none")
    assert "above 9,000 | - | 0 of 1" in line(table, "global_after")
    assert "global_before" not in table


def test_the_plot_is_xml_with_a_point_for_each_finished_cell() -> None:
    rows = rows_of(results_of(none=FINISHED, global_after={(0, 1): missed()}), 1)
    picture = ET.fromstring(svg(rows))
    assert len(picture.findall("{*}circle")) == 1
    assert len(ET.fromstring(svg([])).findall("{*}circle")) == 0


def test_only_what_stands_between_the_marks_is_replaced() -> None:
    page = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    assert put_between_marks(page, "new") == f"before\n{BEGIN}\nnew\n{END}\nafter\n"
    with pytest.raises(ValueError, match="one line"):
        put_between_marks("before\nafter\n", "new")


# --- command


def call(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["ablation", *map(str, arguments)])
    monkeypatch.setattr(command, "make_data", lambda: None)
    return command.main()


def write_cell(folder: Path, cell: Cell) -> None:
    """All the logs of a finished cell, its best rate at the centre."""
    for place, seed in ((0, 1), (1, 1), (-1, 1), (0, 2), (0, 3)):
        run = Run(cell, place, seed)
        write_trial(folder / command._folder(run), variables_of(run), [(640 + abs(place) * 64, 0.9)])


def test_a_table_is_made_of_the_logs_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(trial_module.subprocess, "Popen", lambda *a, **k: pytest.fail("a process was started"))
    write_cell(tmp_path, CELL)
    assert call(monkeypatch, "--out", tmp_path, "--batches", 64, "--minutes", 0) == 1
    output = capsys.readouterr()
    assert "11 of 12 cells are not finished" in output.err
    assert "| adam | `none` | **640 ± 0** | 10 | 3 of 3 | 0.003 | 3 |" in (tmp_path / "table.md").read_text()
    assert (tmp_path / "ablation.svg").exists()
    for cell in cells_of((64,))[1:]:
        write_cell(tmp_path, cell)
    assert call(monkeypatch, "--out", tmp_path, "--batches", 64, "--minutes", 0) == 0


def test_the_page_takes_the_table_where_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "docs" / "ablation.md"
    page.parent.mkdir()
    page.write_text(f"{BEGIN}\n{END}\n")
    monkeypatch.setattr(command, "PAGE", page)
    write_cell(tmp_path / "out", CELL)
    arguments = ("--out", tmp_path / "out", "--batches", 64, "--minutes", 0)
    call(monkeypatch, *arguments)
    assert "640" not in page.read_text()
    call(monkeypatch, *arguments, "--docs")
    assert "**640 ± 0**" in page.read_text()
    assert (page.parent / "ablation.svg").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        pytest.param(("--batches", "64,60"), "multiples of 8", id="batch no multiple"),
        pytest.param(("--batches", "64,64"), "different", id="batch twice"),
        pytest.param(("--rates", "2"), "at least 3", id="too few rates"),
        pytest.param(("--minutes", "soon"), "minutes from 0", id="minutes"),
        pytest.param(("--seeds", "0"), "from 1", id="no seed"),
    ],
)
def test_a_bad_option_is_one_clear_error(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, str],
    words: str,
) -> None:
    with pytest.raises(SystemExit) as end:
        call(monkeypatch, "--out", tmp_path, *arguments)
    assert end.value.code == 2
    assert words in capsys.readouterr().err
