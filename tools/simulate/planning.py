"""A cluster and a time in, the fewest nodes that are predicted to reach the target in it out, with their configuration.

Recipes are the project's own configuration files: their optimizer, batch and schedule are one thing, whose samples to
target public logs tell, so only what does not change them is chosen here. With `CLIP=bucket_before` BUCKET_MB and the
samples of a micro-batch are part of the recipe (docs/clipping.md); in the closed division batches are drawn at random.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.bert.config import Config, load
from benchmarks.bert.data.plan import STRATEGIES, Layout
from tools.simulate.cluster import Cluster
from tools.simulate.job import Job, of_config
from tools.simulate.run import Run, simulate

# Mean samples to target of the public runs with these values.
RECIPES = {
    "config_DGXA100_1x8x56x1.sh": 2_646_840,
    "config_DGXH100_1x8x96x1.sh": 2_549_468,
    "config_DGXA100_8x8x48x1.sh": 3_216_384,
    "config_DGXA100_128x8x16x1.sh": 2_932_736,
}
_BUCKETS_MB = (25.0, 50.0, 100.0, 200.0)
_STATE_BYTES = 18  # of a parameter: fp32 weight, gradient and two moments, and a 16-bit copy
_ACTIVATION_BYTES = 34  # of a token, layer and unit of width: Korthikanti et al., 2022, without the scores of attention
_MEMORY_SHARE = 0.8  # the rest is workspace, and the longest batch above the mean
_STEPS, _SEED = 10, 1


@dataclass(frozen=True)
class Proposal:
    recipe: str
    settings: Mapping[str, str]  # above the recipe's
    run: Run

    @property
    def limits(self) -> str:
        """The greatest parts of a step."""
        split = self.run.stages[0].timeline.split()
        total = sum(split.values())
        parts = sorted(split, key=lambda part: -split[part])[:3]
        return ", ".join(f"{part} {split[part] / total:.0%}".replace("%", " %") for part in parts)


class NoPlanError(ValueError):
    """No recipe reaches the target in time; the message has the nearest that does not."""


def propose(cluster: Cluster, minutes: float, share_L: np.ndarray, max_nodes: int) -> Proposal:
    """Of the fewest nodes that suffice, the fastest; raises NoPlanError."""
    fastest: Proposal | None = None
    nodes = 1
    while nodes <= max_nodes:
        found = list(_of_nodes(cluster, nodes, share_L))
        best = min(found, key=lambda each: each.run.seconds, default=None)
        if best is not None and best.run.seconds <= 60 * minutes:
            return best
        fastest = min((each for each in (fastest, best) if each), key=lambda each: each.run.seconds, default=None)
        nodes *= 2
    nearest = "no recipe fits any of them"
    if fastest:
        job = fastest.run.job
        nearest = f"the fastest takes {fastest.run.seconds / 60:.2f} minutes on {job.layout.num_nodes} nodes"
    raise NoPlanError(f"no recipe takes {minutes:g} minutes on up to {max_nodes} nodes of {cluster.name}; {nearest}")


def _of_nodes(cluster: Cluster, nodes: int, share_L: np.ndarray) -> Iterator[Proposal]:
    for recipe, samples in RECIPES.items():
        config = load({"CONFIG": recipe})
        job = of_config(config, samples_to_target=samples, name=Path(recipe).stem)
        ranks = nodes * cluster.ranks_per_node
        if job.layout.global_batch % ranks:
            continue
        base = replace(job, layout=Layout(nodes, cluster.ranks_per_node, job.layout.global_batch // ranks))
        parts = _micro_batches(base, config, cluster, share_L)
        if parts is None:
            continue
        base = replace(base, micro_batches=parts)
        # The strategy first, at the recipe's bucket size: which is best does not depend on that.
        loading = min(_loadings(config), key=lambda each: _run(replace(base, loading=each), cluster, share_L).seconds)
        for bucket_mb in _BUCKETS_MB if config.clip != "bucket_before" else (config.bucket_mb,):
            chosen = replace(base, loading=loading, bucket_mb=bucket_mb)
            yield Proposal(recipe, _settings(chosen), _run(chosen, cluster, share_L))


def _loadings(config: Config) -> list[str]:
    """The most level first, which so wins where all are as fast."""
    at_random = config.division == "closed"
    allowed = {
        name: each.draws_at_random or not at_random for name, each in STRATEGIES.items() if each.promises.random_order
    }
    return [name for name in reversed(allowed) if allowed[name]]


def _run(job: Job, cluster: Cluster, share_L: np.ndarray) -> Run:
    return simulate(job, cluster, share_L, num_steps=_STEPS, seed=_SEED)


def _micro_batches(job: Job, config: Config, cluster: Cluster, share_L: np.ndarray) -> int | None:
    """The fewest whose activations fit beside weights and moments, or those of the recipe's size; None if none do."""
    shape, per_rank = job.shape, job.layout.per_rank
    num_parameters = 12 * shape.num_layers * shape.hidden_size**2 + shape.num_padded_vocabulary * shape.hidden_size
    free = _MEMORY_SHARE * cluster.memory_gb * 1e9 - _STATE_BYTES * num_parameters
    mean_tokens = float(share_L @ np.arange(len(share_L)))
    of_sample = _ACTIVATION_BYTES * shape.num_layers * shape.hidden_size * mean_tokens
    parts = [each for each in range(1, per_rank + 1) if per_rank % each == 0 and per_rank / each * of_sample <= free]
    if config.clip == "bucket_before":
        unit = config.batch_size // config.gradient_accumulation_steps
        parts = [each for each in parts if per_rank == each * unit]
    return min(parts, default=None)


def _settings(job: Job) -> dict[str, str]:
    return {
        "NUM_NODES": str(job.layout.num_nodes),
        "RANKS_PER_NODE": str(job.layout.ranks_per_node),
        "BATCH_SIZE": str(job.layout.per_rank),
        "GRADIENT_ACCUMULATION_STEPS": str(job.micro_batches),
        "LOADING": job.loading,
        "BUCKET_MB": f"{job.bucket_mb:g}",
    }


def file_name(proposal: Proposal, cluster: Cluster) -> str:
    layout, parts = proposal.run.job.layout, proposal.run.job.micro_batches
    system = cluster.name.upper().replace("_", "")
    return f"config_{system}_{layout.num_nodes}x{layout.ranks_per_node}x{layout.per_rank}x{parts}_plan.sh"


def script(proposal: Proposal, recipe_text: str, cluster: Cluster) -> str:
    """The recipe with the proposal's values, in place of its own or at the end."""
    job, text = proposal.run.job, recipe_text
    _, _, body = text.partition("source ")
    heading = (
        "# shellcheck shell=bash\n"
        f"# Planned by tools.simulate for {cluster.name}: {proposal.run.seconds / 60:.2f} minutes predicted, "
        f"{job.samples_to_target:,} samples at batch {job.layout.global_batch:,}.\n"
        f"# The recipe is that of {proposal.recipe}; a step is {proposal.limits}.\n"
    )
    text, more = "source " + body, []
    for name, value in proposal.settings.items():
        text, count = re.subn(rf"(?m)^export {name}=.*$", f"export {name}={value}", text)
        if not count:
            more.append(f"export {name}={value}")
    return heading + text.rstrip("\n") + "\n\n" + "\n".join(more) + ("\n" if more else "")
