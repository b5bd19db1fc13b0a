"""The environment in, one frozen and checked `Config` out. No other module reads the environment.

A field `learning_rate` is the variable `LEARNING_RATE`. A `config_*.sh` file holds lines `export NAME=value`, and may
take in what several share by a line `source ./config_X_common.sh`, from the folder of the project; of two exports the
later wins, and a variable that the caller's environment already sets wins over all. Every value remembers where it came
from.
"""

from __future__ import annotations

import dataclasses
import math
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from benchmarks.bert.complaint import REFUSED, complain
from benchmarks.bert.contradictions import contradictions
from benchmarks.bert.data.plan import STRATEGIES
from benchmarks.bert.division import forbidden
from benchmarks.bert.names import nearest
from benchmarks.bert.schedule import rule_interval
from benchmarks.bert.world import LAUNCHERS

RULESETS = ("2.0.0", "2.1.0", "3.0.0", "3.1.0", "4.0.0", "4.1.0", "5.0.0")
OPTIMIZERS = ("adam", "lamb", "lans")
SCHEDULES = ("polynomial", "lans", "record")
CLIPS = ("none", "bucket_before", "global_before", "global_after")
PRECISIONS = ("fp32", "bf16", "fp16")
ATTENTIONS = ("auto", "plain", "split", "efficient", "flash")
FUSIONS = ("auto", "eager", "compiled")
LAST_LAYERS = ("only_read", "whole")
NORMS = ("post", "pre")
INITIALISATIONS = ("standard", "relative_offset")
INITIAL_PARTS = ("all", "encoder")
DATA_CHECKS = ("content", "headers")
LOADERS = ("native", "dali")
RESUME_WORLDS = ("same", "any")
RESUMES = ("no", "if_any", "yes")
NONE = Path("none")
MAX_SEED = 2**31 - 1

_OF_ONE_NODE = ("CLEAR_CACHES", "CACHES_CLEARED", "RESULT_FILE")
# What no step's arithmetic depends on (of the data its content counts, of the schedule DECAY_STEPS): a run may go on
# from its checkpoint with other values of these. SEED is compared by itself.
_NOT_OF_STEPS = {
    "DATA_DIR",
    "DATA_CHECK",
    "LOADER",
    "RULESET",
    "COLLECTIVE_TIMEOUT_S",
    "BINDING",
    "MAX_STEPS",
    "RESUME",
    "RESUME_WORLD",
    "SEED",
    "SHARD_OPTIMIZER",
}
_NOT_OF_STEPS_PREFIXES = ("SUBMISSION_", "EVAL_", "TARGET_", "CHECKPOINT_", "INITIAL_", "PROFILE_")

# Only values that mean to the shell what they say: unquoted, nothing that it would expand, split or run.
_EXPORT = re.compile(
    r"[ \t]*export[ \t]+([A-Za-z_][A-Za-z0-9_]*)="
    r"([\w@%+=:,./-]*|'[^']*'|\"[^\"$`\\]*\")"
    r"([ \t]+#.*)?[ \t]*"
)
_SOURCE = re.compile(r"[ \t]*source[ \t]+(\./[\w.-]+)([ \t]+#.*)?[ \t]*")


class ConfigError(ValueError):
    """The configuration cannot be used; the message has one line for each problem."""


@dataclass(frozen=True)
class Check:
    """What a variable may be."""

    allowed: str  # in words
    accepts: Callable[[Any], bool]


_ANY = Check("", lambda _: True)
_MOST_0 = Check("at most 0", lambda value: value <= 0)
_POSITIVE = Check("above 0", lambda value: value > 0)


def _least(low: float) -> Check:
    return Check(f"at least {low}", lambda value: value >= low)


def _between(low: float, high: float) -> Check:
    """Open at the top: `low` is allowed, `high` is not."""
    return Check(f"from {low} to below {high}", lambda value: low <= value < high)


