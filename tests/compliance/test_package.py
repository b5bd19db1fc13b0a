"""The submission tree that tools.package builds: what is in it, and what its texts and scripts say."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from mlperf_logging.package_checker.package_checker import check_systems, check_training_result_files
from mlperf_logging.repo_checker import repo_checker

from benchmarks.bert.config import CLIPS, INITIALISATIONS, OPTIMIZERS, VARIABLES, load
from benchmarks.bert.data.plan import STRATEGIES
from tests.support import packages
from tests.support.packages import CODE, HIDDEN, ORGANISATION, SOURCES, SYSTEM, Build, configuration, git
from tests.support.submissions import set_value
from tools.package.readme import readme
from tools.package.results import read_results
from tools.package.scripts import config_file
from tools.verify.__main__ import main as verify_main

CHOICES = {"CLIP": CLIPS, "OPTIMIZER": OPTIMIZERS, "LOADING": (*STRATEGIES,), "INITIALISATION": INITIALISATIONS}


@pytest.fixture(scope="module")
def built(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Built, and not to be changed."""
    made = Build(Path(shutil.copytree(sources, tmp_path_factory.mktemp("built") / "work")))
    assert made() == 0
    return made


# --- the tree


def test_the_tree_has_the_layout_of_the_rules(built: Build) -> None:
    files = {str(path.relative_to(built.tree)) for path in built.tree.rglob("*") if path.is_file()}
    system_folder = (
        "README.md",
        "setup.sh",
        "init_datasets.sh",
        "run_and_time.sh",
        "config.sh",
        f"{SYSTEM}_pytorch.json",
    )
    assert files == {
        f"systems/{SYSTEM}.json",
        *(f"results/{SYSTEM}/bert/result_{number}.txt" for number in range(10)),
        *(f"benchmarks/bert/{SYSTEM}/{name}" for name in system_folder),
        *(f"{CODE}/{name}" for name in SOURCES if name not in HIDDEN),
    }
    assert built.left() == {"package"}


def test_code_and_logs_are_byte_for_byte(built: Build) -> None:
    for name in SOURCES.keys() - set(HIDDEN):
        assert (built.tree / CODE / name).read_bytes() == SOURCES[name].encode(), name
    assert os.access(built.tree / CODE / "setup.sh", os.X_OK)
    for log in built.results.iterdir():
        assert (built.tree / "results" / SYSTEM / "bert" / log.name).read_bytes() == log.read_bytes()


