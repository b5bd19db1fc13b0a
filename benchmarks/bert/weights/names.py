"""A number of layers in, one row for each tensor of such a BERT out: its name here, in the reference and in PyTorch."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

WORD, MASKED_LM_BIAS = "embeddings.word.weight", "masked_lm.bias"
VOCABULARY_ROWS = (WORD, MASKED_LM_BIAS)  # the tensors with one row for each entry of the vocabulary

# our module in a layer -> the reference's
_DENSE = {
    "attention.query": "attention/self/query",
    "attention.key": "attention/self/key",
    "attention.value": "attention/self/value",
    "attention.output": "attention/output/dense",
    "ffn_in": "intermediate/dense",
    "ffn_out": "output/dense",
}
_NORM = {"attention_norm": "attention/output/LayerNorm", "ffn_norm": "output/LayerNorm"}


@dataclass(frozen=True)
class TensorName:
    ours: str
    reference: str  # in a TensorFlow checkpoint and in the result log
    pytorch: str  # Hugging Face's BertForPreTraining and, spelling.py lists how they differ, published `.pt` trees
    transposed: bool = False  # the reference has (in, out) where we have (out, in)


def names(num_layers: int) -> list[TensorName]:
    """Every tensor of a BERT for pre-training, from its input to its heads; 398 for 24 layers."""
    rows = [
        *_embedding("word", "word_embeddings"),
        *_embedding("position", "position_embeddings"),
        *_embedding("segment", "token_type_embeddings"),
        *_norm("embeddings.norm", "bert/embeddings/LayerNorm"),
    ]
    for layer in range(num_layers):
        ours, theirs = f"layers.{layer}", f"bert/encoder/layer_{layer}"
        for name, reference in _DENSE.items():
            rows += _dense(f"{ours}.{name}", f"{theirs}/{reference}")
        for name, reference in _NORM.items():
            rows += _norm(f"{ours}.{name}", f"{theirs}/{reference}")
    classifier = "cls/seq_relationship"
    return [
        *rows,
        *_dense("next_sentence.pooler", "bert/pooler/dense"),
        *_dense("masked_lm.transform", "cls/predictions/transform/dense"),
        *_norm("masked_lm.norm", "cls/predictions/transform/LayerNorm"),
        TensorName(MASKED_LM_BIAS, "cls/predictions/output_bias", "cls.predictions.bias"),
        # (2, H) on both sides: the reference multiplies by its transpose
        TensorName("next_sentence.classifier.weight", f"{classifier}/output_weights", "cls.seq_relationship.weight"),
        TensorName("next_sentence.classifier.bias", f"{classifier}/output_bias", "cls.seq_relationship.bias"),
    ]


def is_head(ours: str) -> bool:
    """Whether a tensor belongs to the heads, which an encoder's weights lack; the pooler is the encoder's."""
    return ours.startswith(("masked_lm.", "next_sentence.classifier."))


def count_layers(file_names: Iterable[str]) -> int:
    """How many different layers the names of a file speak of, whatever their numbers."""
    return len({match[1] for name in file_names if (match := re.search(r"\blayers?[._](\d+)[./]", name))})


def _embedding(ours: str, theirs: str) -> list[TensorName]:
    return [TensorName(f"embeddings.{ours}.weight", f"bert/embeddings/{theirs}", f"bert.embeddings.{theirs}.weight")]


def _dense(ours: str, theirs: str) -> list[TensorName]:
    return [
        TensorName(f"{ours}.weight", f"{theirs}/kernel", f"{_dotted(theirs)}.weight", transposed=True),
        TensorName(f"{ours}.bias", f"{theirs}/bias", f"{_dotted(theirs)}.bias"),
    ]


def _norm(ours: str, theirs: str) -> list[TensorName]:
    return [
        TensorName(f"{ours}.weight", f"{theirs}/gamma", f"{_dotted(theirs)}.weight"),
        TensorName(f"{ours}.bias", f"{theirs}/beta", f"{_dotted(theirs)}.bias"),
    ]


def _dotted(theirs: str) -> str:
    return theirs.replace("/layer_", "/layer/").replace("/", ".")
