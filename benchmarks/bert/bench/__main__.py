"""The name of a measurement and its arguments in, what it prints out. `python -m benchmarks.bert.bench NAME ...`."""

from __future__ import annotations

import importlib
import sys

_MEASUREMENTS = {
    "step": "our training step's speed, by part and beside a padded Hugging Face BERT",
    "optimizers": "a step of each optimizer beside torch's foreach AdamW: time, memory, tensors",
    "exact": "how far our results are from those of Hugging Face's BERT",
    "counts": "the accuracy that counting alone reaches on a data folder",
    "balance": "what each loading strategy costs and gains",
    "loading": "how fast our loader is, beside a plain DataLoader over fixed-length HDF5",
    "prepare": "how fast samples are made, beside a plain reimplementation",
}


def main() -> None:
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name not in _MEASUREMENTS:
        lines = [f"  {each:10} {what}" for each, what in _MEASUREMENTS.items()]
        sys.exit("\n".join([f"{name!r} is no measurement; python -m benchmarks.bert.bench NAME, of", *lines]))
    sys.argv = [f"{sys.argv[0]} {name}", *sys.argv[2:]]
    sys.exit(importlib.import_module(f"benchmarks.bert.bench.{name}").main())


if __name__ == "__main__":
    main()