def _one_of(names: Iterable[str]) -> Check:
    allowed = tuple(names)
    return Check(f"one of {', '.join(allowed)}", lambda value: value in allowed)


def _var(default: Any, what: str, check: Check = _ANY) -> Any:
    return field(default=default, metadata={"what": what, "check": check})


@dataclass(frozen=True)
class Config:
    # Submission
    submission_org: str = _var("none", "who submits")
    submission_platform: str = _var("none", "name of the system")
    submission_status: str = _var("research", "status", _one_of(("cloud", "onprem", "preview", "research")))
    division: str = _var("open", "division", _one_of(("open", "closed")))
    ruleset: str = _var("5.0.0", "rules of which round; 5.0.0 is the last with BERT", _one_of(RULESETS))
    # Machines
    num_nodes: int = _var(1, "nodes", _least(1))
    ranks_per_node: int = _var(1, "ranks on each node", _least(1))
    device: str = _var(
        "auto", "where tensors live; auto takes CUDA where there is one", _one_of(("auto", "cpu", "cuda"))
    )
    binding: str = _var("auto", "auto binds each rank to the cores beside its GPU", _one_of(("auto", "none")))
    collective_timeout_s: int = _var(120, "seconds until a collective that hangs ends the run", _between(1, 1_000_000))
    clear_caches: bool = _var(False, "try to drop the page caches before the run (needs root)")
    caches_cleared: bool = _var(False, "whether this node's launcher did drop them; set by run_and_time.sh")
    # Data
    data_dir: Path = _var(Path("data/kjv"), "folder with vocab.txt, train/ and eval/")
    data_check: str = _var("content", "what a shard is checked by when it is first read from", _one_of(DATA_CHECKS))
    result_file: Path = _var(Path("results/result_0.txt"), "the MLPerf log to write; must not exist")
    max_length: int = _var(512, "longest sample, tokens", _between(8, 65536))
    loading: str = _var("stratified_presort", "how samples are drawn and dealt", _one_of(STRATEGIES))
    loader: str = _var("native", "what hands packed batches on; dali needs NVIDIA DALI", _one_of(LOADERS))
    num_strata: int = _var(4, "equal ranges of length that quotas are drawn from", _least(1))
    # Model
    num_layers: int = _var(24, "encoder layers", _least(1))
    hidden_size: int = _var(1024, "width of the encoder", _least(8))
    num_heads: int = _var(16, "attention heads", _least(1))
    ffn_size: int = _var(4096, "width of the feed-forward part", _least(1))
    dropout: float = _var(0.1, "probability to drop", _between(0.0, 1.0))
    norm: str = _var("post", "norms after each sum of the layers, or before each branch", _one_of(NORMS))
    growth: str = _var("none", "which layers exist and train at which step (docs/growth.md)")
    initialisation: str = _var("standard", "initial weights", _one_of(INITIALISATIONS))
    init_std: float = _var(0.02, "standard deviation of initial weights", _POSITIVE)
    initial_checkpoint: Path = _var(NONE, "weights to start from instead: TensorFlow's, Hugging Face's, .pt, or none")
    initial_parts: str = _var("all", "what is taken from INITIAL_CHECKPOINT", _one_of(INITIAL_PARTS))
    attention: str = _var("auto", "attention implementation", _one_of(ATTENTIONS))
    fusion: str = _var("auto", "what lies between matrix products: one by one, or compiled", _one_of(FUSIONS))
    last_layer: str = _var("only_read", "where the last layer is computed", _one_of(LAST_LAYERS))
    cuda_graphs: bool = _var(False, "replay the encoder from CUDA graphs, for tokens padded to a multiple of 512")
    precision: str = _var("fp32", "arithmetic of forward and backward", _one_of(PRECISIONS))
    loss_scale: float = _var(1024.0, "first loss scale of PRECISION=fp16", _between(1, 2**30))
    loss_scale_growth_steps: int = _var(2000, "steps without overflow after which it doubles", _least(1))
    # Batch
    batch_size: int = _var(16, "samples per rank and optimizer step", _least(1))
    gradient_accumulation_steps: int = _var(1, "micro-batches that BATCH_SIZE is cut into", _least(1))
    virtual_ranks: int = _var(1, "ranks that each process acts as, one after the other", _least(1))
    # Optimizer
    optimizer: str = _var("adam", "optimizer", _one_of(OPTIMIZERS))
    shard_optimizer: bool = _var(False, "keep each parameter's moments on one rank alone")
    learning_rate: float = _var(4e-4, "peak learning rate", _POSITIVE)
    end_learning_rate: float = _var(0.0, "learning rate after the decay", _least(0))
    beta_1: float = _var(0.9, "decay of the first moment", _between(0.0, 1.0))
    beta_2: float = _var(0.999, "decay of the second moment", _between(0.0, 1.0))
    epsilon: float = _var(1e-6, "added to the root of the second moment", _least(1e-30))
    weight_decay: float = _var(0.01, "decoupled decay of matrices", _least(0))
    lamb_bias_correction: bool = _var(True, "correct the moments of LAMB and LANS for starting at 0")
    max_trust_ratio: float = _var(0.0, "largest ratio of a tensor in LAMB and LANS; 0 means no limit", _least(0))
    schedule: str = _var("polynomial", "form of the learning rate over the steps", _one_of(SCHEDULES))
    warmup_steps: int = _var(0, "steps of linear warm-up, counted from START_WARMUP_STEP", _least(0))
    start_warmup_step: int = _var(0, "a negative value starts part of the way up", _MOST_0)
    constant_steps: int = _var(0, "steps at the peak before the decay, with SCHEDULE=lans", _least(0))
    decay_start_step: int = _var(
        -1, "step at which the line of the decay starts; -1 means where the warm-up ends", _least(-1)
    )
    decay_steps: int = _var(0, "step at which the decay ends; 0 means MAX_STEPS", _least(0))
    decay_power: float = _var(1.0, "power of the polynomial decay", _POSITIVE)
    max_steps: int = _var(100_000, "give up after so many steps", _least(1))
    clip: str = _var("bucket_before", "gradient clipping", _one_of(CLIPS))
    max_norm: float = _var(1.0, "norm that the clipped gradient may have", _POSITIVE)
    bucket_mb: float = _var(
        25.0, "size of a gradient bucket, MiB", Check("above 0, to 10000", lambda value: 0 < value <= 10_000)
    )
    # Evaluation
    target_accuracy: float = _var(0.72, "masked-LM accuracy to reach", _between(0.0, 1.0))
    eval_start_samples: int = _var(0, "samples before the first evaluation; 0 means one interval", _least(0))
    eval_interval_samples: int = _var(0, "samples between evaluations; 0 means the rule's formula", _least(0))
    eval_batch_size: int = _var(16, "samples per rank and evaluation step", _least(1))
    # Checkpoints
    checkpoint_dir: Path = _var(Path("results/checkpoints"), "folder that the checkpoints of this run are kept in")
    checkpoint_interval_steps: int = _var(0, "steps between checkpoints; 0 keeps none", _least(0))
    checkpoint_keep: int = _var(2, "how many of the newest to keep", _least(1))
    resume: str = _var("no", "continue from the newest checkpoint", _one_of(RESUMES))
    resume_world: str = _var(
        "same", "any goes on with other ranks too, of the same global batch; not bit for bit", _one_of(RESUME_WORLDS)
    )
    # Profiler
    profile_start_step: int = _var(0, "first step that the profiler records; 0 means none", _least(0))
    profile_num_steps: int = _var(3, "how many steps it records", _least(1))
    profile_dir: Path = _var(Path("results/profile"), "folder for each rank's Chrome trace, which must not hold one")
    # Trial
    seed: int = _var(-1, "of this trial; -1 draws one from the operating system", _between(-1, MAX_SEED + 1))

    sources: Mapping[str, str] = field(default_factory=dict, compare=False)  # variable -> where from
    launcher: Mapping[str, str] = field(default_factory=dict, compare=False)  # the launcher's variables

    @property
    def global_batch(self) -> int:
        return self.num_nodes * self.ranks_per_node * self.virtual_ranks * self.batch_size

    @property
    def keeps_checkpoints(self) -> bool:
        return self.checkpoint_interval_steps > 0 or self.resume != "no"

    def common(self) -> dict[str, str]:
        """The variables that must be equal on all ranks, by name: all but those that only concern one node or rank."""
        return {name: str(getattr(self, f.name)) for name, f in VARIABLES.items() if name not in _OF_ONE_NODE}

    def of_steps(self) -> dict[str, str]:
        """The variables that the result of a step depends on, by name."""
        return {
            name: value
            for name, value in self.common().items()
            if name not in _NOT_OF_STEPS and not name.startswith(_NOT_OF_STEPS_PREFIXES)
        }

    def resolved(self) -> dict[str, Any]:
        """Every variable's value, and where it came from; ready for JSON."""
        resolved = {}
        for name, variable in VARIABLES.items():
            value = getattr(self, variable.name)
            resolved[name] = {
                "value": str(value) if isinstance(value, Path) else value,
                "source": self.sources.get(name, "default"),
            }
        return resolved


