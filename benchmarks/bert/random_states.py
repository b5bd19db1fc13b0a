"""A seed and ranks in, the generators that dropout draws from: one state for each rank that this process acts as."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

State = dict[str, Tensor]  # bytes, on the host, by device


class RandomStates:
    """torch's own generators hold the state of the rank whose turn it is; the others' wait here."""

    def __init__(self, device: torch.device, seed: int, ranks: Sequence[int]) -> None:
        """Leaves torch's generators to the first of the ranks."""
        self.ranks = ranks
        self._device = device
        self._states: list[State] = []
        for rank in ranks:
            torch.manual_seed(seed + 1 + rank)
            self._states.append(_live(device))
        self._turn = 0
        _set_live(self._states[0], device)

    def turn_to(self, turn: int) -> None:
        if turn != self._turn:
            self._states[self._turn] = _live(self._device)
            _set_live(self._states[turn], self._device)
            self._turn = turn

    def tensors(self) -> State:
        """Of each device that has a generator the states, uint8, one row for each rank."""
        self._states[self._turn] = _live(self._device)
        return {name: torch.stack([state[name] for state in self._states]) for name in self._states[0]}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """What `tensors` returned, or `drawn`."""
        for turn in range(len(self._states)):
            # Copies: torch reads a state from the beginning of its storage, whatever the view's offset.
            self._states[turn] = {name: rows[turn].clone() for name, rows in tensors.items()}
        self._turn = 0
        _set_live(self._states[0], self._device)


def drawn(device: torch.device, seed: int, step: int, ranks: Sequence[int]) -> State:
    """As `RandomStates.tensors`, seeded from the numbers, for ranks that no states were kept of."""
    states = [_drawn(device, seed, step, rank) for rank in ranks]
    return {name: torch.stack([state[name] for state in states]) for name in states[0]}


def _drawn(device: torch.device, seed: int, step: int, rank: int) -> State:
    seeds = np.random.SeedSequence([seed, step, rank]).generate_state(2, np.uint64) >> np.uint64(1)
    states = {"random/cpu": torch.Generator().manual_seed(int(seeds[0])).get_state()}
    if device.type == "cuda":
        states["random/cuda"] = torch.Generator(device).manual_seed(int(seeds[1])).get_state()
    return states


def _live(device: torch.device) -> State:
    states = {"random/cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["random/cuda"] = torch.cuda.get_rng_state(device)
    return states


def _set_live(state: State, device: torch.device) -> None:
    torch.set_rng_state(state["random/cpu"])
    if device.type == "cuda":
        torch.cuda.set_rng_state(state["random/cuda"], device)
