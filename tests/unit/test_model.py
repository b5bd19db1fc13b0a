"""Packed BERT against plain formulas: attention, loss and gradients, heads, parameter count and initial weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from benchmarks.bert.data.batch import PackedBatch, PackLayout
from benchmarks.bert.loss import num_correct, pretraining_loss
from benchmarks.bert.model.attention import Attention, KernelError, choose_attention, plain, split
from benchmarks.bert.model.bert import Bert, BertShape
from benchmarks.bert.model.init import INITIALISATIONS, standard
from benchmarks.bert.model.kernels import Kernels

SHAPE = BertShape(num_vocabulary=97, max_length=16, num_layers=2, hidden_size=24, num_heads=3, ffn_size=40, dropout=0.0)
LENGTHS = (5, 16, 1, 9, 12)
every_attention = pytest.mark.parametrize("attention", [plain, split])
Row = tuple[Tensor, Tensor, Tensor, Tensor, int]  # tokens, segments, masked positions, labels, sentence label


def make_layout(lengths: Sequence[int]) -> PackLayout:
    return PackLayout(tuple(lengths), torch.tensor([0, *lengths]).cumsum(0).int())


def make_rows(lengths: Sequence[int] = LENGTHS, num_vocabulary: int = SHAPE.num_vocabulary, seed: int = 1) -> list[Row]:
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for i, length in enumerate(lengths):
        num_masked = 1 + i % min(3, length)
        rows.append(
            (
                torch.randint(num_vocabulary, (length,), generator=generator),
                (torch.arange(length) >= length // 2).long(),
                torch.randperm(length, generator=generator)[:num_masked].sort().values,
                torch.randint(num_vocabulary, (num_masked,), generator=generator),
                i % 2,
            )
        )
    return rows


def make_pack(rows: Sequence[Row]) -> PackedBatch:
    tokens, segments, masked, labels, nsp = zip(*rows, strict=True)
    layout, read_layout = make_layout([len(t) for t in tokens]), make_layout([1 + len(m) for m in masked])
    first_B = read_layout.cu_lengths[:-1].long()
    read = [torch.cat([torch.zeros(1).long(), m]) + start for m, start in zip(masked, layout.cu_lengths, strict=False)]
    is_masked_Q = torch.ones(sum(read_layout.lengths), dtype=torch.bool).index_fill(0, first_B, False)
    return PackedBatch(
        tokens_T=torch.cat(tokens),
        segments_T=torch.cat(segments),
        positions_T=torch.cat([torch.arange(len(t)) for t in tokens]),
        layout=layout,
        read_Q=torch.cat(read),
        read_layout=read_layout,
        masked_M=is_masked_Q.nonzero().flatten(),
        labels_M=torch.cat(labels),
        nsp_B=torch.tensor(nsp),
    )


def make_model(shape: BertShape = SHAPE, attention: Attention = split, std: float = 0.1) -> Bert:
    """Larger weights than a run starts from, so that every part matters to the result; biases and norms too."""
    torch.manual_seed(0)
    model = Bert(shape, Kernels("of a test", attention))
    standard(model, std)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter += 0.1 * torch.randn_like(parameter)
    return model


def attend_all(
    q_QND: Tensor, k_TND: Tensor, v_TND: Tensor, q_layout: PackLayout, layout: PackLayout, dropout: float
) -> Tensor:
    """The fault: every token sees every sequence of the pack."""
    weights_NQT = (torch.einsum("qnd,tnd->nqt", q_QND, k_TND) / q_QND.shape[-1] ** 0.5).softmax(-1)
    return torch.einsum("nqt,tnd->qnd", weights_NQT, v_TND)


def attention_and_gradients(attention: Attention, lengths: Sequence[int]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(2)
    q, k, v, out_gradient = (torch.randn(sum(lengths), 2, 8, generator=generator) for _ in range(4))
    for x in (q, k, v):
        x.requires_grad_()
    out = attention(q, k, v, make_layout(lengths), make_layout(lengths), 0.0)
    out.backward(out_gradient)
    return [out.detach(), q.grad, k.grad, v.grad]


def padded_loss(weights: dict[str, Tensor], rows: Sequence[Row], shape: BertShape, pad: int) -> Tensor:
    """BERT's loss on rows padded to `pad` tokens, from the formulas; `weights` is a state dict's tensors."""
    num_slots = 20
    tokens, segments = (torch.zeros(len(rows), pad, dtype=torch.long) for _ in range(2))
    masked, labels, real_slot = (torch.zeros(len(rows), num_slots, dtype=torch.long) for _ in range(3))
    real = torch.zeros(len(rows), pad, dtype=torch.bool)
    for i, (row_tokens, row_segments, row_masked, row_labels, _) in enumerate(rows):
        tokens[i, : len(row_tokens)], segments[i, : len(row_tokens)] = row_tokens, row_segments
        real[i, : len(row_tokens)] = True
        masked[i, : len(row_masked)], labels[i, : len(row_masked)] = row_masked, row_labels
        real_slot[i, : len(row_masked)] = 1

    def linear(name: str, x: Tensor) -> Tensor:
        return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    def norm(name: str, x: Tensor) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        scaled = centred / ((centred**2).mean(-1, keepdim=True) + 1e-12).sqrt()
        return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    def gelu(x: Tensor) -> Tensor:
        return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))

    def heads(x: Tensor) -> Tensor:
        return x.view(len(rows), pad, shape.num_heads, -1).transpose(1, 2)

    def surprise(logits: Tensor, label: Tensor) -> Tensor:
        """Negative log-likelihood of the labels."""
        return logits.exp().sum(-1).log() - logits.gather(-1, label[..., None])[..., 0]

    word = weights["embeddings.word.weight"][: shape.num_vocabulary]
    position, segment = weights["embeddings.position.weight"], weights["embeddings.segment.weight"]
    x = norm("embeddings.norm", word[tokens] + position[:pad] + segment[segments])
    for layer in (f"layers.{i}" for i in range(shape.num_layers)):
        q, k, v = (heads(linear(f"{layer}.attention.{name}", x)) for name in ("query", "key", "value"))
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        scores = scores.masked_fill(~real[:, None, None, :], -1e9)
        attended = (scores.softmax(-1) @ v).transpose(1, 2).reshape(x.shape)
        x = norm(f"{layer}.attention_norm", x + linear(f"{layer}.attention.output", attended))
        x = norm(f"{layer}.ffn_norm", x + linear(f"{layer}.ffn_out", gelu(linear(f"{layer}.ffn_in", x))))
    slots = x.gather(1, masked[..., None].expand(-1, -1, x.shape[-1]))
    transformed = norm("masked_lm.norm", gelu(linear("masked_lm.transform", slots)))
    word_surprise = surprise(transformed @ word.T + weights["masked_lm.bias"], labels)
    pooled = torch.tanh(linear("next_sentence.pooler", x[:, 0]))
    pair_surprise = surprise(linear("next_sentence.classifier", pooled), torch.tensor([row[-1] for row in rows]))
    return (word_surprise * real_slot).sum() / real_slot.sum() + pair_surprise.mean()


@pytest.mark.parametrize("lengths", [(1,), (2,), (255,), (256,), (1, 2, 255, 256), (3, 3, 3)])
def test_split_attention_equals_plain_with_all_gradients(lengths: tuple[int, ...]) -> None:
    for found, expected in zip(
        attention_and_gradients(split, lengths), attention_and_gradients(plain, lengths), strict=True
    ):
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_attention_across_boundaries_would_differ() -> None:
    alone, among_others = attention_and_gradients(attend_all, (9,)), attention_and_gradients(attend_all, (4, 5))
    for found, expected in zip(alone, attention_and_gradients(split, (9,)), strict=True):
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    for found, expected in zip(among_others, attention_and_gradients(split, (4, 5)), strict=True):
        assert (found - expected).abs().max() > 0.1


@every_attention
def test_a_few_queries_get_what_they_would_get_among_all(attention: Attention) -> None:
    layout, asked = make_layout((5, 1, 9)), torch.tensor([0, 3, 5, 7, 8, 14])
    q, k, v = (torch.randn(15, 2, 8, generator=torch.Generator().manual_seed(i)) for i in range(3))
    among_all = attention(q, k, v, layout, layout, 0.0)[asked]
    torch.testing.assert_close(attention(q[asked], k, v, make_layout((2, 1, 3)), layout, 0.0), among_all)


@every_attention
def test_attention_drops_with_the_probability_given(attention: Attention) -> None:
    q = k = torch.zeros(200, 1, 4)
    v = torch.ones(200, 1, 4)
    torch.manual_seed(0)
    out = attention(q, k, v, make_layout((200,)), make_layout((200,)), 0.5)
    assert 0.5 < out[:, 0, 0].std() / (1 / 200) ** 0.5 < 1.5
    assert out.mean().item() == pytest.approx(1, abs=0.05)


def test_auto_is_the_fastest_attention_of_the_device_and_names_name_themselves() -> None:
    cpu = torch.device("cpu")
    assert choose_attention("auto", cpu, torch.float32, 64) == "split"
    assert choose_attention("plain", cpu, torch.float32, 64) == "plain"
    with pytest.raises(KernelError, match="ATTENTION=flash needs a GPU"):
        choose_attention("flash", cpu, torch.bfloat16, 64)


@every_attention
def test_a_pack_gives_the_logits_of_its_sequences_one_by_one(attention: Attention) -> None:
    model, rows = make_model(attention=attention).eval(), make_rows()
    with torch.no_grad():
        packed = model(make_pack(rows))
        one_by_one = [model(make_pack([row])) for row in rows]
    for found, expected in zip(packed, zip(*one_by_one, strict=True), strict=True):
        torch.testing.assert_close(found, torch.cat(expected), atol=1e-5, rtol=1e-5)


@every_attention
@pytest.mark.parametrize("place", range(len(LENGTHS)))
def test_another_sequence_in_the_pack_leaves_the_logits_as_they_are(attention: Attention, place: int) -> None:
    """Known fault 31."""
    model, rows = make_model(attention=attention).eval(), make_rows()
    changed_rows = list(rows)
    changed_rows[place] = ((rows[place][0] + 1) % SHAPE.num_vocabulary, *rows[place][1:])
    num_masked = [len(row[2]) for row in rows]
    with torch.no_grad():
        before, after = model(make_pack(rows)), model(make_pack(changed_rows))
    for i, (words, pairs) in enumerate(
        zip(
            zip(before[0].split(num_masked), after[0].split(num_masked), strict=True),
            zip(before[1], after[1], strict=True),
            strict=True,
        )
    ):
        for one, other in ((each[..., : SHAPE.num_vocabulary] for each in both) for both in (words, pairs)):
            if i == place:
                assert (one - other).abs().max() > 1e-3
            else:
                assert (one - other).abs().max() < 1e-6


def test_attention_across_boundaries_would_leak_from_one_sequence_into_another() -> None:
    model, rows = make_model(attention=attend_all).eval(), make_rows()
    changed_rows = [((rows[0][0] + 1) % SHAPE.num_vocabulary, *rows[0][1:]), *rows[1:]]
    with torch.no_grad():
        before, after = model(make_pack(rows)), model(make_pack(changed_rows))
    assert (before[1][1:] - after[1][1:]).abs().max() > 1e-3


@every_attention
def test_the_packed_loss_and_its_gradients_are_those_of_padded_bert(attention: Attention) -> None:
    """Known faults 33 and 39: 20 slots for predictions, of which only the real ones count."""
    model, rows = make_model(attention=attention), make_rows()
    weights = {name: parameter.detach().clone().requires_grad_() for name, parameter in model.named_parameters()}
    expected = padded_loss(weights, rows, SHAPE, pad=SHAPE.max_length)
    expected.backward()
    batch = make_pack(rows)
    loss = pretraining_loss(model(batch), batch)
    loss.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(
            parameter.grad, weights[name].grad, atol=1e-5, rtol=1e-4, msg=lambda text, name=name: f"{name}: {text}"
        )


def test_logits_are_made_for_masked_positions_and_sentence_pairs_only() -> None:
    rows = make_rows()
    logits_MV, logits_B2 = make_model()(make_pack(rows))
    assert logits_MV.shape == (sum(len(row[2]) for row in rows), SHAPE.num_padded_vocabulary)
    assert logits_B2.shape == (len(rows), 2)


def test_the_loss_is_in_fp32_whatever_the_logits_are() -> None:
    batch = make_pack(make_rows())
    logits_MV, logits_B2 = (x.detach().bfloat16() for x in make_model()(batch))
    loss = pretraining_loss((logits_MV, logits_B2), batch)
    assert loss.dtype == torch.float32
    assert torch.equal(loss, pretraining_loss((logits_MV.float(), logits_B2.float()), batch))


def test_correct_tokens_are_those_whose_label_has_the_largest_logit() -> None:
    batch = replace(make_pack(make_rows()), labels_M=torch.tensor([1, 0, 2, 2]))
    logits_MV = torch.tensor([[0.0, 2, 1], [3, 0, 0], [0, 1, 0], [-3, -2, -1]])
    assert num_correct(logits_MV, batch).item() == 3


def test_the_decoder_is_the_word_embeddings_themselves() -> None:
    model = make_model()
    seen = []
    model.masked_lm.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[1]))
    model(make_pack(make_rows()))
    [decoder_VH] = seen
    assert decoder_VH is model.embeddings.word.weight
    assert [n for n, p in model.named_parameters() if p.shape == decoder_VH.shape] == ["embeddings.word.weight"]


def test_bert_large_has_the_parameters_that_its_shape_asks_for() -> None:
    shape = BertShape()
    V, S, H, F, L = shape.num_vocabulary, shape.max_length, shape.hidden_size, shape.ffn_size, shape.num_layers
    embeddings = V * H + S * H + 2 * H + 2 * H
    layer = 4 * (H * H + H) + 2 * 2 * H + 2 * H * F + F + H
    masked_lm = H * H + H + 2 * H + V
    next_sentence = H * H + H + 2 * H + 2
    with torch.device("meta"):
        model = Bert(shape)
    found = model.num_parameters
    assert found == embeddings + L * layer + masked_lm + next_sentence == 336_226_108
    assert found - next_sentence == 335_174_458


@pytest.mark.parametrize("initialisation", INITIALISATIONS)
def test_the_initial_loss_is_that_of_knowing_nothing(initialisation: str) -> None:
    shape = BertShape(
        num_vocabulary=2000, max_length=64, num_layers=2, hidden_size=64, num_heads=4, ffn_size=128, dropout=0.0
    )
    torch.manual_seed(0)
    model = Bert(shape)
    INITIALISATIONS[initialisation](model, 0.02)
    batch = make_pack(make_rows([50] * 40, shape.num_vocabulary))
    with torch.no_grad():
        loss = pretraining_loss(model(batch), batch).item()
    assert loss == pytest.approx(math.log(shape.num_vocabulary) + math.log(2), rel=0.03)


def test_standard_weights_are_cut_normals_with_biases_0_and_norms_1() -> None:
    model = Bert(replace(SHAPE, num_vocabulary=5000))
    standard(model, 0.02)
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1:
            assert parameter.abs().max() <= 0.04, name
            assert abs(parameter.mean()) < 0.004, name
        else:
            assert (parameter == (1 if name.endswith("norm.weight") else 0)).all(), name
    # A normal cut at two deviations keeps 0.88 of its deviation.
    assert model.embeddings.word.weight.std().item() == pytest.approx(0.88 * 0.02, rel=0.01)


@pytest.mark.parametrize(("initialisation", "low", "high"), [("relative_offset", 0.5, 1.0), ("standard", 0.0, 0.2)])
def test_the_first_heads_look_at_their_neighbours_from_the_start(initialisation: str, low: float, high: float) -> None:
    """The default run's shape; heads 0 to 3 put most of their attention at -1, +1, -2 and +2."""
    shape = BertShape(2000, max_length=256, num_layers=1, hidden_size=128, num_heads=4, ffn_size=64, dropout=0.0)
    torch.manual_seed(0)
    model = Bert(shape)
    INITIALISATIONS[initialisation](model, 0.05)
    attention = model.layers[0].attention
    with torch.no_grad():
        x_TH = model.embeddings(make_pack(make_rows([256], shape.num_vocabulary)))
        q_NTD, k_NTD = (f(x_TH).unflatten(-1, (4, -1)).transpose(0, 1) for f in (attention.query, attention.key))
        weights_NTT = (q_NTD @ k_NTD.transpose(1, 2) / q_NTD.shape[-1] ** 0.5).softmax(-1)
    for head, offset in enumerate((-1, 1, -2, 2)):
        assert low < weights_NTT[head].diagonal(offset)[2:-2].mean() < high


@pytest.mark.parametrize("initialisation", INITIALISATIONS)
def test_initial_weights_are_the_generators_alone(initialisation: str) -> None:
    weights = []
    for seed in (3, 3, 4):
        model = Bert(SHAPE)
        torch.manual_seed(seed)
        INITIALISATIONS[initialisation](model, 0.02)
        weights.append(torch.cat([parameter.detach().flatten() for parameter in model.parameters()]))
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


@every_attention
def test_dropout_acts_in_training_only(attention: Attention) -> None:
    model, batch = make_model(replace(SHAPE, dropout=0.5), attention), make_pack(make_rows())
    without = make_model(SHAPE, attention)
    with torch.no_grad():
        assert not torch.equal(model(batch)[0], model(batch)[0])
        model.eval()
        torch.testing.assert_close(model(batch), without(batch))
