"""Hugging Face folders, `.pt` files and our checkpoints: each way there and back is bit-exact, what is not whole is
refused.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from benchmarks.bert.weights import WeightsError, read_weights, write_weights
from benchmarks.bert.weights.names import names
from benchmarks.bert.weights.shapes import Sizes
from benchmarks.bert.weights.spelling import to_pytorch
from tests.support.weights import assert_same, flip, random_tensors

FORMS = {"tensorflow": "model.ckpt-3", "huggingface": "folder", "pt": "model.pt"}
WORD = "bert.embeddings.word_embeddings.weight"
DECODER = "cls.predictions.decoder.weight"


def write(path: Path, tensors: dict[str, Tensor], form: str) -> None:
    write_weights(path, tensors, form, num_vocabulary=13, num_heads=2)


def save_folder(folder: Path, named: dict[str, Tensor], **config: Any) -> Path:
    """A Hugging Face folder that holds just these tensors."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "bert"} | config))
    save_file(named, folder / "model.safetensors")
    return folder


def save_pt(path: Path, content: object) -> Path:
    torch.save(content, path)
    return path


def padded(tensor: Tensor) -> Tensor:
    return torch.cat([tensor, torch.zeros(3, *tensor.shape[1:])])


@pytest.mark.parametrize("form", ["tensorflow", "huggingface", "pt"])
def test_what_is_written_comes_back_bit_for_bit(tmp_path: Path, form: str) -> None:
    tensors = random_tensors()
    write(tmp_path / FORMS[form], tensors, form)
    found = read_weights(tmp_path / FORMS[form])
    assert found.form == form
    assert found.ignored == ()
    assert_same(found.tensors, tensors)


@pytest.mark.parametrize("form", ["tensorflow", "huggingface", "pt"])
def test_padding_rows_are_not_written(tmp_path: Path, form: str) -> None:
    tensors = random_tensors()
    fat = tensors | {name: padded(tensors[name]) for name in ("embeddings.word.weight", "masked_lm.bias")}
    write(tmp_path / "fat" / FORMS[form], fat, form)
    write(tmp_path / "thin" / FORMS[form], tensors, form)
    thin_files = [path for path in sorted((tmp_path / "thin").rglob("*")) if path.is_file()]
    assert thin_files
    for path in thin_files:
        assert (tmp_path / "fat" / path.relative_to(tmp_path / "thin")).read_bytes() == path.read_bytes()


@pytest.mark.parametrize("form", ["tensorflow", "huggingface", "pt"])
def test_nothing_is_overwritten_and_nothing_is_left_half(tmp_path: Path, form: str) -> None:
    path = tmp_path / FORMS[form]
    write(path, random_tensors(), form)
    files = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    with pytest.raises(WeightsError, match=rf"{path.name}.*: there already; name another place"):
        write(path, random_tensors(seed=2), form)
    assert {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()} == files


def test_everybody_may_read_a_folder_that_was_written(tmp_path: Path) -> None:
    write(tmp_path / "x", random_tensors(), "huggingface")
    assert {file.name: file.stat().st_mode & 0o777 for file in (tmp_path / "x").iterdir()} == {
        "config.json": 0o644,
        "model.safetensors": 0o644,
    }


