"""Input that tools.package refuses, trees that it does not leave, and builds that are killed."""

from __future__ import annotations

import math
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tests.support import packages
from tests.support.packages import ORGANISATION, SYSTEM, Build, configuration
from tests.support.submissions import Records, abort, change, set_value, snapshot
from tests.support.tiny import ROOT
from tools.package.names import PackageError
from tools.package.results import check_distinct, read_results

Spoil = Callable[[Build], object]

# --- what is refused


def drop_a_run(build: Build) -> None:
    (build.results / "result_9.txt").unlink()


def log_another_value(key: str, value: Any, *numbers: int) -> Spoil:
    def spoil(build: Build) -> None:
        for number in numbers or range(10):
            set_value(build.results / f"result_{number}.txt", key, value)

    return spoil


def configure(**changed: Any) -> Spoil:
    return log_another_value("configuration", configuration(**changed))


def describe_as(**changed: Any) -> Spoil:
    return lambda build: packages.write_template(build.template, **changed)


def copy_a_log(build: Build) -> None:
    shutil.copyfile(build.results / "result_2.txt", build.results / "result_9.txt")


def log_a_run_again(build: Build) -> None:
    """The same run, another file."""
    log = (build.results / "result_2.txt").read_text()
    (build.results / "result_9.txt").write_text(log + "some words more\n")


def log_a_run_as_another(build: Build) -> None:
    """The same run, at another time with another seed."""
    repeat_a_run(build, lambda records: None)


def repeat_a_run(build: Build, edit: Callable[[Records], object]) -> None:
    """The first run again in place of the last."""

    def shift(records: Records) -> None:
        for record in records:
            record["time_ms"] += 9 * 3_600_000
            record["value"] = 5 if record["key"] == "seed" else record["value"]
        edit(records)

    shutil.copyfile(build.results / "result_0.txt", build.results / "result_9.txt")
    change(build.results / "result_9.txt", shift)


def drop_the_configuration(build: Build) -> None:
    change(build.results / "result_4.txt", lambda records: records.pop(packages.place_of(records, "configuration")))


def empty_a_log(build: Build) -> None:
    (build.results / "result_4.txt").write_bytes(b"")


def remove_all_logs(build: Build) -> None:
    shutil.rmtree(build.results)
    build.results.mkdir()


def take_the_place(build: Build) -> None:
    build.out.mkdir()
    (build.out / "mine.txt").write_text("mine")


def leave_an_unfinished_one(build: Build) -> None:
    (build.folder / "package.unfinished").mkdir()


def strange(**values: Any) -> dict[str, dict[str, Any]]:
    return {name: {"value": value, "source": "log"} for name, value in values.items()}


