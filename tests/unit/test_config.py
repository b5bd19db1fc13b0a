"""The environment and the config files: what is accepted is right, and everything else is one clear line each."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from benchmarks.bert import config as config_module
from benchmarks.bert.comm.hook import CLIP_VARIANTS
from benchmarks.bert.config import ATTENTIONS, CLIPS, PRECISIONS, VARIABLES, ConfigError, load
from benchmarks.bert.config import FUSIONS as FUSION_NAMES
from benchmarks.bert.config import INITIALISATIONS as INITIALISATION_NAMES
from benchmarks.bert.config import LAST_LAYERS as LAST_LAYER_NAMES
from benchmarks.bert.config import LOADERS as LOADER_NAMES
from benchmarks.bert.config import NORMS as NORM_NAMES
from benchmarks.bert.config import OPTIMIZERS as OPTIMIZER_NAMES
from benchmarks.bert.data.loaders import LOADERS
from benchmarks.bert.model.attention import ATTENTION
from benchmarks.bert.model.bert import LAST_LAYER, NORMS
from benchmarks.bert.model.init import INITIALISATIONS
from benchmarks.bert.model.kernels import FUSIONS
from benchmarks.bert.trainer import DTYPES, OPTIMIZERS
from tests.support.configuration import problems_of

CHECKOUT = Path(__file__).parents[2]
CONFIG_FILES = sorted(CHECKOUT.glob("config_CPU*.sh"))
WORD = "a b;c"  # text may be anything

# Variable: a text that is no default, the value it stands for, and texts that must be refused.
EXAMPLES: dict[str, tuple[str, object, list[str]]] = {
    "SUBMISSION_ORG": (WORD, WORD, [""]),
    "SUBMISSION_PLATFORM": (WORD, WORD, [""]),
    "SUBMISSION_STATUS": ("onprem", "onprem", ["", "Cloud", "on-prem"]),
    "DIVISION": ("open", "open", ["", "network"]),
    "RULESET": ("4.1.0", "4.1.0", ["5.0", "5.1.0", "latest"]),
    "NUM_NODES": ("3", 3, ["0", "-1", "1.5", "two", ""]),
    "RANKS_PER_NODE": ("2", 2, ["0", "x"]),
    "DEVICE": ("cpu", "cpu", ["gpu", "cuda:0", "CPU"]),
    "BINDING": ("none", "none", ["yes", "node", ""]),
    "COLLECTIVE_TIMEOUT_S": ("30", 30, ["0", "30s"]),
    "CLEAR_CACHES": ("1", True, ["yes", "true", "2", ""]),
    "CACHES_CLEARED": ("1", True, ["yes", "True", ""]),
    "DATA_DIR": ("/x y", Path("/x y"), [""]),
    "DATA_CHECK": ("headers", "headers", ["none", ""]),
    "RESULT_FILE": ("r/1.txt", Path("r/1.txt"), [""]),
    "MAX_LENGTH": ("128", 128, ["7", "65536", "1e3"]),
    "LOADING": ("global_presort", "global_presort", ["sorted", "stratified-presort", ""]),
    "LOADER": ("dali", "dali", ["DALI", "torch", ""]),
    "NUM_STRATA": ("8", 8, ["0", "513"]),
    "NUM_LAYERS": ("2", 2, ["0", "two"]),
    "HIDDEN_SIZE": ("64", 64, ["4", "1000", "x"]),
    "NUM_HEADS": ("4", 4, ["0", "3"]),
    "FFN_SIZE": ("512", 512, ["0", "4k"]),
    "DROPOUT": ("0.25", 0.25, ["1", "-0.1", "nan", "10%"]),
    "NORM": ("pre", "pre", ["none", "Pre", ""]),
    "INITIALISATION": ("relative_offset", "relative_offset", ["xavier", ""]),
    "INIT_STD": ("0.05", 0.05, ["0", "-1", "inf"]),
    "INITIAL_CHECKPOINT": ("w/model.ckpt-1", Path("w/model.ckpt-1"), [""]),
    "INITIAL_PARTS": ("encoder", "encoder", ["heads", ""]),
    "ATTENTION": ("plain", "plain", ["fastest", ""]),
    "FUSION": ("compiled", "compiled", ["jit", ""]),
    "LAST_LAYER": ("whole", "whole", ["read", ""]),
    "CUDA_GRAPHS": ("1", True, ["yes", ""]),
    "PRECISION": ("bf16", "bf16", ["half", "float32"]),
    "LOSS_SCALE": ("4096", 4096.0, ["0", "0.5", "1073741824", "inf"]),
    "LOSS_SCALE_GROWTH_STEPS": ("100", 100, ["0", "1e3"]),
    "BATCH_SIZE": ("8", 8, ["0", "8.0", "8,8", ""]),
    "GRADIENT_ACCUMULATION_STEPS": ("4", 4, ["0", "3", "32"]),
    "GROWTH": ("mslt:12,24@.5,.5", "mslt:12,24@.5,.5", ["", "mslt", "mslt:12,24@.5,.4", "mslt:24,12@.5,.5"]),
    "VIRTUAL_RANKS": ("4", 4, ["0", "1.5"]),
    "OPTIMIZER": ("adam", "adam", ["adamw", "Adam", ""]),
    "SHARD_OPTIMIZER": ("1", True, ["yes", "2", ""]),
    "LEARNING_RATE": ("2.5e-3", 2.5e-3, ["0", "-0.5", "nan", "inf", "1e-3f", ""]),
    "END_LEARNING_RATE": ("1e-5", 1e-5, ["-1", "nan", "inf"]),
    "BETA_1": ("0.5", 0.5, ["1", "-0.1"]),
    "BETA_2": ("0.98", 0.98, ["1.0", "nan"]),
    "EPSILON": ("1e-8", 1e-8, ["0", "-1"]),
    "WEIGHT_DECAY": ("0", 0.0, ["-0.01", "nan", "inf"]),
    "LAMB_BIAS_CORRECTION": ("0", False, ["no", "True", ""]),
    "MAX_TRUST_RATIO": ("10", 10.0, ["-1", "inf", "nan"]),
    "SCHEDULE": ("lans", "lans", ["linear", "Record", ""]),
    "WARMUP_STEPS": ("60", 60, ["-1", "6e1"]),
    "START_WARMUP_STEP": ("-16", -16, ["0.5", "x"]),
    "CONSTANT_STEPS": ("0", 0, ["-1", "x", "7"]),  # 7 needs another SCHEDULE
    "DECAY_START_STEP": ("82", 82, ["-2", "x", "1.5"]),
    "DECAY_STEPS": ("500", 500, ["-1", "x"]),
    "DECAY_POWER": ("0.5", 0.5, ["0", "-1", "inf"]),
    "MAX_STEPS": ("20000", 20000, ["0", "-5", "1e6"]),
    "CLIP": ("none", "none", ["bucket_after", ""]),
    "MAX_NORM": ("0.5", 0.5, ["0", "-1", "inf"]),
    "BUCKET_MB": ("0.5", 0.5, ["0", "25MB"]),
    "TARGET_ACCURACY": ("0.35", 0.35, ["1.0", "72", "-0.1", "nan"]),
    "EVAL_START_SAMPLES": ("1000", 1000, ["-1", "2000000", "1e3"]),
    "EVAL_INTERVAL_SAMPLES": ("500", 500, ["-1", "5000000", "x"]),
    "EVAL_BATCH_SIZE": ("64", 64, ["0", "x"]),
    "CHECKPOINT_DIR": ("/c d", Path("/c d"), [""]),
    "CHECKPOINT_INTERVAL_STEPS": ("100", 100, ["-1", "1e2"]),
    "CHECKPOINT_KEEP": ("5", 5, ["0", "all"]),
    "RESUME": ("if_any", "if_any", ["1", "true", ""]),
    "RESUME_WORLD": ("any", "any", ["other", ""]),
    "PROFILE_START_STEP": ("20", 20, ["-1", "100001", "first"]),
    "PROFILE_NUM_STEPS": ("5", 5, ["0", "-1", "all"]),
    "PROFILE_DIR": ("/p q", Path("/p q"), [""]),
    "SEED": ("0", 0, ["-2", "2147483648", "random"]),
}

OTHERS_NAMES = """
    PATH SEEDS TIMEOUT SLURM_JOB_ID SLURM_NTASKS_PER_NODE HOME USER HOSTNAME LANG LC_ALL TERM SHELL LOGNAME PYTHONPATH
    LD_LIBRARY_PATH CUDA_VISIBLE_DEVICES OMP_NUM_THREADS MASTER_ADDR WORLD_SIZE NCCL_DEBUG VIRTUAL_ENV CONFIG PYTHON
    XDG_DATA_DIRS TORCHELASTIC_RUN_ID NEXP DGXSYSTEM WALLTIME EDITOR VERSION COLUMNS LINES
