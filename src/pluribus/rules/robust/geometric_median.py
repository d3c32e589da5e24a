"""The geometric median, by Weiszfeld's iteration in the space of weights."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pluribus.core.dtypes import Array
from pluribus.core.law_groups import AVERAGE, EQUIVARIANT
from pluribus.core.relations import Gram, Reads, Relation
from pluribus.core.rule import WeightRule, expect_gram, positive, register, whole_number


def weiszfeld(relation: Gram, weights: Array, tolerance: float, iterations: int, smoothing: float) -> Array:
    """Coefficients of the smoothed weighted geometric median over the rows, shape (m,).

    Starting from the weighted mean, ``u_i <- w_i / max(nu, |x_i - u'X|)``, normalised, where nu is ``smoothing`` times
    the weighted median distance to the current point (so the rule has no unit and an attacker cannot set it). Stops
    when the point moves less than ``tolerance`` times that distance.
    """
    current = np.concatenate([weights, np.zeros(len(relation.extras))])
    for _ in range(iterations):
        distances = np.sqrt(relation.squared_distances_to(current)[: relation.n])
        scale = _weighted_median(distances, weights)
        if not distances.any():
            return current
        # Where most lie in one point the median distance is zero, and so must the smoothing be: any length will do.
        least = max(smoothing * scale, 1e-12 * float(distances.max()))
        following = pulled(relation, weights, distances, least)
        moved = np.sqrt(relation.squared_gap(following - current))
        current = following
        if moved <= tolerance * max(scale, least):
            break
    return current


def pulled(relation: Gram, weights: Array, distances: Array, least: float) -> Array:
    """One step of Weiszfeld: coefficients in proportion to w_i / max(least, distance to the current point)."""
    pull = weights / np.maximum(distances, least)
    return np.concatenate([pull / pull.sum(), np.zeros(len(relation.extras))])


def _weighted_median(values: Array, weights: Array) -> float:
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(reached, 0.5 * reached[-1])])


@register
@dataclass(frozen=True)
class GeometricMedian(WeightRule):
    """The point with the least weighted sum of distances to the contributions (RFA when it aggregates updates).

    Weiszfeld's iteration runs on the n x n distances, so its cost does not depend on the contributions' size: one pass
    for the Gram matrix, one for the weighted mean. Compared with direct minimisation in R^d (scipy, L-BFGS).

    Parameters
    ----------
    tolerance
        Stop when a step moves the point less than this share of the median distance to it.
    iterations
        At most so many steps.
    smoothing
        Distances below this share of the median distance count as that much; it keeps weights finite when the median
        sits on a contribution.
    """

    tolerance: float = 1e-9
    iterations: int = 1000
    smoothing: float = 1e-6

    name = "geometric_median"
    reads = Reads.GRAM
    laws = AVERAGE | EQUIVARIANT | {"betweenness", "monotone weight", "breakdown"}
    formula = "argmin_z sum_i w_i |x_i - z|"
    source = "Pillutla et al., Robust Aggregation for Federated Learning, IEEE TSP 2022; Weiszfeld 1937"
    precision = 1e-5

    def __post_init__(self) -> None:
        positive("GeometricMedian", "tolerance", self.tolerance)
        positive("GeometricMedian", "smoothing", self.smoothing)
        whole_number("GeometricMedian", "iterations", self.iterations, 1)

    def weigh(self, relation: Relation | None, weights: Array) -> Array:
        """Weights in inverse proportion to the distance from the result."""
        return weiszfeld(expect_gram(relation), weights, self.tolerance, self.iterations, self.smoothing)

    def tolerates(self, n: int) -> int:
        """Fewer than half."""
        return (n - 1) // 2

    def breakdown_factor(self, n: int, d: int) -> float:
        """2 (n - f) / (n - 2f) times the radius of the honest ones (Lopuhaa and Rousseeuw 1991)."""
        f = self.tolerates(n)
        return 2 * (n - f) / (n - 2 * f)