VARIABLES = {f.name.upper(): f for f in dataclasses.fields(Config) if "what" in f.metadata}


def load(environment: Mapping[str, str] = os.environ) -> Config:
    """The configuration that `environment` describes. Raises ConfigError with every problem found."""
    problems: list[str] = []
    config_file = environment.get("CONFIG", "")
    in_file = _read_file(config_file, problems) if config_file else {}
    if config_file.endswith("_common.sh"):
        problems.append(f"CONFIG={config_file!r} is what several configurations share; name one of those")
    for name in environment:
        if name not in VARIABLES and (near := nearest(name, VARIABLES)):
            problems.append(f"{name} is not a variable of this project; did you mean {near}? Rename or unset it")
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for name, variable in VARIABLES.items():
        of_file, file = in_file.get(name, (None, ""))
        text = environment.get(name, of_file)
        if text is None:
            continue
        sources[name] = file if text == of_file else "environment"
        try:
            values[variable.name] = _convert(text, type(variable.default))
        except ValueError as error:
            problems.append(f"{name}={text!r} (from {sources[name]}): {error}")
    launcher = {name: environment[name] for name in (*LAUNCHERS, "MASTER_ADDR", "MASTER_PORT") if name in environment}
    config = Config(**values, sources=MappingProxyType(sources), launcher=MappingProxyType(launcher))
    problems += _problems(config)
    problems = problems or [  # which would be judged on defaults where a value is no good
        *contradictions(_derived(config)),
        *forbidden(config),
    ]
    if problems:
        raise ConfigError("\n".join(problems))
    return _derived(config)


