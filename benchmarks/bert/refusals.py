"""The errors that mean that the input cannot be used: their text is the message, and the exit status is 2."""

from __future__ import annotations

from benchmarks.bert.checkpoint.store import CheckpointError
from benchmarks.bert.config import ConfigError
from benchmarks.bert.data.manifest import ManifestError
from benchmarks.bert.data.plan import PlanError
from benchmarks.bert.data.shards import ShardError
from benchmarks.bert.growth.notation import GrowthError
from benchmarks.bert.model.attention import KernelError
from benchmarks.bert.weights import WeightsError
from benchmarks.bert.world import WorldError

REFUSALS = (
    ConfigError,
    WorldError,
    ManifestError,
    ShardError,
    PlanError,
    KernelError,
    GrowthError,
    WeightsError,
    CheckpointError,
)
REFUSAL_NAMES = frozenset(each.__name__ for each in REFUSALS)
