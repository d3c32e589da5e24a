"""Groups of a weighted graph by its structural entropy: the partition under which a random walk is told shortest."""

from __future__ import annotations

from typing import Any

import numpy as np

from pluribus.core.errors import RuleError
from pluribus.federated.models import Array
from pluribus.federated.server.personal.coalitions import numbered


def structural_entropy(adjacency: Any, groups: Any) -> float:
    """Two-dimensional structural entropy of a graph under a partition, in bits.

    ``-sum_c (g_c / V) log2(V_c / V) - sum_c sum_{i in c} (d_i / V) log2(d_i / V_c)`` with degrees d_i, volumes V_c and
    V, and the weight g_c of the edges that leave group c. Groups without edges count nothing. (Li and Pan, Structural
    Information and Dynamical Complexity of Networks, IEEE Trans. Inf. Theory 2016.)

    Parameters
    ----------
    adjacency
        Symmetric, not negative, (n, n); the diagonal is not looked at.
    groups
        Each node's group, (n,).
    """
    weights, choice = _checked(adjacency), np.asarray(groups)
    degrees = weights.sum(axis=1)
    total = degrees.sum()
    if total == 0:
        return 0.0
    entropy = 0.0
    for group in np.unique(choice):
        inside = choice == group
        volume = degrees[inside].sum()
        if volume == 0:
            continue
        cut = weights[np.ix_(inside, ~inside)].sum()
        own = degrees[inside][degrees[inside] > 0]
        entropy -= cut / total * np.log2(volume / total)
        entropy -= float((own / total * np.log2(own / volume)).sum())
    return float(entropy)


def entropy_groups(adjacency: Any) -> Array:
    """Groups of low structural entropy, (n,), numbered by their first member: from everybody alone, best merges first.

    Two groups with an edge between them are merged as long as some merge lowers `structural_entropy`; of equals the
    first pair. Nodes without edges stay alone. What a merge changes follows from volumes and edges between groups, so
    it costs O(n^3).
    """
    between = _checked(adjacency)
    choice = np.arange(len(between))
    volumes, cuts = between.sum(axis=1), between.sum(axis=1)
    total = volumes.sum()

    def of(volume: Array, cut: Array) -> Array:
        # All that a partition decides: (V log V - g log(V / total)) / total, for each group.
        logs = np.log2(np.where(volume > 0, volume, 1.0))
        return np.asarray((volume * logs - cut * (logs - np.log2(total))) / total)

    while total > 0:
        own = of(volumes, cuts)
        merged = of(volumes[:, None] + volumes, cuts[:, None] + cuts - 2 * between)
        change = np.where(np.triu(between > 0, 1), merged - own[:, None] - own, np.inf)
        least = change.min()
        if not least < -1e-12:
            break
        first, second = divmod(int(np.argmax(change <= least + 1e-12)), len(change))
        cuts[first] += cuts[second] - 2 * between[first, second]
        volumes[first] += volumes[second]
        between[first] += between[second]
        between[:, first] += between[:, second]
        between[second] = between[:, second] = volumes[second] = cuts[second] = 0.0
        between[first, first] = 0.0
        choice[choice == second] = first
    return numbered(choice)


def similar_groups(similarity: Any, gap: float = 0.2) -> Array:
    """Groups of clients by similarities in [-1, 1], (n, n): `entropy_groups` of what is at least their mean.

    A graph without structure has lower entropy in small groups than in one, so a partition is taken only where the mean
    similarity within groups is above that between them by more than ``gap``; else all are one group.
    """
    alike = np.asarray(similarity, dtype=np.float64)
    n = len(alike)
    apart = ~np.eye(n, dtype=bool)
    if n < 3 or np.ptp(alike[apart]) <= 1e-12:
        return np.zeros(n, dtype=np.int64)
    edges = np.where(apart & (alike >= alike[apart].mean()), np.maximum(alike, 0.0), 0.0)
    choice = entropy_groups(edges)
    same = choice[:, None] == choice[None, :]
    if not (same & apart).any() or not (~same).any():
        return np.zeros(n, dtype=np.int64)
    within, between = alike[same & apart].mean(), alike[~same].mean()
    return choice if within - between > gap else np.zeros(n, dtype=np.int64)


def _checked(adjacency: Any) -> Array:
    weights = np.array(adjacency, dtype=np.float64)
    if weights.ndim != 2 or weights.shape[0] != weights.shape[1] or not np.isfinite(weights).all():
        raise RuleError(f"a graph's weights must be finite and of shape (n, n), not {weights.shape}")
    if (weights < 0).any() or not np.allclose(weights, weights.T, rtol=1e-9, atol=1e-12):
        raise RuleError("a graph's weights must be symmetric and >= 0")
    np.fill_diagonal(weights, 0.0)
    return weights
