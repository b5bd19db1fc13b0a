"""Tensors by the names of a published PyTorch tree in, the same by our names out, and back.

Hugging Face's names are the base. NVIDIA's trees of this benchmark use them too once converted from the reference;
what their fused modules saved, DeepLearningExamples' `dense_act`, the older `gamma` and `beta` of a norm, and what
DistributedDataParallel puts before a name are other spellings of them.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from benchmarks.bert.weights.account import READ, Found, wrong_type
from benchmarks.bert.weights.names import MASKED_LM_BIAS, WORD, count_layers, names

# Another spelling -> Hugging Face's; an entry that ends a name has no dot behind it.
_SPELLINGS = {
    ".dense_act.": ".dense.",
    "LayerNorm.gamma": "LayerNorm.weight",
    "LayerNorm.beta": "LayerNorm.bias",
    ".attention.layer_norm.": ".attention.output.LayerNorm.",
    ".multi_head_attention.out_proj_": ".output.dense.",
    ".multi_head_attention.q_": ".self.query.",
    ".multi_head_attention.k_": ".self.key.",
    ".multi_head_attention.v_": ".self.value.",
}
_POSITION_IDS = "bert.embeddings.position_ids"  # 0, 1, 2, … in older versions' files
DECODER = "cls.predictions.decoder.weight"
_TIED = {DECODER: WORD, "cls.predictions.decoder.bias": MASKED_LM_BIAS}  # a second name of the same tensor


def from_pytorch(named: Mapping[str, Tensor]) -> Found:
    """The tree's tensors by our names; a tied tensor that differs from its twin is a problem."""
    plain = {name: _plain(name) for name in named}
    ours = {row.pytorch: row.ours for row in names(count_layers(plain.values()))}
    found = Found()
    for name, tensor in named.items():
        if plain[name] == _POSITION_IDS:
            found.ignored.append(name)
        elif plain[name] not in ours | _TIED:
            found.problems.append(f"{name} is unknown")
        elif plain[name] in ours:
            if ours[plain[name]] in found.tensors:
                found.problems.append(f"{name} is there twice, under two spellings")
            found.tensors[ours[plain[name]]] = tensor
    for name, tensor in named.items():
        if plain[name] in _TIED:
            twin = found.tensors.setdefault(_TIED[plain[name]], tensor)
            if tensor.dtype not in READ:
                found.problems.append(wrong_type(name, tensor))
            elif twin.dtype in READ and not torch.equal(tensor.float(), twin.float()):
                found.problems.append(f"{name} differs from {_TIED[plain[name]]}, to which it should be tied")
    return found


def to_pytorch(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Our tensors by Hugging Face's names, each in memory of its own."""
    rows = names(count_layers(tensors))
    return {row.pytorch: tensors[row.ours].clone(memory_format=torch.contiguous_format) for row in rows}


def _plain(name: str) -> str:
    """Hugging Face's spelling of a name, with the `bert.` that a bare encoder's names lack."""
    name = name.removeprefix("module.")
    for other, base in _SPELLINGS.items():
        name = name.replace(other, base)
    return name if name.startswith(("bert.", "cls.")) else f"bert.{name}"
