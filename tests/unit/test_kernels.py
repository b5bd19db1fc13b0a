"""Compiled kernels against eager ones, the CUDA attentions' arguments and shapes, and the dtype of each stage."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch._dynamo
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.bert.data.batch import PackLayout
from benchmarks.bert.loss import pretraining_loss
from benchmarks.bert.model import kernels
from benchmarks.bert.model.attention import ATTENTION, Attention, KernelError, choose_attention, plain, split
from benchmarks.bert.model.bert import Bert
from benchmarks.bert.model.kernels import FUSIONS, Kernels, choose_kernels
from tests.unit.test_model import SHAPE, make_layout, make_model, make_pack, make_rows

CPU = torch.device("cpu")
IN, OUT = 24, 16
needs_compiler = pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="no C++ compiler")
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="flash and efficient attention run on CUDA only")
every_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def precision(dtype: torch.dtype) -> Any:
    return nullcontext() if dtype == torch.float32 else torch.autocast("cpu", dtype)


# --- compiled and eager


def parts(num_rows: int) -> tuple[nn.Linear, nn.LayerNorm, Tensor, Tensor]:
    """A linear map, a norm, what goes in and the residual it is added to."""
    generator = torch.Generator().manual_seed(num_rows)
    linear, norm = nn.Linear(IN, OUT), nn.LayerNorm(OUT, 1e-12)
    with torch.no_grad():
        for parameter in (*linear.parameters(), *norm.parameters()):
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.5)
    x, residual = (torch.randn(num_rows, width, generator=generator, requires_grad=True) for width in (IN, OUT))
    return linear, norm, x, residual


def outputs_and_gradients(fusion: tuple[Any, Any], num_rows: int, dtype: torch.dtype) -> dict[str, Tensor]:
    """Of both kernels, the norm's output of the right size to be weighed by fixed numbers."""
    linear_gelu, linear_add_norm = fusion
    linear, norm, x, residual = parts(num_rows)
    weight = torch.linspace(-1, 1, num_rows * OUT).view(num_rows, OUT)
    results = {}
    for name, run in {
        "gelu": lambda: linear_gelu(linear, x),
        "norm": lambda: linear_add_norm(linear, x, residual, norm, 0.0),
    }.items():
        leaves = {
            "x": x,
            "residual": residual,
            "linear.weight": linear.weight,
            "linear.bias": linear.bias,
            "norm.weight": norm.weight,
            "norm.bias": norm.bias,
        }
        for leaf in leaves.values():
            leaf.grad = None
        with precision(dtype):
            out = run()
        (out.float() * weight).sum().backward()
        results[name] = out.detach()
        results |= {f"{name}, {of}": leaf.grad for of, leaf in leaves.items() if leaf.grad is not None}
    return results


# bf16 has 8 bits. The compiled kernels round once where the eager ones round after each operation.
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


def assert_close(found: dict[str, Tensor], expected: dict[str, Tensor], dtype: torch.dtype) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype, name
        error = (found[name] - tensor).abs().max() / tensor.abs().max()
        assert error < TOLERANCE[dtype], f"{name}: {error}"


