"""The model against Hugging Face's BERT with the same weights: logits, loss and every gradient, to rounding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.bert.comm.hook import CLIP_VARIANTS
from benchmarks.bert.data.batch import PackedBatch, PackLayout
from benchmarks.bert.loss import num_correct, pretraining_loss
from benchmarks.bert.model.attention import ATTENTION
from benchmarks.bert.model.bert import LAST_LAYER, Bert, BertShape
from benchmarks.bert.model.kernels import PORTABLE, Kernels
from benchmarks.bert.optim.adam import Adam
from benchmarks.bert.optim.groups import decay_groups
from benchmarks.bert.optim.lamb import Lamb
from benchmarks.bert.trainer import OPTIMIZERS
from tests.support.ranks import run_ranks

pytest.importorskip("transformers", reason="Hugging Face's BERT to compare with is in requirements-bench.txt")

from benchmarks.bert.bench import exact

if TYPE_CHECKING:
    from benchmarks.bert.bench.exact import Results, Sample

# Relative to each tensor's largest element; `python -m benchmarks.bert.bench.exact` shows how far below we are.
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5}

PACKS: dict[str, tuple[Sample, ...]] = {
    "1 token": ((1, 0),),
    "1 token, masked": ((1, 1),),
    "2 tokens": ((2, 0),),
    "2 tokens, 1 masked": ((2, 1),),
    "511 tokens, 76 masked": ((511, 76),),
    "512 tokens": ((512, 0),),
    "512 tokens, 1 masked": ((512, 1),),
    "512 tokens, 76 masked": ((512, 76),),
    "mixed": ((512, 76), (1, 0), (511, 1), (2, 1)),
    "mixed, none masked": ((2, 0), (512, 0), (1, 0), (511, 0)),
    "shortest among longest": ((1, 1), (512, 76), (1, 1), (512, 76), (2, 0)),
}
every_pack = pytest.mark.parametrize("pack", PACKS)
PADDED = exact.TINY  # 101 entries, 3 rows of padding
UNPADDED = replace(exact.TINY, num_vocabulary=104)


def drawn(pack: str, shape: BertShape = PADDED) -> PackedBatch:
    return exact.draw(PACKS[pack], shape.num_vocabulary)


def kernels_with(attention: str) -> Kernels:
    return Kernels("of a test", ATTENTION[attention])


@cache
def expected(packs: tuple[str, ...], shape: BertShape, dtype: torch.dtype, implementation: str) -> Results:
    reference = exact.reference_of(exact.random_model(shape).to(dtype), implementation)
    results = exact.their_results(reference, [drawn(pack, shape) for pack in packs])
    return {quantity: tensor.clone() for quantity, tensor in results.items()}


def assert_equal(found: Results, wanted: Results, tolerance: float) -> None:
    for each in exact.differences(found, wanted):
        assert each.relative <= tolerance, each


@every_pack
@pytest.mark.parametrize("last_layer", LAST_LAYER)
@pytest.mark.parametrize("attention", ["plain", "split"])
def test_in_float64_logits_loss_and_every_gradient_are_hugging_faces(
    pack: str, attention: str, last_layer: str
) -> None:
    model = exact.random_model(PADDED, kernels_with(attention), last_layer).double()
    wanted = expected((pack,), PADDED, torch.float64, "sdpa")
    assert_equal(exact.our_results(model, [drawn(pack)]), wanted, TOLERANCE[torch.float64])


@every_pack
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("shape", [PADDED, UNPADDED], ids=["V=101", "V=104"])
def test_in_fp32_they_are_hugging_faces_to_rounding(pack: str, shape: BertShape, implementation: str) -> None:
    wanted = expected((pack,), shape, torch.float32, implementation)
    found = exact.our_results(exact.random_model(shape), [drawn(pack, shape)])
    assert_equal(found, wanted, TOLERANCE[torch.float32])


def test_hugging_faces_two_attentions_agree_in_float64() -> None:
    """So that the comparisons of this file do not rest on one of them."""
    sdpa, eager = (expected(("mixed",), PADDED, torch.float64, name) for name in ("sdpa", "eager"))
    assert_equal(sdpa, eager, TOLERANCE[torch.float64])


@pytest.mark.parametrize("shape", [exact.BASE_WIDTH, exact.LARGE_WIDTH], ids=["base", "large"])
def test_at_the_real_widths_and_vocabulary_they_are_hugging_faces_to_rounding(shape: BertShape) -> None:
    assert shape.num_vocabulary == 30522
    batch = exact.draw([(40, 6), (1, 0), (2, 1)], shape.num_vocabulary)
    model = exact.random_model(shape)
    wanted = exact.their_results(exact.reference_of(model), [batch])
    assert_equal(exact.our_results(model, [batch]), wanted, TOLERANCE[torch.float32])


MICRO_BATCHES = ("mixed", "512 tokens, 1 masked")


def test_two_micro_batches_give_the_mean_of_hugging_faces_gradients() -> None:
    wanted = expected(MICRO_BATCHES, PADDED, torch.float64, "sdpa")
    found = exact.our_results(exact.random_model(PADDED).double(), [drawn(pack) for pack in MICRO_BATCHES])
    assert_equal(found, wanted, TOLERANCE[torch.float64])


def accumulated(rank: int, model: Bert, batches: Sequence[PackedBatch]) -> dict[str, Tensor]:
    """The gradients that the comm hook leaves after a step of these micro-batches."""
    ddp = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.01, gradient_as_bucket_view=True)
    gradient = CLIP_VARIANTS["none"](ddp, 1.0)
    with gradient.discovering():
        for _ in range(2):
            pretraining_loss(ddp(batches[0]), batches[0]).backward()
    ddp.zero_grad()
    for batch in gradient.accumulate(batches):
        pretraining_loss(ddp(batch), batch).backward()
    return {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}


def test_the_comm_hook_leaves_that_mean_too() -> None:
    gradients = run_ranks(accumulated, 1, exact.random_model(PADDED), [drawn(pack) for pack in MICRO_BATCHES])[0]
    wanted = expected(MICRO_BATCHES, PADDED, torch.float32, "sdpa")
    found = wanted | {
        f"gradient of {name}": exact.without_padding(name, gradient, PADDED) for name, gradient in gradients.items()
    }
    assert found.keys() == wanted.keys()
    assert_equal(found, wanted, TOLERANCE[torch.float32])


# --- what the comparisons above must see


def tanh_gelu(linear: nn.Linear, x_QH: Tensor) -> Tensor:
    """The fault: GELU's approximation, 3e-4 off at most."""
    return F.gelu(linear(x_QH), approximate="tanh")


