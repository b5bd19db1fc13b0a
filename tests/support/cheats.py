"""Ways to make a result look better than it is: each takes the runs of a folder, or a tree, and changes them in place.

They work on our own runs and on published ones, whose logs hold other keys.
"""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.logs import MARK, fields
from tests.support.submissions import Records, run_records, write_tree
from tests.support.tiny import ROOT

PUBLISHED = ROOT.parent / "shared" / "data" / "results" / "v5.0" / "Dell"  # ten runs of one system, the last aborted
MINUTE_MS = 60_000
EVALUATION = ("eval_start", "eval_accuracy", "eval_stop")
BEGINNING = ("init_stop", "run_start", "epoch_start", "block_start")

Runs = list[Records]
Cheat = Callable[[Runs], object]
TreeCheat = Callable[[Path, Path], object]  # of the tree, and of its one folder of results


# --- what is spoiled


def our_runs() -> Runs:
    return [run_records(number) for number in range(10)]


def published_runs() -> Runs:
    """Without the records of the tensors, which this round does not ask for."""
    (folder,) = PUBLISHED.glob("results/*/bert")
    return [_records(path) for path in sorted(folder.glob("result_*.txt"))]


def _records(path: Path) -> Records:
    lines = [line for line in path.read_text("latin-1").split("\n") if MARK in line]
    return [record for record in map(fields, lines) if record["key"] != "weights_initialization"]


def our_tree(root: Path) -> Path:
    return write_tree(root)


def published_tree(root: Path) -> Path:
    shutil.copytree(PUBLISHED, root)
    for path in (root, *root.rglob("*")):
        path.chmod(path.stat().st_mode | 0o200)
    return root


# --- single records


def of(records: Records, *keys: str) -> Records:
    return [record for record in records if record["key"] in keys]


def only(records: Records, key: str) -> dict[str, Any]:
    (record,) = of(records, key)
    return record


def put(records: Records, key: str, value: Any) -> None:
    """Where the log has no such record, one more before init_stop."""
    if not of(records, key):
        stop = only(records, "init_stop")
        records.insert(records.index(stop), copy.deepcopy(stop) | {"key": key})
    for record in of(records, key):
        record["value"] = value


def count_samples(records: Records, change: Callable[[float], float]) -> None:
    """Of every evaluation."""
    for record in of(records, *EVALUATION):
        for name in ("epoch_num", "samples_count"):
            if name in record["metadata"]:
                record["metadata"][name] = change(record["metadata"][name])


def drop_evaluations_but_the_last(records: Records) -> None:
    gone = [id(record) for record in of(records, "eval_accuracy")[:-1]]
    records[:] = [record for record in records if id(record) not in gone]


def each(edit: Callable[[int, Records], object]) -> Cheat:
    def cheat(runs: Runs) -> None:
        for number, records in enumerate(runs):
            edit(number, records)

    return cheat


# --- the clock


def squeeze(*keys: str) -> Cheat:
    """Evaluations a millisecond apart, and the end of the run right behind them."""

    def edit(number: int, records: Records) -> None:
        start = only(records, "run_start")["time_ms"]
        for place, record in enumerate(of(records, *keys)):
            record["time_ms"] = start + 1 + place
        only(records, "run_stop")["time_ms"] = start + 100 + number

    return each(edit)


def begin_late(*keys: str) -> Cheat:
    """The clock starts a millisecond before the first evaluation; what of `keys` stands before it moves along."""

    def edit(number: int, records: Records) -> None:
        first = of(records, *EVALUATION)[0]
        for record in records[: records.index(first)]:
            if record["key"] in keys:
                record["time_ms"] = first["time_ms"] - 1

    return each(edit)


def write_times_in_words(number: int, records: Records) -> None:
    """Of all evaluations but the first, behind which the run ends."""
    first, *others = of(records, "eval_accuracy")
    for record in others:
        record["time_ms"] = str(record["time_ms"])
    only(records, "run_stop")["time_ms"] = first["time_ms"] + 10


# --- the runs


def copy_one(runs: Runs) -> None:
    """The first, an hour later each time, with another seed."""
    for number in range(1, len(runs)):
        runs[number] = copy.deepcopy(runs[0])
        for record in runs[number]:
            record["time_ms"] += 60 * MINUTE_MS * number
        put(runs[number], "seed", 90_000 + number)


def count_fewer_samples(share: float) -> Cheat:
    def edit(number: int, records: Records) -> None:
        count_samples(records, lambda samples: int(samples * share))
        put(records, "train_samples", int(only(records, "train_samples")["value"] * share))

    return each(edit)


def hide_the_samples_of_one(runs: Runs) -> None:
    """train_samples, of which there are as many as before, shall then count for all."""
    each(lambda number, records: count_samples(records, lambda samples: int(0.6 * samples)))(runs)
    count_samples(runs[3], lambda samples: 1)


