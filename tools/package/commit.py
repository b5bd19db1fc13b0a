"""A commit's name in, the files of that commit in a folder out; the working folder is never read."""

from __future__ import annotations

import os
import subprocess
import tarfile
import tempfile
from pathlib import Path, PurePosixPath
from typing import IO

from tools.package.names import PackageError, shown

# Nothing of the caller's own settings may change what is archived.
_SETTINGS = ("core.autocrlf=false", "core.attributesFile=/dev/null", "tar.umask=0022", "core.quotePath=false")
_OF_ANOTHER_REPOSITORY = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX")  # set inside a git hook


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

    Returns the hidden files and folders that were left out.
    """
    left_out: dict[str, None] = {}
    with tempfile.TemporaryFile() as file:
        _git(repository, "archive", "--format=tar", commit, into=file)
        file.seek(0)
        with tarfile.open(fileobj=file) as archive:
            for member in archive:
                parts = PurePosixPath(member.name).parts
                hidden = next((number for number, part in enumerate(parts) if part.startswith(".")), None)
                if hidden is not None:
                    left_out["/".join(parts[: hidden + 1])] = None
                    continue
                try:
                    archive.extract(member, target, filter="data")
                except tarfile.FilterError as error:
                    raise PackageError(f"commit {commit}: {error}; a submission may not lead out of itself") from error
    return list(left_out)


def _git(repository: Path, *arguments: str, into: IO[bytes] | None = None) -> str:
    """What git prints, or nothing where it goes into a file."""
    environment = {name: value for name, value in os.environ.items() if name not in _OF_ANOTHER_REPOSITORY}
    settings = [word for setting in _SETTINGS for word in ("-c", setting)]
    try:
        done = subprocess.run(
            ["git", "-C", str(repository), *settings, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=into or subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment | {"LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0"},
        )
    except OSError as error:
        raise PackageError(f"cannot run git ({error.strerror}); install it") from error
    if done.returncode:
        said = " ".join(done.stderr.decode(errors="replace").split())
        raise PackageError(f"{repository}: git {arguments[0]} failed: {said}")
    return (done.stdout or b"").decode(errors="surrogateescape")
