"""The measurements: their lines, the FLOPs and lengths that they count with, and the check of a GPU tried on a CPU."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.bert.bench import step
from benchmarks.bert.bench.agreement import TOLERANCES, compare
from benchmarks.bert.bench.clock import BACKWARD, FORWARD, PartClock, Section, timed
from benchmarks.bert.bench.configurations import CONFIGURATIONS, TINY
from benchmarks.bert.bench.lengths import moments, read_shares, representative, wikipedia_shares
from benchmarks.bert.bench.made_up import made_up_batches, num_masked
from benchmarks.bert.bench.parts import COMMUNICATION, PARTS
from benchmarks.bert.data.batch import PackedBatch
from benchmarks.bert.loss import pretraining_loss
from benchmarks.bert.model.bert import LAST_LAYER, Bert, BertShape
from benchmarks.bert.model.flops import mean_sequence_flops, packed_flops, padded_flops
from benchmarks.bert.model.kernels import PORTABLE

ROOT = Path(__file__).resolve().parents[2]
# Facts of the benchmark's 16,279,552 samples.
MEAN, MEAN_SQUARE, SHARE_OF_512 = 255.83, 98_826, 0.2343
STRATA = (0.369, 0.197, 0.117, 0.316)  # of 1-128, 129-256, 257-384, 385-512


def tiny_batch(num_samples: int = 4) -> PackedBatch:
    lengths = representative(wikipedia_shares(), num_samples, TINY.max_length)
    [batch] = made_up_batches(lengths, num_samples, TINY.num_vocabulary)
    return batch


# Lengths


def test_the_coarse_lengths_have_the_benchmarks_mean_mean_square_and_longest() -> None:
    share_L = wikipedia_shares()
    mean, mean_square = moments(share_L)
    assert mean == pytest.approx(MEAN, rel=0.01)
    assert mean_square == pytest.approx(MEAN_SQUARE, rel=0.01)
    assert share_L[512] == pytest.approx(SHARE_OF_512, rel=0.01)
    assert share_L.sum() == pytest.approx(1.0)
    assert [share_L[s - 127 : s + 1].sum() for s in (128, 256, 384, 512)] == pytest.approx(STRATA, abs=0.002)


def test_lengths_all_alike_would_have_another_mean_square() -> None:
    share_L = np.zeros(513)
    share_L[256] = 1.0
    assert moments(share_L)[1] != pytest.approx(MEAN_SQUARE, rel=0.01)


def test_representative_lengths_have_the_shares_moments_and_are_cut_to_what_is_allowed() -> None:
    lengths = representative(wikipedia_shares(), 1000, 512)
    assert lengths.mean() == pytest.approx(MEAN, rel=0.01)
    assert (lengths.astype(float) ** 2).mean() == pytest.approx(MEAN_SQUARE, rel=0.01)
    assert (lengths.min() >= 1, lengths.max()) == (True, 512)
    assert representative(wikipedia_shares(), 100, 64).max() == 64


def test_a_histogram_is_read_exactly_and_anything_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "lengths.csv"
    path.write_text("length,count\n1,0\n3,1\n4,3\n")
    assert read_shares(path).tolist() == [0, 0, 0, 0.25, 0.75]
    for text in ("length,count\n0,5\n", "length,count\nx,5\n", "length,count\n3,-1\n", "length,count\n3,0\n"):
        path.write_text(text)
        with pytest.raises(ValueError, match=r"lengths\.csv: expected"):
            read_shares(path)


def test_every_step_has_the_mix_and_ranks_share_it() -> None:
    lengths = representative(wikipedia_shares(), 320, 512)
    by_rank = [list(made_up_batches(lengths, 16, 101, rank=rank, num_ranks=2)) for rank in range(2)]
    seen = np.array([[sum(batch.layout.lengths) for batch in batches] for batches in by_rank])
    assert seen.shape == (2, 10)
    assert seen.sum() == lengths.sum()
    assert seen.sum(0).std() < 0.05 * seen.sum(0).mean()
    assert num_masked(np.array([2, 100, 512])).tolist() == [1, 15, 76]
    assert all(len(batch.labels_M) == num_masked(np.array(batch.layout.lengths)).sum() for batch in by_rank[0])


# FLOPs


def counted(run: object) -> int:
    with FlopCounterMode(display=False) as counter:
        run()  # type: ignore[operator]
    return counter.get_total_flops()


@pytest.mark.parametrize("last_layer", LAST_LAYER)
@pytest.mark.parametrize("num_layers", [1, 3])
def test_our_flops_are_those_that_torch_counts(last_layer: str, num_layers: int) -> None:
    # With dropout attention is made of plain products, which the counter sees, and none is computed twice.
    shape = replace(TINY, dropout=0.1, num_layers=num_layers)
    batch, model = tiny_batch(), Bert(shape, PORTABLE, last_layer)
    expected = counted(lambda: pretraining_loss(model(batch), batch).backward())
    assert packed_flops(shape, batch, last_layer) == expected
    other = next(each for each in LAST_LAYER if each != last_layer)
    assert packed_flops(shape, batch, other) != expected


def test_the_padded_models_flops_are_those_that_torch_counts() -> None:
    pytest.importorskip("transformers", reason="transformers is not there (requirements-bench.txt)")
    from benchmarks.bert.bench.exact import padded
    from benchmarks.bert.bench.padded import hugging_face_bert

    shape, batch = replace(TINY, dropout=0.1), tiny_batch()
    model, inputs = hugging_face_bert(shape), padded(batch)
    expected = counted(lambda: model(**inputs).loss.backward())
    assert padded_flops(shape, *inputs["input_ids"].shape) == expected
    assert packed_flops(shape, batch, "whole") < expected


def test_a_sequence_costs_bert_large_500_gflop_and_padded_twice_that() -> None:
    share_L = wikipedia_shares()
    flops = mean_sequence_flops(BertShape(), share_L, num_masked(np.arange(len(share_L))))
    assert flops / 1e9 == pytest.approx(500.1, abs=0.5)
    masked_head_only = padded_flops(BertShape(), 1, 512) - 3 * (512 - 76) * 2 * 1024 * (1024 + 30522)
    assert masked_head_only / 1e9 == pytest.approx(1019.8, rel=0.002)


# Parts


def test_time_goes_to_the_part_that_runs_forward_and_backward() -> None:
    seconds = iter(range(1000))
    clock = PartClock(torch.device("cpu"), lambda: float(next(seconds)))
    order: list[str] = []

    def inner(x: torch.Tensor) -> torch.Tensor:
        order.append(clock.section.part if clock.section else "")
        y = x * 2
        y.register_hook(lambda _: order.append(clock.section.part if clock.section else ""))
        return y

    x = torch.ones(3, requires_grad=True)
    clock.switch(Section("outer", FORWARD))
    y = timed(clock, "inner", inner)(x * 3) + 1
    assert clock.section == Section("outer", FORWARD)
    y.sum().backward()
    assert clock.section == Section("outer", BACKWARD)
    clock.switch(None)
    assert order == ["inner", "inner"]
    assert x.grad is not None
    assert x.grad.tolist() == [6, 6, 6]
    assert set(clock.seconds()) == {
        Section(part, direction) for part in ("inner", "outer") for direction in (FORWARD, BACKWARD)
    }


def test_a_clock_that_is_off_leaves_a_function_as_it_is() -> None:
    clock = PartClock(torch.device("cpu"))
    x = torch.ones(1, requires_grad=True)
    timed(clock, "part", torch.neg)(x).backward()
    assert not clock.seconds()


# The command


def lines_of(capfd: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    step.main(["--configuration", "tiny", "--steps", "2", "--batch", "4", "--device", "cpu", *arguments])
    return capfd.readouterr().out.splitlines()


SPEED = re.compile(
    r"tiny +[\d.]+ tokens/s, [\d.]+ samples/s, [\d.]+ GFLOP/sample, MFU [\d.]+ of [\d.]+ GFLOP/s, peak memory \d+ MiB"
)
RATIO = re.compile(r"tiny +ratio ([\d.]+), bound ([\d.]+), ratio/bound ([\d.]+); padded [\d.]+ samples/s")


def test_the_step_command_says_speed_ratio_and_parts(capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers", reason="transformers is not there (requirements-bench.txt)")
    title, speed, ratio, *parts = lines_of(capfd, "--vs-huggingface")
    assert "2 layers x 32, 2 heads, dropout 0.1, fp32, split attention" in title
    assert SPEED.fullmatch(speed)
    match = RATIO.fullmatch(ratio)
    assert match
    assert float(match[2]) > 1
    found = [next(part for part in PARTS if part in line) for line in parts]
    assert found == [part for part in PARTS if part != COMMUNICATION]
    assert sum(float(line.rstrip("%").split()[-1]) for line in parts) == pytest.approx(100, abs=1)


def test_two_ranks_wait_for_each_other_and_no_comparison_is_made_unasked(capfd: pytest.CaptureFixture[str]) -> None:
    title, speed, *parts = lines_of(capfd, "--ranks", "2", "--dropout", "0")
    assert "2 rank(s)" in title
    assert SPEED.fullmatch(speed)
    assert any(COMMUNICATION in line for line in parts)


SHARDED = re.compile(r"tiny +sharded lamb: step time ratio [\d.]+, state on rank 0 ([\d.]+) MiB of ([\d.]+)")


def test_a_sharded_optimizer_is_compared_if_asked(capfd: pytest.CaptureFixture[str]) -> None:
    _, speed, ratio, *_ = lines_of(capfd, "--ranks", "2", "--vs-sharded", "--optimizer", "lamb")
    assert SPEED.fullmatch(speed)
    match = SHARDED.fullmatch(ratio)
    assert match
    assert 0 < float(match[1]) < float(match[2])


def test_configurations_have_bert_widths() -> None:
    assert [(shape.hidden_size, shape.num_heads) for shape in CONFIGURATIONS.values()] == [
        (256, 4), (768, 12), (1024, 16)
    ]  # fmt: skip
    assert {(shape.num_vocabulary, shape.max_length, shape.dropout) for shape in CONFIGURATIONS.values()} == {
        (30522, 512, 0.1)
    }


def test_a_name_that_is_no_measurement_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.bert.bench", "stepp"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "'stepp' is no measurement" in done.stderr


# The check of a GPU


def test_the_gpu_check_runs_all_its_parts_on_a_cpu() -> None:
    done = subprocess.run(
        ["tools/bench/gpu_check.sh"],
        cwd=ROOT,
        env=os.environ | {"DEVICE": "cpu", "PYTHON": sys.executable, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for part in ("device", "agreement", "waiting", "speed", "profile", "loader"):
        assert f"== {part}: exit status 0" in done.stdout
    assert done.stdout.count(": ok\n") == len(TOLERANCES) * len(LAST_LAYER)
    assert done.stdout.count("MFU") == 4
    assert done.stdout.endswith("gpu_check: all parts are good\n")


def test_the_gpu_check_fails_where_a_part_does() -> None:
    done = subprocess.run(
        ["tools/bench/gpu_check.sh"],
        cwd=ROOT,
        env=os.environ | {"DEVICE": "none", "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "gpu_check: failed: device agreement waiting speed profile loader" in done.stderr


def test_a_gradient_that_is_off_or_not_a_number_does_not_agree() -> None:
    expected = {"loss": torch.tensor(2.0), "w": torch.ones(4), "b": torch.ones(2)}
    assert compare("same", expected, expected, TOLERANCES["fp32"]).is_good
    for fault in ({"w": torch.zeros(4)}, {"b": torch.full((2,), torch.nan)}, {"loss": torch.tensor(2.1)}):
        assert not compare("off", expected | fault, expected, TOLERANCES["bf16"]).is_good