"""

few = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def write_config(folder: Path, *lines: str) -> str:
    path = folder / "config_test.sh"
    path.write_bytes(("\n".join(lines) + "\n").encode())
    return str(path)


def in_bash(script: str, *arguments: str) -> dict[str, str]:
    """The variables that a script leaves exported in a bash that starts without any, but for bash's own."""
    output = subprocess.run(
        ["env", "-i", "bash", "--noprofile", "--norc", "-c", f"{script}\n/usr/bin/env -0", "bash", *arguments],
        capture_output=True,
        check=True,
        cwd="/",
    ).stdout.decode()
    pairs = (entry.split("=", 1) for entry in output.split("\0") if entry)
    return {name: value for name, value in pairs if name not in ("PWD", "OLDPWD", "SHLVL", "_")}


def read_lines(*lines: str) -> dict[str, str]:
    problems: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        values = config_module._read_file(str(write_config(Path(folder), *lines)), problems)
    assert not problems
    return {name: value for name, (value, _) in values.items()}


def test_a_files_exports_are_its_texts_and_its_form_is_checked(tmp_path: Path) -> None:
    path = Path(write_config(tmp_path, "export DECAY_STEPS=0", "export LEARNING_RATE=1e-3"))
    assert config_module.exports_in(path) == {"DECAY_STEPS": "0", "LEARNING_RATE": "1e-3"}
    path = Path(write_config(tmp_path, "DECAY_STEPS=0"))
    with pytest.raises(ConfigError, match=r"config_test.sh:1: 'DECAY_STEPS=0' is not of the form"):
        config_module.exports_in(path)