@needs_compiler
def test_compiled_kernels_equal_eager_ones_with_all_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the form that a second number of tokens brings about, at once: each compilation takes seconds."""
    compile_by(monkeypatch, dynamic=True)
    fusion = FUSIONS["compiled"](CPU)
    for num_rows in (8, 13, 144):
        found = outputs_and_gradients(fusion, num_rows, torch.float32)
        expected = outputs_and_gradients(FUSIONS["eager"](CPU), num_rows, torch.float32)
        assert len(expected) == 2 + 3 + 6
        assert_close(found, expected, torch.float32)
    assert counters["stats"]["unique_graphs"] == 2


@needs_compiler
def test_in_bf16_they_equal_eager_ones_but_for_rounding() -> None:
    found = outputs_and_gradients(FUSIONS["compiled"](CPU), 21, torch.bfloat16)
    assert_close(found, outputs_and_gradients(FUSIONS["eager"](CPU), 21, torch.bfloat16), torch.bfloat16)


def test_from_the_third_number_of_tokens_on_nothing_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    compile_by(monkeypatch, backend="eager")
    fusion, num_graphs = FUSIONS["compiled"](CPU), []
    for num_rows in (8, 13, 21, 34, 8, 13, 144):
        outputs_and_gradients(fusion, num_rows, torch.float32)
        num_graphs.append(counters["stats"]["unique_graphs"])
    assert num_graphs == [2, 4, 4, 4, 4, 4, 4]


def test_kernels_compiled_for_fixed_shapes_would_be_compiled_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    compile_by(monkeypatch, backend="eager", dynamic=False)
    fusion = FUSIONS["compiled"](CPU)
    for num_graphs, num_rows in ((2, 8), (4, 13), (6, 21), (8, 34)):
        outputs_and_gradients(fusion, num_rows, torch.float32)
        assert counters["stats"]["unique_graphs"] == num_graphs


def compile_by(monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
    """With other options; a backend that makes no code leaves what is traced, and when, as it is."""
    compile_ = torch.compile
    monkeypatch.setattr(kernels, "torch", SimpleNamespace(compile=lambda function: compile_(function, **options)))


@every_dtype
def test_a_kernel_that_forgets_the_bias_or_adds_after_the_norm_is_seen(dtype: torch.dtype) -> None:
    eager_gelu, eager_add_norm = FUSIONS["eager"](CPU)

    def no_bias(linear: nn.Linear, x: Tensor) -> Tensor:
        return F.gelu(F.linear(x, linear.weight)) + 0.0 * linear.bias.sum()

    def pre_norm(linear: nn.Linear, x: Tensor, residual: Tensor, norm: nn.LayerNorm, p: float) -> Tensor:
        projected = linear(x)
        return (residual + norm(projected.float())).to(projected.dtype)

    expected = outputs_and_gradients((eager_gelu, eager_add_norm), 9, dtype)
    for faulty, where in (((no_bias, eager_add_norm), "gelu"), ((eager_gelu, pre_norm), "norm")):
        with pytest.raises(AssertionError, match=where):
            assert_close(outputs_and_gradients(faulty, 9, dtype), expected, dtype)


def test_a_model_of_compiled_kernels_gives_the_loss_and_gradients_of_an_eager_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compile_by(monkeypatch, backend="aot_eager")
    batch, results = make_pack(make_rows()), []
    for fusion in FUSIONS:
        model = make_model()
        compute = choose_kernels("split", fusion, device=CPU, dtype=torch.float32, head_width=8)
        computed = Bert(SHAPE, compute)
        computed.load_state_dict(model.state_dict())
        loss = pretraining_loss(computed(batch), batch)
        loss.backward()
        results.append({"loss": loss.detach()} | {n: p.grad for n, p in computed.named_parameters()})
    eager, compiled = results
    scale = max(gradient.abs().max() for gradient in eager.values())
    for name, tensor in eager.items():
        assert (compiled[name] - tensor).abs().max() < 1e-6 * scale, name


@needs_compiler
@pytest.mark.parametrize("fusion", FUSIONS)
def test_dropout_keeps_its_share_scales_what_it_keeps_and_its_gradient_has_the_same_mask(fusion: str) -> None:
    """The norm's epsilon is so large that it hardly scales, only takes the mean off: the map is linear."""
    p, num_rows, epsilon = 0.25, 4000, 1e8
    linear, norm = nn.Linear(IN, OUT), nn.LayerNorm(OUT, epsilon)
    with torch.no_grad():
        linear.weight.zero_()
        linear.bias.fill_(1.0)
    torch.manual_seed(0)
    out = FUSIONS[fusion](CPU)[1](linear, torch.zeros(num_rows, IN), torch.zeros(num_rows, OUT), norm, p)
    weight = torch.randn(num_rows, OUT, generator=torch.Generator().manual_seed(1))
    (out * epsilon**0.5 * weight).sum().backward()

    centred = out.detach() * epsilon**0.5
    values = centred - centred.amin(1, keepdim=True)  # 0 where dropped, but in a row that is kept whole
    values[values.amax(1) < 0.5] = 1 / (1 - p)
    is_kept = values > 0.5
    assert (values[is_kept] - 1 / (1 - p)).abs().max() < 1e-3
    assert values[~is_kept].abs().max() < 1e-3
    assert abs(is_kept.float().mean() - (1 - p)) < 0.01
    expected = (is_kept / (1 - p) * (weight - weight.mean(1, keepdim=True))).sum(0)
    torch.testing.assert_close(linear.bias.grad, expected, atol=0.01, rtol=1e-4)
    drawn_anew = (torch.rand(is_kept.shape) > p) / (1 - p)
    assert ((drawn_anew * (weight - weight.mean(1, keepdim=True))).sum(0) - expected).abs().max() > 10


