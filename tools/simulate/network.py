"""Bytes and a cluster in, seconds of their all-reduce out.

Thakur et al., *Optimization of Collective Communication Operations in MPICH*, for rings; NCCL's double binary trees
for trees. n ranks of a node, N nodes, B bytes:

    ring          every rank in one ring:      2 (nN - 1) hops of B / nN
    tree          up and down, pipelined:      2 B through the narrowest part, 2 log2 N hops of nodes, 2 (n - 1) inside
    hierarchical  reduce-scatter inside nodes, a ring or tree of nodes for each rank's part, all-gather inside nodes
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from tools.simulate.cluster import Cluster


def ring(num_bytes: np.ndarray, cluster: Cluster, num_nodes: int, per_node: int) -> np.ndarray:
    num_ranks = num_nodes * per_node
    hops = 2 * (num_ranks - 1)
    hops_between = 2 * (num_nodes - 1)
    latency = hops_between * cluster.link_latency_s + (hops - hops_between) * cluster.node_latency_s
    return hops / num_ranks * num_bytes / _narrowest(cluster, num_nodes, per_node) + latency


def tree(num_bytes: np.ndarray, cluster: Cluster, num_nodes: int, per_node: int) -> np.ndarray:
    if num_nodes == 1:
        return ring(num_bytes, cluster, num_nodes, per_node)
    hops = 2 * math.ceil(math.log2(num_nodes))
    latency = hops * cluster.link_latency_s + 2 * (per_node - 1) * cluster.node_latency_s
    return 2 * num_bytes / _narrowest(cluster, num_nodes, per_node) + latency


def hierarchical(num_bytes: np.ndarray, cluster: Cluster, num_nodes: int, per_node: int) -> np.ndarray:
    inside = 2 * (per_node - 1) / per_node * num_bytes / cluster.node_bytes_per_s
    latency = 2 * (per_node - 1) * cluster.node_latency_s
    hops = min(2 * (num_nodes - 1), 2 * math.ceil(math.log2(num_nodes)))
    between = 2 * (num_nodes - 1) / num_nodes * num_bytes / cluster.network_bytes_per_s
    return inside + latency + between + hops * cluster.link_latency_s


def _narrowest(cluster: Cluster, num_nodes: int, per_node: int) -> float:
    links = [cluster.network_bytes_per_s] if num_nodes > 1 else []
    inside = [cluster.node_bytes_per_s] if per_node > 1 else []
    return min(links + inside, default=math.inf)


Algorithm = Callable[[np.ndarray, Cluster, int, int], np.ndarray]
ALGORITHMS: dict[str, Algorithm] = {"ring": ring, "tree": tree, "hierarchical": hierarchical}


def all_reduce_s(
    num_bytes: np.ndarray, cluster: Cluster, num_nodes: int, per_node: int, algorithm: str = "auto"
) -> np.ndarray:
    """Seconds for each message by itself; `auto` takes the fastest for each, as NCCL's own model does."""
    if num_nodes * per_node == 1:
        return np.zeros(np.shape(num_bytes))
    chosen = ALGORITHMS.values() if algorithm == "auto" else [ALGORITHMS[algorithm]]
    return np.min([each(num_bytes, cluster, num_nodes, per_node) for each in chosen], axis=0)
