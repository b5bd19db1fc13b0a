"""What tools.package takes from a commit: its files as they are stored, whatever git is told to make of them."""

from __future__ import annotations

import io
import os
import shutil
import stat
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import packages
from tests.support.packages import CODE, HIDDEN, SOURCES, SYSTEM, Build, git
from tests.support.tiny import ROOT
from tools.package.commit import export


def test_the_working_folder_is_not_in_the_tree(build: Build, capsys: pytest.CaptureFixture[str]) -> None:
    assert build() == 0
    assert "the working folder differs" not in capsys.readouterr().err
    shutil.rmtree(build.out)
    (build.repository / "README.md").write_text("changed\n")
    (build.repository / "new.py").touch()
    (build.repository / "old.pyc").touch()
    assert build() == 0
    warning = capsys.readouterr().err
    assert "warning: the working folder differs" in warning
    assert "'README.md', 'new.py'\n" in warning
    assert (build.tree / CODE / "README.md").read_text() == SOURCES["README.md"]
    assert not (build.tree / CODE / "new.py").exists()


def test_an_earlier_commit_is_packaged(build: Build) -> None:
    (build.repository / "README.md").write_text("later\n")
    packages.commit(build.repository)
    assert build("--commit", "HEAD~1") == 0
    assert (build.tree / CODE / "README.md").read_text() == SOURCES["README.md"]
    shutil.rmtree(build.out)
    assert build() == 0
    assert (build.tree / CODE / "README.md").read_text() == "later\n"


def spoil_line_ends(build: Build) -> None:
    git(build.repository, "config", "core.autocrlf", "true")


def spoil_line_ends_of_text(build: Build) -> None:
    (build.repository / ".gitattributes").write_text("*.sh text=auto\n")
    packages.commit(build.repository)
    git(build.repository, "config", "core.eol", "crlf")


def set_attributes(text: str) -> Callable[[Build], None]:
    def spoil(build: Build) -> None:
        (build.repository / ".git" / "info").mkdir(exist_ok=True)
        (build.repository / ".git" / "info" / "attributes").write_text(text)

    return spoil


def commit_attributes(text: str) -> Callable[[Build], None]:
    def spoil(build: Build) -> None:
        (build.repository / ".gitattributes").write_text(text)
        packages.commit(build.repository)

    return spoil


def spoil_by_a_filter(build: Build) -> None:
    set_attributes("*.sh filter=x\n")(build)
    git(build.repository, "config", "filter.x.smudge", "sed s/trial/other/")


def replace_the_commit(build: Build) -> None:
    head = git(build.repository, "rev-parse", "HEAD").strip()
    (build.repository / "run_and_time.sh").write_text("echo other\n")
    other = packages.commit(build.repository)
    git(build.repository, "reset", "--quiet", "--hard", head)
    git(build.repository, "replace", head, other)


OWN_SETTINGS = {
    "line ends": spoil_line_ends,
    "line ends of text": spoil_line_ends_of_text,
    "attribute for line ends": set_attributes("README.md eol=crlf\n"),
    "attribute to leave out": set_attributes("model export-ignore\n"),
    "filter": spoil_by_a_filter,
    "committed attribute to leave out": commit_attributes("model export-ignore\n"),
    "committed attribute to fill in": commit_attributes("VERSION export-subst\n"),
    "replaced commit": replace_the_commit,
}


@pytest.mark.parametrize("spoil", OWN_SETTINGS.values(), ids=OWN_SETTINGS.keys())
def test_own_settings_of_git_change_nothing(build: Build, spoil: Callable[[Build], None]) -> None:
    (build.repository / "VERSION").write_text("$Format:%H$\n")
    head = packages.commit(build.repository)
    committed = {name: text.encode() for name, text in SOURCES.items() if name not in HIDDEN}
    committed["VERSION"] = b"$Format:%H$\n"
    assert archived(build.repository, head) == committed
    spoil(build)
    head = git(build.repository, "rev-parse", "HEAD").strip()
    assert archived(build.repository, head) != committed  # what git would make of it
    assert build() == 0
    code = build.tree / CODE
    assert {str(path.relative_to(code)): path.read_bytes() for path in code.rglob("*") if path.is_file()} == committed
    assert head in (build.tree / "benchmarks" / "bert" / SYSTEM / "README.md").read_text()


