"""Sorted global batches in, which hand gets which sample out; and what the training on a sample costs.

Shapes: G steps, J samples of a batch or of a node's part of it, longest first. A deal gives each of them the number of
a hand.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Deal = Callable[[np.ndarray, np.ndarray, int], np.ndarray]

BERT_LARGE_TOKEN = 2 * 1024 + 4096
_MOST = 2  # how many times the mean number of samples a hand may get
_FULL = np.uint16(65535)
_LARGEST = 32767  # work of a longest sample


def token_work(hidden_size: int, ffn_size: int) -> int:
    """A token's work in a layer but for attention, in units of that of one query meeting one key.

    Products of a layer and token, in multiply-adds: 4 H^2 for query, key, value and output, 2 H F in the
    feed-forward part; and 2 H for each pair of a query and a key. So 2 H + F to 1, and a sample of L tokens is worth
    L (2 H + F + L). Embeddings, heads and what is no matrix product are left out.
    """
    return 2 * hidden_size + ffn_size


def work_of(max_length: int, per_token: int = BERT_LARGE_TOKEN) -> np.ndarray:
    """Work of a sample of each length from 0 to `max_length`, so scaled that the longest has 32767; uint16, above 0."""
    length = np.arange(max_length + 1, dtype=np.int64)
    work = length * (per_token + length)
    return np.maximum(1, np.rint(work * (_LARGEST / work[-1]))).astype(np.uint16)


def alone(lengths_GJ: np.ndarray, work: np.ndarray, num_hands: int) -> np.ndarray:
    """All to one hand."""
    return np.zeros(lengths_GJ.shape, np.uint16)


def serpentine(lengths_GJ: np.ndarray, work: np.ndarray, num_hands: int) -> np.ndarray:
    """Rows of `num_hands`, alternately forwards and backwards."""
    row, column = np.divmod(np.arange(lengths_GJ.shape[1]), num_hands)
    hand_J = np.where(row % 2, num_hands - 1 - column, column).astype(np.uint16)
    return np.broadcast_to(hand_J, lengths_GJ.shape)


def least_loaded(lengths_GJ: np.ndarray, work: np.ndarray, num_hands: int) -> np.ndarray:
    """Longest processing time first: each sample to the hand with the least work so far (Graham 1969).

    A part of the hands is served at a time, the heaviest sample to the least loaded of them, so that NumPy takes all
    steps and all these hands together. As with one at a time, hands never differ by more than the work of one longest
    sample. No hand gets more than twice the mean number of samples; those that have them stand aside.
    """
    num_steps, num_samples = lengths_GJ.shape
    most = _MOST * num_samples // num_hands
    at_once = max(1, num_hands // max(2, 16 * num_hands // num_samples))  # smaller where a hand gets few samples
    work_GJ = work[lengths_GJ]
    hand_GJ = np.empty(lengths_GJ.shape, np.uint16)
    # Work beyond that of the least loaded. Radix sort takes 16 bits, and they suffice: twice the longest sample's.
    excess_GR = np.zeros((num_steps, num_hands), np.uint16)
    count_GR = np.zeros((num_steps, num_hands), np.uint16)
    excess, count = excess_GR.ravel(), count_GR.ravel()
    first_G1 = num_hands * np.arange(num_steps)[:, None]
    rounds = range(0, num_samples, at_once)
    may_fill = len(rounds) > most  # a hand gets at most one sample a round
    for start in rounds:
        chunk = slice(start, min(start + at_once, num_samples))
        is_full = count_GR == most
        np.putmask(excess_GR, is_full, _FULL)
        excess_GR -= excess_GR.min(axis=1, keepdims=True)
        np.putmask(excess_GR, is_full, _FULL)
        least = np.argsort(excess_GR, axis=1, kind="stable")[:, : chunk.stop - start]
        hand_GJ[:, chunk] = least
        chosen = least + first_G1
        excess[chosen] += work_GJ[:, chunk]
        if may_fill:
            count[chosen] += 1
    return hand_GJ
