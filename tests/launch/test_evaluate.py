"""The check of initial weights as a command: its line, its exit status, and one number on one rank or two."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.bert.model.bert import Bert, BertShape
from benchmarks.bert.model.init import standard
from benchmarks.bert.weights import write_weights
from tests.support.tiny import ROOT, make_tiny_data, tiny_environment

TINY = {"max_length": 32, "num_layers": 1, "hidden_size": 32, "num_heads": 2, "ffn_size": 64, "dropout": 0.0}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def weights(data: Path) -> Path:
    """Weights of a model that names the most frequent entry of the vocabulary rather often."""
    num_vocabulary = len((data / "vocab.txt").read_text().splitlines())
    torch.manual_seed(1)
    model = Bert(BertShape(num_vocabulary=num_vocabulary, **TINY))
    standard(model, 0.5)
    tensors = {name: parameter.detach() for name, parameter in model.named_parameters()}
    write_weights(data / "weights.pt", tensors, "pt", num_heads=2, num_vocabulary=num_vocabulary)
    return data / "weights.pt"


def evaluate(data: Path, *options: str, launcher: list[str] | None = None, **changed: str) -> tuple[int, str, str]:
    environment = tiny_environment(data, data / "unused", **changed)
    command = [*(launcher or [sys.executable]), "-m", "benchmarks.bert.evaluate", *options]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=ROOT, timeout=90, check=False)
    return done.returncode, done.stdout, done.stderr


def accuracy_in(line: str) -> str:
    match = re.fullmatch(r"masked-LM accuracy (0\.\d{5}) of INITIAL_CHECKPOINT=.*, fp32\n", line)
    assert match, line
    return match[1]


def test_one_rank_and_two_measure_one_number_and_an_expectation_is_held(data: Path, weights: Path) -> None:
    status, out, _ = evaluate(data, INITIAL_CHECKPOINT=str(weights))
    found = accuracy_in(out)
    assert status == 0
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    status, out, _ = evaluate(data, "--expect", found, launcher=torchrun, INITIAL_CHECKPOINT=str(weights))
    assert (status, accuracy_in(out)) == (0, found)


def test_another_accuracy_than_expected_is_a_failure(data: Path, weights: Path) -> None:
    """Known fault 69: a checkpoint that was not loaded."""
    status, _, err = evaluate(data, "--expect", "0.34085", INITIAL_CHECKPOINT=str(weights))
    assert status == 1
    assert err.startswith("error: expected 0.34085 within 0.0005: ")


@pytest.mark.parametrize("options", [("--expect", "nan"), ("--expect", "0.5", "--within", "nan"), ("--within", "-1")])
def test_an_expectation_that_nothing_can_miss_is_refused(data: Path, weights: Path, options: tuple[str, ...]) -> None:
    status, out, err = evaluate(data, *options, INITIAL_CHECKPOINT=str(weights))
    assert (status, out) == (2, "")
    assert "is not from 0 to 1" in err


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"CUDA_GRAPHS": "1"}, "CUDA_GRAPHS=1 needs"),
        ({"FUSION": "compiled", "CXX": "none", "PATH": "/nonexistent"}, "FUSION=compiled needs a C++ compiler"),
        ({"INITIAL_CHECKPOINT": "nowhere.pt"}, "nowhere.pt"),
        ({"HIDDEN_SIZE": "64"}, "HIDDEN_SIZE"),
        ({"DATA_DIR": "nowhere"}, "no such data folder"),
    ],
)
def test_an_input_that_cannot_be_used_is_refused(
    data: Path, weights: Path, changed: dict[str, str], reason: str
) -> None:
    status, out, err = evaluate(data, **{"INITIAL_CHECKPOINT": str(weights)} | changed)
    assert (status, out) == (2, "")
    assert err.startswith("error: ")
    assert reason in err
