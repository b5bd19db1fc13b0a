"""Dockerfile and run_with_docker.sh: against a stand-in for docker always, with a real engine by `make test-docker`."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.docker import CALLER, IMAGE, Engine, NoEngineError, engine, why_not
from tests.support.records import read_records
from tests.support.tiny import ROOT, clean_environment, make_tiny_data, tiny_variables
from tools.verify.log import Record

real = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
SOON_S = 20
ENDLESS = {"TARGET_ACCURACY": "0.99", "MAX_STEPS": "1000000", "EVAL_INTERVAL_SAMPLES": "1600"}
ODD = "a \"b' ,c:\nd"


@pytest.mark.skipif(shutil.which("bats") is None, reason="no bats on this machine")
def test_the_commands_of_the_launcher() -> None:
    done = subprocess.run(
        ["bats", ROOT / "tests" / "launch" / "run_with_docker.bats"], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr


# --- with a real engine


@pytest.fixture(scope="module")
def docker() -> Iterator[Engine]:
    """An engine with the image in it, and a container of somebody else's running."""
    with contextlib.ExitStack() as stack:
        try:
            own = stack.enter_context(engine())
        except NoEngineError as error:
            pytest.skip(str(error))
        own.add_base()
        built = own.build(ROOT, IMAGE)
        assert built.returncode == 0, built.stdout[-3000:] + built.stderr
        own.docker("run", "--detach", "--name", "bystander", "--network", "none", IMAGE, "sleep", "100000")
        yield own


@pytest.fixture(scope="module")
def ground() -> Iterator[Path]:
    """A folder that a caller who is not root can reach, with the launcher and a data set in it."""
    folder = Path(tempfile.mkdtemp(prefix="bert-ground-"))
    shutil.copy(ROOT / "run_with_docker.sh", folder)
    make_tiny_data(folder / "data")
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def place(ground: Path) -> Iterator[Path]:
    """The caller's own folder, of a name that is hard on scripts."""
    folder = Path(tempfile.mkdtemp(dir=ground)) / ODD
    folder.mkdir()
    shutil.copytree(ground / "data", folder / "data")
    for path in (folder.parent, folder):
        os.chown(path, CALLER, CALLER)
    yield folder
    shutil.rmtree(folder.parent)


@pytest.fixture(autouse=True)
def nobody_else_is_touched(request: pytest.FixtureRequest) -> Iterator[None]:
    """Whatever a test does: no container of its own is left, and the bystander has run on."""
    if "docker" not in request.fixturenames:
        yield
        return
    own: Engine = request.getfixturevalue("docker")

    def state() -> str:
        return own.docker("inspect", "--format", "{{.Id}} {{.State.StartedAt}} {{.State.Running}}", "bystander").stdout

    before = state()
    yield
    assert own.containers() == {"bystander"}
    assert state() == before


def command(own: Engine, place: Path, as_root: bool = False, **changed: str) -> dict[str, Any]:
    """What subprocess needs to launch trials of the tiny run."""
    variables = tiny_variables(place / "data", Path("unused")) | {"SUBMISSION_PLATFORM": "tiny"}
    for name in ("RESULT_FILE", "DATA_DIR", "SEED"):
        del variables[name]
    config = place / "config_tiny.sh"
    config.write_text("".join(f"export {name}={value}\n" for name, value in variables.items()))
    ours = {"DATA_DIR": f"{place}/data", "RESULTS_DIR": f"{place}/results", "CONFIG": str(config), "IMAGE": IMAGE}
    ours |= {"DOCKER_HOST": own.host, "HOME": str(place), "SECRET_TOKEN": "hush"}
    caller = [] if as_root else ["setpriv", f"--reuid={CALLER}", f"--regid={CALLER}", "--clear-groups"]
    return {
        "args": [*caller, place.parents[1] / "run_with_docker.sh"],
        "env": clean_environment() | ours | changed,
        "cwd": "/",
    }