def with_the_norms_epsilon_of_torch(
    linear: nn.Linear, x_QF: Tensor, residual_QH: Tensor, norm: nn.LayerNorm, p: float
) -> Tensor:
    """The fault: 1e-5 for 1e-12."""
    return F.layer_norm(residual_QH + linear(x_QF), norm.weight.shape, norm.weight, norm.bias)


def beyond_the_sequence(q: Tensor, k: Tensor, v: Tensor, q_layout: PackLayout, layout: PackLayout, p: float) -> Tensor:
    """The fault: attention over the whole pack."""
    one = PackLayout((len(k),), torch.tensor([0, len(k)], dtype=torch.int32))
    of_q = PackLayout((len(q),), torch.tensor([0, len(q)], dtype=torch.int32))
    return ATTENTION["split"](q, k, v, of_q, one, p)


FAULTS = {
    "tanh GELU": replace(PORTABLE, linear_gelu=tanh_gelu),
    "attention beyond the sequence": replace(PORTABLE, attention=beyond_the_sequence),
    "epsilon": replace(PORTABLE, linear_add_norm=with_the_norms_epsilon_of_torch),
}
SEEN = [(fault, dtype) for fault in FAULTS for dtype in TOLERANCE if (fault, dtype) != ("epsilon", torch.float32)]


@pytest.mark.parametrize(("fault", "dtype"), SEEN)
def test_small_faults_are_seen_in_the_logits_and_in_the_gradients(fault: str, dtype: torch.dtype) -> None:
    """The epsilon is below fp32's rounding."""
    found = exact.our_results(exact.random_model(PADDED, FAULTS[fault]).to(dtype), [drawn("mixed")])
    wanted = expected(("mixed",), PADDED, dtype, "sdpa")
    with pytest.raises(AssertionError, match="masked-LM logits"):
        assert_equal(found, wanted, TOLERANCE[dtype])
    with pytest.raises(AssertionError, match="gradient of"):
        assert_equal(found | {q: t for q, t in wanted.items() if "gradient" not in q}, wanted, TOLERANCE[dtype])