@pytest.mark.parametrize("form", FORMS)
def test_a_bert_that_is_not_whole_is_not_written(tmp_path: Path, form: str) -> None:
    tensors = random_tensors()
    del tensors["masked_lm.norm.bias"]
    tensors["next_sentence.classifier.bias"] = torch.zeros(3)
    with pytest.raises(WeightsError, match=r"not written: 2 thing\(s\) wrong") as error:
        write(tmp_path / FORMS[form], tensors, form)
    assert "masked_lm.norm.bias is missing" in str(error.value)
    assert "next_sentence.classifier.bias is (3,), not (2,)" in str(error.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("num_heads", [None, 0, 3, -2])
def test_a_number_of_heads_that_cannot_be_is_not_written(tmp_path: Path, num_heads: int | None) -> None:
    with pytest.raises(WeightsError, match=rf"hidden size of 8 does not divide into {num_heads} heads"):
        write_weights(tmp_path / "x", random_tensors(), "huggingface", num_vocabulary=13, num_heads=num_heads)
    assert not list(tmp_path.iterdir())


def bare(name: str) -> str:
    return name.removeprefix("bert.")


def parallel(name: str) -> str:
    return f"module.{name}"


def old_norm(name: str) -> str:
    return name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")


def dense_act(name: str) -> str:
    for part in ("intermediate", "pooler", "transform"):
        name = name.replace(f"{part}.dense.", f"{part}.dense_act.")
    return name


def fused_attention(name: str) -> str:
    name = name.replace("attention.output.LayerNorm", "attention.layer_norm")
    name = name.replace("attention.output.dense.", "attention.multi_head_attention.out_proj_")
    for part in ("query", "key", "value"):
        name = name.replace(f"self.{part}.", f"multi_head_attention.{part[0]}_")
    return name


@pytest.mark.parametrize("spell", [bare, parallel, old_norm, dense_act, fused_attention])
@pytest.mark.parametrize("form", ["huggingface", "pt"])
def test_every_published_spelling_is_read(tmp_path: Path, form: str, spell: Callable[[str], str]) -> None:
    named = {spell(name): tensor for name, tensor in to_pytorch(random_tensors()).items()}
    assert named.keys() != to_pytorch(random_tensors()).keys()
    path = save_folder(tmp_path / "x", named) if form == "huggingface" else save_pt(tmp_path / "x.pt", named)
    assert_same(read_weights(path).tensors, random_tensors())


def test_a_tensor_that_is_there_in_two_spellings_is_refused(tmp_path: Path) -> None:
    named = to_pytorch(random_tensors())
    named[bare(WORD)] = named[WORD]
    with pytest.raises(WeightsError, match=r"\nembeddings\.word_embeddings\.weight is there twice"):
        read_weights(save_pt(tmp_path / "x.pt", named))


@pytest.mark.parametrize("form", ["huggingface", "pt"])
def test_known_extras_are_accepted_and_must_be_tied(tmp_path: Path, form: str) -> None:
    named = to_pytorch(random_tensors())
    named["bert.embeddings.position_ids"] = torch.arange(8)[None]
    named[DECODER] = named[WORD].clone()
    named["cls.predictions.decoder.bias"] = named["cls.predictions.bias"].clone()

    def save(name: str) -> Path:
        if form == "huggingface":
            return save_folder(tmp_path / name, named)
        return save_pt(tmp_path / f"{name}.pt", named)

    found = read_weights(save("tied"))
    assert_same(found.tensors, random_tensors())
    assert found.ignored == ("bert.embeddings.position_ids",)
    for extra in (DECODER, "cls.predictions.decoder.bias"):
        named[extra][-1] += 1
    with pytest.raises(WeightsError, match=r"2 thing\(s\) wrong") as error:
        read_weights(save("untied"))
    assert f"{DECODER} differs from embeddings.word.weight" in str(error.value)
    assert "cls.predictions.decoder.bias differs from masked_lm.bias" in str(error.value)


def test_the_file_has_the_decoder_that_state_dicts_have_and_holds_it_once(tmp_path: Path) -> None:
    write(tmp_path / "x.pt", random_tensors(), "pt")
    content = torch.load(tmp_path / "x.pt", weights_only=True)
    assert content.keys() == {"model"}
    assert content["model"].keys() == {row.pytorch for row in names(2)} | {DECODER}
    assert content["model"][DECODER].data_ptr() == content["model"][WORD].data_ptr()


@pytest.mark.parametrize("wrapped", [False, True])
def test_what_a_trainer_wrote_beside_the_model_is_ignored(tmp_path: Path, wrapped: bool) -> None:
    named = to_pytorch(random_tensors())
    content = {"model": named, "optimizer": {"step": 3}, "epoch": 1} if wrapped else named
    found = read_weights(save_pt(tmp_path / "x.pt", content))
    assert found.ignored == (("optimizer", "epoch") if wrapped else ())
    assert_same(found.tensors, random_tensors())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_floats_of_16_bits_are_widened_exactly(tmp_path: Path, dtype: torch.dtype) -> None:
    named = {name: tensor.to(dtype) for name, tensor in to_pytorch(random_tensors()).items()}
    expected = {name: tensor.to(dtype).float() for name, tensor in random_tensors().items()}
    assert_same(read_weights(save_pt(tmp_path / "x.pt", named)).tensors, expected)
    assert_same(read_weights(save_folder(tmp_path / "x", named)).tensors, expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.int8])
def test_other_types_are_refused(tmp_path: Path, dtype: torch.dtype) -> None:
    named = to_pytorch(random_tensors())
    named["bert.pooler.dense.bias"] = named["bert.pooler.dense.bias"].to(dtype)
    complaint = rf"\nnext_sentence\.pooler\.bias is of type {str(dtype)[6:]}, not a float of 16 or 32 bits"
    with pytest.raises(WeightsError, match=complaint):
        read_weights(save_folder(tmp_path / "x", named))