def test_every_variable_has_an_example() -> None:
    assert set(EXAMPLES) == set(VARIABLES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_variable_is_converted_and_its_source_kept(name: str, tmp_path: Path) -> None:
    text, value, _ = EXAMPLES[name]
    for environment, source in (
        ({name: text}, "environment"),
        ({"CONFIG": write_config(tmp_path, f"export {name}='{text}'")}, str(tmp_path / "config_test.sh")),
    ):
        config = load(environment)
        found = getattr(config, VARIABLES[name].name)
        assert (found, type(found)) == (value, type(value))
        assert config.resolved()[name] == {"value": str(value) if isinstance(value, Path) else value, "source": source}


@pytest.mark.parametrize(("name", "text"), [(name, text) for name in EXAMPLES for text in EXAMPLES[name][2]])
def test_a_value_that_is_wrong_is_one_line_with_its_name_and_text(name: str, text: str) -> None:
    [problem] = problems_of({name: text})
    if name in ("EVAL_START_SAMPLES", "EVAL_INTERVAL_SAMPLES") and text.isdecimal():
        assert f"after {text} samples" in problem
    else:
        assert name in problem
        assert text in problem


def test_without_variables_all_are_defaults() -> None:
    config = load({})
    for name, variable in VARIABLES.items():
        derived = name in ("EVAL_START_SAMPLES", "EVAL_INTERVAL_SAMPLES", "DECAY_STEPS")
        assert derived or getattr(config, variable.name) == variable.default
        assert config.resolved()[name]["source"] == "default"


def test_what_0_stands_for_is_filled_in() -> None:
    config = load({"NUM_NODES": "4", "RANKS_PER_NODE": "8", "BATCH_SIZE": "128", "MAX_STEPS": "900"})
    assert config.global_batch == 4096
    assert (config.eval_interval_samples, config.eval_start_samples, config.decay_steps) == (175_000, 175_000, 900)


def test_the_callers_environment_wins_over_the_file_and_the_sources_say_so(tmp_path: Path) -> None:
    path = write_config(
        tmp_path, "# about", "", "export BATCH_SIZE=8  # small", "export SEED=1", "export MAX_NORM='2.0'"
    )
    config = load({"CONFIG": path, "BATCH_SIZE": "4"})
    assert (config.batch_size, config.seed, config.max_norm) == (4, 1, 2.0)
    assert dict(config.sources) == {"BATCH_SIZE": "environment", "SEED": path, "MAX_NORM": path}
    assert config.resolved()["LEARNING_RATE"]["source"] == "default"


def test_a_value_that_the_shell_took_from_the_file_is_the_files(tmp_path: Path) -> None:
    path = write_config(tmp_path, "export BATCH_SIZE=8")
    assert load({"CONFIG": path, "BATCH_SIZE": "8"}).sources["BATCH_SIZE"] == path


def test_the_launchers_variables_are_carried_along() -> None:
    assert dict(load({"RANK": "0", "MASTER_PORT": "1", "HOME": "/"}).launcher) == {"RANK": "0", "MASTER_PORT": "1"}


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("BATCHSIZE", "BATCH_SIZE"),
        ("LERNING_RATE", "LEARNING_RATE"),
        ("MAX_STEPS_", "MAX_STEPS"),
        ("NUM_LAYER", "NUM_LAYERS"),
        ("TARGET_ACURACY", "TARGET_ACCURACY"),
        ("batch_size", "BATCH_SIZE"),
        ("OPTIMISER", "OPTIMIZER"),
        ("INITIALIZATION", "INITIALISATION"),
        ("EVAL_INTERVAL_SAMPELS", "EVAL_INTERVAL_SAMPLES"),
    ],
)
def test_a_near_miss_in_the_environment_is_an_error_with_the_name_that_was_meant(name: str, meant: str) -> None:
    [problem] = problems_of({name: "1"})
    assert problem.startswith(f"{name} is not a variable")
    assert f"did you mean {meant}?" in problem


