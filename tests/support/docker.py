"""A Docker engine of the tests' own, an image built in it, and where both come from when nothing can be downloaded."""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

from tests.support.tiny import ROOT

SCRIPTS = ROOT / "scripts" / "docker"
CALLER = 12345  # user and group of a caller who is not root
BASE, IMAGE = "tests-base", "tests-bert"


class NoEngineError(RuntimeError):
    """The engine cannot be started here; the text is why."""


def why_not() -> str | None:
    """Why no engine is to be started here; None where one is."""
    if os.environ.get("DOCKER_TESTS") != "1":
        return "takes minutes; `make test-docker` runs it"
    if os.geteuid() != 0:
        return "starting a Docker engine needs root"
    absent = [name for name in ("dockerd", "docker", "debootstrap", "setpriv") if shutil.which(name) is None]
    return f"no {', '.join(absent)} on this machine" if absent else None


def cache_folder() -> Path:
    """Where what takes minutes to make is kept between calls: the base image and the wheels."""
    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mlperf-bert"
    folder = Path(os.environ.get("DOCKER_CACHE") or default)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


class Engine:
    def __init__(self, folder: Path, wheels: str) -> None:
        """`wheels` is the address that builds take packages from."""
        self.host = f"unix://{folder}/docker.sock"
        self._wheels = wheels

    def docker(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["docker", "--host", self.host, *arguments], check=check, capture_output=True, text=True, timeout=600
        )

    def containers(self) -> set[str]:
        """Names of all, running or not."""
        return set(self.docker("ps", "--all", "--format", "{{.Names}}").stdout.split())

    def add_base(self) -> None:
        """A Debian with Python in place of the default base, which cannot be pulled everywhere."""
        archive = cache_folder() / "base-bookworm.tar"
        if not archive.exists():
            subprocess.run([SCRIPTS / "base.sh", archive], check=True)
        self.docker("import", str(archive), BASE)

    def build(self, context: Path, tag: str, base: str = BASE) -> subprocess.CompletedProcess[str]:
        """With packages from this machine."""
        arguments = {"BASE": base, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": self._wheels, "REVISION": "tested"}
        flags = [part for name, value in arguments.items() for part in ("--build-arg", f"{name}={value}")]
        return self.docker("build", "--force-rm", "--network", "host", *flags, "--tag", tag, str(context), check=False)


@contextmanager
def engine() -> Iterator[Engine]:
    """Raises NoEngineError where it does not start. The folder's name is short: a socket's may have 107 characters."""
    folder = Path(tempfile.mkdtemp(prefix="bert-docker-"))
    folder.chmod(0o755)
    try:
        started = subprocess.run([SCRIPTS / "engine.sh", "start", folder, str(CALLER)], capture_output=True, text=True)
        if started.returncode:
            raise NoEngineError(started.stderr.strip())
        with _served(_wheels()) as wheels:
            yield Engine(folder, wheels)
    finally:
        subprocess.run([SCRIPTS / "engine.sh", "stop", folder], check=True)
        assert str(folder) not in Path("/proc/mounts").read_text()
        shutil.rmtree(folder)


def _wheels() -> Path:
    """requirements.txt and what it needs, for the base's Python."""
    requirements = ROOT / "requirements.txt"
    folder = cache_folder() / f"wheels-{hashlib.sha256(requirements.read_bytes()).hexdigest()[:12]}"
    if not folder.exists():
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--requirement", str(requirements)]
            wanted = ["--python-version", "3.11", "--only-binary", ":all:", "--dest", f"{scratch}/wheels"]
            subprocess.run([*command, *wanted], check=True)
            os.rename(f"{scratch}/wheels", folder)
    return folder


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def _served(folder: Path) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(folder))) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