def archived(repository: Path, commit: str) -> dict[str, bytes]:
    """What git archive has of a commit without the hidden files; VERSION is as it is in the commit."""
    tar = subprocess.run(["git", "-C", repository, "archive", commit], check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
        files = {member.name: archive.extractfile(member) for member in archive if member.isfile()}
        return {name: file.read() for name, file in files.items() if file and "/." not in f"/{name}"}


def test_another_repository_of_the_environment_is_not_packaged(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_DIR", str(build.folder / "elsewhere"))
    assert build() == 0


def test_executables_and_links_are_kept(build: Build) -> None:
    (build.repository / "model" / "READ").symlink_to("../README.md")
    packages.commit(build.repository)
    before = os.umask(0o077)
    try:
        assert build() == 0
    finally:
        os.umask(before)
    code = build.tree / CODE
    assert (code / "model" / "READ").readlink() == Path("../README.md")
    modes = {name: stat.S_IMODE((code / name).stat().st_mode) for name in ("README.md", "setup.sh", "model/net.py")}
    assert modes == {"README.md": 0o644, "setup.sh": 0o755, "model/net.py": 0o644}


def link(**links: str) -> Callable[[Build], None]:
    def spoil(build: Build) -> None:
        for name, to in links.items():
            (build.repository / name).symlink_to(to)
        packages.commit(build.repository)

    return spoil


def add_a_submodule(build: Build) -> None:
    (build.repository / "lib").mkdir()
    git(build.repository, "update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},lib")
    packages.commit(build.repository)


def lose_a_content(build: Build) -> None:
    blob = git(build.repository, "rev-parse", "HEAD:README.md").strip()
    git(build.repository, "update-index", "--refresh")  # so that comparing with the working folder does not need it
    (build.repository / ".git" / "objects" / blob[:2] / blob[2:]).unlink()


def commit_a_tree(*entries: tuple[str, str, str]) -> Callable[[Build], None]:
    """Of (mode, name, content), as no git of good faith writes it."""

    def spoil(build: Build) -> None:
        lines = []
        for mode, name, content in entries:
            blob = git(build.repository, "hash-object", "-w", "--stdin", given=content).strip()
            kind = "tree" if mode == "040000" else "blob"
            if kind == "tree":
                blob = git(build.repository, "mktree", given=f"120000 blob {blob}\tx\n").strip()
            lines.append(f"{mode} {kind} {blob}\t{name}\n")
        tree = git(build.repository, "mktree", given="".join(lines)).strip()
        who = ("-c", "user.name=Me", "-c", "user.email=me@example.org")
        made = git(build.repository, *who, "commit-tree", tree, "-m", "all").strip()
        git(build.repository, "update-ref", "HEAD", made)

    return spoil


UNFIT: dict[str, tuple[Callable[[Build], None], tuple[str, ...]]] = {  # spoil, words
    "submodule": (add_a_submodule, ("'lib' is a submodule",)),
    "content that is lost": (lose_a_content, ("no content of 'README.md'",)),
    "absolute link": (link(etc="/etc"), ("'etc' is a link to '/etc'",)),
    "link up": (link(up=".."), ("'up' is a link to '..'",)),
    "link by way of another": (link(a="b/..", b="model/.."), ("'a' is a link to 'b/..'",)),
    "name leads out": (commit_a_tree(("100644", "..", "x")), ("'..' leads out",)),
    "link with a zero byte": (commit_a_tree(("120000", "x", "a\0b")), ("'x' is a link to 'a\\x00b'",)),
    "link and folder of one name": (
        commit_a_tree(("120000", "d", ".."), ("040000", "d", "y")),
        ("File exists", "pytorch/d"),
    ),
}


@pytest.mark.parametrize(("spoil", "words"), UNFIT.values(), ids=UNFIT.keys())
def test_a_commit_that_is_not_whole_in_itself_is_refused(
    build: Build, spoil: Callable[[Build], None], words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    spoil(build)
    assert build() == 2
    said = capsys.readouterr().err
    assert all(word in said for word in words), said
    assert build.left() == set()


def test_links_that_lead_nowhere_or_in_a_circle_lead_not_out(build: Build, tmp_path: Path) -> None:
    links = {"a": "b", "b": "a", "nowhere": "gone"}
    link(**links)(build)
    assert export(build.repository, "HEAD", tmp_path / "code") == [".ci", ".gitignore", "docs/.draft"]
    assert {path.name: str(path.readlink()) for path in (tmp_path / "code").iterdir() if path.is_symlink()} == links


def test_the_projects_own_code_passes(build: Build) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    build.repository = ROOT
    assert build() == 0
