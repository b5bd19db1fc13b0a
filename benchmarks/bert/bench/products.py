"""Sizes in, the rate of this machine's matrix products at them out: what the model's FLOPs are measured against."""

from __future__ import annotations

from collections.abc import Callable

import torch

# Dense 16-bit rates that the makers state, in FLOP/s.
_STATED = {"H100": 989e12, "H200": 989e12, "A100": 312e12}


class Products:
    """The three products of the widest linear map, of T tokens from H to F: forward and both of backward."""

    def __init__(self, num_tokens: int, hidden_size: int, ffn_size: int, device: torch.device, dtype: torch.dtype):
        self._x_TH = torch.randn(num_tokens, hidden_size, device=device, dtype=dtype)
        self._w_FH = torch.randn(ffn_size, hidden_size, device=device, dtype=dtype)
        self._out_TF = torch.randn(num_tokens, ffn_size, device=device, dtype=dtype)
        self.num_flops = 3 * 2 * num_tokens * hidden_size * ffn_size

    def run(self) -> None:
        self._x_TH @ self._w_FH.T
        self._out_TF @ self._w_FH
        self._out_TF.T @ self._x_TH

    def rate(self, seconds: Callable[[Callable[[], object]], float]) -> float:
        """FLOP/s of one run."""
        return self.num_flops / seconds(self.run)


def stated_rate(device: torch.device, dtype: torch.dtype) -> float | None:
    """What the maker of this GPU states for 16 bit, where it is known here."""
    if device.type != "cuda" or dtype == torch.float32:
        return None
    name = torch.cuda.get_device_name(device)
    return next((rate for known, rate in _STATED.items() if known in name), None)
