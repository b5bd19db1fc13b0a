"""A model and weights in, the model with those weights out, or the model as it was and one error."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from benchmarks.bert.model.bert import Bert
from benchmarks.bert.weights.account import Weights, WeightsError, differences, refusal
from benchmarks.bert.weights.names import VOCABULARY_ROWS, is_head
from benchmarks.bert.weights.shapes import Shape, Sizes, padded, shapes_of, sizes_of

_PARTS: dict[str, Callable[[str], bool]] = {"all": lambda name: True, "encoder": lambda name: not is_head(name)}

_VARIABLES = {
    "NUM_LAYERS": "num_layers",
    "HIDDEN_SIZE": "hidden_size",
    "FFN_SIZE": "ffn_size",
    "MAX_LENGTH": "max_length",
}


def load_into(model: Bert, weights: Weights, *, num_vocabulary: int, parts: str) -> None:
    """Copy weights into a model in place: "all" of them, or the "encoder" (embeddings, layers, pooler).

    The model's word matrix may have more rows than `num_vocabulary`; those, as everything else that is not loaded, stay
    as they are. The file's may be padded to the next multiple of eight.

    Raises:
        WeightsError: a tensor is missing, too many or of another shape, or the number of heads is known to be another;
            the model is as it was.
    """
    is_wanted = _PARTS[parts]
    targets = {name: target for name, target in model.named_parameters() if is_wanted(name)}
    sources = {name: source for name, source in weights.tensors.items() if is_wanted(name)}
    found = _without_padding(shapes_of(sources), padded(num_vocabulary), num_vocabulary)
    expected = {
        name: (num_vocabulary, *shape[1:]) if name in VOCABULARY_ROWS else shape
        for name, shape in shapes_of(targets).items()
    }
    if problems := differences(found, expected):
        raise refusal(weights.path, "its weights do not fit the model", problems, _remedy(found, expected))
    num_heads = model.layers[0].attention.num_heads
    if weights.num_heads not in (None, num_heads):
        raise WeightsError(
            f"{weights.path}: its config tells {weights.num_heads} heads; set NUM_HEADS={weights.num_heads} "
            f"(the model: NUM_HEADS={num_heads})"
        )
    with torch.no_grad():
        for name, target in targets.items():
            rows = slice(num_vocabulary if name in VOCABULARY_ROWS else None)
            target[rows].copy_(sources[name][rows])


def _without_padding(found: Mapping[str, Shape], num_rows: int, num_vocabulary: int) -> dict[str, Shape]:
    return {
        name: (num_vocabulary, *shape[1:]) if name in VOCABULARY_ROWS and shape[0] == num_rows else shape
        for name, shape in found.items()
    }


def _remedy(found: Mapping[str, Shape], expected: Mapping[str, Shape]) -> str:
    if found == {name: shape for name, shape in expected.items() if not is_head(name)}:
        return "these are an encoder's weights only; INITIAL_PARTS=encoder takes them and draws the heads afresh"
    file, model = sizes_of(found), sizes_of(expected)
    if file is None or model is None:
        return "take weights of the same network"
    remedies = _settings(file, model)
    if file.num_vocabulary != model.num_vocabulary:
        remedies.append(
            "prepare the data with the vocabulary that the weights were trained with "
            f"({file.num_vocabulary:,} entries, the data's has {model.num_vocabulary:,})"
        )
    return " and ".join(remedies) or "take whole weights of the same network"


def _settings(file: Sizes, model: Sizes) -> list[str]:
    differing = [
        (variable, getattr(file, field), getattr(model, field))
        for variable, field in _VARIABLES.items()
        if getattr(file, field) != getattr(model, field)
    ]
    if not differing:
        return []
    wanted = " ".join(f"{variable}={theirs}" for variable, theirs, _ in differing)
    present = " ".join(f"{variable}={ours}" for variable, _, ours in differing)
    return [f"set {wanted} as the file has them (the model: {present})"]
