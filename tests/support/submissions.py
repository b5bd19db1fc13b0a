"""A folder in, ten results that stand in it out, alone or in an organisation's tree; and ways to spoil them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.logs import BATCH, INTERVAL, MARK, START, closed_lines, fields, open_lines

NUM_EVALUATIONS = 17  # to the target: 2,550,016 samples; at this batch the reference needs 2,414,421 in rules 5.0.0
MINUTES = (30.0, 31.0, 29.0, 33.0, 30.5, 32.0, 31.5, 34.0, 28.0, 30.25)  # of the ten runs; no two are equal
INIT_S = 60
STARTUP_S = 30  # of the run, before it trains at its speed
EVAL_S = 2
ORGANISATION = "Example"  # as in tests.support.logs
SYSTEM = "box"
CODE = "benchmarks/bert/implementations/harness"  # in the tree
CODE_FILES = ("README.md", "setup.sh", "init_datasets.sh", "run_and_time.sh", "LICENSE")
DESCRIBED = (
    "system_name",
    "host_processors_per_node",
    "host_processor_model_name",
    "host_processor_core_count",
    "host_processor_vcpu_count",
    "host_processor_frequency",
    "host_processor_caches",
    "host_processor_interconnect",
    "host_memory_capacity",
    "host_storage_type",
    "host_storage_capacity",
    "host_networking",
    "host_networking_topology",
    "host_memory_configuration",
    "accelerator_model_name",
    "accelerator_host_interconnect",
    "accelerator_frequency",
    "accelerator_on-chip_memories",
    "accelerator_memory_configuration",
    "accelerator_memory_capacity",
    "accelerator_interconnect",
    "accelerator_interconnect_topology",
    "cooling",
    "hw_notes",
    "framework",
    "other_software_stack",
    "operating_system",
    "sw_notes",
)

Records = list[dict[str, Any]]
Spoil = Callable[[Path], object]  # a folder or a tree in, changed in place


# --- whole folders


def run_records(
    number: int = 0, *, batch: int = BATCH, division: str = "closed", num_evaluations: int = NUM_EVALUATIONS
) -> Records:
    """The records of run `number`, which starts an hour after the one before it."""
    start = START + 3600 * number
    lines = open_lines() if division == "open" else closed_lines(weights=False)
    records = [fields(line) for line in lines]
    keys = [record["key"] for record in records]
    stop, first, end = (keys.index(key) for key in ("init_stop", "eval_start", "block_stop"))
    run_ms, end_ms = 1000 * (start + INIT_S), 1000 * (start + INIT_S) + 60_000 * MINUTES[number % len(MINUTES)]
    counts = [-(-INTERVAL * count // batch) * batch for count in range(1, num_evaluations + 1)]
    timed = [_at(record, 1000 * start) for record in records[:stop]]
    timed += [_at(record, run_ms) for record in records[stop:first]]
    for samples in counts:
        left = 1 - samples / counts[-1]
        time_ms = end_ms - left * (end_ms - run_ms - 1000 * STARTUP_S)
        accuracy = (0.5 if left else 0.725) + number * 1e-6  # no two runs measure the same
        timed += _evaluation(records[first : first + 3], time_ms, samples, accuracy)
    timed += [_at(record, end_ms) for record in records[end:]]
    _set(timed, "seed", 1000 + 7 * number)
    _set(timed, "global_batch_size", batch)
    _set(timed, "train_samples", counts[-1])
    return timed


def _at(record: dict[str, Any], time_ms: float, **metadata: Any) -> dict[str, Any]:
    return record | {"time_ms": round(time_ms), "metadata": record["metadata"] | metadata}


def _evaluation(records: Records, time_ms: float, samples: int, accuracy: float) -> Records:
    start, measured, stop = (_at(record, time_ms, epoch_num=samples, samples_count=samples) for record in records)
    return [start | {"time_ms": start["time_ms"] - 1000 * EVAL_S}, measured | {"value": accuracy}, stop]


def write_records(path: Path, records: Records) -> None:
    path.write_text("".join(f"{MARK}{json.dumps(record)}\n" for record in records), "utf-8")


def write_results(folder: Path, num_runs: int = 10, *, first: int = 0, **fields: Any) -> Path:
    """result_0.txt and on of a submission that stands, run `first` and on; `fields` go to `run_records`. The folder."""
    folder.mkdir(parents=True)
    for number in range(num_runs):
        write_records(folder / f"result_{number}.txt", run_records(first + number, **fields))
    return folder


def describe(division: str = "closed") -> dict[str, str]:
    """The content of a system description that stands."""
    return dict.fromkeys(DESCRIBED, "some") | {
        "submitter": ORGANISATION,
        "division": division,
        "status": "Available on-premise",
        "number_of_nodes": "1",
        "accelerators_per_node": "8",
    }


def write_tree(root: Path, **fields: Any) -> Path:
    """An organisation's tree that stands; `fields` go to `run_records`. The root."""
    write_results(results_of(root), **fields)
    (root / "systems").mkdir()
    (root / "systems" / f"{SYSTEM}.json").write_text(json.dumps(describe(fields.get("division", "closed"))))
    code = root / CODE
    code.mkdir(parents=True)
    for name in CODE_FILES:
        (code / name).write_text("what it takes\n")
    return root


