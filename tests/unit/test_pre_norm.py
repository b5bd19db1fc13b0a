"""NORM=pre against plain formulas in float64, gradients too; its kernels, dtypes, parameters and operations."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import torch._dynamo
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.bert.loss import pretraining_loss
from benchmarks.bert.model import bert, kernels
from benchmarks.bert.model.attention import ATTENTION, split
from benchmarks.bert.model.bert import LAST_LAYER, Bert
from benchmarks.bert.model.flops import packed_flops
from benchmarks.bert.model.init import standard
from benchmarks.bert.model.kernels import FUSIONS, LINEAR_ADDS, PORTABLE, Kernels, choose_kernels
from tests.support.float64 import InFloat64
from tests.unit.test_model import SHAPE, Row, make_model, make_pack, make_rows

CPU = torch.device("cpu")
PRE = replace(SHAPE, norm="pre")
needs_compiler = pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="no C++ compiler")


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


# --- the network


def plain_loss(weights: dict[str, Tensor], rows: list[Row], *, final_norm: bool = True) -> Tensor:
    """Pre-LN BERT's loss, one sequence and one head after the other, from the formulas."""

    def linear(name: str, x: Tensor) -> Tensor:
        return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    def norm(name: str, x: Tensor) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        scaled = centred / ((centred**2).mean(-1, keepdim=True) + 1e-12).sqrt()
        return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    def gelu(x: Tensor) -> Tensor:
        return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))

    def attended(layer: str, x: Tensor) -> Tensor:
        q, k, v = (
            linear(f"{layer}.attention.{name}", x).chunk(PRE.num_heads, -1) for name in ("query", "key", "value")
        )
        heads = [(a @ b.T / math.sqrt(a.shape[-1])).softmax(-1) @ c for a, b, c in zip(q, k, v, strict=True)]
        return linear(f"{layer}.attention.output", torch.cat(heads, -1))

    word = weights["embeddings.word.weight"][: PRE.num_vocabulary]
    words, pairs = [], []
    for tokens, segments, masked, labels, nsp in rows:
        x = word[tokens] + weights["embeddings.position.weight"][: len(tokens)]
        x = norm("embeddings.norm", x + weights["embeddings.segment.weight"][segments])
        for layer in (f"layers.{i}" for i in range(PRE.num_layers)):
            x = x + attended(layer, norm(f"{layer}.attention_norm", x))
            ffn = gelu(linear(f"{layer}.ffn_in", norm(f"{layer}.ffn_norm", x)))
            x = x + linear(f"{layer}.ffn_out", ffn)
        if final_norm:
            x = norm("final_norm", x)
        transformed = norm("masked_lm.norm", gelu(linear("masked_lm.transform", x[masked])))
        logits = transformed @ word.T + weights["masked_lm.bias"]
        words.append(logits.logsumexp(-1) - logits[torch.arange(len(labels)), labels])
        logits = linear("next_sentence.classifier", torch.tanh(linear("next_sentence.pooler", x[0])))
        pairs.append(logits.logsumexp(-1) - logits[nsp])
    return torch.cat(words).mean() + torch.stack(pairs).mean()


def results(model: Bert) -> dict[str, Tensor]:
    """Loss and gradients in float64."""
    batch = make_pack(make_rows())
    with InFloat64():
        loss = pretraining_loss(model(batch), batch)
        loss.backward()
    return {"loss": loss.detach()} | {name: parameter.grad for name, parameter in model.named_parameters()}


def plain_results(model: Bert, **options: bool) -> dict[str, Tensor]:
    weights = {name: parameter.detach().clone().requires_grad_() for name, parameter in model.named_parameters()}
    loss = plain_loss(weights, make_rows(), **options)
    loss.backward()
    return {"loss": loss.detach()} | {name: weight.grad for name, weight in weights.items() if weight.grad is not None}


def double_model(attention: str = "split", last_layer: str = "only_read") -> Bert:
    model = Bert(PRE, Kernels("of a test", ATTENTION[attention]), last_layer)
    model.load_state_dict(make_model(PRE).state_dict())
    return model.double()


