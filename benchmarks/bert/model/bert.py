"""A packed batch in, masked-LM and next-sentence logits out: BERT as its reference defines it.

Post-LN encoder, erf GELU, learned positions and segments, pooler, masked-LM transform with the decoder tied to the
word embeddings. Shapes: T packed tokens, Q places that the heads read, H hidden, N heads, D head width, M masked
positions, B sequences, V entries.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.bert.data.batch import PackedBatch, PackLayout
from benchmarks.bert.model.attention import Attention

_NORM_EPSILON = 1e-12  # the reference's


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


class Embeddings(nn.Module):
    def __init__(self, shape: BertShape) -> None:
        super().__init__()
        self.word = nn.Embedding(shape.num_vocabulary, shape.hidden_size)
        self.position = nn.Embedding(shape.max_length, shape.hidden_size)
        self.segment = nn.Embedding(2, shape.hidden_size)
        self.norm = nn.LayerNorm(shape.hidden_size, _NORM_EPSILON)
        self.dropout = nn.Dropout(shape.dropout)

    def forward(self, batch: PackedBatch) -> Tensor:
        x_TH = self.word(batch.tokens_T) + self.position(batch.positions_T) + self.segment(batch.segments_T)
        return self.dropout(self.norm(x_TH))


class SelfAttention(nn.Module):
    def __init__(self, shape: BertShape, attention: Attention) -> None:
        super().__init__()
        self.query = nn.Linear(shape.hidden_size, shape.hidden_size)
        self.key = nn.Linear(shape.hidden_size, shape.hidden_size)
        self.value = nn.Linear(shape.hidden_size, shape.hidden_size)
        self.output = nn.Linear(shape.hidden_size, shape.hidden_size)
        self.num_heads = shape.num_heads
        self.dropout = shape.dropout
        self.attention = attention

    def forward(self, x_QH: Tensor, x_TH: Tensor, q_layout: PackLayout, layout: PackLayout) -> Tensor:
        q_QND = self.query(x_QH).unflatten(-1, (self.num_heads, -1))
        k_TND = self.key(x_TH).unflatten(-1, (self.num_heads, -1))
        v_TND = self.value(x_TH).unflatten(-1, (self.num_heads, -1))
        dropout = self.dropout if self.training else 0.0
        attended_QND = self.attention(q_QND, k_TND, v_TND, q_layout, layout, dropout)
        return self.output(attended_QND.flatten(-2))


class Layer(nn.Module):
    def __init__(self, shape: BertShape, attention: Attention) -> None:
        super().__init__()
        self.attention = SelfAttention(shape, attention)
        self.attention_norm = nn.LayerNorm(shape.hidden_size, _NORM_EPSILON)
        self.ffn_in = nn.Linear(shape.hidden_size, shape.ffn_size)
        self.ffn_out = nn.Linear(shape.ffn_size, shape.hidden_size)
        self.ffn_norm = nn.LayerNorm(shape.hidden_size, _NORM_EPSILON)
        self.dropout = nn.Dropout(shape.dropout)

    def forward(self, x_QH: Tensor, x_TH: Tensor, q_layout: PackLayout, layout: PackLayout) -> Tensor:
        """The layer's output at the Q places `x_QH`, which attend to all of `x_TH`; Q may be all of T."""
        x_QH = self.attention_norm(x_QH + self.dropout(self.attention(x_QH, x_TH, q_layout, layout)))
        return self.ffn_norm(x_QH + self.dropout(self.ffn_out(F.gelu(self.ffn_in(x_QH)))))


class MaskedLMHead(nn.Module):
    """Logits at the masked positions only; the decoder's matrix is the word embeddings'."""

    def __init__(self, shape: BertShape) -> None:
        super().__init__()
        self.transform = nn.Linear(shape.hidden_size, shape.hidden_size)
        self.norm = nn.LayerNorm(shape.hidden_size, _NORM_EPSILON)
        self.bias = nn.Parameter(torch.zeros(shape.num_vocabulary))

    def forward(self, x_MH: Tensor, word_VH: Tensor) -> Tensor:
        return F.linear(self.norm(F.gelu(self.transform(x_MH))), word_VH, self.bias)


class NextSentenceHead(nn.Module):
    def __init__(self, shape: BertShape) -> None:
        super().__init__()
        self.pooler = nn.Linear(shape.hidden_size, shape.hidden_size)
        self.classifier = nn.Linear(shape.hidden_size, 2)

    def forward(self, first_BH: Tensor) -> Tensor:
        return self.classifier(torch.tanh(self.pooler(first_BH)))


class Bert(nn.Module):
    def __init__(self, shape: BertShape, attention: Attention) -> None:
        super().__init__()
        self.embeddings = Embeddings(shape)
        self.layers: list[Layer] = nn.ModuleList(Layer(shape, attention) for _ in range(shape.num_layers))  # type: ignore[assignment]  # torch types its items as Module
        self.masked_lm = MaskedLMHead(shape)
        self.next_sentence = NextSentenceHead(shape)

    def forward(self, batch: PackedBatch) -> tuple[Tensor, Tensor]:
        """Masked-LM logits (M, V) and next-sentence logits (B, 2)."""
        x_TH = self.embeddings(batch)
        *inner, last = self.layers
        for layer in inner:
            x_TH = layer(x_TH, x_TH, batch.layout, batch.layout)
        # The last layer's output is read at [CLS] and masked places only, so it is computed only there.
        x_QH = last(x_TH[batch.read_Q], x_TH, batch.read_layout, batch.layout)
        logits_MV = self.masked_lm(x_QH[batch.masked_M], self.embeddings.word.weight)
        return logits_MV, self.next_sentence(x_QH[batch.read_layout.cu_lengths[:-1]])
