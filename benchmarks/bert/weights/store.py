"""A path in, the weights that lie there out, whatever their form; and back, in the form that is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from safetensors import SafetensorError
from torch import Tensor

from benchmarks.bert.complaint import describe
from benchmarks.bert.weights import huggingface, pt, tf1
from benchmarks.bert.weights.account import Found, Weights, WeightsError, account, differences, refusal
from benchmarks.bert.weights.names import VOCABULARY_ROWS
from benchmarks.bert.weights.neighbour import with_config
from benchmarks.bert.weights.shapes import shapes, shapes_of, sizes_of

_MANIFEST, _REPLICATED, _OURS = "manifest.json", "replicated.safetensors", "model/"
_ACCEPTED = (
    "accepted are the prefix of a TensorFlow checkpoint (PREFIX.index lies there), a Hugging Face folder (config.json "
    "and model.safetensors), a .pt, .pth or .bin file, and the folder of a checkpoint of this project"
)

_FILES: dict[str, Callable[[Path], list[Path]]] = {
    "tensorflow": tf1.files,
    "huggingface": huggingface.files,
    "pt": pt.files,
}
WRITTEN_FORMS = tuple(_FILES)


def read_weights(path: Path) -> Weights:
    """The weights at `path`: a whole BERT, or an encoder without some or all of the heads.

    Raises:
        WeightsError: nothing that is read lies there, it is not whole, or it cannot be read.
    """
    try:
        form = form_of(path)
        return with_config(account(path, form, _READERS[form](path)))
    except OSError as error:
        raise WeightsError(f"{path}: cannot read it ({describe(error)}); check its name and its permissions") from error


def form_of(path: Path) -> str:
    """The form of what lies at a path: a key of the readers."""
    if path.name and tf1.index_file(path).exists():  # "." has no name
        return "tensorflow"
    if path.is_dir():
        if (path / _MANIFEST).exists() and (path / _REPLICATED).exists():
            return "checkpoint"
        has_tensors = (path / huggingface.TENSORS).exists() or (path / huggingface.INDEX).exists()
        if (path / huggingface.CONFIG).exists() and has_tensors:
            return "huggingface"
        raise WeightsError(f"{path}: no weights in this folder; {_ACCEPTED}")
    if not path.exists():
        raise WeightsError(f"{path}: no such weights; {_ACCEPTED}")
    if path.suffix in pt.SUFFIXES:
        return "pt"
    raise WeightsError(f"{path}: not a form of weights that is read; {_ACCEPTED}")


def _read_checkpoint(folder: Path) -> Found:
    """The model's tensors in a training checkpoint of this project; the optimizer's are not touched."""
    named = huggingface.read_safetensors(folder / _REPLICATED)
    return Found(
        tensors={name.removeprefix(_OURS): tensor for name, tensor in named.items() if name.startswith(_OURS)},
        ignored=[name for name in named if not name.startswith(_OURS)],
    )


_READERS: dict[str, Callable[[Path], Found]] = {
    "tensorflow": tf1.read,
    "huggingface": huggingface.read,
    "pt": pt.read,
    "checkpoint": _read_checkpoint,
}


def write_weights(
    path: Path, tensors: dict[str, Tensor], form: str, *, num_vocabulary: int, num_heads: int | None = None
) -> None:
    """Write a whole BERT in one of `WRITTEN_FORMS`; rows beyond `num_vocabulary` are padding and are left out.

    Only Hugging Face's form tells the number of heads, so only there it is needed.

    Raises:
        WeightsError: tensors are missing, unknown or of another shape than the others tell, the file exists, or it
            cannot be written, as on a full disk; nothing of it is left then.
    """
    if form == "tensorflow" and not path.name:
        raise WeightsError(f"{path}: no name for a checkpoint's files; give one, as in {path / 'model.ckpt'}")
    cut = {
        name: (tensor[:num_vocabulary] if name in VOCABULARY_ROWS else tensor).detach().cpu().float()
        for name, tensor in tensors.items()
    }
    found = shapes_of(cut)
    sizes = sizes_of(found)
    if problems := differences(found, shapes(sizes)) if sizes else ["these are not a BERT's tensors"]:
        raise refusal(path, "not written", problems, "only a whole BERT with its heads is written")
    try:
        files = _FILES[form](path)
        if existing := [str(file) for file in files if file.exists()]:
            raise WeightsError(f"{', '.join(existing)}: there already; name another place, or remove it first")
        with _all_or_nothing(files):
            if form == "tensorflow":
                tf1.write(path, cut)
            elif form == "pt":
                pt.write(path, cut)
            else:
                huggingface.write(path, cut, num_heads)
    except (OSError, RuntimeError, SafetensorError) as error:  # torch's is a RuntimeError, about its own position
        reason = describe(_of_the_system(error))
        raise WeightsError(f"{path}: not written ({reason}); make room or name another place") from error


@contextmanager
def _all_or_nothing(files: Sequence[Path]) -> Iterator[None]:
    """Remove, on an exception, these files of one folder, and the folders that were made for them."""
    folder = files[0].parent
    made = [each for each in (folder, *folder.parents) if not each.exists()]
    new = [file for file in files if not file.is_symlink()]  # a link to nowhere was there before
    try:
        yield
    except BaseException:
        for file in new:
            with suppress(OSError):
                file.unlink()
        for each in made:  # the innermost first; one that somebody else uses by now is not empty, and stays
            with suppress(OSError):
                each.rmdir()
        raise


def _of_the_system(error: BaseException) -> BaseException:
    """The operating system's error that another followed, if there is one."""
    earlier: BaseException | None = error
    while earlier is not None and not isinstance(earlier, OSError):
        earlier = earlier.__context__
    return earlier or error
