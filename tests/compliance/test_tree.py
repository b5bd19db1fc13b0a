"""An organisation's tree: each rule of its files fires alone on a tree that was spoiled for it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.support.reports import check_of, only
from tests.support.submissions import (
    CODE,
    CODE_FILES,
    SYSTEM,
    Spoil,
    results_of,
    set_description,
    snapshot,
)
from tools.verify.finding import Severity
from tools.verify.log import UnreadableLogError
from tools.verify.verify import verify

ERROR, WARNING = Severity.ERROR, Severity.WARNING


def test_the_whole_tree_passes(whole: Path) -> None:
    report = verify(whole)
    assert (report.kind, report.failed, len(report.folders)) == ("tree", False, 1)
    assert list(report.all_findings()) == []


# --- our own rules


def without(name: str) -> Spoil:
    return lambda root: (root / CODE / name).unlink()


def add(name: str, content: str = "") -> Spoil:
    def spoil(root: Path) -> None:
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(content)

    return spoil


def without_code(root: Path) -> None:
    shutil.rmtree(root / "benchmarks")


def without_bert_code(root: Path) -> None:
    (root / "benchmarks" / "bert").rename(root / "benchmarks" / "resnet")


def call_it_bert_in_capitals(root: Path) -> None:
    results_of(root).rename(results_of(root).with_name("BERT"))


def link(name: str, target: str) -> Spoil:
    return lambda root: (root / name).symlink_to(target)


def move_results(place: str) -> Spoil:
    def spoil(root: Path) -> None:
        (root / "results" / place).parent.mkdir(parents=True, exist_ok=True)
        results_of(root).rename(root / "results" / place)

    return spoil


LEFTOVERS = [
    "a.pyc",
    "a.o",
    "lib.so",
    "lib.so.1.2",
    "lib.a",
    "x.egg",
    "x.whl",
    "A.class",
    "a.dll",
    "__pycache__/x",
]
HOME, USERS, ROOTS = "/" + "home", "/" + "Users", "/" + "root"  # apart: this file is part of a submission itself
HOMES = [f"{HOME}/ann/data", f"DATA={HOME}/ann", f"'{USERS}/ann/x'", f"cd {ROOTS}/work", f"a:{HOME}/bob.smith"]
NO_HOMES = [
    f"{HOME}/",
    f"/data{HOME}/ann/x",
    "$HOME/data",
    "~/data",
    f"https://a.example{ROOTS}",
    ROOTS,
    f"x{HOME}/ann",
]
NO_HOMES += [f'"$scratch"{ROOTS}/var', "tests/dist/x"]
SPOILS = [
    # (spoil, rule, severity, the file that is named, what the message holds)
    *(pytest.param(without(name), "package.files", ERROR, "bert", name, id=f"no {name}") for name in CODE_FILES),
    pytest.param(without_bert_code, "package.files", ERROR, "bert", "README.md, setup.sh", id="no code for bert"),
    pytest.param(without_code, "package.files", WARNING, "org", "no benchmarks folder", id="no code"),
    *(
        pytest.param(add(f"{CODE}/{name}"), "package.compiled", ERROR, name.split("/")[0], name.split("/")[0], id=name)
        for name in LEFTOVERS
    ),
    *(
        pytest.param(add(f"{CODE}/run.sh", f"set -e\n{text}\n"), "package.homes", ERROR, "run.sh", "/", id=text)
        for text in HOMES
    ),
    pytest.param(link("code", "benchmarks"), "package.links", ERROR, "code", "1 links", id="a link to a folder"),
    pytest.param(link("hosts", "/etc/hosts"), "package.links", ERROR, "hosts", "1 links", id="a link out of the tree"),
    pytest.param(
        move_results(f"sub/{SYSTEM}/bert"), "package.place", ERROR, "bert", "results of BERT", id="results too deep"
    ),
    pytest.param(move_results("bert"), "package.place", ERROR, "bert", "results of BERT", id="results too high"),
    pytest.param(
        call_it_bert_in_capitals, "package.benchmark-name", ERROR, "BERT", "the folder is called BERT", id="BERT"
    ),
]


@pytest.mark.parametrize(("spoil", "rule", "severity", "name", "said"), SPOILS)
def test_a_rule_fires_alone_where_the_tree_was_spoiled_for_it(
    spoil: Spoil, rule: str, severity: Severity, name: str, said: str, root: Path
) -> None:
    spoil(root)
    before = snapshot(root)
    report = verify(root)
    finding = only(report)
    assert (finding.rule.id, finding.severity) == (rule, severity)
    assert finding.path is not None
    assert finding.path.name == name
    assert said in finding.message
    assert report.failed is (severity is ERROR)
    assert snapshot(root) == before


@pytest.mark.parametrize("text", NO_HOMES)
def test_what_is_nobodys_home_is_none(text: str, root: Path) -> None:
    add(f"{CODE}/run.sh", text)(root)
    assert list(verify(root).all_findings()) == []


def test_a_home_is_named_with_its_line(root: Path) -> None:
    add(f"{CODE}/run.sh", f"#!/bin/bash\n\nDATA={HOME}/ann/data\n")(root)
    finding = only(verify(root))
    assert (finding.line, finding.text, finding.message) == (3, f"DATA={HOME}/ann/data", f"{HOME}/ann")


def test_a_binary_file_is_not_searched_for_homes(root: Path) -> None:
    (root / CODE / "picture.png").write_bytes(b"\x00" + f"{HOME}/ann".encode())
    assert list(verify(root).all_findings()) == []


def test_names_of_what_must_be_there_may_be_in_another_case_and_anywhere_below(root: Path) -> None:
    (root / CODE / "README.md").rename(root / CODE / "readme.MD")
    (root / CODE / "LICENSE").rename(root / "benchmarks" / "bert" / "LICENSE")
    assert list(verify(root).all_findings()) == []


@pytest.mark.parametrize("place", ["", CODE, "systems"])
def test_a_hidden_file_is_one_finding_though_the_official_check_sees_it_as_well(place: str, root: Path) -> None:
    add(os.path.join(place, ".DS_Store"))(root)
    report = verify(root)
    finding = only(report)
    assert (finding.rule.id, finding.severity) == ("package.dotfiles", ERROR)
    assert ".DS_Store" in finding.message
    assert check_of(report, "repository").outcome == "fail"
    assert report.failed


def test_of_many_files_five_are_named(root: Path) -> None:
    for number in range(8):
        add(f"{CODE}/a{number}.pyc")(root)
    finding = only(verify(root))
    assert finding.message.startswith("8 compiled leftovers: ")
    assert finding.message.endswith("a4.pyc and 3 more")


def test_a_link_to_a_file_of_the_tree_is_no_fault(root: Path) -> None:
    link(f"{CODE}/COPYING", "LICENSE")(root)
    assert list(verify(root).all_findings()) == []


# --- however it is named


@pytest.mark.parametrize(
    ("place", "path"),
    [
        (".", "."),
        ("..", "org"),
        ("..", "org/"),
        ("results", ".."),
        (f"results/{SYSTEM}/bert", "."),
        (f"results/{SYSTEM}", "bert"),
        ("results", SYSTEM),
        (".", "results"),
    ],
)
def test_a_relative_path_gives_what_the_absolute_one_gives(
    place: str, path: str, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_description(root, division="Closed")
    monkeypatch.chdir(root / place)
    relative, absolute = verify(Path(path)), verify((root / place / path).resolve())
    assert relative.failed
    assert relative.kind == absolute.kind
    assert [folder.system for folder in relative.folders] == [folder.system for folder in absolute.folders]
    assert [finding.message for finding in relative.all_findings()] == [
        finding.message for finding in absolute.all_findings()
    ]
    assert [check.outcome for check in relative.checks] == [check.outcome for check in absolute.checks]


def test_a_file_of_the_code_that_cannot_be_read_is_named(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    genuine = Path.read_bytes

    def refusing(path: Path) -> bytes:
        if path.name == "setup.sh":
            raise PermissionError(13, "Permission denied", str(path))
        return genuine(path)

    monkeypatch.setattr(Path, "read_bytes", refusing)
    try:
        said = [f"{finding.path} {finding.message}" for finding in verify(root).all_findings()]
    except UnreadableLogError as error:  # or the tree cannot be judged
        said = [str(error)]
    assert any("setup.sh" in text for text in said)