@pytest.mark.parametrize("name", [WORD, DECODER])
def test_types_that_have_no_arithmetic_are_refused_by_name(tmp_path: Path, name: str) -> None:
    named = to_pytorch(random_tensors())
    named |= {DECODER: named[WORD], name: torch.zeros(13, 8, dtype=torch.uint8).view(torch.bits8)}
    with pytest.raises(WeightsError, match=r"\n\S*(word\.weight|decoder\.weight) is of type bits8, not a float"):
        read_weights(save_pt(tmp_path / "x.pt", named))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_what_is_no_finite_number_is_refused_by_name(tmp_path: Path, value: str, dtype: torch.dtype) -> None:
    tensors = random_tensors()
    tensors["layers.1.ffn_in.bias"][3] = float(value)
    write(tmp_path / "x.ckpt", tensors, "tensorflow")
    named = {name: tensor.to(dtype) for name, tensor in to_pytorch(tensors).items()}
    for path in (tmp_path / "x.ckpt", save_folder(tmp_path / "x", named), save_pt(tmp_path / "x.pt", named)):
        with pytest.raises(WeightsError, match=r": 1 thing\(s\) wrong;.*\nlayers\.1\.ffn_in\.bias holds NaN or infin"):
            read_weights(path)


def test_the_largest_finite_numbers_are_read(tmp_path: Path) -> None:
    tensors = random_tensors()
    tensors["layers.1.ffn_in.bias"][3:5] = torch.tensor([-1, 1]) * torch.finfo(torch.float32).max
    assert_same(read_weights(save_pt(tmp_path / "x.pt", to_pytorch(tensors))).tensors, tensors)


@pytest.mark.parametrize("form", ["huggingface", "pt"])
def test_a_bert_of_empty_tensors_is_refused(tmp_path: Path, form: str) -> None:
    named = to_pytorch(random_tensors(Sizes(num_vocabulary=0, max_length=0, num_layers=2, hidden_size=0, ffn_size=0)))
    path = save_folder(tmp_path / "x", named) if form == "huggingface" else save_pt(tmp_path / "x.pt", named)
    with pytest.raises(WeightsError, match=r"\nembeddings\.word\.weight is \(0, 0\), which is empty\n"):
        read_weights(path)


@pytest.mark.parametrize("extra", ["bert.pooler.dense.weight", DECODER])
@pytest.mark.parametrize(
    ("spoil", "kind"),
    [
        (Tensor.to_sparse, r"Tensor of torch\.float32 and torch\.sparse_coo on the device cpu"),
        (lambda tensor: tensor.to("meta"), r"Tensor of torch\.float32 and torch\.strided on the device meta"),
    ],
)
def test_tensors_that_are_not_dense_ones_on_a_cpu_are_refused_by_name(
    tmp_path: Path, spoil: Callable[[Tensor], Tensor], kind: str, extra: str
) -> None:
    named = to_pytorch(random_tensors())
    named[DECODER] = named[WORD]
    named[extra] = spoil(named[extra])
    with pytest.raises(WeightsError, match=rf"x\.pt: .*: 1 thing\(s\) wrong; .*\n{extra} is a {kind}"):
        read_weights(save_pt(tmp_path / "x.pt", named))


def test_a_parameter_is_read_as_a_tensor(tmp_path: Path) -> None:
    named = {name: torch.nn.Parameter(tensor) for name, tensor in to_pytorch(random_tensors()).items()}
    found = read_weights(save_pt(tmp_path / "x.pt", named)).tensors
    assert all(torch.equal(found[name], tensor) for name, tensor in random_tensors().items())


def test_missing_unknown_and_misshapen_tensors_are_listed_together(tmp_path: Path) -> None:
    named = to_pytorch(random_tensors())
    del named["bert.encoder.layer.1.output.dense.bias"]
    named["classifier.weight"] = torch.zeros(3, 8)
    named["bert.pooler.dense.weight"] = torch.zeros(8, 7)
    with pytest.raises(WeightsError, match=r"x\.pt: these are not a BERT's weights: 3 thing\(s\) wrong; ") as error:
        read_weights(save_pt(tmp_path / "x.pt", named))
    assert str(error.value).splitlines()[1:] == [
        "classifier.weight is unknown",
        "layers.1.ffn_out.bias is missing",
        "next_sentence.pooler.weight is (8, 7), not (8, 8)",
    ]