@pytest.mark.parametrize("name", OTHERS_NAMES.split())
def test_names_of_others_in_the_environment_are_none_of_our_business(name: str) -> None:
    assert load({name: ""}) == load({})


def test_an_unknown_name_in_a_file_is_an_error_with_its_line_and_the_nearest_name(tmp_path: Path) -> None:
    path = write_config(tmp_path, "# comment", "", "export BATCH_SIZES=8", "export SEED=1", "export ZZZ=1")
    problems = problems_of({"CONFIG": path})
    assert problems[0] == f"{path}:3: unknown variable BATCH_SIZES; the nearest valid one is BATCH_SIZE"
    assert problems[1].startswith(f"{path}:5: unknown variable ZZZ; the nearest valid one is ")
    assert len(problems) == 2


@pytest.mark.parametrize(
    "line",
    [
        "BATCH_SIZE=8",
        "export BATCH_SIZE=$(nproc)",
        "export BATCH_SIZE=`nproc`",
        "export BATCH_SIZE=$SIZE",
        'export BATCH_SIZE="$SIZE"',
        "export BATCH_SIZE = 8",
        "export BATCH_SIZE",
        "export BATCH_SIZE=8 SEED=1",
        "export BATCH_SIZE=8; SEED=1",
        "export SUBMISSION_ORG=a;b",
        "export SUBMISSION_ORG=it's",
        'export SUBMISSION_ORG="a',
        "export SUBMISSION_ORG=a&",
        "export SUBMISSION_ORG=a|b",
        "export SUBMISSION_ORG=a>b",
        "export SUBMISSION_ORG={a,b}",
        "export SUBMISSION_ORG=(a)",
        'export SUBMISSION_ORG="a b"#c',
        "export DATA_DIR=~/data",
        "export BATCH_SIZE=8\r",
        "export\u00a0BATCH_SIZE=8",
        "source other.sh",
        "if true; then export SEED=1; fi",
        "set -e",
        "BATCH_SIZE=8 # export",
    ],
)
def test_a_line_that_is_no_plain_export_is_an_error_with_its_number(line: str, tmp_path: Path) -> None:
    path = write_config(tmp_path, "export SEED=1", line)
    [problem] = problems_of({"CONFIG": path})
    assert problem.startswith(f"{path}:2: ")
    assert problem.endswith("is not of the form `export NAME=value` or `source ./config_X_common.sh`")


