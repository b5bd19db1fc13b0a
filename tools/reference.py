"""Result logs of one configuration in, its reference convergence points out. `python -m tools.reference LOG...`

The format is that of the official reference convergence points; for BERT the "epochs" are samples to target.
"""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path

from tools.verify.log import Record, UnreadableLogError, read_log

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


def main() -> int:
    try:
        points = reference_points([read_log(Path(name)) for name in sys.argv[1:]])
    except (UnreadableLogError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(json.dumps(points, indent=1))
    return 0


def reference_points(runs: list[list[Record]]) -> dict[str, object]:
    """One entry for the runs' batch size. Raises ValueError unless all succeeded with the same hyperparameters."""
    if not runs:
        raise ValueError("no logs; usage: python -m tools.reference LOG...")
    last = [{record.key: record for record in run} for run in runs]
    if failed := [index for index, run in enumerate(last) if run["run_stop"].metadata.get("status") != "success"]:
        raise ValueError(f"logs {failed} (counted from 0) did not reach the target")
    settings = [{key: run[key].value for key in (*_HYPERPARAMETERS, "global_batch_size")} for run in last]
    if any(other != settings[0] for other in settings):
        raise ValueError("the logs are of different configurations")
    batch = settings[0].pop("global_batch_size")
    started = datetime.fromtimestamp(last[0]["run_start"].time_ms / 1000, UTC)
    return {
        f"bert_ref_{batch}": {
            "Benchmark": "bert",
            "Creator": "this project",
            "When": f"{started:%Y-%m}",
            "Platform": last[0]["submission_platform"].value,
            "BS": batch,
            "Hyperparams": settings[0],
            "Seeds": [run["seed"].value for run in last],
            "Epochs to converge": [run["train_samples"].value for run in last],
        }
    }


if __name__ == "__main__":
    sys.exit(main())
