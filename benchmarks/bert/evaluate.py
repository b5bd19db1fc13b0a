"""A model and the evaluation set in, masked-LM accuracy out, the same for any number of ranks.

`python -m benchmarks.bert.evaluate` measures the weights that a configuration starts from: the check of data, import
and model together that costs no training. The benchmark's checkpoint has 0.34085 (its reference's README).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from benchmarks.bert.comm.group import process_group
from benchmarks.bert.complaint import FAILED, REFUSED, complain
from benchmarks.bert.config import Config, load
from benchmarks.bert.data.batch import PackedBatch
from benchmarks.bert.data.dataset import check_lengths, check_shards, count_vocabulary, read_data_set
from benchmarks.bert.data.store import SampleStore
from benchmarks.bert.loss import num_correct
from benchmarks.bert.refusals import REFUSALS
from benchmarks.bert.shutdown import end
from benchmarks.bert.trainer import choose_device, choose_precision, initial_model
from benchmarks.bert.world import World, from_launcher


def deal_evaluation(lengths: np.ndarray, rank: int, num_ranks: int) -> np.ndarray:
    """This rank's share of the evaluation samples: every sample on exactly one rank, long and short dealt level."""
    order = np.argsort(-lengths.astype(np.int64), kind="stable")
    turn = np.arange(len(order)) % (2 * num_ranks)
    return order[np.minimum(turn, 2 * num_ranks - 1 - turn) == rank]


def evaluation_batches(
    store: SampleStore, numbers: np.ndarray, batch_size: int, device: torch.device
) -> list[PackedBatch]:
    """This rank's samples, packed once and kept on the device."""
    return [store.pack(numbers[at : at + batch_size]).to(device) for at in range(0, len(numbers), batch_size)]


class EvaluationSet:
    """This rank's evaluation samples, read and packed beside the first steps, then kept on the device.

    Making it starts the reading, so it is made after run_start.
    """

    def __init__(self, read: Callable[[], list[PackedBatch]]) -> None:
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="evaluation")
        self._batches: Future[list[PackedBatch]] = self._reader.submit(read)
        self._reader.shutdown(wait=False)

    def batches(self) -> list[PackedBatch]:
        """Waits for the reader; raises what it met."""
        return self._batches.result()


@torch.no_grad()
def masked_lm_accuracy(
    model: nn.Module,
    batches: list[PackedBatch],
    precision: Callable[[], AbstractContextManager[object]],
    device: torch.device,
) -> float:
    """Correct masked tokens over masked tokens of all ranks' batches; a rank may have none.

    Counts are integers, so the result does not depend on who evaluated what.
    """
    model.eval()
    counts = torch.zeros(2, dtype=torch.int64, device=device)
    for batch in batches:
        with precision():
            logits_MV, _ = model(batch)
        counts[0] += num_correct(logits_MV, batch)
        counts[1] += len(batch.labels_M)
    model.train()
    dist.all_reduce(counts)
    correct, masked = counts.tolist()
    return correct / masked


def is_stuck(accuracies: Sequence[float]) -> bool:
    """Whether the last three agree to five digits; two may by chance, where the evaluation set is small."""
    return len(accuracies) >= 3 and len({round(accuracy, 5) for accuracy in accuracies[-3:]}) == 1


def initial_accuracy(config: Config, world: World, device: torch.device) -> float:
    """Of the weights that a run of this configuration starts from; all ranks share the work."""
    held_out = read_data_set(config.data_dir / "eval")
    check_lengths(held_out, config.max_length)
    check_shards(held_out, range(len(held_out.lengths)))
    num_vocabulary = count_vocabulary(config.data_dir / "vocab.txt", held_out)
    torch.manual_seed(max(0, config.seed))  # alike on all ranks, for weights that are drawn
    model = initial_model(config, device, num_vocabulary, is_reader=True).to(device)
    share = deal_evaluation(held_out.lengths, world.rank, world.num_ranks)
    batches = evaluation_batches(held_out.open(config.data_check), share, config.eval_batch_size, device)
    return masked_lm_accuracy(model, batches, choose_precision(config.precision, device), device)


def _share(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not from 0 to 1")
    return value


def main() -> int:
    """Exit status: 0, 1 where --expect is given and missed, 2 for an input that cannot be used."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.bert.evaluate",
        description="Masked-LM accuracy of the weights that the environment's configuration starts from.",
    )
    parser.add_argument("--expect", type=_share, metavar="ACCURACY", help="fail if it is another one")
    parser.add_argument(
        "--within", type=_share, default=0.0005, help="how far from --expect is still right (%(default)s)"
    )
    options = parser.parse_args()
    try:
        config = load()
        world = from_launcher(config.launcher)
        device = choose_device(config.device, world.local_rank)
        with process_group(world, device, config.collective_timeout_s):
            accuracy = initial_accuracy(config, world, device)
    except REFUSALS as error:
        return complain(error, REFUSED)
    if world.is_main:
        print(
            f"masked-LM accuracy {accuracy:.5f} of INITIAL_CHECKPOINT={config.initial_checkpoint}, {config.precision}"
        )
    if options.expect is not None and not abs(accuracy - options.expect) <= options.within:
        return complain(
            f"expected {options.expect} within {options.within}: weights, evaluation data, vocabulary or sizes of the "
            "model are not those that it is known for",
            FAILED,
        )
    return 0


if __name__ == "__main__":
    end(main())
