"""A configuration in, what the rules of its division do not allow, and what a reviewer may object to, out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.bert.data.plan import STRATEGIES
from benchmarks.bert.growth.notation import NONE

if TYPE_CHECKING:
    from benchmarks.bert.config import Config


def forbidden(config: Config) -> list[str]:
    """What the rules do not allow in the closed division (training rules: optimizers table; clip-norm exception)."""
    if config.division != "closed":
        return []
    found = []
    if config.optimizer != "lamb":
        found.append(
            f"DIVISION=closed allows the LAMB optimizer only (rules, table of optimizers), not {config.optimizer}"
        )
    if config.clip not in ("global_before", "global_after"):
        found.append(
            "DIVISION=closed requires clipping by the whole gradient's norm, CLIP=global_before or global_after "
            f"(rules, hyperparameters must equal the reference's), not CLIP={config.clip}"
        )
    if config.norm != "post":
        found.append(f"DIVISION=closed requires NORM=post (rules, the reference's network), not {config.norm}")
    if config.growth != NONE:
        found.append(
            f"DIVISION=closed requires GROWTH=none (rules, the model and its updates must be the reference's), "
            f"not {config.growth}"
        )
    for name, value, reference in (
        ("DROPOUT", config.dropout, 0.1),
        ("DECAY_POWER", config.decay_power, 1.0),
    ):
        if value != reference:
            found.append(
                f"DIVISION=closed requires {name}={reference:g} (rules, what is not free must equal the "
                f"reference's), not {value:g}"
            )
    if config.schedule == "lans":
        found.append("DIVISION=closed requires a decay from the end of the warm-up on (rules), not SCHEDULE=lans")
    if config.max_norm != 1:
        found.append(f"DIVISION=closed requires MAX_NORM=1 (the reference's), not {config.max_norm}")
    if config.optimizer == "lamb" and not (config.lamb_bias_correction and config.max_trust_ratio == 0):
        found.append(
            "DIVISION=closed requires LAMB as the reference has it (rules, table of optimizers), "
            "LAMB_BIAS_CORRECTION=1 and MAX_TRUST_RATIO=0, not "
            f"LAMB_BIAS_CORRECTION={config.lamb_bias_correction:d} and MAX_TRUST_RATIO={config.max_trust_ratio:g}"
        )
    return found


def warnings(config: Config) -> list[str]:
    """What is allowed, but that somebody may object to."""
    if config.division == "closed" and not STRATEGIES[config.loading].draws_at_random:
        return [
            f"DIVISION=closed with LOADING={config.loading}: which samples form a global batch depends on their "
            "lengths, and a review may see more in that than a random order (training rules, data traversal); "
            "LOADING=global_presort balances inside random batches"
        ]
    return []
