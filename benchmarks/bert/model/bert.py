"""A packed batch in, masked-LM and next-sentence logits out: BERT as its reference defines it.

Post-LN encoder, erf GELU, learned positions and segments, pooler, masked-LM transform with the decoder tied to the
word embeddings. Shapes: T packed tokens, H hidden, N heads, D head width, M masked positions, B sequences, V entries.
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

    def forward(self, x_TH: Tensor, layout: PackLayout) -> Tensor:
        q_TND, k_TND, v_TND = (
            linear(x_TH).unflatten(-1, (self.num_heads, -1)) for linear in (self.query, self.key, self.value)
        )
        attended_TND = self.attention(q_TND, k_TND, v_TND, layout, self.dropout if self.training else 0.0)
        return self.output(attended_TND.flatten(-2))


class Layer(nn.Module):
    def __init__(self, shape: BertShape, attention: Attention) -> None:
        super().__init__()
        self.attention = SelfAttention(shape, attention)
        self.attention_norm = nn.LayerNorm(shape.hidden_size, _NORM_EPSILON)
        self.ffn_in = nn.Linear(shape.hidden_size, shape.ffn_size)
        self.ffn_out = nn.Linear(shape.ffn_size, shape.hidden_size)
        self.ffn_norm = nn.LayerNorm(shape.hidden_size, _NORM_EPSILON)
        self.dropout = nn.Dropout(shape.dropout)

    def forward(self, x_TH: Tensor, layout: PackLayout) -> Tensor:
        x_TH = self.attention_norm(x_TH + self.dropout(self.attention(x_TH, layout)))
        return self.ffn_norm(x_TH + self.dropout(self.ffn_out(F.gelu(self.ffn_in(x_TH)))))


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
        for layer in self.layers:
            x_TH = layer(x_TH, batch.layout)
        logits_MV = self.masked_lm(x_TH[batch.masked_M], self.embeddings.word.weight)
        return logits_MV, self.next_sentence(x_TH[batch.layout.cu_lengths[:-1]])
