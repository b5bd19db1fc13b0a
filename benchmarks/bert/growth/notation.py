"""A growth plan's string and the sizes of a run in, the plan out.

    none
    mslt:3,6,9,12@0.21,0.21,0.21,0.21+joint     layers on top, only they train; then all         (arXiv 2011.13635)
    progressive_stacking:3,6,12@0.1,0.2,0.7     the stack put on itself; all train               (Gong et al., 2019)
    staged:3x128,6x128,6x256@0.2,0.2,0.6        depth or width doubled, the loss kept; all train (arXiv 2203.06211)
    layer_drop:0.5@0.001                        layers left out by chance: least share, rate     (arXiv 2010.13369)

Sizes stand before the @, behind it each stage's part of the run: fractions of DECAY_STEPS, or whole numbers of steps.
`+joint` is a last stage of mslt, of what is left, in which everything trains. Options follow as `:name=value`; the
first value is the default:

    init        copy, fresh      new layers of mslt: copies of the topmost ones, or drawn
    embeddings  train, frozen    of mslt after its first stage
    decoder     frozen, train    of mslt with embeddings=frozen: their matrix as that of the masked-LM head
    moments     keep, reset      of what trains before and after a boundary
    rewarm      0                steps over which the learning rate rises again after a boundary
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from benchmarks.bert.growth.plan import GrowthPlan, LayerDrop, Size, Stage

NONE = "none"
_FORM = re.compile(r"([a-z_]+):([^@:]+)@([^:+]+)(\+joint)?((?::[a-z]+=[^:=]+)*)")
_WHOLE = r"[1-9]\d{0,8}"
_CHOICES = {
    "init": ("copy", "fresh"),
    "embeddings": ("train", "frozen"),
    "decoder": ("frozen", "train"),
    "moments": ("keep", "reset"),
}


class GrowthError(ValueError):
    """A plan that cannot be followed; the message says what of it, and what it may be."""


def parse(text: str, full: Size, num_steps: int) -> GrowthPlan:
    """The plan of a run of `num_steps` that ends as a model of the size `full`. Raises GrowthError."""
    if text == NONE:
        return GrowthPlan((Stage(1, full),))
    match = _FORM.fullmatch(text)
    if match is None or match[1] not in (*_KINDS, "layer_drop"):
        raise GrowthError(
            f"expected none, or KIND:SIZES@PARTS where KIND is one of {', '.join(_KINDS)}, layer_drop, as in "
            "mslt:3,6,9,12@0.21,0.21,0.21,0.21+joint"
        )
    name, sizes, parts, joint, options = match.groups()
    if name == "layer_drop":
        return _dropping(text, sizes, parts, full)
    kind = _KINDS[name]
    chosen = _options(options, kind.options)
    if joint and name != "mslt":
        raise GrowthError(f"+joint belongs to mslt: in every stage of {name} everything trains")
    grown = _sizes(sizes, kind, name, chosen, full)
    first_steps = _first_steps(parts, len(grown), num_steps, leaves_rest=bool(joint))
    stages = [Stage(1, grown[0])]
    for first, before, size in zip(first_steps[1:], grown, grown[1:], strict=False):
        stages.append(kind.stage(Stage(first, size, keeps_moments=chosen["moments"] == "keep"), before, chosen))
    if joint:
        stages.append(Stage(first_steps[-1], full, keeps_moments=chosen["moments"] == "keep"))
    _check_rewarm(int(chosen["rewarm"]), [*(stage.first_step for stage in stages), num_steps + 1])
    return GrowthPlan(tuple(stages), rewarm_steps=int(chosen["rewarm"]))


@dataclass(frozen=True)
class _Kind:
    options: tuple[str, ...]
    has_widths: bool
    rule: str  # of one size and the next, in words
    follows: Callable[[Size, Size, Mapping[str, str]], bool]
    stage: Callable[[Stage, Size, Mapping[str, str]], Stage]


def _on_top(stage: Stage, before: Size, chosen: Mapping[str, str]) -> Stage:
    trains = chosen["embeddings"] == "train"
    return replace(
        stage,
        origin=chosen["init"],
        num_frozen=before.num_layers,
        embeddings_train=trains,
        decoder_trains=trains or chosen["decoder"] == "train",
    )


def _stacked(stage: Stage, before: Size, chosen: Mapping[str, str]) -> Stage:
    return replace(stage, origin="stack")


def _doubled(stage: Stage, before: Size, chosen: Mapping[str, str]) -> Stage:
    return replace(stage, origin="deepen" if stage.size.hidden_size == before.hidden_size else "widen")


def _is_higher(before: Size, after: Size, chosen: Mapping[str, str]) -> bool:
    most = 2 * before.num_layers if chosen["init"] == "copy" else after.num_layers
    return before.num_layers < after.num_layers <= most


def _is_doubled(before: Size, after: Size, chosen: Mapping[str, str]) -> bool:
    return after.num_layers == 2 * before.num_layers


def _is_doubled_once(before: Size, after: Size, chosen: Mapping[str, str]) -> bool:
    deeper = Size(2 * before.num_layers, before.hidden_size)
    wider = Size(before.num_layers, 2 * before.hidden_size)
    return after in (deeper, wider)


_KINDS = {
    "mslt": _Kind(
        ("init", "embeddings", "decoder", "moments", "rewarm"),
        has_widths=False,
        rule="more layers than the one before, with init=copy at most twice as many",
        follows=_is_higher,
        stage=_on_top,
    ),
    "progressive_stacking": _Kind(
        ("moments", "rewarm"),
        has_widths=False,
        rule="twice the layers of the one before",
        follows=_is_doubled,
        stage=_stacked,
    ),
    "staged": _Kind(
        ("moments", "rewarm"),
        has_widths=True,
        rule="twice the layers or twice the width of the one before",
        follows=_is_doubled_once,
        stage=_doubled,
    ),
}


def _sizes(text: str, kind: _Kind, name: str, chosen: Mapping[str, str], full: Size) -> list[Size]:
    form = rf"({_WHOLE})x({_WHOLE})" if kind.has_widths else rf"({_WHOLE})"
    matches = [re.fullmatch(form, each, re.ASCII) for each in text.split(",")]
    if None in matches:
        example = "3x128,6x128" if kind.has_widths else "3,6,12"
        raise GrowthError(f"{text!r} are no sizes of {name}; expected such as {example}")
    sizes = [Size(int(match[1]), int(match[2]) if kind.has_widths else full.hidden_size) for match in matches if match]
    for before, after in pairwise(sizes):
        if not kind.follows(before, after, chosen):
            raise GrowthError(f"{after} does not follow {before} in {name}: each size has {kind.rule}")
    if sizes[-1] != full:
        raise GrowthError(
            f"the last size is {sizes[-1]}, the model's NUM_LAYERS x HIDDEN_SIZE is {full}; make them equal"
        )
    return sizes


def _options(text: str, allowed: tuple[str, ...]) -> dict[str, str]:
    """What is chosen, with what stands for the rest."""
    chosen = {"rewarm": "0"} | {name: choices[0] for name, choices in _CHOICES.items()}
    for part in text.split(":")[1:]:
        name, _, value = part.partition("=")
        if f":{name}=" in text.replace(f":{part}", "", 1):
            raise GrowthError(f"{name} is given twice")
        if name not in allowed:
            raise GrowthError(f"{name}={value} is no option here; there are {', '.join(allowed)}")
        if name == "rewarm" and not re.fullmatch(rf"0|{_WHOLE}", value, re.ASCII):
            raise GrowthError(f"rewarm={value} is no number of steps")
        if name != "rewarm" and value not in _CHOICES[name]:
            raise GrowthError(f"{name}={value}: expected {' or '.join(_CHOICES[name])}")
        chosen[name] = value
    if ":decoder=" in text and chosen["embeddings"] == "train":
        raise GrowthError(
            "decoder= belongs to embeddings=frozen: where embeddings train, so does the matrix of the head"
        )
    return chosen


def _check_rewarm(rewarm_steps: int, first_steps: list[int]) -> None:
    """The rate is to come back to the schedule's before it falls again."""
    lengths = [after - before for before, after in pairwise(first_steps)]
    if rewarm_steps > min(lengths[1:], default=rewarm_steps):
        shortest = min(lengths[1:])
        raise GrowthError(f"rewarm={rewarm_steps}: expected at most {shortest}, the shortest stage after the first")


