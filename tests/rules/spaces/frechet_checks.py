"""Is it the least? Costs of a result against those of points near by and far off."""

from __future__ import annotations

import numpy as np


def cost(rule, points, weights, candidates):
    """``sum_i w_i d(z, x_i)^2`` for each of k candidates, shape (k,), of contributions of one point each."""
    total = np.zeros(len(candidates))
    for point, weight in zip(points, weights, strict=True):
        total += weight * rule.squared_distances(np.broadcast_to(point, candidates.shape), candidates)
    return total


def assert_least(rule, points, weights, result, others, *, slack=1e-12):
    """No other point is better."""
    best = cost(rule, points, weights, result[None])[0]
    assert (cost(rule, points, weights, others) >= best - slack * (1 + best)).all()