@few
@given(st.text("ab9_ ='\"#~*?{},;&|<>()!$`\\\r\t\u00e9\u00a0\u2028:/.-+", max_size=8))
@example("'a b' # c")
@example('"a" ')
@example("''")
@example("")
@example("a#b")
@example("~")
@example("a:~")
@example("\u00e9")
def test_what_is_accepted_from_a_file_is_what_the_shell_makes_of_it(text: str) -> None:
    line = f"export SUBMISSION_ORG={text}"
    if config_module._EXPORT.fullmatch(line):
        assert read_lines(line) == in_bash(line)


def test_a_config_file_that_cannot_be_read_is_an_error_with_its_name(tmp_path: Path) -> None:
    [problem] = problems_of({"CONFIG": str(tmp_path / "absent.sh")})
    assert "absent.sh" in problem
    assert "cannot read the file" in problem
    (tmp_path / "binary.sh").write_bytes(b"\xff\xfe\x00")
    [problem] = problems_of({"CONFIG": str(tmp_path / "binary.sh")})
    assert "binary.sh" in problem


def test_several_problems_are_reported_together(tmp_path: Path) -> None:
    path = write_config(tmp_path, "SEED=1", "export SEEED=2", "export MAX_STEPS=many")
    problems = problems_of({"CONFIG": path, "LERNING_RATE": "1", "BATCH_SIZE": "x", "CLEAR_CACHES": "yes"})
    assert len(problems) == 6
    for part in (":1: ", ":2: ", "LEARNING_RATE?", "BATCH_SIZE='x' (from environment)", "CLEAR_CACHES='yes'"):
        assert sum(part in problem for problem in problems) == 1
    assert f"MAX_STEPS='many' (from {path}): expected a whole number" in problems


def test_values_out_of_range_are_reported_together_with_where_they_came_from(tmp_path: Path) -> None:
    path = write_config(tmp_path, "export DROPOUT=1")
    assert problems_of({"CONFIG": path, "CLIP": "all", "NUM_NODES": "0"}) == [
        "NUM_NODES=0 (from environment): nodes; must be at least 1",
        f"DROPOUT=1.0 (from {path}): probability to drop; must be from 0.0 to below 1.0",
        "CLIP=all (from environment): gradient clipping; must be one of none, bucket_before, global_before, "
        "global_after",
    ]


def test_what_ranks_must_agree_on_is_all_but_what_a_node_finds_out_itself() -> None:
    one, other = (load({"CACHES_CLEARED": text, "BATCH_SIZE": "8"}) for text in "01")
    assert one.common() == other.common()
    assert set(one.common()) == set(VARIABLES) - {"CACHES_CLEARED", "CLEAR_CACHES", "RESULT_FILE"}
    assert load({"BATCH_SIZE": "4"}).common() != one.common()


def test_a_config_cannot_be_changed() -> None:
    config = load({"SEED": "1"})
    with pytest.raises(AttributeError):
        config.seed = 2  # type: ignore[misc]
    with pytest.raises(TypeError):
        config.sources["SEED"] = "me"  # type: ignore[index]


def test_the_names_of_choices_are_those_of_the_code_that_they_choose() -> None:
    assert set(ATTENTIONS) == {"auto", *ATTENTION}
    assert set(FUSION_NAMES) == {"auto", *FUSIONS}
    assert set(LAST_LAYER_NAMES) == set(LAST_LAYER)
    assert set(NORM_NAMES) == set(NORMS)
    assert set(PRECISIONS) == set(DTYPES)
    assert set(INITIALISATION_NAMES) == set(INITIALISATIONS)
    assert set(CLIPS) == set(CLIP_VARIANTS)
    assert set(OPTIMIZER_NAMES) == set(OPTIMIZERS)
    assert set(LOADER_NAMES) == set(LOADERS)


