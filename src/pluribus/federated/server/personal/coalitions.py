"""FedCollab's coalitions: who trains with whom, from how much everybody has and how much everybody differs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pluribus.core.errors import RuleError
from pluribus.federated.data import Dataset
from pluribus.federated.models import Array
from pluribus.federated.seeding import generator

ROUNDS = 100
"""Passes over the clients after which the search for coalitions ends in any case."""


def coalition_errors(choice: Any, sizes: Any, distances: Any, complexity: float) -> Array:
    """Bound on each client's error when coalitions train together, (n,).

    ``complexity sqrt(sum_j a_ij^2 / n_j) + sum_j a_ij D_ij`` with ``a_ij = n_j`` over the samples of i's coalition:
    ``sqrt(sum_j a_ij^2 / n_j)`` is one over the root of the coalition's samples. (With b_j = n_j / m it is the paper's
    ``sqrt(sum_j a_ij^2 / b_j / m)``.)

    Parameters
    ----------
    choice
        Each client's coalition, (n,).
    sizes
        Samples of each, (n,), positive.
    distances
        D: how much each two clients' distributions differ, (n, n), in [0, 1] for those made here.
    complexity
        C: how many samples the model needs.
    """
    choice, counts, apart = _checked(choice, sizes, distances)
    together = (choice[:, None] == choice[None, :]) * counts
    shares = together / together.sum(axis=1, keepdims=True)
    return np.asarray(complexity / np.sqrt(together.sum(axis=1)) + (shares * apart).sum(axis=1))


def coalitions(sizes: Any, distances: Any, complexity: float) -> Array:
    """The coalitions with the lowest mean of `coalition_errors`, (n,), numbered in the order of their first member.

    Each client in turn moves to whichever coalition, or one of its own, lowers the mean the most, until nobody moves;
    from everybody alone, and from all together, of which the better end is taken. Of equals the first. Compared with
    solver.py of the authors (baowenxuan/FedCollab), which starts alone only, goes through the clients at random, and
    compared in tests with all partitions of up to 7 clients.
    """
    n = len(np.asarray(sizes))
    ends = [_descended(start, sizes, distances, complexity) for start in (np.arange(n), np.zeros(n, dtype=np.int64))]
    best = min(ends, key=lambda choice: round(float(coalition_errors(choice, sizes, distances, complexity).mean()), 12))
    return numbered(best)


def numbered(choice: Any) -> Array:
    """The same coalitions, numbered 0, 1, ... in the order of their first member."""
    names: dict[int, int] = {}
    return np.array([names.setdefault(int(c), len(names)) for c in choice], dtype=np.int64)


def label_divergences(label_counts: Any) -> Array:
    """Half the sum of absolute differences of each two clients' label shares, (n, n), in [0, 1].

    It sees how much of each class clients have, not whether they call the same things alike; for that see
    `two_sample_divergences`.
    """
    counts = np.asarray(label_counts, dtype=np.float64)
    if counts.ndim != 2 or not np.isfinite(counts).all() or (counts < 0).any() or not (counts.sum(axis=1) > 0).all():
        raise RuleError("label_counts must be clients x classes, finite, >= 0, with a sample in every row")
    shares = counts / counts.sum(axis=1, keepdims=True)
    return np.asarray(0.5 * np.abs(shares[:, None] - shares[None, :]).sum(axis=2))


def two_sample_divergences(clients: Sequence[Dataset], *, labelled: bool = True, seed: int = 0) -> Array:
    """How well a classifier tells each two clients' samples apart on fresh ones, (n, n), in [0, 1].

    Of each pair as many samples of both are drawn, half of them train a ridge classifier, and on the
    others ``max(0, accuracy_i + accuracy_j - 1)`` is the divergence: 0 for one distribution, 1 for two that never meet.
    ``labelled``: of samples and labels, by one linear classifier for each label; else of samples alone. The authors
    train a network on both clients by FedAvg, and the same number is taken; here pairs are formed in one place, for
    studies before a run. It costs n (n - 1) / 2 small fits.
    """
    from sklearn.linear_model import RidgeClassifier

    n = len(clients)
    found = np.zeros((n, n))
    for i in range(n):
        for j in range(i + 1, n):
            count = min(len(clients[i]), len(clients[j]))
            if count < 2:
                raise RuleError(
                    f"client {i} or {j} has fewer than two samples; two-sample divergences need two of each"
                )
            sides = []
            for k, client in enumerate((i, j)):
                own = clients[client]
                order = generator(seed, "federated.two_sample", i, j, k).permutation(len(own))[:count]
                sides.append(_described(own.take(order), labelled))
            half = count // 2
            x = np.concatenate([side[:half] for side in sides])
            y = np.repeat([0, 1], half)
            model = RidgeClassifier(alpha=1.0).fit(x, y)
            right = [(model.predict(side[half:]) == k).mean() for k, side in enumerate(sides)]
            found[i, j] = found[j, i] = max(0.0, float(sum(right)) - 1)
    return found


def _described(dataset: Dataset, labelled: bool) -> Array:
    x = dataset.x.reshape(len(dataset), -1).astype(np.float64)
    if not labelled:
        return np.asarray(x)
    wide = np.hstack([x, np.ones((len(x), 1))])
    onehot = np.eye(dataset.n_classes)[dataset.y]
    return np.asarray((onehot[:, :, None] * wide[:, None, :]).reshape(len(x), -1))


def _descended(start: Array, sizes: Any, distances: Any, complexity: float) -> Array:
    choice = start.copy()
    n = len(choice)
    for _ in range(ROUNDS):
        moved = False
        for i in range(n):
            best = float(coalition_errors(choice, sizes, distances, complexity).mean())
            kept = choice[i]
            free = next(c for c in range(n + 1) if c not in np.delete(choice, i))
            for other in [*np.unique(np.delete(choice, i)).tolist(), free]:
                tried = choice.copy()
                tried[i] = other
                error = float(coalition_errors(tried, sizes, distances, complexity).mean())
                if error < best - 1e-12:
                    best, kept, moved = error, other, True
            choice[i] = kept
        if not moved:
            break
    return choice


def _checked(choice: Any, sizes: Any, distances: Any) -> tuple[Array, Array, Array]:
    chosen, counts, apart = np.asarray(choice), np.asarray(sizes, dtype=np.float64), np.asarray(distances, dtype=float)
    n = len(counts)
    if chosen.shape != (n,) or apart.shape != (n, n):
        raise RuleError(
            f"{n} sizes, coalitions of shape {chosen.shape} and distances of shape {apart.shape} do not fit"
        )
    if not ((counts > 0) & np.isfinite(counts)).all() or not np.isfinite(apart).all() or (apart < 0).any():
        raise RuleError("sizes must be positive and finite, distances finite and >= 0")
    return chosen, counts, apart
