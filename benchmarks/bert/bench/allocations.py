"""A piece of work in, the tensors that it made out: how many, how large, and the memory of those alive at once."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


class Allocations(TorchDispatchMode):
    """While this lasts, the tensors that operations return in memory that none of their arguments had.

    What an operation makes and frees within itself is not seen.
    """

    def __init__(self) -> None:
        super().__init__()
        self.sizes_bytes: list[int] = []
        self.peak_bytes = 0
        self._alive: dict[StorageWeakRef, int] = {}

    @property
    def alive_bytes(self) -> int:
        """Of what was made and is still there."""
        self._alive = {storage: size for storage, size in self._alive.items() if not storage.expired()}
        return sum(self._alive.values())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        known = {_storage(each) for each in tree_iter((args, kwargs)) if isinstance(each, Tensor)}
        result = func(*args, **kwargs)
        made = [each for each in tree_iter(result) if isinstance(each, Tensor) and _storage(each) not in known]
        for tensor in made:
            storage = _storage(tensor)
            if storage not in self._alive:
                self._alive[storage] = tensor.untyped_storage().nbytes()
                self.sizes_bytes.append(self._alive[storage])
        if made:
            self.peak_bytes = max(self.peak_bytes, self.alive_bytes)
        return result


def _storage(tensor: Tensor) -> StorageWeakRef:
    return StorageWeakRef(tensor.untyped_storage())