@pytest.mark.parametrize("last_layer", LAST_LAYER)
@pytest.mark.parametrize("attention", ["plain", "split"])
def test_loss_and_every_gradient_are_those_of_the_formulas(attention: str, last_layer: str) -> None:
    model = double_model(attention, last_layer)
    expected = plain_results(model)
    found = results(model)
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert (found[name] - tensor).abs().max() < 1e-12, name


def test_another_network_is_told_apart() -> None:
    """Without the norm that the heads read through, and with the norms after the sums."""
    model = double_model()
    loss = results(model)["loss"]
    assert abs(plain_results(model, final_norm=False)["loss"] - loss) > 1e-6
    post = Bert(SHAPE, PORTABLE).double()
    post.load_state_dict({n: t for n, t in model.state_dict().items() if not n.startswith("final_norm")})
    assert abs(results(post)["loss"] - loss) > 1e-2


def test_only_pre_norm_has_the_final_norm_and_nothing_else_is_named_otherwise() -> None:
    post, pre = (dict(Bert(shape).named_parameters()) for shape in (SHAPE, PRE))
    assert set(pre) - set(post) == {"final_norm.weight", "final_norm.bias"}
    assert set(post) <= set(pre)
    assert {name: pre[name].shape for name in post} == {name: tensor.shape for name, tensor in post.items()}


def test_initial_weights_are_those_of_post_norm() -> None:
    models = []
    for shape in (SHAPE, PRE):
        torch.manual_seed(0)
        models.append(Bert(shape))
        standard(models[-1], 0.02)
    for name, parameter in models[0].named_parameters():
        assert torch.equal(parameter, models[1].get_parameter(name)), name
    assert (models[1].final_norm.weight == 1).all()
    assert not models[1].final_norm.bias.any()


@pytest.mark.parametrize("last_layer", LAST_LAYER)
def test_its_operations_are_as_many_as_are_counted_for_post_norm(last_layer: str) -> None:
    # With dropout attention is made of plain products, which the counter sees, and none is computed twice.
    shape = replace(PRE, dropout=0.1)
    batch, model = make_pack(make_rows()), Bert(shape, PORTABLE, last_layer)
    with FlopCounterMode(display=False) as counter:
        pretraining_loss(model(batch), batch).backward()
    assert packed_flops(shape, batch, last_layer) == counter.get_total_flops()
    assert packed_flops(replace(shape, num_layers=3), batch, last_layer) != counter.get_total_flops()


# --- 16 bit


def dtypes_of(model: Bert, dtype: torch.dtype) -> dict[str, set[torch.dtype]]:
    seen: dict[str, set[torch.dtype]] = {"sums": set(), "norms": set(), "products": set()}
    for layer in model.layers:
        layer.register_forward_pre_hook(lambda _, x: seen["sums"].update(each.dtype for each in x[:2]))
        for norm in (layer.attention_norm, layer.ffn_norm):
            norm.register_forward_pre_hook(lambda _, x: seen["norms"].add(x[0].dtype))
        for linear in (layer.attention.query, layer.attention.key, layer.attention.value, layer.ffn_in):
            linear.register_forward_pre_hook(lambda _, x: seen["products"].add(x[0].dtype))
    batch = make_pack(make_rows())
    with torch.autocast("cpu", dtype):
        loss = pretraining_loss(model(batch), batch)
    loss.backward()
    assert all(parameter.grad.dtype == torch.float32 for parameter in model.parameters())
    return seen


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
def test_in_16_bit_sums_and_norms_are_fp32_and_what_products_read_is_cast_once(dtype: torch.dtype) -> None:
    seen = dtypes_of(Bert(PRE, PORTABLE), dtype)
    assert seen == {"sums": {torch.float32}, "norms": {torch.float32}, "products": {dtype}}


def test_what_each_product_casts_for_itself_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bert, "_for_products", lambda x: x)
    assert dtypes_of(Bert(PRE, PORTABLE), torch.bfloat16)["products"] == {torch.float32}


# --- the kernel