# --- the choice


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_auto_on_a_cpu_is_split_and_eager(dtype: torch.dtype) -> None:
    assert choose_attention("auto", CPU, dtype, 64) == "split"
    found = choose_kernels("auto", "auto", device=CPU, dtype=dtype, head_width=64)
    assert found.attention is split
    assert (found.linear_gelu, found.linear_add_norm) == FUSIONS["eager"](CPU)
    assert found.name == "split attention, eager"


@pytest.mark.parametrize("name", ["flash", "efficient"])
def test_an_attention_that_needs_a_gpu_is_refused_on_a_cpu_in_one_line_with_reason_and_remedy(name: str) -> None:
    with pytest.raises(KernelError) as error:
        choose_kernels(name, "auto", device=CPU, dtype=torch.bfloat16, head_width=64)
    message = str(error.value)
    assert message.startswith(f"ATTENTION={name} ")
    assert "needs a GPU" in message
    assert message.endswith("set ATTENTION=auto")
    assert "\n" not in message
    assert len(message) < 120


@pytest.mark.parametrize("name", ["plain", "split"])
def test_an_attention_that_runs_names_itself(name: str) -> None:
    assert choose_kernels(name, "eager", device=CPU, dtype=torch.bfloat16, head_width=64).attention is ATTENTION[name]


# --- flash and efficient attention without a GPU: shapes, and what torch's operators are told

LAYOUTS = {"all ask": ((5, 1, 9), (5, 1, 9)), "some ask": ((2, 1, 3), (5, 1, 9))}


