"""A packed batch in, masked-LM and next-sentence logits out: BERT as its reference defines it.

Post-LN encoder (or, outside the benchmark, pre-LN), erf GELU, learned positions and segments, pooler, masked-LM
transform with the decoder tied to the word embeddings. Shapes: T packed tokens, Q places that the heads read, H hidden,
N heads, D head width, M masked positions, B sequences, V entries padded to a multiple of 8.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.bert.data.batch import PackedBatch, PackLayout
from benchmarks.bert.model.kernels import PORTABLE, Kernels

_NORM_EPSILON = 1e-12  # the reference's
_VOCABULARY_MULTIPLE = 8  # matrix products of other widths leave a GPU's matrix units half idle


@dataclass(frozen=True)
class BertShape:
    """Sizes of the network; the defaults are BERT-large's."""

    num_vocabulary: int = 30522
    max_length: int = 512
    num_layers: int = 24
    hidden_size: int = 1024
    num_heads: int = 16
    ffn_size: int = 4096
    dropout: float = 0.1
    norm: str = "post"  # or "pre": where the layers' norms stand

    @property
    def num_padded_vocabulary(self) -> int:
        return -(-self.num_vocabulary // _VOCABULARY_MULTIPLE) * _VOCABULARY_MULTIPLE


class Embeddings(nn.Module):
    def __init__(self, shape: BertShape) -> None:
        super().__init__()
        self.word = nn.Embedding(shape.num_padded_vocabulary, shape.hidden_size)
        self.position = nn.Embedding(shape.max_length, shape.hidden_size)
        self.segment = nn.Embedding(2, shape.hidden_size)
        self.norm = nn.LayerNorm(shape.hidden_size, _NORM_EPSILON)
        self.dropout = nn.Dropout(shape.dropout)

    def forward(self, batch: PackedBatch) -> Tensor:
        x_TH = self.word(batch.tokens_T) + self.position(batch.positions_T) + self.segment(batch.segments_T)
        return self.dropout(self.norm(x_TH))


class SelfAttention(nn.Module):
    def __init__(self, shape: BertShape, kernels: Kernels) -> None:
        super().__init__()
        self.query = nn.Linear(shape.hidden_size, shape.hidden_size)
        self.key = nn.Linear(shape.hidden_size, shape.hidden_size)
        self.value = nn.Linear(shape.hidden_size, shape.hidden_size)
        self.output = nn.Linear(shape.hidden_size, shape.hidden_size)
        self.num_heads = shape.num_heads
        self.dropout = shape.dropout
        self.attention = kernels.attention

    def forward(self, x_QH: Tensor, x_TH: Tensor, q_layout: PackLayout, layout: PackLayout) -> Tensor:
        """All heads' result side by side, (Q, H), which `output` is still to be applied to."""
        q_QND = self.query(x_QH).unflatten(-1, (self.num_heads, -1))
        k_TND = self.key(x_TH).unflatten(-1, (self.num_heads, -1))
        v_TND = self.value(x_TH).unflatten(-1, (self.num_heads, -1))
        dropout = self.dropout if self.training else 0.0
        return self.attention(q_QND, k_TND, v_TND, q_layout, layout, dropout).flatten(-2)


class Layer(nn.Module):
    def __init__(self, shape: BertShape, kernels: Kernels) -> None:
        super().__init__()
        self.attention = SelfAttention(shape, kernels)
        self.attention_norm = nn.LayerNorm(shape.hidden_size, _NORM_EPSILON)
        self.ffn_in = nn.Linear(shape.hidden_size, shape.ffn_size)
        self.ffn_out = nn.Linear(shape.ffn_size, shape.hidden_size)
        self.ffn_norm = nn.LayerNorm(shape.hidden_size, _NORM_EPSILON)
        self.dropout = shape.dropout
        self.kernels = kernels

    def forward(self, x_QH: Tensor, x_TH: Tensor, q_layout: PackLayout, layout: PackLayout) -> Tensor:
        """The layer's output at the Q places `x_QH`, which attend to all of `x_TH`; Q may be all of T."""
        dropout = self.dropout if self.training else 0.0
        attended_QH = self.attention(x_QH, x_TH, q_layout, layout)
        add_norm = self.kernels.linear_add_norm
        x_QH = add_norm(self.attention.output, attended_QH, x_QH, self.attention_norm, dropout)
        return add_norm(self.ffn_out, self.kernels.linear_gelu(self.ffn_in, x_QH), x_QH, self.ffn_norm, dropout)


class PreNormLayer(Layer):
    """The same parameters with each norm before its branch: x + f(norm(x)), twice.

    What the layers hand on is a sum that no norm renews, so it stays in fp32 where branches are 16 bit.
    """

    def forward(
        self, x_QH: Tensor, x_TH: Tensor, q_layout: PackLayout, layout: PackLayout, scale: float = 1.0
    ) -> Tensor:
        """As `Layer`'s; both branches are multiplied by `scale` before they are added."""
        dropout = self.dropout if self.training else 0.0
        normed_TH = _for_products(self.attention_norm(x_TH))
        normed_QH = normed_TH  # most often all ask
        if x_QH is not x_TH:
            normed_QH = _for_products(self.attention_norm(x_QH))
        attended_QH = self.attention(normed_QH, normed_TH, q_layout, layout)
        add = self.kernels.linear_add
        x_QH = add(self.attention.output, attended_QH, x_QH, dropout, scale)
        normed_QH = _for_products(self.ffn_norm(x_QH))
        return add(self.ffn_out, self.kernels.linear_gelu(self.ffn_in, normed_QH), x_QH, dropout, scale)


def _for_products(x_TH: Tensor) -> Tensor:
    """Cast once for all the matrix products that read it, which under autocast would each keep a copy of their own."""
    kind = x_TH.device.type
    return x_TH.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else x_TH


# where norms stand -> the layer, and the norm of what the heads read, from its width and epsilon
NORMS: dict[str, tuple[type[Layer], Callable[[int, float], nn.Module]]] = {
    "post": (Layer, nn.Identity),
    "pre": (PreNormLayer, nn.LayerNorm),
}

# (x_QH, x_TH, layout of the Q, layout of the T) -> (Q, H): a layer, or what stands in for one
LayerFunction = Callable[[Tensor, Tensor, PackLayout, PackLayout], Tensor]


def only_read(layer: LayerFunction, x_TH: Tensor, batch: PackedBatch) -> Tensor:
    """The last layer's output where the heads read it, (Q, H), computed only there."""
    return layer(x_TH[batch.read_Q], x_TH, batch.read_layout, batch.layout)


def whole(layer: LayerFunction, x_TH: Tensor, batch: PackedBatch) -> Tensor:
    """The same, computed everywhere and then read."""
    return layer(x_TH, x_TH, batch.layout, batch.layout)[batch.read_Q]


LAST_LAYER: dict[str, Callable[[LayerFunction, Tensor, PackedBatch], Tensor]] = {"only_read": only_read, "whole": whole}


def inner_layers(layers: Iterable[LayerFunction], x_TH: Tensor, batch: PackedBatch) -> Tensor:
    """All layers but the last, one after the other."""
    for layer in layers:
        x_TH = layer(x_TH, x_TH, batch.layout, batch.layout)
    return x_TH


class MaskedLMHead(nn.Module):
    """Logits at the masked positions only; the decoder's matrix is the word embeddings'.

    The entries that only pad the vocabulary have logit -inf, so probability 0 exactly: loss and gradients are those of
    the vocabulary itself, and the rows of zeros that pad the matrix stay zeros.
    """

    def __init__(self, shape: BertShape, kernels: Kernels) -> None:
        super().__init__()
        self.transform = nn.Linear(shape.hidden_size, shape.hidden_size)
        self.norm = nn.LayerNorm(shape.hidden_size, _NORM_EPSILON)
        self.bias = nn.Parameter(torch.zeros(shape.num_vocabulary))
        self.num_padding = shape.num_padded_vocabulary - shape.num_vocabulary
        self.linear_gelu = kernels.linear_gelu

    def forward(self, x_MH: Tensor, word_VH: Tensor) -> Tensor:
        bias_V = F.pad(self.bias, (0, self.num_padding), value=float("-inf"))
        return F.linear(self.norm(self.linear_gelu(self.transform, x_MH).float()), word_VH, bias_V)


class NextSentenceHead(nn.Module):
    def __init__(self, shape: BertShape) -> None:
        super().__init__()
        self.pooler = nn.Linear(shape.hidden_size, shape.hidden_size)
        self.classifier = nn.Linear(shape.hidden_size, 2)

    def forward(self, first_BH: Tensor) -> Tensor:
        return self.classifier(torch.tanh(self.pooler(first_BH)))


class Bert(nn.Module):
    def __init__(self, shape: BertShape, kernels: Kernels = PORTABLE, last_layer: str = "only_read") -> None:
        super().__init__()
        layer, final_norm = NORMS[shape.norm]
        self.shape = shape
        self.kernels = kernels
        self.embeddings = Embeddings(shape)
        self.layers: list[Layer] = nn.ModuleList(layer(shape, kernels) for _ in range(shape.num_layers))  # type: ignore[assignment]  # torch types its items as Module
        self.final_norm = final_norm(shape.hidden_size, _NORM_EPSILON)
        self.masked_lm = MaskedLMHead(shape, kernels)
        self.next_sentence = NextSentenceHead(shape)
        self.inner_layers: Callable[[Sequence[Layer], Tensor, PackedBatch], Tensor] = inner_layers
        self.last_layer = LAST_LAYER[last_layer]
        self.encode: Encoder = whole_encoder

    @property
    def num_parameters(self) -> int:
        """Without the rows that pad the vocabulary."""
        padding = self.shape.num_padded_vocabulary - self.shape.num_vocabulary
        return sum(parameter.numel() for parameter in self.parameters()) - padding * self.shape.hidden_size

    def forward(self, batch: PackedBatch) -> tuple[Tensor, Tensor]:
        """Masked-LM logits (M, V) and next-sentence logits (B, 2)."""
        x_QH = self.final_norm(self.encode(self, batch))
        logits_MV = self.masked_lm(x_QH[batch.masked_M], self.embeddings.word.weight)
        return logits_MV, self.next_sentence(x_QH[batch.read_layout.cu_lengths[: len(batch.nsp_B)]])


# (the model, its batch) -> the last layer's output where the heads read it, (Q, H)
Encoder = Callable[[Bert, PackedBatch], Tensor]


def whole_encoder(model: Bert, batch: PackedBatch) -> Tensor:
    """All layers; `frozen.py` and `layer_drop.py` have others."""
    *inner, last = model.layers
    x_TH = model.inner_layers(inner, model.embeddings(batch), batch)
    return model.last_layer(last, x_TH, batch)
