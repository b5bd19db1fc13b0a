"""The shipped `config_*.sh`: bash and Python read one thing, the numbers are the published ones, `source` is tame."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from benchmarks.bert.config import VARIABLES, Config, ConfigError, load
from benchmarks.bert.model.bert import Bert, BertShape

CHECKOUT = Path(__file__).parents[2]
PUBLISHED_LOGS = CHECKOUT.parent / "shared" / "data" / "results"
COMMON = "config_DGXA100_common.sh"
FILES = sorted(path.name for kind in ("CPU", "DGX") for path in CHECKOUT.glob(f"config_{kind}*.sh"))
SCALES = [name for name in FILES if not name.endswith("_common.sh")]
OF_THE_USER = {
    *("DATA_DIR", "RESULT_FILE", "SEED", "CACHES_CLEARED"),
    *("SUBMISSION_ORG", "SUBMISSION_PLATFORM", "SUBMISSION_STATUS"),
}


@dataclass(frozen=True)
class Published:
    """What a GPU file stands for."""

    division: str
    optimizer: str
    clip: str
    loading: str
    global_batch: int
    interval: int  # samples between evaluations, by the rule's formula
    decay_ends: int  # step
    samples_to_target: int  # the most of the published runs where each is known, else their mean


_CLOSED = ("closed", "lamb", "global_before", "global_presort")
_RECORD = ("open", "adam", "bucket_before", "stratified_presort")
PUBLISHED = {
    "config_DGXA100_1x8x56x1.sh": Published(*_CLOSED, 448, 150_000, 6700, 3_002_944),
    "config_DGXA100_8x8x48x1.sh": Published(*_CLOSED, 3_072, 175_000, 1271, 3_216_384),
    "config_DGXA100_128x8x16x1.sh": Published(*_RECORD, 16_384, 325_000, 179, 2_932_736),
    "config_DGXA100_171x8x12x1.sh": Published(*_RECORD, 16_416, 325_000, 179, 2_938_464),
    "config_DGXH100_1x8x96x1.sh": Published(*_CLOSED, 768, 150_000, 3680, 2_549_468),
    "config_DGXH200_1x8x96x1.sh": Published(*_CLOSED, 768, 150_000, 3680, 2_492_563),
}

# A published log with a file's hyperparameters, and which of its events are not: that run's weight decay of 0.01 is
# logged as 0.0, and the record's decay ends at 179, not at the step limit that it logs.
LOGS = {
    "config_DGXA100_1x8x56x1.sh": ("v2.0/NVIDIA/results/dgxa100_ngc22.04_pytorch", {"WEIGHT_DECAY"}),
    "config_DGXA100_128x8x16x1.sh": ("v2.0/Samsung/results/samsung_supercomputer21_dgxa100_n128_pytorch", set()),
    "config_DGXH100_1x8x96x1.sh": ("v5.0/NVIDIA/results/nyx_n1_ngc25.04_pytorch", set()),
    "config_DGXH200_1x8x96x1.sh": ("v5.0/NVIDIA/results/nyx_n1_ngc25.04_pytorch", set()),
}
EVENTS = {
    "opt_base_learning_rate": "LEARNING_RATE",
    "opt_epsilon": "EPSILON",
    "opt_lamb_beta_1": "BETA_1",
    "opt_lamb_beta_2": "BETA_2",
    "opt_lamb_weight_decay_rate": "WEIGHT_DECAY",
    "opt_lamb_learning_rate_decay_poly_power": "DECAY_POWER",
    "opt_learning_rate_training_steps": "MAX_STEPS",
    "num_warmup_steps": "WARMUP_STEPS",
    "start_warmup_step": "START_WARMUP_STEP",
    "gradient_accumulation_steps": "GRADIENT_ACCUMULATION_STEPS",
}

# Prints what a sourced file exports, then every other variable that it leaves behind.
_IN_BASH = r"""
set -euo pipefail
before=$(compgen -v)
source "$1"
comm -13 <(printf 'before\n%s\n' "$before" | sort) <(compgen -v | sort) | while read -r name; do
  [[ $name == PIPESTATUS ]] || printf '%s\0' "$name"