def evaluate_on_for_more_samples(number: int, records: Records) -> None:
    """Behind the evaluation that reached the target, so that the last one's samples are enough for the reference."""
    count_samples(records, lambda samples: int(0.85 * samples))
    last = of(records, "eval_accuracy")[-1]
    more = copy.deepcopy(last) | {"value": 0.01}
    records.insert(records.index(last) + 1, more)
    samples = last["metadata"]["epoch_num"] + 180_000
    more["metadata"] |= {name: samples for name in ("epoch_num", "samples_count") if name in more["metadata"]}
    put(records, "train_samples", samples)


# --- the evaluations


def evaluate_once(number: int, records: Records) -> None:
    drop_evaluations_but_the_last(records)
    count_samples(records, lambda samples: 1)


def bury_in_junk(runs: Runs) -> None:
    """The one evaluation that is left behind more than are looked at."""
    drop_evaluations_but_the_last(runs[0])
    last = only(runs[0], "eval_accuracy")
    place = runs[0].index(last)
    runs[0][place:place] = 10_001 * [copy.deepcopy(last) | {"value": 0.1}]


def measure_again(number: int, records: Records) -> None:
    """What did not reach the target does so at once."""
    last = of(records, "eval_accuracy")[-1]
    records.insert(records.index(last), copy.deepcopy(last) | {"value": 0.715})


def count_twice(number: int, records: Records) -> None:
    for record in of(records, "eval_accuracy"):
        record["metadata"]["samples_count"] = record["metadata"]["epoch_num"] // 2


def open_with_no_target(number: int, records: Records) -> None:
    put(records, "submission_division", "open")
    put(records, "target_accuracy", -1)
    for record in of(records, "eval_accuracy"):
        record["value"] = 0.0


CHEATS: dict[str, tuple[Cheat, str]] = {  # and the rule that must speak, as an error
    "the times of eval_accuracy squeezed": (squeeze("eval_accuracy"), "time.order"),
    "the times of all of an evaluation squeezed": (squeeze(*EVALUATION), "time.order"),
    "the clock starts late": (begin_late("run_start"), "time.order"),
    "evaluation times in words": (each(write_times_in_words), "time.unit"),
    "ten copies of one run": (copy_one, "runs.distinct"),
    "fewer samples than the reference": (count_fewer_samples(0.6), "runs.rcp"),
    "one log without samples": (hide_the_samples_of_one, "runs.samples"),
    "an evaluation after the target": (each(evaluate_on_for_more_samples), "runs.rcp"),
    "only the last evaluation": (each(evaluate_once), "bert.interval"),
    "10,001 junk evaluations": (bury_in_junk, "eval.repeated"),
    "a second accuracy": (each(measure_again), "eval.repeated"),
    "two counts of samples": (each(count_twice), "eval.samples"),
    "open, with a target below 0": (each(open_with_no_target), "run.target"),
    "seeds between integers": (each(lambda number, records: put(records, "seed", number + 7.5)), "seed.logged"),
    "lambda-adam": (each(lambda number, records: put(records, "opt_name", "lambda-adam")), "optimizer.allowed"),
}


# --- the tree


def add_system_with_the_same_runs(root: Path, results: Path) -> None:
    shutil.copytree(results, root / "results" / "other" / "bert")
    shutil.copy(root / "systems" / f"{results.parent.name}.json", root / "systems" / "other.json")


def fail_and_link(root: Path, results: Path) -> None:
    """What fails shall not be looked into."""
    add_system_with_the_same_runs(root, results)
    (results / "result_3.txt").unlink()
    results.rename(root / "stash")
    results.symlink_to("../../stash")


def fail_and_rename(root: Path, results: Path) -> None:
    (results / "result_3.txt").unlink()
    results.rename(results.with_name("bert_large"))


def hide_a_folder_deeper(root: Path, results: Path) -> None:
    (root / "results" / "sub").mkdir()
    results.parent.rename(root / "results" / "sub" / results.parent.name)


def describe_without_end(root: Path, results: Path) -> None:
    path = root / "systems" / f"{results.parent.name}.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"number_of_nodes": float("inf")}))


def fail_before_an_older_result(results: Path) -> None:
    shutil.copytree(results, results / "old" / "bert")
    for number in range(3):
        text = (results / f"result_{number}.txt").read_text("latin-1")
        (results / f"result_{number}.txt").write_text(text.replace('"success"', '"aborted"'), "latin-1")


TREE_CHEATS: dict[str, tuple[TreeCheat, str]] = {
    "the runs of another system": (add_system_with_the_same_runs, "runs.distinct"),
    "results behind a link": (fail_and_link, "package.links"),
    "results called bert_large": (fail_and_rename, "package.benchmark-name"),
    "results a folder deeper": (hide_a_folder_deeper, "package.place"),
    "Infinity nodes": (describe_without_end, "system.strings"),
}