def _first_steps(text: str, num_stages: int, num_steps: int, *, leaves_rest: bool) -> list[int]:
    """Of each stage, and where the last one ends or the joint one begins."""
    parts = text.split(",")
    if len(parts) != num_stages:
        raise GrowthError(f"{num_stages} sizes need as many parts of the run, {text!r} has {len(parts)}")
    lengths = _in_steps(parts, num_steps)
    shares = "fractions of the run" if "." in text else f"steps of {num_steps}"
    together = sum(lengths)
    if leaves_rest and not together < num_steps:
        raise GrowthError(f"+joint needs a part of the run, but the {shares} {text!r} leave none")
    if not leaves_rest and together != num_steps:
        raise GrowthError(
            f"the {shares} {text!r} make {together} steps of {num_steps}; they must make all, or end in +joint"
        )
    first_steps = [1 + done for done in accumulate(lengths, initial=0)]
    if min(lengths) < 1:
        raise GrowthError(f"each stage needs a step, {text!r} of {num_steps} steps are {', '.join(map(str, lengths))}")
    return first_steps


def _in_steps(parts: list[str], num_steps: int) -> list[int]:
    if all(re.fullmatch(_WHOLE, part, re.ASCII) for part in parts):
        return [int(part) for part in parts]
    if not all(re.fullmatch(r"0?\.\d+", part, re.ASCII) for part in parts):
        raise GrowthError(f"{','.join(parts)!r}: expected fractions below 1, or whole numbers of steps, not both")
    ends = [round(sum(map(float, parts[:count])) * num_steps) for count in range(len(parts) + 1)]
    return [after - before for before, after in pairwise(ends)]


def _dropping(text: str, final: str, rate: str, full: Size) -> GrowthPlan:
    are_numbers = all(re.fullmatch(r"\d*\.?\d+(e-\d+)?", each, re.ASCII) for each in (final, rate))
    drop = LayerDrop(float(final), float(rate)) if are_numbers else LayerDrop(0, 0)
    if not (0 < drop.final <= 1 and 0 < drop.rate <= 1) or not text.endswith(f"@{rate}"):
        raise GrowthError(
            f"{text!r}: expected layer_drop:SHARE@RATE, both above 0 and at most 1, as in layer_drop:0.5@0.001"
        )
    return GrowthPlan((Stage(1, full),), layer_drop=drop)