done
printf '\0'
env -0
"""
_OF_BASH = {"PWD", "OLDPWD", "SHLVL", "_"}


def in_bash(path: str, folder: Path) -> tuple[dict[str, str], set[str]]:
    """What a file exports into an empty environment, and the names of all variables that it sets, exported or not."""
    output = subprocess.run(
        ["env", "-i", "bash", "--noprofile", "--norc", "-c", _IN_BASH, "bash", path],
        capture_output=True,
        check=True,
        cwd=folder,
    ).stdout.decode()
    names, _, environment = output.partition("\0\0") if not output.startswith("\0") else ("", "", output[1:])
    pairs = dict(entry.split("=", 1) for entry in environment.split("\0") if entry)
    return {name: value for name, value in pairs.items() if name not in _OF_BASH}, {*names.split("\0")} - {""}


def loaded(path: str, monkeypatch: pytest.MonkeyPatch, folder: Path = CHECKOUT, **environment: str) -> Config:
    """`source ./…` is from the folder that a run starts in, as in the shell."""
    monkeypatch.chdir(folder)
    return load({"CONFIG": path, **environment})


def problems_of(path: str, monkeypatch: pytest.MonkeyPatch, folder: Path) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        loaded(path, monkeypatch, folder)
    return str(caught.value).splitlines()


def write(folder: Path, /, **files: str) -> None:
    for name, text in files.items():
        (folder / f"{name}.sh").write_text(text, "utf-8")


def buckets(model: torch.nn.Module, bucket_mb: float) -> int:
    """How many DDP makes of a model's fp32 gradients, which backward fills from the last parameter to the first."""
    sizes = [dist._DEFAULT_FIRST_BUCKET_BYTES, int(bucket_mb * 2**20)]
    return len(dist._compute_bucket_assignment_by_size(list(model.parameters())[::-1], sizes)[0])


def test_every_scale_of_a_dgx_has_a_row_and_every_row_its_file() -> None:
    assert {name for name in SCALES if "DGX" in name} == set(PUBLISHED)
    assert {"config_CPU_1x2x8x1.sh", "config_CPU_2x2x4x1.sh", COMMON} <= set(FILES)


