"""Result logs of one configuration in, its reference convergence points out. `python -m tools.reference LOG...`

The format is that of the official reference convergence points; for BERT the "epochs" are samples to target.
"""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tools.verify.log import Record, read_log

_HYPERPARAMETERS = (
    "opt_name",
    "opt_base_learning_rate",
    "opt_learning_rate_training_steps",
    "opt_learning_rate_warmup_steps",
    "opt_lamb_beta_1",
    "opt_lamb_beta_2",
    "opt_lamb_epsilon",
    "opt_lamb_weight_decay_rate",
    "target_accuracy",
)
_OF_ONE_TRIAL = ("SEED", "RESULT_FILE", "CLEAR_CACHES", "CACHES_CLEARED", "DATA_DIR")  # may differ between runs


def main() -> int:
    try:
        points = reference_points({name: last_records(Path(name)) for name in sys.argv[1:]})
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(json.dumps(points, indent=1))
    return 0


def last_records(path: Path) -> dict[str, Record]:
    """A log's last record of each key. Raises ValueError for a log that cannot be read as a whole."""
    log = read_log(path)
    if log.flaws:
        raise ValueError(f"{path}:{log.flaws[0].line}: not a whole MLLOG record: {log.flaws[0].error}")
    return {key: seen.last for key, seen in log.seen.items()}


def reference_points(runs: dict[str, dict[str, Record]]) -> dict[str, object]:
    """One entry for the runs' batch size, of the last records of each run's log by their keys.

    Raises ValueError, naming the log, unless all succeeded alike configured.
    """
    if not runs:
        raise ValueError("no logs; usage: python -m tools.reference LOG...")
    for name, run in runs.items():
        if "run_stop" not in run or run["run_stop"].meta("status") != "success":
            raise ValueError(f"{name}: this run did not reach its target; leave it out or find out why")
        if missing := [key for key in ("configuration", "train_samples", *_HYPERPARAMETERS) if key not in run]:
            raise ValueError(f"{name}: it lacks {', '.join(missing)}; only this project's logs will do")
    (first_name, first), *others = runs.items()
    for name, run in others:
        if differing := [key for key, value in _configured(run).items() if value != _configured(first).get(key)]:
            raise ValueError(f"{name}: its {', '.join(differing)} differ from those of {first_name}")
    batch = first["global_batch_size"].value
    started = datetime.fromtimestamp(first["run_start"].time_ms / 1000, UTC)
    return {
        f"bert_ref_{batch}": {
            "Benchmark": "bert",
            "Creator": "this project",
            "When": f"{started:%Y-%m}",
            "Platform": first["submission_platform"].value,
            "BS": batch,
            "Hyperparams": {key: first[key].value for key in _HYPERPARAMETERS},
            "Seeds": [run["seed"].value for run in runs.values()],
            "Epochs to converge": [run["train_samples"].value for run in runs.values()],
        }
    }


def _configured(run: dict[str, Record]) -> dict[str, Any]:
    """Every variable of the run that makes it what it is."""
    variables = run["configuration"].value
    return {name: entry["value"] for name, entry in variables.items() if name not in _OF_ONE_TRIAL}


if __name__ == "__main__":
    sys.exit(main())