def sums_and_gradients(
    add: Callable[..., Tensor], dtype: torch.dtype, scale: float, p: float = 0.0, num_rows: int = 9
) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    linear = nn.Linear(24, 16)
    with torch.no_grad():
        for parameter in linear.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    x, residual = (torch.randn(num_rows, width, generator=generator, requires_grad=True) for width in (24, 16))
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        out = add(linear, x, residual, p, scale)
    (out * torch.linspace(-1, 1, out.numel()).view_as(out)).sum().backward()
    return [out.detach(), x.grad, residual.grad, linear.weight.grad, linear.bias.grad]


def formula(linear: nn.Linear, x: Tensor, residual: Tensor, p: float, scale: float) -> Tensor:
    return residual + (x @ linear.weight.T + linear.bias) * scale


@pytest.mark.parametrize("scale", [1.0, 2.5])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)], ids=["fp32", "bf16"])
@pytest.mark.parametrize("fusion", FUSIONS)
def test_the_kernel_adds_the_scaled_branch_with_all_gradients(
    fusion: str, dtype: torch.dtype, tolerance: float, scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_by(monkeypatch, "aot_eager")
    expected = sums_and_gradients(formula, torch.float32, scale)
    found = sums_and_gradients(LINEAR_ADDS[fusion](CPU), dtype, scale)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == torch.float32
        assert (ours - theirs).abs().max() < tolerance * theirs.abs().max()
    unscaled = sums_and_gradients(formula, torch.float32, scale + 0.1)
    assert (found[0] - unscaled[0]).abs().max() > tolerance * expected[0].abs().max()


def compile_by(monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    compile_ = torch.compile
    monkeypatch.setattr(kernels, "torch", SimpleNamespace(compile=lambda function: compile_(function, backend=backend)))


@needs_compiler
def test_compiled_for_good_it_is_the_same_kernel() -> None:
    expected = sums_and_gradients(formula, torch.float32, 1.5)
    for ours, theirs in zip(
        sums_and_gradients(LINEAR_ADDS["compiled"](CPU), torch.float32, 1.5), expected, strict=True
    ):
        assert (ours - theirs).abs().max() < 1e-5 * theirs.abs().max()


def test_another_scale_at_every_step_is_not_compiled_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    compile_by(monkeypatch, "eager")
    add, num_graphs = LINEAR_ADDS["compiled"](CPU), []
    for step in range(6):
        sums_and_gradients(add, torch.float32, 1 + step / 10, num_rows=8 + step)
        num_graphs.append(counters["stats"]["unique_graphs"])
    assert num_graphs[2:] == [num_graphs[1]] * 4


def test_the_kernel_is_chosen_with_the_others() -> None:
    found = choose_kernels("split", "eager", device=CPU, dtype=torch.float32, head_width=8)
    assert found.linear_add is LINEAR_ADDS["eager"](CPU)
    assert LINEAR_ADDS.keys() == FUSIONS.keys()


@pytest.mark.parametrize("last_layer", LAST_LAYER)
def test_a_model_of_compiled_kernels_gives_the_loss_and_gradients_of_an_eager_one(
    last_layer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_by(monkeypatch, "aot_eager")
    batch, found = make_pack(make_rows()), []
    for fusion in FUSIONS:
        model = Bert(PRE, choose_kernels("split", fusion, device=CPU, dtype=torch.float32, head_width=8), last_layer)
        model.load_state_dict(make_model(PRE).state_dict())
        loss = pretraining_loss(model(batch), batch)
        loss.backward()
        found.append({"loss": loss.detach()} | {name: p.grad for name, p in model.named_parameters()})
    eager, compiled = found
    scale = max(tensor.abs().max() for tensor in eager.values())
    for name, tensor in eager.items():
        assert (compiled[name] - tensor).abs().max() < 1e-6 * scale, name


def test_dropout_acts_on_both_branches_in_training_only() -> None:
    batch = make_pack(make_rows())
    model, without = make_model(replace(PRE, dropout=0.5), split), make_model(PRE, split)
    with torch.no_grad():
        assert not torch.equal(model(batch)[0], model(batch)[0])
        model.eval()
        torch.testing.assert_close(model(batch), without(batch))
