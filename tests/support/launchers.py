"""Changes in, the variables that a launcher sets for one of its processes out."""

from __future__ import annotations


def torchrun(**changed: str) -> dict[str, str]:
    """What torchrun sets for the second rank of the second of two nodes."""
    return {
        "RANK": "3",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "1",
        "MASTER_ADDR": "n1",
        "MASTER_PORT": "29500",
    } | changed