def launch(own: Engine, place: Path, **changed: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(**command(own, place, **changed), capture_output=True, text=True, timeout=300)


def stop_of(log: Path) -> Record:
    (stop,) = [record for record in read_records(log) if record.key == "run_stop"]
    return stop


def value_of(log: Path, key: str) -> Any:
    return next(record.value for record in read_records(log) if record.key == key)


class Running:
    """An endless trial, past its first evaluation."""

    def __init__(self, own: Engine, place: Path, **changed: str) -> None:
        self._docker = own
        self.log = place / "results" / "result_0.txt"
        self._output = open(place.parent / "output", "w+")  # noqa: SIM115 - closed with the run
        self.launcher = subprocess.Popen(
            **command(own, place, **ENDLESS, **changed),
            stdout=self._output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            wait_until(lambda: self.log.exists() and "eval_accuracy" in self.log.read_text(), 120)
            (self.container,) = own.containers() - {"bystander"}
        except BaseException:
            self.end()
            raise

    def inspect(self) -> dict[str, Any]:
        return json.loads(self._docker.docker("inspect", self.container).stdout)[0]

    def ended(self) -> tuple[int, str]:
        """Exit status and what was said, within seconds."""
        status = self.launcher.wait(SOON_S)
        self._output.seek(0)
        return status, self._output.read()

    def end(self) -> None:
        if self.launcher.poll() is None:
            self.launcher.kill()
            self.launcher.wait()
            for name in self._docker.containers() - {"bystander"}:
                self._docker.docker("rm", "--force", name)
        self._output.close()


@pytest.fixture
def running(docker: Engine, place: Path) -> Iterator[Running]:
    run = Running(docker, place)
    yield run
    run.end()


def copy_of_the_checkout(folder: Path) -> Path:
    def not_the_project(of: str, names: list[str]) -> set[str]:
        made = {"data", "results"} if Path(of) == ROOT else set()
        hidden = {name for name in names if name.startswith(".") and name != ".dockerignore"}
        return hidden | made | ({"__pycache__"} & set(names))

    return Path(shutil.copytree(ROOT, folder / "context", ignore=not_the_project))


def wait_until(true: Callable[[], bool], limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < deadline, f"not within {limit_s} s"
        time.sleep(0.1)


@real
def test_the_image_holds_the_project_for_a_user_who_is_not_root_and_nothing_else(docker: Engine) -> None:
    image = json.loads(docker.docker("image", "inspect", IMAGE).stdout)[0]["Config"]
    assert image["User"] == "10001:10001"
    assert not image["Entrypoint"]
    assert image["Labels"]["org.opencontainers.image.revision"] == "tested"
    assert image["Labels"]["org.opencontainers.image.licenses"] == "Apache-2.0"
    found = docker.docker("run", "--rm", "--network", "none", IMAGE, "ls", "-A").stdout.split()
    assert not {".git", "data", "results", "tests", ".venv"} & set(found)
    assert {"benchmarks", "tools", "run_and_time.sh"} <= set(found)
    assert docker.docker("run", "--rm", "--network", "none", IMAGE, "touch", "x", check=False).returncode != 0


@real
def test_a_changed_file_installs_nothing_again_and_a_broken_one_fails_the_build(docker: Engine, tmp_path: Path) -> None:
    context = copy_of_the_checkout(tmp_path)
    trainer = context / "benchmarks" / "bert" / "trainer.py"
    trainer.write_text(trainer.read_text() + "\n# changed\n")
    (context / ".env").write_text("SECRET=hush\n")
    built = docker.build(context, "tests-changed")
    assert built.returncode == 0, built.stdout[-3000:] + built.stderr
    step = built.stdout.split("RUN scripts/docker/install.sh", 1)[1]
    assert step.splitlines()[1].strip() == "---> Using cache"
    assert "PASSED" in built.stdout.rsplit("RUN scripts/docker/check.sh", 1)[1]
    assert docker.docker("run", "--rm", "--network", "none", "tests-changed", "ls", ".env", check=False).returncode

    trainer.write_text("raise RuntimeError('broken on purpose')\n")
    broken = docker.build(context, "tests-broken")
    assert broken.returncode != 0
    assert "broken on purpose" in broken.stdout + broken.stderr
    assert docker.docker("image", "inspect", "tests-broken", check=False).returncode != 0


@real
def test_a_base_with_torch_keeps_it(docker: Engine, tmp_path: Path) -> None:
    """The image itself, as root and with another torch pinned, is such a base."""
    base = "tests-base-with-torch"
    (tmp_path / "Dockerfile").write_text(f"FROM {IMAGE}\nUSER 0:0\n")
    docker.docker("build", "--tag", base, str(tmp_path))
    context = copy_of_the_checkout(tmp_path)
    pinned = context / "requirements.txt"
    pinned.write_text(pinned.read_text().replace("torch==", "torch==99."))
    built = docker.build(context, "tests-kept", base)
    assert built.returncode == 0, built.stdout[-3000:] + built.stderr
    assert "of the base stays" in built.stdout
    assert "Successfully installed" not in built.stdout


@real
def test_a_trial_passes_and_says_what_a_plain_run_says(docker: Engine, place: Path) -> None:
    done = launch(docker, place, SEED="7")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("PASSED   /results/result_0.txt, ruleset 5.0.0\n")
    assert "Traceback" not in done.stderr
    assert "Warning" not in done.stderr
    log = place / "results" / "result_0.txt"
    assert (log.stat().st_uid, log.stat().st_gid) == (CALLER, CALLER)
    assert stop_of(log).metadata["status"] == "success"

    plain = place / "plain.txt"
    ours = command(docker, place, SEED="7", RESULT_FILE=str(plain), PYTHON=sys.executable)["env"]
    del ours["PYTHONPATH"]
    outside = subprocess.run([ROOT / "run_and_time.sh"], env=ours, capture_output=True, text=True, timeout=120)
    assert outside.returncode == 0, outside.stderr

    def said(path: Path) -> list[tuple[str, Any]]:
        known = [(record.key, record.value) for record in read_records(path)]
        return [(key, value) for key, value in known if key not in ("configuration", "tracked_stats")]

    assert [key for key, _ in said(log)] == [key for key, _ in said(plain)]
    for (key, here), (_, there) in zip(said(log), said(plain), strict=True):
        assert here == (pytest.approx(there, rel=1e-5) if isinstance(there, float) else there), key
    configurations = [value_of(path, "configuration") for path in (log, plain)]
    for configuration in configurations:
        assert configuration.pop("DATA_DIR")["source"] == "environment"
        configuration.pop("RESULT_FILE")
        for setting in configuration.values():
            setting["source"] = Path(setting["source"]).name
    assert configurations[0] == configurations[1]


@real
@pytest.mark.parametrize(("number", "to_group"), [(signal.SIGINT, True), (signal.SIGTERM, False)])
def test_a_signal_ends_the_trial_soon_and_the_log_as_aborted(
    docker: Engine, running: Running, number: signal.Signals, to_group: bool
) -> None:
    """SIGINT as Ctrl-C sends it: to all processes of the terminal."""
    (os.killpg if to_group else os.kill)(running.launcher.pid, number)
    status, said = running.ended()
    assert status == 128 + number, said
    assert docker.containers() == {"bystander"}
    assert stop_of(running.log).metadata["status"] == "aborted"
    assert stop_of(running.log).metadata["reason"].endswith("SIGTERM")
    assert "FAILED" in said
    assert "Traceback" not in said


@real
def test_a_running_trial_can_write_its_results_only_and_sees_the_callers_configuration_only(
    docker: Engine, place: Path
) -> None:
    running = Running(docker, place, LEARNING_RATE="1e-3", SUBMISSION_ORG=ODD, NEXP="2")
    try:
        seen = running.inspect()
        writable = {mount["Destination"]: mount["RW"] for mount in seen["Mounts"]}
        assert writable == {"/data": False, "/results": True, "/opt/bert/config_tiny.sh": False}
        assert seen["HostConfig"]["NetworkMode"] == "none"
        assert seen["HostConfig"]["AutoRemove"]
        assert seen["HostConfig"]["Init"]
        assert seen["Config"]["User"] == f"{CALLER}:{CALLER}"
        given = dict(variable.split("=", 1) for variable in seen["Config"]["Env"])
        expected = {"CONFIG": "config_tiny.sh", "DATA_DIR": "/data", "RESULT_FILE": "/results/result_0.txt"}
        expected |= {"LEARNING_RATE": "1e-3", "SUBMISSION_ORG": ODD, "OMP_NUM_THREADS": "1"} | ENDLESS
        assert {name: given[name] for name in expected} == expected
        assert set(given) - set(expected) == {"PATH", "HOME"}
        for path in ("/data/x", "/data/train/manifest.json", "/opt/bert/x", "/opt/bert/config_tiny.sh"):
            assert docker.docker("exec", running.container, "sh", "-c", f">>{path}", check=False).returncode != 0, path
        assert docker.docker("exec", running.container, "sh", "-c", ">>/results/x").returncode == 0
    finally:
        running.launcher.terminate()
        running.launcher.wait(SOON_S)
        running.end()
    assert sorted(path.name for path in (place / "results").iterdir()) == ["result_0.txt", "x"]


@real
def test_a_container_that_is_killed_leaves_an_aborted_log(docker: Engine, running: Running) -> None:
    docker.docker("kill", running.container)
    status, said = running.ended()
    assert status == 1, said
    assert stop_of(running.log).metadata["status"] == "aborted"
    assert running.log.stat().st_uid == CALLER


@real
def test_a_missed_target_fails_the_call_but_not_the_next_trial(docker: Engine, place: Path) -> None:
    done = launch(docker, place, NEXP="2", TARGET_ACCURACY="0.99")
    assert done.returncode == 1
    assert "trial 2 of 2: failed with status 1" in done.stderr
    for name in ("result_0.txt", "result_1.txt"):
        assert f"FAILED   /results/{name}, ruleset 5.0.0\n" in done.stdout
        assert stop_of(place / "results" / name).metadata["status"] == "aborted"
    assert "FAILED   /results, ruleset 5.0.0\n" in done.stdout


@real
def test_trials_have_seeds_of_their_own_and_are_verified_together(docker: Engine, place: Path) -> None:
    done = launch(docker, place, NEXP="2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "PASSED   /results, ruleset 5.0.0\n" in done.stdout
    logs = [place / "results" / f"result_{trial}.txt" for trial in (0, 1)]
    assert value_of(logs[0], "seed") != value_of(logs[1], "seed")


@real
@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"LEARNING_RAET": "1"}, "did you mean LEARNING_RATE?"),
        ({"LEARNING_RATE": "fast"}, "LEARNING_RATE='fast' (from environment): expected a number"),
        ({"MAX_LENGTH": "16"}, "more than MAX_LENGTH=16"),
        ({"IMAGE": "absent"}, "IMAGE=absent: not on this host"),
    ],
)
def test_what_is_refused_leaves_no_log(docker: Engine, place: Path, changed: dict[str, str], text: str) -> None:
    done = launch(docker, place, **changed)
    assert done.returncode == 2, done.stderr
    assert text in done.stderr
    assert not list(place.glob("results/*"))


@real
def test_without_an_engine_the_call_is_refused(docker: Engine, place: Path) -> None:
    done = launch(docker, place, DOCKER_HOST=f"unix://{place.parent}/absent.sock")
    assert done.returncode == 2
    assert "docker daemon" in done.stderr


@real
def test_the_log_says_the_truth_about_the_hosts_caches(docker: Engine, place: Path) -> None:
    """Dropped by root outside the container; a caller who may not drop them gets a log that says so."""
    done = launch(docker, place, as_root=True, CLEAR_CACHES="1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert value_of(place / "results" / "result_0.txt", "cache_clear") is True
    os.chown(place / "results", CALLER, CALLER)
    done = launch(docker, place, CLEAR_CACHES="1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "could not be dropped" in done.stderr
    assert value_of(place / "results" / "result_1.txt", "cache_clear") is False