def exports_in(path: Path) -> dict[str, str]:
    """What a config file and what it takes in export, as it stands there. Raises ConfigError for its form alone."""
    problems: list[str] = []
    values = _read_file(str(path), problems)
    if problems:
        raise ConfigError("\n".join(problems))
    return {name: text for name, (text, _) in values.items()}


def _read_file(path: str, problems: list[str], *, shared: bool = False) -> dict[str, tuple[str, str]]:
    """The exports of a config file, each with the file that it is from; of a `shared` one, that another takes in.

    Checked for form: the shell reads the same files, and both must see one thing.
    """
    values: dict[str, tuple[str, str]] = {}
    try:
        lines = (
            Path(path).read_bytes().decode("utf-8").split("\n")
        )  # as the shell does: a carriage return is no line end
    except (OSError, UnicodeDecodeError) as error:
        problems.append(f"CONFIG={path!r}: cannot read the file ({error})")
        return values
    for number, line in enumerate(lines, start=1):
        if not line.strip(" \t") or line.lstrip(" \t").startswith("#"):
            continue
        match = _EXPORT.fullmatch(line)
        if (source := _SOURCE.fullmatch(line)) and not shared:
            if not Path(source[1]).is_file():
                problems.append(f"{path}:{number}: {source[1]}: no such file in the folder of the project")
            else:
                values |= _read_file(source[1], problems, shared=True)
        elif not match:
            form = "`export NAME=value`" if shared else "`export NAME=value` or `source ./config_X_common.sh`"
            problems.append(f"{path}:{number}: {line.strip()!r} is not of the form {form}")
        elif match[1] not in VARIABLES:
            near = nearest(match[1], VARIABLES, always=True)
            problems.append(f"{path}:{number}: unknown variable {match[1]}; the nearest valid one is {near}")
        else:
            values[match[1]] = "".join(shlex.split(match[2])), path
    return values


