"""A commit's name in, the files of that commit in a folder out, byte for byte; the working folder is never read."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tools.package.names import PackageError, shown

_OF_ANOTHER_REPOSITORY = (  # set inside a git hook
    "GIT_DIR",
    "GIT_COMMON_DIR",
    "GIT_OBJECT_DIRECTORY",
    "GIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_PREFIX",
)
_SETTINGS = {"LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0", "GIT_NO_REPLACE_OBJECTS": "1"}
_EXECUTABLE, _LINK, _SUBMODULE = "100755", "120000", "160000"


@dataclass(frozen=True)
class _File:
    mode: str  # as git writes it
    blob: str  # the hash of its content
    name: str  # within the commit


def resolve(repository: Path, name: str) -> str:
    """The commit's full hash. Raises PackageError where there is no such repository or commit."""
    root = Path(_git(repository, "rev-parse", "--show-toplevel").strip())
    if root != repository.resolve():
        raise PackageError(f"{repository}: not the root of a git checkout (that is {root}); name one with --repository")
    try:
        return _git(repository, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}").strip()
    except PackageError:
        raise PackageError(f"--commit {shown(name)}: no such commit in {repository}") from None


def changes_outside(repository: Path, commit: str) -> list[str]:
    """Files of the working folder that are not as in the commit, untracked ones (but those git ignores) included."""
    changed = _git(repository, "diff", "--name-only", "-z", commit)
    untracked = _git(repository, "ls-files", "--others", "--exclude-standard", "-z")
    return sorted(name for name in (changed + untracked).split("\0") if name)


def export(repository: Path, commit: str, target: Path) -> list[str]:
    """Write the commit's files below `target`, but for hidden ones, which the official repo_checker refuses.

    Contents are the committed ones: git archive would change them as attributes and settings on this machine say.
    Returns the hidden files and folders that were left out. Raises PackageError for a submodule, and for a link or a
    name that leads out of `target`.
    """
    left_out: dict[str, None] = {}
    files: list[_File] = []
    links: list[_File] = []
    for file in _files(repository, commit):
        parts = file.name.split("/")
        if not {"", ".", ".."}.isdisjoint(parts):
            raise PackageError(f"commit {commit}: {shown(file.name)} leads out of it; a submission may not")
        hidden = next((number for number, part in enumerate(parts, start=1) if part.startswith(".")), None)
        if hidden is not None:
            left_out["/".join(parts[:hidden])] = None
        elif file.mode == _SUBMODULE:
            raise PackageError(
                f"commit {commit}: {shown(file.name)} is a submodule, whose files are in another repository; a "
                "submission holds all of its code, so commit them to this one"
            )
        else:
            (links if file.mode == _LINK else files).append(file)
    for file, content in _contents(repository, files):
        path = target / file.name
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "xb") as written:
            written.write(content)
        path.chmod(0o755 if file.mode == _EXECUTABLE else 0o644)
    _link(target, [(file.name, os.fsdecode(content)) for file, content in _contents(repository, links)], commit)
    return list(left_out)


def _link(target: Path, links: list[tuple[str, str]], commit: str) -> None:
    """All other files and folders are there by then, so that nothing is written through a link."""
    for name, _ in links:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
    for name, to in links:
        if os.path.isabs(to) or "\0" in to:
            raise _leads_out(commit, name, to)
        (target / name).symlink_to(to)
    inside = target.resolve()
    for name, to in links:  # all of them are there, so that one which leads out by way of another is found
        if not Path(os.path.realpath(target / name)).is_relative_to(inside):
            raise _leads_out(commit, name, to)


def _leads_out(commit: str, name: str, to: str) -> PackageError:
    return PackageError(
        f"commit {commit}: {shown(name)} is a link to {shown(to)}; a submission may not lead out of itself"
    )


def _files(repository: Path, commit: str) -> Iterator[_File]:
    for entry in _git(repository, "ls-tree", "-r", "-z", "--full-tree", commit).split("\0"):
        if entry:
            facts, name = entry.split("\t", 1)
            mode, _, blob = facts.split(" ")
            yield _File(mode, blob, name)


def _contents(repository: Path, files: list[_File]) -> Iterator[tuple[_File, bytes]]:
    """Each file with its content, as it is stored: no filter, no change of line ends."""
    wanted = "".join(f"{file.blob}\n" for file in files)
    with tempfile.TemporaryFile() as stored:
        _git(repository, "cat-file", "--batch", "--buffer", given=wanted, into=stored)
        stored.seek(0)
        for file in files:
            said = stored.readline().decode().split()  # hash, kind and size, or hash and what is wrong
            if said[:2] != [file.blob, "blob"]:
                raise PackageError(f"{repository}: git has no content of {shown(file.name)} ({' '.join(said)})")
            yield file, stored.read(int(said[2]))
            stored.read(1)  # a line's end


def _git(repository: Path, *arguments: str, given: str = "", into: IO[bytes] | None = None) -> str:
    """What git prints, or nothing where it goes into a file."""
    environment = {name: value for name, value in os.environ.items() if name not in _OF_ANOTHER_REPOSITORY}
    try:
        done = subprocess.run(
            ["git", "-C", str(repository), *arguments],
            input=given.encode(),
            stdout=into or subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment | _SETTINGS,
        )
    except OSError as error:
        raise PackageError(f"cannot run git ({error.strerror}); install it") from error
    if done.returncode:
        said = " ".join(done.stderr.decode(errors="replace").split())
        raise PackageError(f"{repository}: git {arguments[0]} failed: {said}")
    return (done.stdout or b"").decode(errors="surrogateescape")
