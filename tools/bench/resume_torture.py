"""Runs cut by SIGKILL at seeded random moments in, whether what goes on from them ends like a run that nothing cut out.

    python -m tools.bench.resume_torture --kills 50 --seed 1
    python -m tools.bench.resume_torture --cost

A tiny run on made-up data keeps a checkpoint of every step. Its launcher and ranks are killed together, and the next
start goes on from what they left. The last start and a run that was never cut must leave one checkpoint, byte for byte.
`--cost` measures instead what a checkpoint of BERT-base takes of the loop, beside the time until it is on disk.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import median

import torch

from benchmarks.bert.checkpoint.resume import Start
from benchmarks.bert.checkpoint.saver import keep_checkpoints
from benchmarks.bert.checkpoint.store import (
    CheckpointError,
    Manifest,
    check_file,
    checkpoints_in,
    folder_of,
    read_manifest,
)
from benchmarks.bert.comm.group import process_group
from benchmarks.bert.config import VARIABLES, load
from benchmarks.bert.prepare.build import build
from benchmarks.bert.prepare.corpus import Document, write_corpus
from benchmarks.bert.prepare.samples import Recipe
from benchmarks.bert.prepare.wordpiece import train_vocabulary, write_vocabulary
from benchmarks.bert.trainer import build_trainer
from benchmarks.bert.warm_up import warm_up
from benchmarks.bert.world import LAUNCHERS, from_launcher

_MAX_LENGTH = 32
_EARLY_SHARE = 0.2  # of the kills that come while the run is still starting
_EARLY_S = 6.0
_LATE_S = 0.4  # after the first new checkpoint
_MORE_STEPS = 3  # of the last start
_WITHOUT_END = 1_000_000  # steps
_LOOK_EVERY_S = 0.005
_NUM_MEASURED = 5
_BERT_BASE = {"NUM_LAYERS": "12", "HIDDEN_SIZE": "768", "NUM_HEADS": "12", "FFN_SIZE": "3072"}
_NUM_VOCABULARY = 30522


@dataclass
class Tally:
    kills: int = 0
    early: int = 0  # before the start's first checkpoint
    during_save: int = 0  # a .partial was left
    during_removal: int = 0  # a .deleting was left
    torn: int = 0  # checkpoints by name that are not whole

    def __str__(self) -> str:
        return (
            f"{self.kills} kills, {self.early} before the start's first checkpoint, {self.during_save} during a save, "
            f"{self.during_removal} during a removal; {self.torn} torn checkpoints seen"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cost", action="store_true", help="measure a checkpoint instead")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="resume-torture-") as folder:
        if arguments.cost:
            measure_cost(Path(folder))
            return 0
        return _torture(Path(folder), arguments.kills, Random(arguments.seed))


def _torture(folder: Path, num_kills: int, rng: Random) -> int:
    variables = environment(make_data(folder / "data"), folder)
    directory, tally = folder / "checkpoints", Tally()
    for number in range(num_kills):
        log = folder / f"cut_{number}.txt"
        cut = _start(variables | _keeping(directory, log, _WITHOUT_END))
        if not wait_and_kill(cut, directory, tally, rng):
            sys.exit(f"error: the run ended by itself:\n{_said(log).read_text('utf-8')}")
        newest = _newest(directory)
        print(f"kill {number + 1}: {newest} steps", flush=True)
    steps = newest + _MORE_STEPS
    for name in ("checkpoints", "uncut"):
        _to_the_end(variables | _keeping(folder / name, folder / f"{name}.txt", steps))
    difference = differences(folder_of(directory, steps), folder_of(folder / "uncut", steps))
    print(tally)
    print(difference or "identical")
    return 1 if difference or tally.torn else 0


def environment(data: Path, scratch: Path) -> dict[str, str]:
    """Of a tiny run on two CPU ranks which reaches no target; what a killed one leaves behind lies in `scratch`."""
    ours = {*VARIABLES, *LAUNCHERS, "MASTER_ADDR", "MASTER_PORT", "CONFIG"}
    return {name: value for name, value in os.environ.items() if name not in ours} | {
        "OMP_NUM_THREADS": "1",
        "TMPDIR": str(scratch),
        "DEVICE": "cpu",
        "RANKS_PER_NODE": "2",
        "DATA_DIR": str(data),
        "MAX_LENGTH": str(_MAX_LENGTH),
        "NUM_LAYERS": "1",
        "HIDDEN_SIZE": "32",
        "NUM_HEADS": "2",
        "FFN_SIZE": "64",
        "DROPOUT": "0.1",
        "BUCKET_MB": "0.02",
        "BATCH_SIZE": "8",
        "LEARNING_RATE": "1e-3",
        "DECAY_STEPS": str(_WITHOUT_END),  # or it would follow MAX_STEPS
        "TARGET_ACCURACY": "0.99",
        "EVAL_INTERVAL_SAMPLES": "160",
        "EVAL_START_SAMPLES": "16",
        "SEED": "7",
    }


def make_data(folder: Path) -> Path:
    """vocab.txt, train/ and eval/ of made-up text; the folder."""
    training = _documents(80, Random(1))
    write_corpus(folder / "train.txt", training)
    write_corpus(folder / "eval.txt", _documents(16, Random(2)))
    write_vocabulary(folder / "vocab.txt", train_vocabulary(training, 120))
    for part in ("train", "eval"):
        build(
            [folder / f"{part}.txt"],
            folder / "vocab.txt",
            folder / part,
            recipe=Recipe(max_length=_MAX_LENGTH, max_predictions=5, duplicates=1, seed=12345),
            num_shards=1,
            num_processes=1,
            say=lambda _: None,
        )
    return folder


def _documents(count: int, rng: Random) -> list[Document]:
    words = [first + second for first in ("ba", "co", "du", "fi", "lo") for second in ("me", "na", "po", "ru", "si")]
    return [
        [" ".join(rng.choices(words, k=rng.randint(3, 12))) + "." for _ in range(rng.randint(2, 5))]
        for _ in range(count)
    ]


def _keeping(directory: Path, result: Path, max_steps: int) -> dict[str, str]:
    return {
        "CHECKPOINT_DIR": str(directory),
        "CHECKPOINT_INTERVAL_STEPS": "1",
        "RESUME": "if_any",
        "RESULT_FILE": str(result),
        "MAX_STEPS": str(max_steps),
    }


def _start(variables: Mapping[str, str]) -> subprocess.Popen[str]:
    """A launcher; what it and its ranks say lies beside the result file."""
    with open(_said(Path(variables["RESULT_FILE"])), "w", encoding="utf-8") as said:
        return subprocess.Popen(
            [sys.executable, "-m", "benchmarks.bert.launch"], env=dict(variables), stdout=said, stderr=said, text=True
        )


def _said(log: Path) -> Path:
    return log.with_suffix(".err")


def _to_the_end(variables: Mapping[str, str]) -> None:
    """The status does not tell: such a run misses its target. Its last checkpoint does."""
    _start(variables).wait()
    last = folder_of(Path(variables["CHECKPOINT_DIR"]), int(variables["MAX_STEPS"]))
    if not last.exists():
        sys.exit(f"error: the run left no {last.name}:\n{_said(Path(variables['RESULT_FILE'])).read_text('utf-8')}")


def wait_and_kill(launcher: subprocess.Popen[str], directory: Path, tally: Tally, rng: Random) -> bool:
    """Kill it at a random moment: some while it starts, most within its first saves and steps. False: it had ended."""
    before, left_before = _newest(directory), _left(directory)
    try:
        if rng.random() < _EARLY_SHARE:
            with contextlib.suppress(subprocess.TimeoutExpired):
                launcher.wait(rng.uniform(0, _EARLY_S))
        else:
            while launcher.poll() is None and _newest(directory) == before:
                time.sleep(_LOOK_EVERY_S)
            time.sleep(rng.uniform(0, _LATE_S))
        if launcher.poll() is not None:
            return False
    finally:
        kill_tree(launcher.pid)
        launcher.wait()
    tally.kills += 1
    tally.early += _newest(directory) == before
    left = _left(directory) - left_before  # a start that was killed early has not cleared what the last one left
    tally.during_save += any(name.endswith(".partial") for name in left)
    tally.during_removal += any(name.endswith(".deleting") for name in left)
    tally.torn += sum(not is_whole(folder) for folder in checkpoints_in(directory))
    return True


def kill_tree(leader: int) -> None:
    """SIGKILL to a process and all below it; each is stopped first, so that none can say goodbye to another."""
    doomed = [leader]
    for process in doomed:  # grows on the way
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGSTOP)
        doomed += _children(process)
    for process in doomed:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def _children(parent: int) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            if int(entry.read_text().rpartition(")")[2].split()[1]) == parent:
                found.append(int(entry.parent.name))
    return found


def _newest(directory: Path) -> int:
    """Its step; 0 where there is none."""
    return max((int(folder.name.removeprefix("step_")) for folder in checkpoints_in(directory)), default=0)


def _left(directory: Path) -> set[str]:
    """Names of what is being written or removed, or was when its run was killed."""
    return {path.name for path in directory.glob(".step_*")}


def is_whole(folder: Path) -> bool:
    try:
        manifest = read_manifest(folder)
        for name in manifest.files:
            check_file(folder, manifest, name)
    except CheckpointError:
        return False
    return bool(manifest.files)


def differences(left: Path, right: Path) -> str:
    """What two checkpoints differ in, by their manifests: the bytes of each file by its sha256; empty for nothing."""
    one, other = (_flat(read_manifest(folder)) for folder in (left, right))
    return "; ".join(
        f"{name}: {one.get(name)} and {other.get(name)}"
        for name in sorted(one.keys() | other.keys())
        if one.get(name) != other.get(name)
    )


def _flat(manifest: Manifest) -> dict[str, object]:
    position = {"step": manifest.step, "seed": manifest.seed, "accuracies": manifest.accuracies}
    return {**position, **manifest.identity, **manifest.files}


def measure_cost(folder: Path) -> None:
    """How long the loop stands for a checkpoint of BERT-base with ADAM's moments, beside the time until it is kept."""
    config = load(_BERT_BASE | {"DEVICE": "cpu", "CHECKPOINT_DIR": str(folder), "CHECKPOINT_INTERVAL_STEPS": "1"})
    world, device = from_launcher({}), torch.device("cpu")
    with process_group(world, device, config.collective_timeout_s):
        trainer = build_trainer(config, world, device, 1, _NUM_VOCABULARY)
        warm_up(trainer, config)
        checkpoints = keep_checkpoints(config, trainer, world, Start(), {}, 1)
        stalls_s, kept_s = [], []
        for step in range(1, _NUM_MEASURED + 1):
            started = time.perf_counter()
            checkpoints.after(step, [])
            stalls_s.append(time.perf_counter() - started)
            checkpoints.finish()
            kept_s.append(time.perf_counter() - started)
    num_bytes = sum(file.stat().st_size for file in folder_of(folder, _NUM_MEASURED).iterdir())
    print(f"{trainer.model.num_parameters:,} parameters, {num_bytes / 1e9:.2f} GB, median of {_NUM_MEASURED}")
    print(f"the loop stands      {median(stalls_s):6.2f} s")
    print(f"until it is on disk  {median(kept_s):6.2f} s, {median(stalls_s) / median(kept_s):.0%} of them in the loop")


if __name__ == "__main__":
    sys.exit(main())
