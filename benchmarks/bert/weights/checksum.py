"""Bytes in, TensorFlow's masked CRC32C of them out."""

from __future__ import annotations

import google_crc32c
import numpy as np

_MASK = 0xA282EAD8  # TensorFlow rotates a CRC and adds this, lest one is taken of bytes that hold another


def masked_crc(data: bytes | np.ndarray) -> int:
    """The checksum as a TensorFlow checkpoint stores it; of an array, its bytes in C order."""
    crc: int = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF
