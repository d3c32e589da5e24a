"""Krum's choice for every contributor that is left out, from one sorting of the distances."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pluribus.core.dtypes import Array

_ROUNDING = 1e-15  # of a sum, for each of its terms: far above what is lost


def lowest_without(squared_distances: Array, f: int, m: int) -> Iterator[Array]:
    """For each contributor left out: who has the m lowest Krum scores among the others, ties to the earlier.

    A score is the sum of the c = n - 1 - f - 2 smallest distances, at least one. Without j it stays as it is for those
    who have j not among their c nearest; the others get the next one instead. That settles all but scores so near the
    m-th that rounding could change places; these are added up anew, as `krum.neighbour_scores` adds them.

    Parameters
    ----------
    squared_distances
        Shape (n, n).
    f, m
        As of the rule; n >= 2f + 4.
    """
    others = squared_distances.copy()
    np.fill_diagonal(others, np.inf)
    n, count = len(others), max(len(others) - f - 3, 1)
    order = np.argsort(others, axis=1, kind="stable")
    nearest = np.take_along_axis(others, order, axis=1)
    rank = np.empty_like(order)
    np.put_along_axis(rank, order, np.arange(n)[None, :], axis=1)
    scores, following = nearest[:, :count].sum(axis=1), nearest[:, count]
    slack = _ROUNDING * (count + 10)
    for j in range(n):
        without = scores + np.where(rank[:, j] < count, following - squared_distances[:, j], 0.0)
        without[j] = np.inf
        bound = np.partition(without, m - 1)[m - 1]
        near = (without >= bound * (1 - slack)) & (without <= bound * (1 + slack))
        sure = np.flatnonzero(without < bound * (1 - slack))
        open_ = np.flatnonzero(near)
        if len(sure) + len(open_) > m:
            places = np.arange(count) + (np.arange(count) >= rank[open_, j][:, None])
            exact = np.take_along_axis(nearest[open_], places, axis=1).sum(axis=1)
            open_ = open_[np.argsort(exact, kind="stable")[: m - len(sure)]]
        yield np.concatenate([sure, open_])
