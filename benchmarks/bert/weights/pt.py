"""A `.pt` file of a published PyTorch tree in, its tensors by our names out, and back."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor
from torch.nn import Parameter

from benchmarks.bert.complaint import describe
from benchmarks.bert.files import atomic_write
from benchmarks.bert.weights.account import Found, WeightsError, check_file, refusal
from benchmarks.bert.weights.spelling import DECODER, from_pytorch, to_pytorch

SUFFIXES = (".pt", ".pth", ".bin")


def files(path: Path) -> list[Path]:
    """What `write` writes."""
    return [path]


def read(path: Path) -> Found:
    """Tensors that are mapped from the file, from its "model" if it has one; whatever else it holds is ignored.

    Raises:
        WeightsError: not a file of plain tensors that torch.save wrote, or cut off.
    """
    check_file(path)  # so that what torch raises below is about its content
    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # torch has no error of its own for this: a damaged file may raise anything
        raise WeightsError(
            f"{path}: not a whole file of plain tensors in torch.save's zip format ({describe(error)}); "
            "copy it again, or save its state_dict() anew"
        ) from error
    if not isinstance(content, dict):
        raise WeightsError(f"{path}: it holds a {type(content).__name__}; save a state_dict() or {{'model': …}}")
    named = content.get("model", content)
    if not isinstance(named, dict) or not all(isinstance(k, str) and isinstance(v, Tensor) for k, v in named.items()):
        raise WeightsError(f"{path}: it does not map names to tensors; save a state_dict() or {{'model': …}}")
    if problems := [f"{name} is {_kind(tensor)}" for name, tensor in named.items() if not _is_plain(tensor)]:
        raise refusal(path, "not all of its tensors are dense ones in a CPU's memory", problems, "save them as such")
    found = from_pytorch(named)
    if named is not content:
        found.ignored += [str(key) for key in content if key != "model"]
    return found


def _is_plain(tensor: Tensor) -> bool:
    """Whether arithmetic on it works as on any other: it has values, and one for each of its elements."""
    is_usual = type(tensor) in (Tensor, Parameter) and not tensor.is_nested and not tensor.is_quantized
    return is_usual and tensor.layout is torch.strided and tensor.device.type == "cpu"


def _kind(tensor: Tensor) -> str:
    return f"a {type(tensor).__name__} of {tensor.dtype} and {tensor.layout} on the device {tensor.device}"


def write(path: Path, tensors: dict[str, Tensor]) -> None:
    """{"model": state_dict} by the names of the conversion that submitters of this benchmark publish."""
    named = to_pytorch(tensors)
    named[DECODER] = named["bert.embeddings.word_embeddings.weight"]  # as a state_dict() of tied modules has it
    with atomic_write(path) as temporary, open(temporary, "wb") as file:  # a path would put its name into the file
        torch.save({"model": named}, file)
