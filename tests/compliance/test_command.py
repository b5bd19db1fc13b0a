"""`python -m tools.verify`: its exit status for each kind of path, and its options."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.support.command import FAILED, NOT_JUDGED, PASSED, Verify, run
from tests.support.submissions import abort, drop, run_records, set_value, write_records, write_results, write_tree
from tests.support.tiny import clean_environment

# --- exit status by kind of path


def test_a_log_passes_or_fails(log: Path, verify: Verify) -> None:
    assert verify(log) == PASSED
    assert verify.out.startswith("PASSED")
    abort(log)
    assert verify(log) == FAILED
    assert verify.out.startswith("FAILED")
    assert "run_stop.status" in verify.out


def test_a_folder_passes_or_fails(results: Path, verify: Verify) -> None:
    assert verify(results) == PASSED
    assert verify.out.startswith("PASSED")
    (results / "result_3.txt").unlink()
    assert verify(results) == FAILED
    assert verify.out.startswith("FAILED")


def test_several_folders_pass_or_fail(tmp_path: Path, verify: Verify) -> None:
    write_results(tmp_path / "one")
    write_results(tmp_path / "two", first=10)
    assert verify(tmp_path) == PASSED
    (tmp_path / "two" / "result_3.txt").unlink()
    assert verify(tmp_path) == FAILED


def test_a_tree_passes_or_fails(tmp_path: Path, verify: Verify) -> None:
    root = write_tree(tmp_path / "org")
    assert verify(root) == PASSED
    (root / "benchmarks" / "bert" / "a.pyc").touch()
    assert verify(root) == FAILED
    assert "package.compiled" in verify.out


def test_the_command_line_gives_the_status_to_the_shell(log: Path) -> None:
    assert run(log).returncode == PASSED
    abort(log)
    assert run(log).returncode == FAILED
    assert run(log.parent / "none").returncode == NOT_JUDGED


# --- what cannot be judged


def write_nothing(path: Path) -> Path:
    return path


def write_no_record(path: Path) -> Path:
    path.write_text("a text\nwithout records\n")
    return path


def write_resnet(path: Path) -> Path:
    write_records(path, run_records())
    set_value(path, "submission_benchmark", "resnet")
    return path


def write_no_results(path: Path) -> Path:
    path.mkdir()
    (path / "notes.md").touch()
    return path


def write_a_folder_of_that_name(path: Path) -> Path:
    (path / "result_0.txt").mkdir(parents=True)
    return path


def write_resnet_among_bert(path: Path) -> Path:
    write_results(path)
    set_value(path / "result_3.txt", "submission_benchmark", "resnet")
    return path


def write_a_ring(path: Path) -> Path:
    path.symlink_to(path)
    return path


def name_too_long(path: Path) -> Path:
    return path.with_name("a" * 300)


NOT_JUDGEABLE = {
    "no such path": (write_nothing, "no such file or folder"),
    "a text": (write_no_record, "no MLLOG record"),
    "another benchmark": (write_resnet, "a log of 'resnet'"),
    "a folder without results": (write_no_results, "no file result_*.txt"),
    "a result that is a folder": (write_a_folder_of_that_name, "cannot read the log"),
    "another benchmark among ten": (write_resnet_among_bert, "result_3.txt: a log of 'resnet'"),
    "a ring of links": (write_a_ring, "symbolic links"),
    "a name too long": (name_too_long, "name"),
}


@pytest.mark.parametrize("name", NOT_JUDGEABLE)
def test_what_cannot_be_judged_is_one_line_on_stderr(name: str, tmp_path: Path, verify: Verify) -> None:
    write, said = NOT_JUDGEABLE[name]
    path = write(tmp_path / "x")
    assert verify(path) == NOT_JUDGED
    assert verify.out == ""
    assert verify.err.startswith(f"verify: {path}")
    assert said in verify.err
    assert verify.err.count("\n") == 1


@pytest.mark.skipif(not os.path.exists("/proc/self/mem"), reason="needs a file that opens and cannot be read")
def test_a_file_that_cannot_be_read_cannot_be_judged(verify: Verify) -> None:
    assert verify("/proc/self/mem") == NOT_JUDGED
    assert "cannot read the log" in verify.err


def test_an_empty_log_fails(tmp_path: Path, verify: Verify) -> None:
    (tmp_path / "result_0.txt").touch()
    assert verify(tmp_path / "result_0.txt") == FAILED


@pytest.mark.parametrize("arguments", [(), ("--banana",), ("--rules", "mine", "x"), ("--runs", "x", "x"), ("a", "b")])
def test_a_wrong_call_is_no_verdict(arguments: tuple[str, ...], verify: Verify) -> None:
    assert verify(*arguments) == NOT_JUDGED
    assert "usage: python -m tools.verify" in verify.err


# --- paths that are easy to get wrong


def test_a_path_that_begins_with_a_dash(
    log: Path, verify: Verify, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    log.rename("-v")
    assert verify("--", "-v") == PASSED
    assert "-v" in verify.out.splitlines()[0]
    assert verify("-v") == NOT_JUDGED


@pytest.mark.parametrize("name", ["two words", "größe 大", "a'b\"c", "[x]*", "new\nline"])
def test_names_of_all_kinds(name: str, tmp_path: Path, verify: Verify) -> None:
    folder = write_results(tmp_path / name / "bert")
    page = tmp_path / "page.html"
    assert verify(folder, "--html", page) == PASSED
    assert page.stat().st_size > 0
    assert verify(folder, "--json") == PASSED
    assert json.loads(verify.out)["path"] == str(folder)
    assert verify(tmp_path / name / "none") == NOT_JUDGED


@pytest.mark.parametrize("form", [(), ("--json",), ("--html", "page.html"), ("--markdown", "report.md")])
def test_a_name_that_is_no_utf_8(form: tuple[str, ...], tmp_path: Path) -> None:
    folder = write_results(tmp_path / os.fsdecode(b"b\xff"))
    done = run(folder, *form, cwd=tmp_path, env=clean_environment() | {"PYTHONUTF8": "1"})
    assert done.returncode == PASSED, done.stderr
    assert done.stderr == b""


def test_a_terminal_that_knows_ascii_alone(tmp_path: Path) -> None:
    root = write_tree(tmp_path / "größe")
    done = run(root, env=clean_environment() | {"PYTHONIOENCODING": "ascii"})
    assert done.returncode == PASSED, done.stderr
    assert done.stdout.startswith(b"PASSED")


# --- rounds and rules


@pytest.mark.parametrize("option", ["--round", "--ruleset"])
@pytest.mark.parametrize("name", ["v3.0", "3.0", "3.0.0"])
def test_the_round_may_be_asked_for(option: str, name: str, log: Path, verify: Verify) -> None:
    assert verify(option, name, "--json", log) == PASSED
    report = json.loads(verify.out)
    assert (report["ruleset"], report["ruleset_from"]) == ("3.0.0", "as asked for")


def test_the_round_is_that_of_the_path_or_the_last(log: Path, tmp_path: Path, verify: Verify) -> None:
    verify("--json", log)
    assert json.loads(verify.out)["ruleset"] == "5.0.0"
    place = tmp_path / "training_results_v3.1"
    place.mkdir()
    verify("--json", log.rename(place / log.name))
    report = json.loads(verify.out)
    assert (report["ruleset"], report["ruleset_from"]) == ("3.1.0", "from the path")


@pytest.mark.parametrize("name", ["5.1", "6.0.0", "banana", "2.0.0.0"])
def test_a_round_without_bert_cannot_be_asked_for(name: str, log: Path, verify: Verify) -> None:
    assert verify("--round", name, log) == NOT_JUDGED
    assert verify.err.startswith(f"verify: {name!r} is no round with BERT")


def test_the_rules_as_shipped_differ_from_those_of_the_round(log: Path, verify: Verify) -> None:
    drop(log, "opt_lamb_epsilon")  # asked for by today's rules of 2.1.0, along with the weights that are not there
    verify("--round", "2.1", "--json", log)
    as_submitted = json.loads(verify.out)
    verify("--round", "2.1", "--rules", "as-shipped", "--json", log)
    as_shipped = json.loads(verify.out)
    assert (as_submitted["rules"], as_shipped["rules"]) == ("as-submitted", "as-shipped")
    keys = [
        {finding["key"] for run in report["folders"][0]["runs"] for finding in run["findings"]}
        for report in (as_submitted, as_shipped)
    ]
    assert "opt_lamb_epsilon" not in keys[0]
    assert "opt_lamb_epsilon" in keys[1]


@pytest.mark.parametrize("num_runs", [3, 5])
def test_the_number_of_runs_may_be_asked_for(num_runs: int, tmp_path: Path, verify: Verify) -> None:
    folder = write_results(tmp_path / "bert", num_runs)
    assert verify(folder) == FAILED
    assert verify(folder, "--runs", num_runs) == PASSED


@pytest.mark.parametrize("num_runs", [1, 2])
def test_more_runs_than_asked_for_fail(num_runs: int, results: Path, verify: Verify) -> None:
    assert verify(results, "--runs", num_runs) == FAILED


@pytest.mark.parametrize("num_runs", [0, -3])
def test_no_runs_cannot_be_asked_for(num_runs: int, results: Path, verify: Verify) -> None:
    assert verify(results, "--runs", num_runs) == NOT_JUDGED
    assert "--runs" in verify.err