class Calls(TorchDispatchMode):
    """Keeps the arguments of attention's operators, by their schema's names."""

    def __init__(self) -> None:
        super().__init__()
        self.of: dict[str, dict[str, Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        if "attention" in func.name():
            names = [argument.name for argument in func._schema.arguments]
            self.of[func.name()] = dict(zip(names, args, strict=False)) | (kwargs or {})
        return func(*args, **(kwargs or {}))


def on_meta(attention: Attention, which: str, dtype: torch.dtype, dropout: float) -> tuple[Tensor, list[Tensor], Calls]:
    """Forward and backward without numbers: the output, q, k and v, and the operators' arguments."""
    q_lengths, lengths = LAYOUTS[which]
    q_layout, layout = make_layout(q_lengths).to(torch.device("meta")), make_layout(lengths).to(torch.device("meta"))
    q, k, v = (
        torch.empty(size, 4, 64, device="meta", dtype=dtype, requires_grad=True)
        for size in (sum(q_lengths), sum(lengths), sum(lengths))
    )
    with Calls() as calls:
        out = attention(q, k, v, q_layout, layout, dropout)
        out.sum().backward()
    return out, [q, k, v], calls


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["fp16", "bf16"])
@pytest.mark.parametrize("which", LAYOUTS)
@pytest.mark.parametrize("name", ["flash", "efficient"])
def test_output_and_gradients_have_the_shape_and_dtype_of_what_they_belong_to(
    name: str, which: str, dtype: torch.dtype, dropout: float
) -> None:
    out, inputs, _ = on_meta(ATTENTION[name], which, dtype, dropout)
    assert (out.shape, out.dtype) == (inputs[0].shape, dtype)
    for x in inputs:
        assert x.grad is not None
        assert (x.grad.shape, x.grad.dtype) == (x.shape, dtype)


FLASH = ("cum_seq_q", "cum_seq_k", "max_q", "max_k")
EFFICIENT = ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k")


@pytest.mark.parametrize(("name", "arguments"), [("flash", FLASH), ("efficient", EFFICIENT)])
def test_the_operators_are_told_both_layouts_and_the_dropout_forward_and_backward(
    name: str, arguments: tuple[str, ...]
) -> None:
    _, _, calls = on_meta(ATTENTION[name], "some ask", torch.bfloat16, 0.1)
    for direction in ("forward", "backward"):
        told = calls.of[f"aten::_{name}_attention_{direction}"]
        cu_q, cu_k, max_q, max_k = (told[argument] for argument in arguments)
        assert (cu_q.shape, cu_k.shape) == ((4,), (4,))
        assert cu_q.dtype == cu_k.dtype == torch.int32
        assert (max_q, max_k) == (3, 9)
        assert told["dropout_p"] == 0.1
        assert not told.get("is_causal")
        assert not told.get("custom_mask_type")
        assert told.get("scale") is None  # 1 / sqrt(D)
    backward = calls.of[f"aten::_{name}_attention_backward"]
    assert backward[arguments[0]] is calls.of[f"aten::_{name}_attention_forward"][arguments[0]]
    assert backward[arguments[0]] is not backward[arguments[1]]


@pytest.mark.parametrize("grad", [False, True])
def test_efficient_attention_keeps_what_backward_needs_only_where_there_is_one(grad: bool) -> None:
    layout = make_layout((5, 4)).to(torch.device("meta"))
    q = torch.empty(9, 4, 64, device="meta", dtype=torch.float16)
    with torch.set_grad_enabled(grad), Calls() as calls:
        ATTENTION["efficient"](q, q, q, layout, layout, 0.0)
    assert calls.of["aten::_efficient_attention_forward"].get("compute_log_sumexp", False) == grad


@pytest.mark.parametrize(("name", "arguments"), [("flash", FLASH), ("efficient", EFFICIENT)])
def test_layouts_the_wrong_way_round_would_be_seen(name: str, arguments: tuple[str, ...]) -> None:
    def swapped(q: Tensor, k: Tensor, v: Tensor, q_layout: PackLayout, layout: PackLayout, p: float) -> Tensor:
        return ATTENTION[name](q, k, v, layout, q_layout, p)

    _, _, calls = on_meta(swapped, "some ask", torch.bfloat16, 0.1)
    told = calls.of[f"aten::_{name}_attention_forward"]
    assert (told[arguments[2]], told[arguments[3]]) == (9, 3)


def with_gradients(attention: Attention, which: str, dtype: torch.dtype, device: torch.device) -> list[Tensor]:
    """Output and gradients of the same random numbers, in fp32 on the host."""
    q_lengths, lengths = LAYOUTS[which]
    generator = torch.Generator().manual_seed(2)
    q, k, v, weight = (
        torch.randn(size, 2, 16, generator=generator).to(device, dtype)
        for size in (sum(q_lengths), sum(lengths), sum(lengths), sum(q_lengths))
    )
    for x in (q, k, v):
        x.requires_grad_()
    out = attention(q, k, v, make_layout(q_lengths).to(device), make_layout(lengths).to(device), 0.0)
    out.backward(weight)
    return [each.detach().float().cpu() for each in (out, q.grad, k.grad, v.grad)]


@pytest.mark.parametrize("which", LAYOUTS)
@pytest.mark.parametrize(
    ("name", "device", "dtype"),
    [
        ("split", "cpu", torch.float32),
        ("split", "cpu", torch.bfloat16),
        pytest.param("split", "cuda", torch.float16, marks=needs_gpu),
        pytest.param("flash", "cuda", torch.float16, marks=needs_gpu),
        pytest.param("flash", "cuda", torch.bfloat16, marks=needs_gpu),
        pytest.param("efficient", "cuda", torch.float16, marks=needs_gpu),
        pytest.param("efficient", "cuda", torch.bfloat16, marks=needs_gpu),
        pytest.param("efficient", "cuda", torch.float32, marks=needs_gpu),
    ],
)
def test_every_attention_equals_plain_with_all_gradients(
    name: str, device: str, dtype: torch.dtype, which: str
) -> None:
    found = with_gradients(ATTENTION[name], which, dtype, torch.device(device))
    expected = with_gradients(plain, which, torch.float32, CPU)
    tolerance = {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 4e-2}[dtype]
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours - theirs).abs().max() < tolerance * theirs.abs().max()