def results_of(root: Path) -> Path:
    """The folder of the tree's ten results."""
    return root / "results" / SYSTEM / "bert"


# --- single changes


def read_records(path: Path) -> Records:
    return [fields(line) for line in path.read_text("utf-8").splitlines()]


def change(path: Path, edit: Callable[[Records], object]) -> None:
    records = read_records(path)
    edit(records)
    write_records(path, records)


def set_value(path: Path, key: str, value: Any) -> None:
    """In all records of the key, of which there must be one."""
    change(path, lambda records: _set(records, key, value))


def _set(records: Records, key: str, value: Any) -> None:
    changed = [record for record in records if record["key"] == key]
    assert changed, key
    for record in changed:
        record["value"] = value


def drop(path: Path, key: str) -> None:
    def edit(records: Records) -> None:
        kept = [record for record in records if record["key"] != key]
        assert len(kept) < len(records), key
        records[:] = kept

    change(path, edit)


def line_of(path: Path, key: str) -> int:
    """Of the key's first record, from 1."""
    return 1 + [record["key"] for record in read_records(path)].index(key)


def keep_lines(path: Path, count: int) -> None:
    """As when the writer was killed."""
    path.write_text("".join(path.read_text("utf-8").splitlines(keepends=True)[:count]), "utf-8")


def use_placeholder(path: Path, epoch: float = 1) -> None:
    """Every evaluation names the epoch, as some published logs have it, and no samples."""

    def edit(records: Records) -> None:
        for record in records:
            if "epoch_num" in record["metadata"]:
                record["metadata"]["epoch_num"] = epoch
                record["metadata"].pop("samples_count", None)

    change(path, edit)


def abort(path: Path) -> None:
    """The run ends without having reached the target."""

    def edit(records: Records) -> None:
        for record in records:
            if record["key"] == "eval_accuracy":
                record["value"] = min(record["value"], 0.71)
        records[-1]["metadata"] |= {"status": "aborted", "reason": "too many steps"}

    change(path, edit)


def set_description(root: Path, **fields: Any) -> None:
    """Of the tree's system; a field that is set to None is taken out."""
    path = root / "systems" / f"{SYSTEM}.json"
    described = json.loads(path.read_text()) | fields
    path.write_text(json.dumps({key: value for key, value in described.items() if value is not None}))


# --- what must not change


def snapshot(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Of each file and folder below: its time of change and its content."""
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, b"" if path.is_dir() else path.read_bytes())
        for path in sorted(folder.rglob("*"))
    }