def test_the_sum_of_micro_batches_instead_of_the_mean_is_seen() -> None:
    packs = [drawn(pack) for pack in MICRO_BATCHES]
    model = exact.random_model(PADDED).double()
    found = exact.our_results(model, packs)
    doubled = {quantity: 2 * tensor if "gradient" in quantity else tensor for quantity, tensor in found.items()}
    with pytest.raises(AssertionError, match="gradient of"):
        assert_equal(doubled, expected(MICRO_BATCHES, PADDED, torch.float64, "sdpa"), TOLERANCE[torch.float64])


# --- the rows that pad the vocabulary


def padding_of(model: Bert) -> Tensor:
    return model.embeddings.word.weight[model.shape.num_vocabulary :]


def loss_of(model: Bert, batch: PackedBatch) -> Tensor:
    return pretraining_loss(model(batch), batch)


@pytest.mark.parametrize("dtype", [None, torch.bfloat16], ids=["fp32", "bf16"])
@every_pack
def test_the_gradient_of_the_padding_rows_is_exactly_0(pack: str, dtype: torch.dtype | None) -> None:
    model = exact.random_model(PADDED)
    with torch.autocast("cpu", dtype, enabled=dtype is not None):
        loss_of(model, drawn(pack)).backward()
    gradient = model.embeddings.word.weight.grad
    assert gradient is not None
    assert gradient[:101].any()
    assert len(gradient[101:]) == 3
    assert not gradient[101:].any()


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_padding_rows_stay_0_over_steps_with_weight_decay(optimizer: str) -> None:
    model = exact.random_model(PADDED)
    trained: Adam | Lamb = OPTIMIZERS[optimizer](
        decay_groups(model, 0.1), learning_rate=1e-2, betas=(0.9, 0.99), epsilon=1e-6
    )
    before = model.embeddings.word.weight.detach().clone()
    for pack in list(PACKS)[-5:]:
        loss_of(model, drawn(pack)).backward()
        trained.step_unless(torch.zeros(()))
        trained.zero_grad()
    after = model.embeddings.word.weight.detach()
    assert not padding_of(model).any()
    assert (after[:101] != before[:101]).any(dim=1).all()


def test_padding_whose_logits_were_0_would_get_a_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault that logits of -inf prevent."""
    model, batch = exact.random_model(PADDED), drawn("mixed")
    head = model.masked_lm

    def forward(x_MH: Tensor, word_VH: Tensor) -> Tensor:
        return F.linear(head.norm(head.linear_gelu(head.transform, x_MH)), word_VH, F.pad(head.bias, (0, 3)))

    monkeypatch.setattr(head, "forward", forward)
    loss_of(model, batch).backward()
    assert model.embeddings.word.weight.grad[101:].any(dim=1).all()


def test_no_guess_names_a_padding_row_even_where_every_other_logit_is_very_low() -> None:
    model, batch = exact.random_model(PADDED), drawn("mixed")
    with torch.no_grad():
        model.masked_lm.bias.fill_(-1e30)
        logits_MV, _ = model(batch)
    assert logits_MV.argmax(-1).max() < 101
    assert logits_MV[:, 101:].isneginf().all()
    assert 0 <= num_correct(logits_MV, batch) <= len(batch.labels_M)


@every_pack
def test_the_loss_is_bit_for_bit_that_of_the_vocabulary_alone(pack: str) -> None:
    model, batch = exact.random_model(PADDED), drawn(pack)
    logits_MV, logits_B2 = model(batch)
    assert torch.equal(
        pretraining_loss((logits_MV, logits_B2), batch), pretraining_loss((logits_MV[:, :101], logits_B2), batch)
    )


def test_without_a_masked_token_the_loss_is_that_of_the_sentences_and_the_word_head_gets_no_gradient() -> None:
    model, batch = exact.random_model(PADDED), drawn("mixed, none masked")
    loss = loss_of(model, batch)
    loss.backward()
    assert torch.equal(loss, F.cross_entropy(model(batch)[1], batch.nsp_B))
    assert all(not weight.grad.any() for weight in model.masked_lm.parameters() if weight.grad is not None)
    assert model.next_sentence.classifier.weight.grad.any()
