"""What `python -m tools.verify` writes and where: text, JSON, HTML, Markdown; colours, pipes, standard error."""

from __future__ import annotations

import json
import os
import pty
import subprocess
from pathlib import Path

import pytest

from tests.support.command import FAILED, NOT_JUDGED, PASSED, Verify, command, run
from tests.support.submissions import (
    Spoil,
    abort,
    keep_lines,
    set_value,
    use_placeholder,
)
from tests.support.tiny import ROOT, clean_environment


def test_json_is_one_document_and_nothing_else(results: Path, verify: Verify) -> None:
    assert verify("--json", results) == PASSED
    report = json.loads(verify.out)
    assert (report["verdict"], report["kind"]) == ("passed", "folder")
    assert len(report["folders"][0]["runs"]) == 10
    assert verify.err == ""
    (results / "result_3.txt").unlink()
    assert verify("--json", results) == FAILED
    assert json.loads(verify.out)["verdict"] == "failed"


def test_html_and_markdown_are_written_besides(log: Path, tmp_path: Path, verify: Verify) -> None:
    page, report = tmp_path / "page.html", tmp_path / "report.md"
    abort(log)
    assert verify(log, "--html", page, "--markdown", report, "--json") == FAILED
    assert json.loads(verify.out)["verdict"] == "failed"
    assert "<html" in page.read_text("utf-8")
    for path in (page, report):
        assert "too many steps" in path.read_text("utf-8")


@pytest.mark.parametrize("option", ["--html", "--markdown"])
@pytest.mark.parametrize("target", ["no/such/folder/page", ".", "/dev/full"])
def test_a_form_that_cannot_be_written_is_one_clear_error(
    option: str, target: str, log: Path, tmp_path: Path, verify: Verify, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert verify(log, option, target) == NOT_JUDGED
    assert verify.err.startswith("verify: ")
    assert target in verify.err
    assert verify.err.count("\n") == 1


def test_verbose_shows_what_only_follows(log: Path, verify: Verify) -> None:
    keep_lines(log, 40)
    assert verify(log) == FAILED
    short = verify.out
    assert verify("-v", log) == FAILED
    assert len(verify.out) > len(short)


def test_nothing_is_written_beside_what_is_read(results: Path, verify: Verify, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(results)  # some official tools leave a file in the working folder
    before = sorted(results.iterdir())
    assert verify(results) == PASSED
    assert sorted(results.iterdir()) == before


# --- colours and pipes


def on_a_terminal(*arguments: object, **variables: str) -> bytes:
    """What the command writes to a terminal."""
    ours, theirs = pty.openpty()
    environment = {name: value for name, value in clean_environment().items() if name != "NO_COLOR"} | variables
    try:
        done = subprocess.run(command(*arguments), stdout=theirs, stderr=theirs, env=environment, cwd=ROOT, timeout=60)
        assert done.returncode == PASSED
        return os.read(ours, 1 << 20)
    finally:
        os.close(ours)
        os.close(theirs)


def test_colours_come_on_a_terminal_alone(log: Path) -> None:
    assert b"\x1b[" in on_a_terminal(log)
    assert b"\x1b[" not in on_a_terminal(log, NO_COLOR="1")
    assert b"\x1b[" not in on_a_terminal(log, "--json")
    assert b"\x1b[" not in run(log).stdout


def one_seed(folder: Path) -> None:
    for path in folder.iterdir():
        set_value(path, "seed", 42)


def no_samples(folder: Path) -> None:
    for path in folder.iterdir():
        use_placeholder(path, 0)
        set_value(path, "train_samples", 0)


@pytest.mark.parametrize("spoil", [one_seed, no_samples])
def test_what_the_official_tools_say_or_warn_of_stays_off_the_terminal(spoil: Spoil, results: Path) -> None:
    spoil(results)
    done = run(results)
    assert done.returncode == FAILED
    assert done.stderr == b""


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_a_reader_that_has_gone_gives_no_traceback(form: tuple[str, ...], results: Path) -> None:
    """As with `| head -1`, without waiting for head to end."""
    ours, theirs = os.pipe()
    os.close(ours)
    try:
        done = run(results, *form, stdout=theirs)
    finally:
        os.close(theirs)
    assert done.stderr == b""