def _convert(text: str, kind: type) -> Any:
    if kind is bool:
        if text in ("0", "1"):
            return text == "1"
        raise ValueError("expected 0 or 1")
    if kind in (int, float):
        expected = "a whole number" if kind is int else "a number"
        if not re.fullmatch(r"0|-?[1-9]\d*" if kind is int else r"[-+.\deE]+", text, re.ASCII):
            raise ValueError(f"expected {expected}")  # Python and the shell read 1_000 and 010 differently
        try:
            value = kind(text)
        except ValueError:
            raise ValueError(f"expected {expected}") from None
        if kind is float and not math.isfinite(value):
            raise ValueError("expected a finite number")
        return value
    if not text:
        raise ValueError("must not be empty")
    return kind(text)


def _problems(config: Config) -> list[str]:
    problems = []
    for name, variable in VARIABLES.items():
        value = getattr(config, variable.name)
        check: Check = variable.metadata["check"]
        if not check.accepts(value):
            source = config.sources.get(name, "default")
            problems.append(f"{name}={value} (from {source}): {variable.metadata['what']}; must be {check.allowed}")
    return problems


def _derived(config: Config) -> Config:
    """Fill in what 0 stands for."""
    interval = config.eval_interval_samples or rule_interval(config.global_batch)
    return dataclasses.replace(
        config,
        eval_interval_samples=interval,
        eval_start_samples=config.eval_start_samples or interval,
        decay_steps=config.decay_steps or config.max_steps,
    )


def main() -> int:
    """Check the environment's configuration and start nothing: exit status 0, or 2 with the problems.

    `list` prints every variable with its present value, its meaning and what it may be; `table` the defaults in
    Markdown, whatever the environment says.
    """
    if sys.argv[1:] not in ([], ["list"], ["table"]):
        return complain("usage: python -m benchmarks.bert.config [list | table]", REFUSED)
    if sys.argv[1:] == ["table"]:
        print("\n".join(table()))
        return 0
    try:
        config = load()
    except ConfigError as error:
        return complain(error, REFUSED)
    for name, variable in VARIABLES.items() if sys.argv[1:] else ():
        print(f"{name:28} {getattr(config, variable.name)!s:22} {_meaning(variable)}")
    return 0


def table() -> list[str]:
    """Markdown: every variable with its default, its meaning and what it may be."""
    lines = ["| variable | default | meaning |", "|---|---|---|"]
    for name, variable in VARIABLES.items():
        default = int(variable.default) if isinstance(variable.default, bool) else variable.default
        lines.append(f"| `{name}` | `{default}` | {_meaning(variable)} |")
    return lines


def _meaning(variable: dataclasses.Field[object]) -> str:
    allowed = variable.metadata["check"].allowed
    return variable.metadata["what"] + (f" ({allowed})" if allowed else "")


if __name__ == "__main__":
    sys.exit(main())