def test_of_many_problems_ten_are_listed_and_all_are_counted(tmp_path: Path) -> None:
    named = {name.replace("layer.1.", "layer.7."): tensor for name, tensor in to_pytorch(random_tensors()).items()}
    with pytest.raises(WeightsError, match=r": 16 thing\(s\) wrong;.*") as error:
        read_weights(save_pt(tmp_path / "x.pt", named))
    lines = str(error.value).splitlines()
    assert len(lines) == 12
    assert lines[-1] == "and 6 more"


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    path = save_pt(tmp_path / "x.pt", {"conv.weight": torch.zeros(3)})
    with pytest.raises(WeightsError, match=r"\nconv\.weight is unknown\nthe word embeddings.* are missing"):
        read_weights(path)


@pytest.mark.parametrize("content", [[1, 2], {"model": 3}, {"a": "text"}, {1: torch.zeros(1)}])
def test_a_pt_file_of_no_named_tensors_is_refused(tmp_path: Path, content: object) -> None:
    with pytest.raises(WeightsError, match=r"x\.pt: it .*save a state_dict\(\)"):
        read_weights(save_pt(tmp_path / "x.pt", content))


def test_a_pt_file_of_the_format_before_zip_is_refused_with_its_remedy(tmp_path: Path) -> None:
    torch.save(to_pytorch(random_tensors()), tmp_path / "x.bin", _use_new_zipfile_serialization=False)
    with pytest.raises(WeightsError, match=r"x\.bin: .* in torch\.save's zip format .*save its state_dict\(\) anew"):
        read_weights(tmp_path / "x.bin")


def test_a_pt_file_of_code_is_refused_and_not_run(tmp_path: Path) -> None:
    class Code:
        def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
            return Path.touch, (tmp_path / "ran",)  # type: ignore[return-value]

    with pytest.raises(WeightsError, match=r"x\.pt: not a whole file of plain tensors"):
        read_weights(save_pt(tmp_path / "x.pt", {"model": Code()}))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("share", [0, 0.1, 0.5, 0.99])
def test_truncated_files_are_refused(tmp_path: Path, share: float) -> None:
    write(tmp_path / "x.pt", random_tensors(), "pt")
    write(tmp_path / "x", random_tensors(), "huggingface")
    for file, complaint in (("x.pt", "not a whole file"), ("x/model.safetensors", "not whole safetensors")):
        content = (tmp_path / file).read_bytes()
        (tmp_path / file).write_bytes(content[: int(share * len(content))])
        with pytest.raises(WeightsError, match=rf"{file}: {complaint}.*copy it again"):
            read_weights(tmp_path / Path(file).parts[0])


def test_a_damaged_safetensors_header_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "x", random_tensors(), "huggingface")
    flip(tmp_path / "x" / "model.safetensors", 8)
    with pytest.raises(WeightsError, match=r"model\.safetensors: not whole safetensors"):
        read_weights(tmp_path / "x")


def test_a_sharded_folder_is_read(tmp_path: Path) -> None:
    folder = split_folder(tmp_path)
    assert_same(read_weights(folder).tensors, random_tensors())


def split_folder(tmp_path: Path) -> Path:
    named = to_pytorch(random_tensors())
    folder = save_folder(tmp_path / "x", named)
    (folder / "model.safetensors").unlink()
    files = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
    file_of = {name: files[place % 2] for place, name in enumerate(named)}
    for file in files:
        save_file({name: tensor for name, tensor in named.items() if file_of[name] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": file_of}))
    return folder


def test_a_sharded_folder_that_is_not_whole_is_refused(tmp_path: Path) -> None:
    folder = split_folder(tmp_path)
    index = folder / "model.safetensors.index.json"
    file_of = json.loads(index.read_text())["weight_map"]
    (folder / "below").mkdir()
    for changed, complaint in (
        (
            file_of | {"bert.more": "model-00001-of-00002.safetensors"},
            r"index\.json: it and its files differ in bert\.more",
        ),
        (file_of | {WORD: "gone.safetensors"}, r"gone\.safetensors: no such file"),
        (file_of | {WORD: "../x.safetensors"}, r"index\.json: its weight_map does not name files of its folder"),
        (file_of | {WORD: ".."}, r"index\.json: its weight_map does not name files of its folder"),
        (file_of | {WORD: ""}, r"index\.json: its weight_map does not name files of its folder"),
        (file_of | {WORD: "below"}, r"x/below: not a regular file"),
        (file_of | {WORD: "a" * 300}, r"x: cannot read it \(OSError: .* too long"),
        ([], r"index\.json: its weight_map"),
    ):
        index.write_text(json.dumps({"weight_map": changed}))
        with pytest.raises(WeightsError, match=complaint):
            read_weights(folder)
    index.write_text("{")
    with pytest.raises(WeightsError, match=r"index\.json: not JSON"):
        read_weights(folder)
    index.write_text("[" * 200_000)
    with pytest.raises(WeightsError, match=r"index\.json: not JSON \(RecursionError: "):
        read_weights(folder)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model_type", "roberta"),
        ("hidden_act", "relu"),
        ("hidden_act", "gelu_new"),
        ("position_embedding_type", "relative_key"),
        ("layer_norm_eps", 1e-5),
    ],
)
def test_a_config_of_another_network_is_refused(tmp_path: Path, key: str, value: object) -> None:
    named = to_pytorch(random_tensors())
    with pytest.raises(WeightsError, match=rf"config\.json: {key} is {value!r}; only BERT with"):
        read_weights(save_folder(tmp_path / "x", named, **{key: value}))


