"""Command line of weights: `python -m benchmarks.bert.weights show|convert --help`. Untimed."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

from benchmarks.bert.complaint import REFUSED, complain
from benchmarks.bert.weights import Weights, WeightsError, read_weights, write_weights
from benchmarks.bert.weights.names import MASKED_LM_BIAS, WORD, is_head
from benchmarks.bert.weights.shapes import padded, shapes_of
from benchmarks.bert.weights.store import WRITTEN_FORMS

_TITLES = {
    "tensorflow": "a TensorFlow checkpoint",
    "huggingface": "a Hugging Face folder",
    "pt": "a PyTorch file",
    "checkpoint": "a checkpoint of this project",
}
_HEAD_WIDTH = 64  # the published BERT-base's and BERT-large's
_NUM_LISTED = 5


def _show(arguments: argparse.Namespace) -> None:
    weights = read_weights(arguments.path)
    sizes = weights.sizes
    print(f"{arguments.path}: {_TITLES[weights.form]}")
    known_heads = f" in {weights.num_heads} heads" if weights.num_heads else ""
    print(
        f"{sizes.num_layers} layers, hidden size {sizes.hidden_size}{known_heads}, feed-forward size {sizes.ffn_size}, "
        f"{sizes.max_length} positions, {sizes.num_vocabulary:,} vocabulary entries"
    )
    heads = "with heads" if any(map(is_head, weights.tensors)) else "an encoder without heads"
    num_parameters = sum(tensor.numel() for tensor in weights.tensors.values())
    print(f"{num_parameters:,} parameters in {len(weights.tensors)} tensors, {heads}")
    if weights.ignored:
        beginning = ", ".join(weights.ignored[:_NUM_LISTED])
        print(f"{len(weights.ignored)} ignored: {beginning}{', …' if len(weights.ignored) > _NUM_LISTED else ''}")
    if arguments.verbose:
        for name, shape in shapes_of(weights.tensors).items():
            print(f"  {name:<40} {' x '.join(map(str, shape))}")


def _convert(arguments: argparse.Namespace) -> None:
    form = arguments.form or _form_by_name(arguments.to)
    weights = read_weights(arguments.source)
    num_heads = arguments.num_heads
    if form == "huggingface" and num_heads is None:
        num_heads = _num_heads(weights)
    num_vocabulary = _num_vocabulary(weights)
    write_weights(arguments.to, weights.tensors, form, num_vocabulary=num_vocabulary, num_heads=num_heads)
    print(f"{arguments.to}: {_TITLES[form]}, {len(weights.tensors)} tensors from {_TITLES[weights.form]}")


def _form_by_name(path: Path) -> str:
    if path.suffix == ".pt":
        return "pt"
    return "tensorflow" if ".ckpt" in path.name else "huggingface"


def _num_vocabulary(weights: Weights) -> int:
    """The vocabulary's rows without those of zeros, fewer than eight, that fill up a multiple of eight."""
    num_rows = len(weights.tensors[WORD])
    num_vocabulary = num_rows
    while padded(num_vocabulary - 1) == num_rows and not _is_used(weights, num_vocabulary - 1):
        num_vocabulary -= 1
    if num_vocabulary < num_rows:
        print(f"{num_rows:,} vocabulary rows, the last {num_rows - num_vocabulary} of them zeros: left out as padding")
    return num_vocabulary


def _is_used(weights: Weights, row: int) -> bool:
    """Whether a vocabulary row holds anything."""
    parts = [weights.tensors[name][row] for name in (WORD, MASKED_LM_BIAS) if name in weights.tensors]
    return any(bool(torch.count_nonzero(part)) for part in parts)


def _num_heads(weights: Weights) -> int:
    """The heads that a config tells, else the hidden size divided by 64, which is said."""
    if weights.num_heads is not None:
        return weights.num_heads
    num_heads, rest = divmod(weights.sizes.hidden_size, _HEAD_WIDTH)
    if rest:
        raise WeightsError(f"{weights.path}: no config beside it tells how many heads it has; give --num-heads")
    print(f"{num_heads} heads assumed, {_HEAD_WIDTH} wide, as no config beside {weights.path} tells; --num-heads does")
    return num_heads


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bert.weights", description=__doc__)
    steps = parser.add_subparsers(required=True, metavar="STEP")

    step = steps.add_parser("show", help="what lies at a path")
    step.set_defaults(run=_show)
    step.add_argument("path", type=Path, metavar="PATH")
    step.add_argument("-v", "--verbose", action="store_true", help="each tensor's name and shape too")

    step = steps.add_parser("convert", help="the same weights in another form")
    step.set_defaults(run=_convert)
    step.add_argument("source", type=Path, metavar="FROM")
    step.add_argument("to", type=Path, metavar="TO")
    step.add_argument("--form", choices=WRITTEN_FORMS, help="default: by TO's name: .pt, *.ckpt*, else Hugging Face")
    step.add_argument("--num-heads", type=int, help="for Hugging Face; default: a config's, else hidden size / 64")
    return parser


def main() -> int:
    arguments = _parser().parse_args()
    try:
        arguments.run(arguments)
    except (ValueError, OSError) as error:  # every refusal of ours is a ValueError whose text is the message
        return complain(error, REFUSED)
    except KeyboardInterrupt:
        return complain("interrupted; nothing half-written is left", 130)
    return 0


if __name__ == "__main__":
    sys.exit(main())
