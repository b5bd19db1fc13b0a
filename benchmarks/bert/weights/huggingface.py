"""A folder with config.json and model.safetensors in, its tensors by our names out, and back."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from benchmarks.bert.complaint import describe
from benchmarks.bert.files import atomic_write
from benchmarks.bert.weights.account import Found, WeightsError, check_file, read_json
from benchmarks.bert.weights.shapes import shapes_of, sizes_of
from benchmarks.bert.weights.spelling import from_pytorch, to_pytorch

CONFIG, TENSORS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"

# What the network here computes, and what a config that is silent about it means.
_COMPUTED = {
    "model_type": "bert",
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "position_embedding_type": "absolute",
}


def files(folder: Path) -> list[Path]:
    """What `write` writes."""
    return [folder / CONFIG, folder / TENSORS]


def read(folder: Path) -> Found:
    """Tensors that are mapped from the folder's safetensors, in one file or several.

    Raises:
        WeightsError: a file is missing, cut off or no such file, or its config is another network's.
    """
    _check_config(folder / CONFIG)
    if (folder / TENSORS).exists():
        return from_pytorch(read_safetensors(folder / TENSORS))
    index = folder / INDEX
    file_of = read_json(index).get("weight_map")
    if not isinstance(file_of, dict) or not all(map(_is_file_name, file_of.values())):
        raise WeightsError(f"{index}: its weight_map does not name files of its folder; download or copy it again")
    named: dict[str, Tensor] = {}
    for file in sorted(set(file_of.values())):
        named |= read_safetensors(folder / file)
    if differing := sorted(named.keys() ^ file_of.keys()):
        raise WeightsError(f"{index}: it and its files differ in {', '.join(differing[:10])}; copy all of them again")
    return from_pytorch(named)


def _is_file_name(value: object) -> bool:
    """Whether it is the plain name of a file, which leads out of no folder."""
    return isinstance(value, str) and value == Path(value).name and value not in ("", "..")


def _check_config(path: Path) -> None:
    config = read_json(path)
    for key, computed in _COMPUTED.items():
        if (value := config.get(key, computed)) != computed:
            raise WeightsError(f"{path}: {key} is {value!r}; only BERT with {computed!r} is computed here")


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """The tensors of one safetensors file, mapped."""
    if not path.exists():
        raise WeightsError(f"{path}: no such file; copy all files of the folder")
    check_file(path)
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # it is no dict
    except SafetensorError as error:
        raise WeightsError(f"{path}: not whole safetensors ({describe(error)}); download or copy it again") from error


def write(folder: Path, tensors: dict[str, Tensor], num_heads: int | None) -> None:
    """What transformers' BertForPreTraining loads: config.json and model.safetensors."""
    sizes = sizes_of(shapes_of(tensors))
    assert sizes is not None  # the caller has accounted for every tensor
    if num_heads is None or num_heads < 1 or sizes.hidden_size % num_heads:
        raise WeightsError(
            f"{folder}: a hidden size of {sizes.hidden_size} does not divide into {num_heads} heads, which its "
            f"{CONFIG} has to tell; give the number of heads that these weights were trained with"
        )
    config = {
        "architectures": ["BertForPreTraining"],
        "attention_probs_dropout_prob": 0.1,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "hidden_size": sizes.hidden_size,
        "initializer_range": 0.02,
        "intermediate_size": sizes.ffn_size,
        "layer_norm_eps": 1e-12,
        "max_position_embeddings": sizes.max_length,
        "model_type": "bert",
        "num_attention_heads": num_heads,
        "num_hidden_layers": sizes.num_layers,
        "type_vocab_size": 2,
        "vocab_size": sizes.num_vocabulary,
    }
    with atomic_write(folder / TENSORS) as new_tensors, atomic_write(folder / CONFIG) as new_config:
        new_config.write_text(json.dumps(config, indent=2) + "\n", "utf-8")
        save_file(to_pytorch(tensors), new_tensors, metadata={"format": "pt"})
        new_tensors.chmod(0o644)  # the library leaves it to the owner alone