@needs_gpu
@pytest.mark.parametrize("name", ["flash", "efficient"])
def test_on_a_gpu_dropout_drops_with_the_probability_given(name: str) -> None:
    cuda = torch.device("cuda")
    q = torch.zeros(256, 1, 16, device=cuda, dtype=torch.float16)
    layout = make_layout((256,)).to(cuda)
    out = ATTENTION[name](q, q, torch.ones_like(q), layout, layout, 0.5).float()
    assert 0.5 < (out[:, 0, 0].std() / (1 / 256) ** 0.5).item() < 1.5
    assert out.mean().item() == pytest.approx(1, abs=0.05)


# --- the dtype of each stage under autocast


def dtypes_of(model: Bert, dtype: torch.dtype) -> tuple[dict[str, set[torch.dtype]], Tensor]:
    """By stage, what goes through it in a forward pass in this precision; and the loss, after its backward pass."""
    seen: dict[str, set[torch.dtype]] = {"norm": set(), "between layers": set(), "last layer's output": set()}
    handles = []
    for module in model.modules():
        if isinstance(module, nn.LayerNorm) and module is not model.embeddings.norm:
            handles.append(module.register_forward_pre_hook(lambda _, x: seen["norm"].add(x[0].dtype)))
    for layer in model.layers[1:]:
        handles.append(
            layer.register_forward_pre_hook(lambda _, x: seen["between layers"].update(each.dtype for each in x[:2]))
        )
    handles.append(
        model.layers[-1].register_forward_hook(lambda _m, _x, out: seen["last layer's output"].add(out.dtype))
    )
    batch = make_pack(make_rows())
    with precision(dtype):
        loss = pretraining_loss(model(batch), batch)
    loss.backward()
    for handle in handles:
        handle.remove()
    return seen, loss


@pytest.mark.parametrize("last_layer", ["only_read", "whole"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
def test_in_16_bit_the_residual_stream_is_16_bit_and_norms_loss_weights_and_gradients_fp32(
    dtype: torch.dtype, last_layer: str
) -> None:
    model = Bert(SHAPE, Kernels("of a test", split), last_layer)
    seen, loss = dtypes_of(model, dtype)
    assert seen == {"norm": {torch.float32}, "between layers": {dtype}, "last layer's output": {dtype}}
    assert loss.dtype == torch.float32
    for name, parameter in model.named_parameters():
        assert parameter.dtype == torch.float32, name
        assert parameter.grad is not None, name
        assert parameter.grad.dtype == torch.float32, name


def test_a_residual_stream_that_stays_fp32_is_seen() -> None:
    def wide(linear: nn.Linear, x: Tensor, residual: Tensor, norm: nn.LayerNorm, p: float) -> Tensor:
        return norm((residual + linear(x)).float())

    seen, _ = dtypes_of(Bert(SHAPE, Kernels("a fault", split, linear_add_norm=wide)), torch.bfloat16)
    assert seen["between layers"] == {torch.float32}


def test_compiled_kernels_keep_the_residual_stream_16_bit_too(monkeypatch: pytest.MonkeyPatch) -> None:
    compile_by(monkeypatch, backend="aot_eager")
    compute = Kernels("of a test", split, *FUSIONS["compiled"](CPU))
    seen, loss = dtypes_of(Bert(SHAPE, compute), torch.bfloat16)
    assert seen["between layers"] == seen["last layer's output"] == {torch.bfloat16}
    assert loss.dtype == torch.float32