REFUSED: dict[str, tuple[Spoil, tuple[str, ...], tuple[str, ...]]] = {
    # spoil, arguments, words of the message
    "no such commit": (lambda build: None, ("--commit", "nowhere"), ("--commit 'nowhere'", "no such commit")),
    "commit an option": (lambda build: None, ("--commit=--all",), ("no such commit",)),
    "no repository": (lambda build: shutil.rmtree(build.repository / ".git"), (), ("git rev-parse failed",)),
    "inside a repository": (
        lambda build: setattr(build, "repository", build.repository / "docs"),
        (),
        ("not the root",),
    ),
    "place is taken": (take_the_place, (), ("package: exists and is no empty folder",)),
    "place is being built": (leave_an_unfinished_one, (), ("package.unfinished: exists", "remove it")),
    "no such results": (lambda build: shutil.rmtree(build.results), (), ("box: no such folder",)),
    "no results": (
        remove_all_logs,
        (),
        ("no file result_",),
    ),
    "copy of a log": (copy_a_log, (), ("result_9.txt is a copy of", "result_2.txt")),
    "run twice": (log_a_run_again, (), ("result_9.txt is of the same run", "result_2.txt")),
    "run twice, times and seed changed": (
        log_a_run_as_another,
        (),
        ("result_9.txt is of the same run (every evaluation is equal)", "result_0.txt"),
    ),
    "no configuration": (drop_the_configuration, (), ("result_4.txt: no configuration",)),
    "empty log": (empty_a_log, (), ("result_4.txt",)),
    "other system": (
        log_another_value("submission_platform", "other", 3),
        (),
        ("result_3.txt", "'other'", "of one system"),
    ),
    "other settings": (
        log_another_value("configuration", configuration(batch_size=8), 3),
        (),
        ("BATCH_SIZE is 8, but 56",),
    ),
    "unknown variable": (log_another_value("configuration", strange(LD_PRELOAD="x.so")), (), ("'LD_PRELOAD'",)),
    "value no scalar": (log_another_value("configuration", strange(LOADING=["a"])), (), ("'LOADING'",)),
    "value of two lines": (configure(loading="a\nexport X=1"), (), ("LOADING", "printable")),
    "value for the shell": (configure(loading="'$(touch x)"), (), ("LOADING", "export NAME=value")),
    "system leads out": (
        log_another_value("submission_platform", "../../up"),
        (),
        ("submission_platform", "'../../up'"),
    ),
    "system hidden": (log_another_value("submission_platform", ".box"), (), ("'.box'",)),
    "system an option": (log_another_value("submission_platform", "-box"), (), ("'-box'",)),
    "system in the code's place": (
        log_another_value("submission_platform", "Implementations"),
        (),
        ("names no system",),
    ),
    "system not set": (log_another_value("submission_platform", "none"), (), ("names no system",)),
    "system no text": (log_another_value("submission_platform", 7), (), ("no submission_platform",)),
    "organisation leads out": (log_another_value("submission_org", "a/../../b"), (), ("submission_org", "'a/../../b'")),
    "organisation absolute": (lambda build: None, ("--org", "/tmp"), ("--org is '/tmp'",)),
    "organisation not set": (log_another_value("submission_org", "none"), (), ("--org: the logs do not say it",)),
    "implementation leads out": (lambda build: None, ("--implementation", ".."), ("--implementation is '..'",)),
    "no such round": (lambda build: None, ("--round", "v9.9"), ("'v9.9'",)),
    "template left open": (
        lambda build: packages.write_open_template(build.template),
        (),
        ("cooling: FILL IN",),
    ),
    "template of another tool left open": (describe_as(cooling="CHANGEME"), (), ("cooling: CHANGEME",)),
    "template lacks a key": (describe_as(cooling=None), (), ("cooling: missing",)),
    "template holds a number": (describe_as(number_of_nodes=1), (), ("number_of_nodes: 1, expected a text",)),
    "template of another division": (
        describe_as(division="open"),
        (),
        ("division: 'open', but the runs say 'closed'",),
    ),
    "template of more nodes": (describe_as(number_of_nodes="4"), (), ("number_of_nodes: '4', but the runs say '1'",)),
    "template without GPU": (describe_as(accelerator_model_name=""), (), ("accelerator_model_name: which they are",)),
    "device unknown": (configure(device="auto"), (), ("accelerators_per_node: how many",)),
    "template no JSON": (lambda build: build.template.write_text("{"), (), ("filled.json: not JSON",)),
    "no such template": (lambda build: build.template.unlink(), (), ("filled.json: cannot read it",)),
}


