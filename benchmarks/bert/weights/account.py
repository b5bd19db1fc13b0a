"""What a file holds in; weights of which every tensor is accounted for out, or one error that lists what is wrong."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.bert.complaint import describe
from benchmarks.bert.weights.names import MASKED_LM_BIAS, WORD, is_head
from benchmarks.bert.weights.shapes import Shape, Sizes, padded, shapes, shapes_of, sizes_of

_NUM_LISTED = 10
READ = (torch.float32, torch.float16, torch.bfloat16)  # fp32 holds each of the others' values exactly
_REMEDY = "it must be a BERT's whole weights as its trainer saved them, or an encoder's; download or copy it again"


class WeightsError(ValueError):
    """A file of weights, or what is to become one, is refused; the text names it, what is wrong and the remedy."""


@dataclass(frozen=True)
class Weights:
    tensors: dict[str, Tensor]  # by our names, fp32, our layout; mapped from the file where its layout allows
    form: str
    ignored: tuple[str, ...]  # names in the file that are known not to be weights
    path: Path
    num_heads: int | None = None  # as a config in the file's folder tells; shapes do not

    @property
    def sizes(self) -> Sizes:
        sizes = sizes_of(shapes_of(self.tensors))
        assert sizes is not None  # every tensor was accounted for
        return sizes


@dataclass
class Found:
    """What a reader found, before it is checked."""

    tensors: dict[str, Tensor] = field(default_factory=dict)  # by our names, our layout, as stored
    ignored: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def account(path: Path, form: str, found: Found) -> Weights:
    """Check that a file's tensors are one whole encoder, with or without heads, of 16 or 32 bits; widen them to fp32.

    Raises:
        WeightsError: a tensor is missing, unknown, of another shape than the others tell, empty, of another type, or
            holds what is no finite number.
    """
    _cut_to_bias(found.tensors)
    shape_of = shapes_of(found.tensors)
    sizes = sizes_of(shape_of)
    problems = list(found.problems)
    if sizes is None:
        problems += ["the word embeddings, the position embeddings or the first layer's matrices are missing"]
    else:
        expected = {name: shape for name, shape in shapes(sizes).items() if name in shape_of or not is_head(name)}
        problems += differences(shape_of, expected)
    problems += [wrong_type(name, tensor) for name, tensor in found.tensors.items() if tensor.dtype not in READ]
    problems += [f"{name} is {shape}, which is empty" for name, shape in shape_of.items() if 0 in shape]
    problems += [
        f"{name} holds NaN or infinite values"
        for name, tensor in found.tensors.items()
        if tensor.dtype in READ and not torch.isfinite(tensor).all()
    ]
    if problems:
        raise refusal(path, "these are not a BERT's weights", problems, _REMEDY)
    tensors = {name: found.tensors[name].float() for name in expected}
    return Weights(tensors, form, tuple(found.ignored), path)


def _cut_to_bias(tensors: dict[str, Tensor]) -> None:
    """Cut word embeddings that are padded to a multiple of eight where the bias is not: it tells the vocabulary."""
    word, bias = tensors.get(WORD), tensors.get(MASKED_LM_BIAS)
    if word is not None and bias is not None and word.dim() and bias.dim() and len(word) == padded(len(bias)):
        tensors[WORD] = word[: len(bias)]


def wrong_type(name: str, tensor: Tensor) -> str:
    """The complaint about a tensor whose type is none of `READ`."""
    return f"{name} is of type {str(tensor.dtype).removeprefix('torch.')}, not a float of 16 or 32 bits"


def differences(found: Mapping[str, Shape], expected: Mapping[str, Shape]) -> list[str]:
    """What is missing, what is too many and what has another shape, one line each."""
    return [
        *(f"{name} is missing" for name in expected if name not in found),
        *(f"{name} is unknown" for name in found if name not in expected),
        *(
            f"{name} is {shape}, not {expected[name]}"
            for name, shape in found.items()
            if name in expected and shape != expected[name]
        ),
    ]


def refusal(path: Path, complaint: str, problems: Sequence[str], remedy: str) -> WeightsError:
    """One error: the file, the remedy, then the first ten problems on a line each and how many more there are."""
    lines = [f"{path}: {complaint}: {len(problems)} thing(s) wrong; {remedy}", *problems[:_NUM_LISTED]]
    if len(problems) > _NUM_LISTED:
        lines.append(f"and {len(problems) - _NUM_LISTED} more")
    return WeightsError("\n".join(lines))


def check_file(path: Path) -> None:
    """Refuse what is no file that can be read, before a library complains about it in words of its own.

    Raises:
        WeightsError: a folder, or a pipe, of which opening may wait for ever.
        OSError: nothing lies there, or it may not be read.
    """
    if path.exists() and not path.is_file():
        raise WeightsError(f"{path}: not a regular file; copy the file itself there")
    with open(path, "rb"):
        pass


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file."""
    check_file(path)
    try:
        content = json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise WeightsError(f"{path}: not JSON ({describe(error)}); download or copy it again") from error
    if not isinstance(content, dict):
        raise WeightsError(f"{path}: not a JSON object; download or copy it again")
    return content