def test_a_config_beside_tells_heads_and_true_vocabulary(tmp_path: Path) -> None:
    tensors = random_tensors()
    named = to_pytorch(tensors)
    fat = named | {name: padded(named[name]) for name in (WORD, "cls.predictions.bias")}
    path = save_pt(tmp_path / "x.pt", {"model": fat | {DECODER: fat[WORD]}})
    found = read_weights(path)
    assert found.num_heads is None
    assert len(found.tensors["embeddings.word.weight"]) == len(found.tensors["masked_lm.bias"]) == 16
    config = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 13}
    (tmp_path / "bert_config.json").write_text(json.dumps(config))
    found = read_weights(path)
    assert found.num_heads == 4
    assert_same(found.tensors, tensors)


@pytest.mark.parametrize(
    ("changed", "num_heads", "rows"),
    [({"hidden_size": 16}, None, 16), ({"num_hidden_layers": 3}, None, 16), ({"vocab_size": 7}, 4, 16)],
)
def test_a_config_of_other_sizes_is_not_believed(
    tmp_path: Path, changed: dict[str, int], num_heads: int | None, rows: int
) -> None:
    named = to_pytorch(random_tensors())
    fat = named | {name: padded(named[name]) for name in (WORD, "cls.predictions.bias")}
    config = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 13} | changed
    (tmp_path / "bert_config.json").write_text(json.dumps(config))
    found = read_weights(save_pt(tmp_path / "x.pt", fat))
    assert found.num_heads == num_heads
    assert len(found.tensors["embeddings.word.weight"]) == rows


@pytest.mark.parametrize("num_heads", [-2, 0, 3, 16, True, False, 2.0, 2.5, "2", None])
@pytest.mark.parametrize("form", ["huggingface", "pt"])
def test_a_config_whose_number_of_heads_cannot_be_is_refused(tmp_path: Path, form: str, num_heads: object) -> None:
    named = to_pytorch(random_tensors())
    config = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": num_heads}
    path = save_folder(tmp_path, named, **config)
    if form == "pt":
        path = save_pt(tmp_path / "x.pt", named)
    with pytest.raises(WeightsError) as error:
        read_weights(path)
    assert str(error.value).startswith(
        f"{tmp_path / 'config.json'}: num_attention_heads is {num_heads!r}, not a whole number above 0 that divides "
    )


def test_a_training_checkpoint_gives_its_model(tmp_path: Path) -> None:
    tensors = random_tensors()
    state = {f"model/{name}": tensor for name, tensor in tensors.items()}
    state["model/embeddings.word.weight"] = padded(tensors["embeddings.word.weight"])  # as the model has it
    state["optimizer/step"] = torch.tensor(3)
    save_file(state, tmp_path / "replicated.safetensors")
    with pytest.raises(WeightsError, match=r"no weights in this folder; accepted are"):
        read_weights(tmp_path)
    (tmp_path / "manifest.json").write_text("{}")
    found = read_weights(tmp_path)
    assert found.form == "checkpoint"
    assert found.ignored == ("optimizer/step",)
    assert_same(found.tensors, tensors)


def test_an_unknown_tensor_of_a_training_checkpoint_is_refused(tmp_path: Path) -> None:
    state = {f"model/{name}": tensor for name, tensor in random_tensors().items()}
    save_file(state | {"model/extra": torch.zeros(1)}, tmp_path / "replicated.safetensors")
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(WeightsError, match=r"\nextra is unknown"):
        read_weights(tmp_path)