@pytest.mark.parametrize(("spoil", "arguments", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_bad_input_is_refused_and_leaves_nothing(
    build: Build,
    spoil: Spoil,
    arguments: tuple[str, ...],
    words: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
) -> None:
    spoil(build)
    before = snapshot(build.folder)
    assert build(*arguments) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("package: ")
    for word in words:
        assert word in said.err
    assert snapshot(build.folder).keys() == before.keys()


TWICE = {  # first run of the second folder, its system; words
    "a run in both": (9, "box_n2", "other/result_0.txt is of the same run"),
    "one system": (10, SYSTEM.upper(), f"are both of the system {SYSTEM.upper()}"),
}


@pytest.mark.parametrize(("first", "name", "words"), TWICE.values(), ids=TWICE.keys())
def test_nothing_is_packaged_twice(
    build: Build, first: int, name: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    other = packages.write_runs(build.folder / "other", first=first, system=name)
    assert build(results=(build.results, other)) == 2
    assert words in capsys.readouterr().err


def test_one_folder_given_twice_is_refused(build: Build, capsys: pytest.CaptureFixture[str]) -> None:
    assert build(results=(build.results, build.results / ".." / "box")) == 2
    assert "box/../box/result_0.txt is a copy of" in capsys.readouterr().err


def test_runs_that_differ_in_one_last_digit_are_two(build: Build) -> None:
    def measure_more(records: Records) -> None:
        record = records[packages.place_of(records, "eval_accuracy")]
        record["value"] = math.nextafter(record["value"], 1)

    repeat_a_run(build, measure_more)
    assert build() == 0


def test_one_evaluation_alone_tells_no_runs_apart(build: Build) -> None:
    """Short runs may well end alike."""
    write_equal_evaluations(build, 1)
    check_distinct([read_results(build.results)])
    write_equal_evaluations(build, 2)
    with pytest.raises(PackageError, match="every evaluation is equal"):
        check_distinct([read_results(build.results)])


def write_equal_evaluations(build: Build, count: int) -> None:
    def edit(records: Records) -> None:
        (measured,) = [record for record in records if record["key"] == "eval_accuracy"][-1:]
        records[:] = [record for record in records if record["key"] != "eval_accuracy"]
        records += [measured | {"value": 0.725}] * count

    for log in build.results.iterdir():
        change(log, edit)


# --- files that are none


@contextmanager
def pipe_at(path: Path) -> Iterator[None]:
    """With a writer, who says nothing: it is read as an empty file."""
    os.mkfifo(path)
    writer = Thread(target=lambda: open(path, "wb").close())
    writer.start()
    yield
    os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
    writer.join()


@contextmanager
def socket_at(path: Path) -> Iterator[None]:
    with socket.socket(socket.AF_UNIX) as server, pytest.MonkeyPatch.context() as patch:
        patch.chdir(path.parent)  # the whole path may be too long for a socket
        server.bind(path.name)
        yield


@contextmanager
def device_at(path: Path) -> Iterator[None]:
    path.symlink_to("/dev/null")
    yield


@contextmanager
def folder_at(path: Path) -> Iterator[None]:
    path.mkdir()
    yield


@pytest.mark.parametrize("name", ["box/result_9.txt", "filled.json"])
@pytest.mark.parametrize("at", [pipe_at, socket_at, device_at, folder_at])
def test_what_is_no_regular_file_is_not_read(
    build: Build, name: str, at: Callable[[Path], AbstractContextManager[None]], capsys: pytest.CaptureFixture[str]
) -> None:
    path = build.folder / name
    path.unlink()
    with at(path):
        assert build() == 2
    assert f"{path}: no regular file" in capsys.readouterr().err
    assert build.left() == set()


@pytest.mark.parametrize("name", ["box/result_9.txt", "filled.json"])
def test_a_link_to_a_file_is_read(build: Build, name: str) -> None:
    path = build.folder / name
    (build.folder / "elsewhere").mkdir()
    path.rename(build.folder / "elsewhere" / path.name)
    path.symlink_to(build.folder / "elsewhere" / path.name)
    assert build() == 0


# --- what fails


def abort_two(build: Build) -> None:
    abort(build.results / "result_0.txt")
    abort(build.results / "result_1.txt")


def commit_a_library(build: Build) -> None:
    (build.repository / "net.so").write_bytes(b"\x7fELF")
    packages.commit(build.repository)


def commit_without_licence(build: Build) -> None:
    (build.repository / "LICENSE").unlink()
    packages.commit(build.repository)


FAILING = {
    "nine runs": (drop_a_run, "9 runs"),
    "two runs that did not converge": (abort_two, "2 of 10 logs do not stand"),
    "a library in the commit": (commit_a_library, "compiled leftovers"),
    "no licence in the commit": (commit_without_licence, "missing in benchmarks/bert: LICENSE"),
}


@pytest.mark.parametrize(("spoil", "words"), FAILING.values(), ids=FAILING.keys())
def test_a_tree_that_fails_is_reported_and_not_left(
    build: Build, spoil: Spoil, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil(build)
    assert build() == 1
    said = capsys.readouterr()
    assert said.out.startswith(f"FAILED   {build.tree}")
    assert words in said.out
    assert build.left() == set()


def test_a_tree_that_fails_is_kept_where_asked_for(build: Build, capsys: pytest.CaptureFixture[str]) -> None:
    drop_a_run(build)
    assert build("--keep-failed") == 1
    assert build.left() == {"package.failed"}
    assert str(build.folder / "package.failed" / ORGANISATION) in capsys.readouterr().out
    assert build("--keep-failed") == 2
    assert "package.failed: exists" in capsys.readouterr().err
    assert build("--runs", "9") == 0
    assert build.left() == {"package.failed", "package"}


def test_an_empty_folder_is_taken(build: Build) -> None:
    build.out.mkdir()
    assert build() == 0
    assert build.tree.is_dir()


@pytest.mark.parametrize(
    ("number", "left"),
    [(signal.SIGTERM, set()), (signal.SIGKILL, {"package.unfinished"})],
    ids=lambda each: each.name if isinstance(each, signal.Signals) else "",
)
def test_a_build_that_is_killed_leaves_no_package(build: Build, number: signal.Signals, left: set[str]) -> None:
    """Inside the verification, which finds a pipe that nobody writes to in place of a result."""
    os.mkfifo(build.folder / "pipe")
    stop = f"import tools.package.build as b; b.verify = lambda *a, **b: open({str(build.folder / 'pipe')!r}).read()"
    command = f"{stop}; import runpy; runpy.run_module('tools.package', run_name='__main__', alter_sys=True)"
    process = subprocess.Popen([sys.executable, "-c", command, *build.arguments()], cwd=ROOT)
    with open(build.folder / "pipe", "w"):  # returns once the build reads it
        assert build.left() == {"pipe", "package.unfinished"}
        process.send_signal(number)
        assert process.wait() == (-number if number == signal.SIGKILL else 128 + number)
    assert build.left() == {"pipe"} | left
