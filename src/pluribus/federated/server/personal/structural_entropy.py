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

    Two groups are merged as long as some merge lowers `structural_entropy`; of equals the first pair. Nodes without
    edges stay alone. It costs O(n^3) small steps of O(n), so it is for hundreds of clients, not thousands.
    """
    weights = _checked(adjacency)
    choice = np.arange(len(weights))
    current = structural_entropy(weights, choice)
    while True:
        names = np.unique(choice)
        best, merged = current - 1e-12, None
        for a, first in enumerate(names):
            for second in names[a + 1 :]:
                if weights[np.ix_(choice == first, choice == second)].any():
                    tried = np.where(choice == second, first, choice)
                    entropy = structural_entropy(weights, tried)
                    if entropy < best - 1e-12:
                        best, merged = entropy, tried
        if merged is None:
            return numbered(choice)
        choice, current = merged, best


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