@pytest.mark.parametrize("name", SCALES)
def test_what_a_file_exports_is_what_is_read_from_it_and_only_fields(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    exported, set_at_all = in_bash(f"./{name}", CHECKOUT)
    config = loaded(name, monkeypatch)
    assert set(exported) == set(config.sources) == set_at_all
    assert set(exported) <= set(VARIABLES)
    # The values too: bash's exports alone make the same configuration.
    assert load(exported) == config


def test_a_variable_that_a_file_sets_without_exporting_it_is_seen(tmp_path: Path) -> None:
    write(tmp_path, x="SEED=1\nexport BATCH_SIZE=2\n", y="export BATCH_SIZE=2\n")
    assert in_bash("./x.sh", tmp_path) == ({"BATCH_SIZE": "2"}, {"BATCH_SIZE", "SEED"})
    assert in_bash("./y.sh", tmp_path) == ({"BATCH_SIZE": "2"}, {"BATCH_SIZE"})


@pytest.mark.parametrize("name", FILES)
def test_a_file_says_what_it_is_and_names_no_place_of_one_site(name: str) -> None:
    lines = (CHECKOUT / name).read_text("utf-8").splitlines()
    assert lines[0] == "# shellcheck shell=bash"
    assert lines[1].startswith("# ")
    exported, _ = in_bash(f"./{name}", CHECKOUT)
    assert not any(value.startswith(("/", "~")) for value in exported.values())
    if "DGX" in name:
        assert OF_THE_USER.isdisjoint(exported)


@pytest.mark.parametrize("name", SCALES)
def test_the_name_is_nodes_ranks_batch_and_accumulation(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = loaded(name, monkeypatch)
    scale = (config.num_nodes, config.ranks_per_node, config.batch_size, config.gradient_accumulation_steps)
    assert name == f"config_{name.split('_')[1]}_{'x'.join(map(str, scale))}.sh"


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_gpu_file_is_the_published_run(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    published, config = PUBLISHED[name], loaded(name, monkeypatch)
    assert (config.division, config.optimizer, config.clip) == (
        published.division,
        published.optimizer,
        published.clip,
    )
    assert config.loading == published.loading
    assert config.global_batch == published.global_batch
    assert config.decay_steps == published.decay_ends
    assert (config.device, config.precision, config.max_norm) == ("cuda", "bf16", 1.0)
    assert config.target_accuracy == 0.72


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_gpu_file_evaluates_by_the_rules_formula(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = loaded(name, monkeypatch)
    assert config.eval_interval_samples == config.eval_start_samples == PUBLISHED[name].interval
    exported, _ = in_bash(f"./{name}", CHECKOUT)
    assert exported["EVAL_INTERVAL_SAMPLES"] == exported["EVAL_START_SAMPLES"] == "0"  # it follows the batch
    doubled = loaded(name, monkeypatch, BATCH_SIZE=str(256 * config.batch_size))
    assert doubled.eval_interval_samples > config.eval_interval_samples


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_gpu_file_has_steps_for_every_evaluation_up_to_the_published_target(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Published evaluations slip by a step each, ours do not, so evaluations are counted and not samples."""
    published, config = PUBLISHED[name], loaded(name, monkeypatch)
    evaluations = config.max_steps * config.global_batch // config.eval_interval_samples
    assert evaluations >= published.samples_to_target // published.interval
    assert config.decay_steps <= config.max_steps


@pytest.mark.parametrize("name", LOGS)
def test_a_gpu_files_hyperparameters_are_those_of_the_published_logs(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    system, not_this = LOGS[name]
    if not PUBLISHED_LOGS.is_dir():
        pytest.skip("needs the published logs in ../shared/data/results")
    log = (PUBLISHED_LOGS / system / "bert" / "result_0.txt").read_text("latin-1")
    events = (json.loads(line.split(":::MLLOG ", 1)[1]) for line in log.splitlines() if ":::MLLOG " in line)
    logged = {EVENTS[event["key"]]: float(event["value"]) for event in events if event["key"] in EVENTS}
    config = loaded(name, monkeypatch)
    assert set(logged) == set(EVENTS.values())
    for variable in logged.keys() - not_this:
        assert getattr(config, VARIABLES[variable].name) == logged[variable], variable
    for variable in not_this:
        assert getattr(config, VARIABLES[variable].name) != logged[variable], variable


def test_published_constants_that_no_log_here_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    eight_nodes = loaded("config_DGXA100_8x8x48x1.sh", monkeypatch)
    assert (eight_nodes.learning_rate, eight_nodes.beta_1, eight_nodes.beta_2) == (0.0015, 0.83, 0.925)
    assert (eight_nodes.warmup_steps, eight_nodes.start_warmup_step, eight_nodes.weight_decay) == (100, -25, 0.01)
    record = loaded("config_DGXA100_128x8x16x1.sh", monkeypatch)
    assert record.end_learning_rate == 0.0000494549100544884
    assert (record.num_strata, record.max_length, record.decay_steps, record.max_steps) == (4, 512, 179, 299)
    assert (record.schedule, eight_nodes.schedule, eight_nodes.decay_start_step) == ("record", "polynomial", 0)


def test_files_of_one_recipe_differ_in_their_scale_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def differing(one: str, other: str) -> set[str]:
        first, second = (loaded(name, monkeypatch).resolved() for name in (one, other))
        return {name for name in VARIABLES if first[name]["value"] != second[name]["value"]}

    assert differing("config_DGXA100_128x8x16x1.sh", "config_DGXA100_171x8x12x1.sh") == {"NUM_NODES", "BATCH_SIZE"}
    assert differing("config_DGXH100_1x8x96x1.sh", "config_DGXH200_1x8x96x1.sh") == set()
    cpu = {"NUM_NODES", "BATCH_SIZE", "SUBMISSION_PLATFORM"}
    assert differing("config_CPU_1x2x8x1.sh", "config_CPU_2x2x4x1.sh") == cpu


def test_the_two_node_default_has_the_global_batch_of_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = (loaded(f"config_CPU_{scale}.sh", monkeypatch) for scale in ("1x2x8x1", "2x2x4x1"))
    assert one.global_batch == two.global_batch == 16


@pytest.mark.parametrize("scale", ["1x2x8x1", "2x2x4x1"])
def test_the_default_may_take_a_quarter_longer_than_the_slowest_known_run_and_trains_to_its_last_step(
    scale: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = loaded(f"config_CPU_{scale}.sh", monkeypatch)
    [points] = json.loads((CHECKOUT / "reference" / "config_CPU_1x2x8x1.json").read_text("utf-8")).values()
    slowest = max(points["Epochs to converge"])
    assert slowest < config.decay_steps * config.global_batch
    assert 1.25 * slowest <= config.max_steps * config.global_batch
    assert config.end_learning_rate == pytest.approx(config.learning_rate / 20)
    # As the line to 0 after 2,500 steps, which the known runs were made with.
    fall = (config.learning_rate - config.end_learning_rate) / (config.decay_steps - config.warmup_steps)
    assert fall == pytest.approx(config.learning_rate / (2500 - config.warmup_steps), rel=1e-12)
    assert points["Hyperparams"]["opt_learning_rate_training_steps"] == config.decay_steps


def test_the_record_clips_in_22_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its 25 MiB held fp16 gradients, and the threshold of a bucket is MAX_NORM / sqrt(22)."""
    with torch.device("meta"):
        model = Bert(BertShape(num_vocabulary=30522))
    assert buckets(model, loaded("config_DGXA100_128x8x16x1.sh", monkeypatch).bucket_mb) == 22
    assert buckets(model, 25) != 22


def test_what_the_dgx_share_is_no_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    shared, _ = in_bash(f"./{COMMON}", CHECKOUT)
    assert {"RANKS_PER_NODE", "DEVICE", "TARGET_ACCURACY"} <= set(shared)
    scale = {"NUM_NODES", "BATCH_SIZE", "DIVISION", "OPTIMIZER", "LEARNING_RATE", "CLIP", "MAX_STEPS"}
    assert scale.isdisjoint(shared)
    [problem] = problems_of(COMMON, monkeypatch, CHECKOUT)
    assert "is what several configurations share; name one of those" in problem
    for name in PUBLISHED:
        assert scale <= set(loaded(name, monkeypatch).sources)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_value_is_from_the_file_that_sets_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = loaded(name, monkeypatch, SEED="1").sources
    by_file = {f"./{COMMON}": COMMON, name: name}
    for path, file in by_file.items():
        written = re.findall(r"^export (\w+)=", (CHECKOUT / file).read_text("utf-8"), re.MULTILINE)
        assert {variable for variable, source in sources.items() if source == path} == set(written)
    assert sources["SEED"] == "environment"


def test_of_two_exports_the_later_wins_in_the_shell_and_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(
        tmp_path,
        common="export SEED=1\nexport BATCH_SIZE=1\nexport MAX_STEPS=100000\n",
        before="export SEED=2\nsource ./common.sh\n",
        after="source\t./common.sh   # what all share\nexport SEED=3\nexport BATCH_SIZE=2\nexport BATCH_SIZE=4\n",
    )
    for file, seed, seed_from, batch, batch_from in (
        ("before.sh", 1, "./common.sh", 1, "./common.sh"),
        ("after.sh", 3, "after.sh", 4, "after.sh"),
    ):
        config = loaded(file, monkeypatch, tmp_path, EVAL_INTERVAL_SAMPLES="10")
        exported, _ = in_bash(f"./{file}", tmp_path)
        assert (config.seed, config.batch_size) == (seed, batch) == (int(exported["SEED"]), int(exported["BATCH_SIZE"]))
        assert (config.sources["SEED"], config.sources["BATCH_SIZE"]) == (seed_from, batch_from)
        assert config.sources["MAX_STEPS"] == "./common.sh"


def test_the_environment_wins_over_a_sourced_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, common="export SEED=1\n", own="source ./common.sh\n")
    config = loaded("own.sh", monkeypatch, tmp_path, SEED="7")
    assert (config.seed, config.sources["SEED"]) == (7, "environment")


def test_a_sourced_file_that_sources_another_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(
        tmp_path,
        own="source ./first.sh\n",
        first="export SEED=1\nsource ./second.sh\n",
        second="export SEED=2\n",
        itself="source ./itself.sh\n",  # which the shell would never come back from
    )
    [problem] = problems_of("own.sh", monkeypatch, tmp_path)
    assert problem.startswith("./first.sh:2: 'source ./second.sh'")
    [problem] = problems_of("itself.sh", monkeypatch, tmp_path)
    assert problem.startswith("./itself.sh:1: 'source ./itself.sh'")
    assert loaded("first.sh", monkeypatch, tmp_path).seed == 2


def test_a_sourced_file_that_is_missing_or_wrong_is_refused_with_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, own="source ./absent.sh\nexport SEED=1\n", wrong="export SEED=1\nexport SEEED=2\nSEED=3\n")
    write(tmp_path, other="source ./wrong.sh\nexport BATCH_SIZES=1\n", folder="source ./.\n")
    [problem] = problems_of("own.sh", monkeypatch, tmp_path)
    assert problem == "own.sh:1: ./absent.sh: no such file in the folder of the project"
    assert [problem.split(": ")[0] for problem in problems_of("other.sh", monkeypatch, tmp_path)] == [
        "./wrong.sh:2",
        "./wrong.sh:3",
        "other.sh:2",
    ]
    [problem] = problems_of("folder.sh", monkeypatch, tmp_path)
    assert problem.startswith("folder.sh:1: ./.: ")


def test_a_shipped_file_is_refused_where_what_it_sources_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problems = problems_of(str(CHECKOUT / "config_DGXA100_1x8x56x1.sh"), monkeypatch, tmp_path)
    assert any(f"./{COMMON}" in problem for problem in problems)


@pytest.mark.parametrize(
    "line",
    [
        "source config_common.sh",  # which the shell looks for in PATH
        "source /etc/profile",
        "source ../common.sh",
        "source ./sub/common.sh",
        "source ./$NAME",
        "source ./*.sh",
        "source './common.sh'",
        "source ./com mon.sh",
        "source ./common.sh; reboot",
        "source ./common.sh && reboot",
        "source ./common.sh SEED=2",
        "source ./common.sh#",
        "source ./common.sh\r",
        "source ./$(reboot)",
        "source ./`reboot`",
        "source ./<(reboot)",
        "source ./{common,other}.sh",
        "source\u00a0./common.sh",
        "source ./",
        "source",
        ". ./common.sh",
        "export SEED=1 source ./common.sh",
    ],
)
def test_a_source_line_of_another_form_is_refused_with_its_number(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, common="export SEED=1\n", own=f"export SEED=2\n{line}\n")
    [problem] = problems_of("own.sh", monkeypatch, tmp_path)
    assert problem.startswith("own.sh:2: ")


@pytest.mark.parametrize("file", ["a b.sh", "it's.sh", 'say "x".sh', "$(touch made).sh", "a;b.sh", "é.sh", "a\nb.sh"])
def test_a_file_of_a_hostile_name_in_a_folder_of_one_sources_what_it_names(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / f"folder {Path(file).stem}"
    folder.mkdir()
    write(folder, common="export SEED=1\n")
    (folder / file).write_text("source ./common.sh\nexport MAX_STEPS=100001\n", "utf-8")
    config = loaded(f"./{file}", monkeypatch, folder)
    exported, set_at_all = in_bash(f"./{file}", folder)
    assert exported == {"SEED": "1", "MAX_STEPS": "100001"}
    assert set_at_all == set(exported)
    assert (config.seed, config.max_steps) == (1, 100_001)
    assert dict(config.sources) == {"SEED": "./common.sh", "MAX_STEPS": f"./{file}"}
    assert sorted(path.name for path in folder.iterdir()) == sorted({file, "common.sh"})
