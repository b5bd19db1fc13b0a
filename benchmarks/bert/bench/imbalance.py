"""A data folder in, each strategy's balance at several sizes out. `python -m benchmarks.bert.bench.imbalance DIR`."""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.bert.data.dataset import read_data_set
from benchmarks.bert.data.plan import STRATEGIES, Layout, Strata, imbalance, plan_epoch

_LAYOUTS = [Layout(1, 2, 16), Layout(1, 8, 16), Layout(8, 8, 16)]


def main() -> None:
    data = read_data_set(Path(sys.argv[1]) / "train")
    strata = Strata(4, data.manifest.max_length)
    print("| strategy | " + " | ".join(f"{layout.num_ranks} ranks" for layout in _LAYOUTS) + " |")
    print("|---" * (1 + len(_LAYOUTS)) + "|")
    for strategy in STRATEGIES:
        plans = (plan_epoch(data.lengths, each, strata, strategy=strategy, seed=1, epoch=0) for each in _LAYOUTS)
        print(f"| `{strategy}` | " + " | ".join(f"{imbalance(plan, data.lengths):.3f}" for plan in plans) + " |")


if __name__ == "__main__":
    main()