def test_the_verifier_and_the_official_checkers_pass_it(
    built: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tree = shutil.copytree(built.tree, tmp_path / ORGANISATION)  # the official checkers write into what they check
    monkeypatch.setattr(sys, "argv", ["verify", str(tree)])
    assert verify_main() == 0
    assert official_verdicts(tree, caplog) == (True, True, True)
    (tree / "results" / SYSTEM / "bert" / "result_9.txt").unlink()
    (tree / "systems" / f"{SYSTEM}.json").write_text('{"division": "closed"}')
    (tree / ".hidden").touch()
    assert official_verdicts(tree, caplog) == (False, False, False)


def official_verdicts(tree: Path, caplog: pytest.LogCaptureFixture) -> tuple[bool, bool, bool]:
    """Of the package checker's two parts and the repository checker, which says it in words only."""
    caplog.clear()
    caplog.set_level("INFO")
    repo_checker.run_checks(str(tree))
    return (
        bool(check_systems(str(tree), "training", "5.0.0")),
        bool(check_training_result_files(str(tree), "training", "5.0.0", False, False, False, False, False)),
        "ALL CHECKS PASSED." in caplog.text,
    )


def test_the_scripts_run_the_implementation_with_the_configuration_of_the_logs(built: Build) -> None:
    folder = built.tree / "benchmarks" / "bert" / SYSTEM
    said = subprocess.run(
        [folder / "run_and_time.sh", "one"], check=True, capture_output=True, text=True, cwd="/"
    ).stdout
    assert said == "trial 56 data/kjv one\n"
    said = subprocess.run([folder / "setup.sh", "--tools"], check=True, capture_output=True, text=True, cwd="/").stdout
    assert said == "setup --tools\n"


def test_the_project_reads_the_configuration_as_it_was(build: Build) -> None:
    changed: dict[str, Any] = {"division": "open", "optimizer": "adam", "device": "cpu", "learning_rate": 2e-3}
    for log in build.results.iterdir():
        set_value(log, "configuration", configuration(**changed))
        set_value(log, "submission_division", "open")
        set_value(log, "opt_name", "adam")
    assert build() == 0
    read = load({"CONFIG": str(build.tree / "benchmarks" / "bert" / SYSTEM / "config.sh")}).resolved()
    assert {name: entry["value"] for name, entry in read.items()} == {
        name: entry["value"] for name, entry in configuration(**changed).items()
    }


@pytest.mark.parametrize(("value", "word"), [(True, "1"), (2e-06, "2e-06"), ("a b", "'a b'"), ("it's", '"it\'s"')])
def test_values_mean_to_the_shell_what_they_say(value: object, word: str) -> None:
    assert config_file({"DATA_DIR": "data", "X": value}).splitlines()[-1] == f"export X={word}"


def test_the_readme_says_what_it_takes_to_repeat_the_runs(built: Build) -> None:
    text = (built.tree / "benchmarks" / "bert" / SYSTEM / "README.md").read_text()
    for name in VARIABLES.keys() - {"SEED", "RESULT_FILE", "CLEAR_CACHES", "CACHES_CLEARED"}:
        assert f"| {name} | " in text, name
    commit = git(built.repository, "rev-parse", "HEAD").strip()
    for words in (commit, "./run_and_time.sh", "LAMB", "every `150000` more", "stops at `0.72`", "| `1063` |"):
        assert words in text, words


@pytest.mark.parametrize(
    ("name", "value"),
    [(name, value) for name, values in CHOICES.items() for value in values],
)
def test_the_readme_has_words_for_every_choice(built: Build, name: str, value: str) -> None:
    results = read_results(built.results)

    def text(value: str) -> str:
        chosen = dataclasses.replace(results, configuration=results.configuration | {name: value})
        return readme(chosen, submitter=ORGANISATION, implementation="pytorch", commit="0" * 40)

    assert f"{name}=`{value}`" not in text(value)
    assert f"{name}=`another`" in text("another")  # what stands where there are none


def test_data_at_an_absolute_place_are_asked_for(build: Build) -> None:
    place = "/" + "home/ann/data"  # in one piece, it would be a home path of this very file
    for log in build.results.iterdir():
        set_value(log, "configuration", configuration(data_dir=Path(place)))
    assert build() == 0
    folder = build.tree / "benchmarks" / "bert" / SYSTEM
    assert not any(place in path.read_text() for path in folder.iterdir())
    refused = subprocess.run([folder / "run_and_time.sh"], capture_output=True, text=True)
    assert (refused.returncode, "DATA_DIR" in refused.stderr) == (2, True)
    given = subprocess.run([folder / "run_and_time.sh"], env=os.environ | {"DATA_DIR": "mine"}, capture_output=True)
    assert given.stdout == b"trial 56 mine \n"


# --- several systems


def test_two_systems_are_in_one_tree(build: Build) -> None:
    other = packages.write_runs(build.folder / "other", first=10, system="box_n2")
    assert build(results=(build.results, other)) == 0
    assert {path.name for path in (build.tree / "systems").iterdir()} == {f"{SYSTEM}.json", "box_n2.json"}
    assert (build.tree / "benchmarks" / "bert" / "box_n2" / "box_n2_pytorch.json").is_file()
    assert len(list((build.tree / "results" / "box_n2" / "bert").iterdir())) == 10


def test_two_systems_have_each_the_template_of_its_name(build: Build) -> None:
    other = packages.write_runs(build.folder / "other", first=10, system="box_n2")
    one, two = (packages.write_template(build.folder / f"{name}.json", cooling=name) for name in (SYSTEM, "box_n2"))
    build.template = one
    assert build("--system-template", str(two), results=(build.results, other)) == 0
    for name in (SYSTEM, "box_n2"):
        assert json.loads((build.tree / "systems" / f"{name}.json").read_text())["cooling"] == name


def test_results_are_numbered_without_gaps(build: Build, capsys: pytest.CaptureFixture[str]) -> None:
    (build.results / "result_9.txt").rename(build.results / "result_12.txt")
    (build.results / "notes.txt").touch()
    assert build() == 0
    assert (build.tree / "results" / SYSTEM / "bert" / "result_9.txt").is_file()
    said = capsys.readouterr().err
    assert "result_12.txt becomes result_9.txt" in said
    assert "not packaged: 'notes.txt'" in said