@pytest.mark.parametrize("name", ["absent", "absent.pt", "absent/model.ckpt-7"])
def test_a_path_where_nothing_lies_is_refused_with_what_is_accepted(tmp_path: Path, name: str) -> None:
    with pytest.raises(WeightsError, match=rf"{name}: no such weights; accepted are the prefix of a TensorFlow"):
        read_weights(tmp_path / name)


UNREADABLE = ["x.pt", "x.ckpt.index", "x.ckpt.data-00000-of-00001", "x/config.json", "x/model.safetensors"]


@pytest.fixture
def every_form(tmp_path: Path) -> Path:
    """A folder with x, x.pt and x.ckpt.*."""
    for name, form in (("x.pt", "pt"), ("x.ckpt", "tensorflow"), ("x", "huggingface")):
        write(tmp_path / name, random_tensors(), form)
    return tmp_path


def path_to(file: str) -> str:
    return "x.ckpt" if ".ckpt" in file else Path(file).parts[0]


@pytest.mark.parametrize("file", UNREADABLE)
def test_a_folder_in_place_of_a_file_is_refused_and_named(every_form: Path, file: str) -> None:
    (every_form / file).unlink()
    (every_form / file).mkdir()
    complaint = "no weights in this folder" if file == "x.pt" else "not a regular file"
    with pytest.raises(WeightsError, match=rf"/{file}: {complaint}"):
        read_weights(every_form / path_to(file))


@pytest.mark.parametrize("file", UNREADABLE)
def test_a_file_that_cannot_be_read_is_refused_with_the_path(every_form: Path, file: str) -> None:
    (every_form / file).unlink()
    (every_form / file).symlink_to("/proc/self/mem")  # a regular file of which nobody, root neither, can read the start
    with pytest.raises(WeightsError, match=rf"/{path_to(file)}[.\w-]*: "):
        read_weights(every_form / path_to(file))


@pytest.mark.parametrize("file", UNREADABLE)
def test_a_file_that_may_not_be_read_is_refused_and_named(every_form: Path, file: str) -> None:
    (every_form / file).chmod(0)
    if os.geteuid() == 0:
        pytest.skip("root may read everything")
    with pytest.raises(WeightsError, match=rf"/{path_to(file)}: cannot read it \(PermissionError: .*/{file}'"):
        read_weights(every_form / path_to(file))


def test_a_name_that_the_system_refuses_is_refused_with_the_path(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"/a{300}: cannot read it \(OSError: .* too long"):
        read_weights(tmp_path / ("a" * 300))


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.pt")
    writer = os.open(tmp_path / "x.pt", os.O_RDWR)  # so that a reader that opens it after all does not wait either
    try:
        with pytest.raises(WeightsError, match=r"x\.pt: not a regular file"):
            read_weights(tmp_path / "x.pt")
    finally:
        os.close(writer)


def test_a_file_of_no_known_suffix_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.onnx").touch()
    with pytest.raises(WeightsError, match=r"x\.onnx: not a form of weights that is read; accepted are"):
        read_weights(tmp_path / "x.onnx")


def test_transformers_loads_what_we_wrote_and_we_what_it_saves(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not there (requirements-bench.txt)")
    tensors = random_tensors()
    write(tmp_path / "ours", tensors, "huggingface")
    model, told = transformers.BertForPreTraining.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(told.values()), told
    state = model.state_dict()
    expected = to_pytorch(tensors)
    assert_same({name: state[name] for name in expected}, expected)
    assert torch.equal(state[DECODER], expected[WORD])
    assert model.config.num_attention_heads == 2
    model.save_pretrained(tmp_path / "theirs")
    found = read_weights(tmp_path / "theirs")
    assert found.num_heads == 2
    assert_same(found.tensors, tensors)
    assert load_file(tmp_path / "theirs" / "model.safetensors").keys() <= state.keys()


def test_transformers_notices_a_tensor_that_is_not_there(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not there (requirements-bench.txt)")
    write(tmp_path / "ours", random_tensors(), "huggingface")
    file = tmp_path / "ours" / "model.safetensors"
    named = load_file(file)
    del named["cls.predictions.transform.dense.bias"]
    save_file(named, file, metadata={"format": "pt"})
    _, told = transformers.BertForPreTraining.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert told["missing_keys"] == {"cls.predictions.transform.dense.bias"}