def test_configuration_needs_no_torch() -> None:
    code = "import sys; sys.modules['torch'] = None; import benchmarks.bert.config as c; c.load({})"
    subprocess.run([sys.executable, "-c", code], cwd=CHECKOUT, check=True)


def test_there_is_a_default_config_file() -> None:
    assert CONFIG_FILES


@pytest.mark.parametrize("path", CONFIG_FILES, ids=lambda path: path.name)
def test_the_shell_exports_exactly_what_is_read_from_a_config_file(path: Path) -> None:
    problems: list[str] = []
    values = {name: value for name, (value, _) in config_module._read_file(str(path), problems).items()}
    assert problems == []
    assert values == in_bash('source "$1"', str(path))
    assert set(values) <= set(VARIABLES)


@pytest.mark.parametrize("path", CONFIG_FILES, ids=lambda path: path.name)
def test_a_config_file_is_valid_and_says_its_scale_in_its_name(path: Path) -> None:
    config = load({"CONFIG": str(path)})
    scale = (config.num_nodes, config.ranks_per_node, config.batch_size, config.gradient_accumulation_steps)
    assert path.stem.split("_")[2] == "x".join(map(str, scale))
    assert set(config.sources.values()) == {str(path)}


@pytest.mark.parametrize(
    ("environment", "status", "said"),
    [
        ({"BATCH_SIZE": "8"}, 0, ""),
        (
            {"BATCH_SIZE": "x", "SEED": "y"},
            2,
            "error: BATCH_SIZE='x' (from environment): expected a whole number\n"
            "error: SEED='y' (from environment): expected a whole number\n",
        ),
    ],
)
def test_the_check_before_a_run_says_each_problem_on_a_line(
    environment: dict[str, str],
    status: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in [*VARIABLES, "CONFIG"]:
        monkeypatch.delenv(name, raising=False)
    for name, text in environment.items():
        monkeypatch.setenv(name, text)
    monkeypatch.setattr(sys, "argv", ["config"])
    assert config_module.main() == status
    assert capsys.readouterr() == ("", said)


def test_every_variable_is_listed_with_its_meaning(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["config", "list"])
    assert config_module.main() == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(VARIABLES)
    for line, variable in zip(lines, VARIABLES.values(), strict=True):
        assert variable.metadata["what"] in line
        assert variable.metadata["check"].allowed in line


def test_the_list_shows_the_configuration_that_a_run_would_have(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["config", "list"])
    monkeypatch.setattr(config_module, "load", lambda: load({"BATCH_SIZE": "24"}))
    assert config_module.main() == 0
    assert "24" in next(line for line in capsys.readouterr().out.splitlines() if line.startswith("BATCH_SIZE"))


@pytest.mark.parametrize(
    "variables", [{"START_WARMUP_STEP": "1"}, {"RANKS_PER_NODE": "08"}, {"BATCH_SIZE": "1_0"}, {"BUCKET_MB": "1e300"}]
)
def test_values_that_would_break_a_run_or_read_differently_in_the_shell_are_refused(variables: dict[str, str]) -> None:
    [problem] = problems_of(variables)
    assert next(iter(variables)) in problem


def test_a_value_that_is_no_number_hides_no_other_problem() -> None:
    assert len(problems_of({"SEED": "abc", "LOADING": "foo", "RANKS_PER_NODE": "0"})) == 3


def test_no_other_module_reads_the_environment() -> None:
    readers = {
        str(path.relative_to(CHECKOUT / "benchmarks" / "bert"))
        for path in (CHECKOUT / "benchmarks" / "bert").rglob("*.py")
        if re.search(r"os\.(environ|getenv)", path.read_text("utf-8"))
    }
    assert readers == {"config.py"}
