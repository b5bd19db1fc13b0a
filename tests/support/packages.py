"""A folder in, what a package is built from out: a small git repository, ten logs of this project, a template."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.bert.config import Config
from tests.support.logs import BATCH, INTERVAL, TARGET, fields, record
from tests.support.submissions import Records, run_records, write_records
from tools.package.__main__ import main
from tools.package.system import TEMPLATE, described

SYSTEM = "box_n1"
ORGANISATION = "Example"
CODE = Path("benchmarks/bert/implementations/pytorch")  # in the tree
HIDDEN = (".ci/run", ".gitignore", "docs/.draft")
SOURCES = {
    "README.md": "a small implementation\n",
    "LICENSE": "do what you like\n",
    "setup.sh": '#!/usr/bin/env bash\necho "setup $*"\n',
    "init_datasets.sh": "#!/usr/bin/env bash\necho data\n",
    "run_and_time.sh": '#!/usr/bin/env bash\nsource "$CONFIG"\necho "trial $BATCH_SIZE $DATA_DIR $*"\n',
    "model/net.py": "WIDTH = 8\r\n",
    ".gitignore": "*.pyc\n",
    ".ci/run": "make\n",
    "docs/.draft": "not yet\n",
}


class Build:
    """A repository, results and a template in a folder, and how a build of them goes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.repository = folder / "repository"
        self.results = folder / "box"
        self.template = folder / "filled.json"
        self.out = folder / "package"

    def arguments(self, *further: str, results: tuple[Path, ...] = ()) -> list[str]:
        given = {"--out": self.out, "--repository": self.repository, "--system-template": self.template}
        options = [str(word) for option in given.items() for word in option]
        return ["build", *map(str, results or (self.results,)), *options, *further]

    def __call__(self, *further: str, results: tuple[Path, ...] = ()) -> int:
        """The exit status."""
        return run_package(*self.arguments(*further, results=results))

    @property
    def tree(self) -> Path:
        return self.out / ORGANISATION

    def left(self) -> set[str]:
        """What lies beside the sources."""
        return {path.name for path in self.folder.iterdir()} - {"repository", "box", "filled.json"}


def run_package(*arguments: str) -> int:
    """`python -m tools.package` in this process; its exit status."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["package", *arguments])
        return main()


def write_sources(folder: Path) -> None:
    """What a Build needs, with nothing wrong in it."""
    write_repository(folder / "repository")
    write_runs(folder / "box")
    write_template(folder / "filled.json")


def configuration(**changed: Any) -> dict[str, Any]:
    """The record of a configuration at the benchmark's scale, as a run logs it."""
    values: dict[str, Any] = {
        "submission_org": ORGANISATION,
        "submission_platform": SYSTEM,
        "submission_status": "onprem",
        "division": "closed",
        "device": "cuda",
        "ranks_per_node": 8,
        "batch_size": BATCH // 8,
        "optimizer": "lamb",
        "clip": "none",
        "target_accuracy": TARGET,
        "eval_start_samples": INTERVAL,
        "eval_interval_samples": INTERVAL,
        "decay_steps": 100_000,
    }
    return Config(**(values | changed)).resolved()


def write_runs(
    folder: Path, num_runs: int = 10, *, first: int = 0, system: str = SYSTEM, logged: dict[str, Any] | None = None
) -> Path:
    """result_0.txt and on: runs that stand, with a configuration; `logged` are values of other keys. The folder."""
    folder.mkdir(parents=True)
    for number in range(num_runs):
        write_records(folder / f"result_{number}.txt", run_of(first + number, system, logged or {}))
    return folder


def run_of(number: int, system: str, logged: dict[str, Any]) -> Records:
    records = run_records(number)
    place = place_of(records, "target_accuracy")
    added = fields(record("configuration", configuration(submission_platform=system), records[place]["time_ms"]))
    records.insert(place + 1, added)
    values = {"submission_platform": system} | logged
    for each in records:
        each["value"] = values.get(each["key"], each["value"])
        if each["key"] == "eval_accuracy":
            each["value"] += number / 1000  # no two runs measure the same
    return records


def place_of(records: Records, key: str) -> int:
    """Of the key's first record."""
    return [each["key"] for each in records].index(key)


def write_template(path: Path, **changed: Any) -> Path:
    """A template with nothing left to fill in; a key that is changed to None is taken out."""
    filled = {key: "known" if value else "" for key, value in TEMPLATE.items()}
    path.write_text(json.dumps({key: value for key, value in (filled | changed).items() if value is not None}))
    return path


def write_open_template(path: Path) -> Path:
    """What `describe` leaves to people on a machine that tells nothing."""
    path.write_text(json.dumps(described({})))
    return path


def write_repository(folder: Path, **further: str) -> Path:
    """SOURCES and further files in one commit; the folder."""
    folder.mkdir(parents=True)
    for name, text in (SOURCES | further).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(text.encode())
        (folder / name).chmod(0o755 if name.endswith(".sh") else 0o644)
    git(folder, "init", "--quiet")
    commit(folder)
    return folder


def commit(folder: Path) -> str:
    """Everything that git does not ignore, in a new commit; its hash."""
    git(folder, "add", "--all")
    git(folder, "-c", "user.name=Me", "-c", "user.email=me@example.org", "commit", "--quiet", "--message", "all")
    return git(folder, "rev-parse", "HEAD").strip()


def git(folder: Path, *arguments: str, given: str = "") -> str:
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, input=given).stdout
