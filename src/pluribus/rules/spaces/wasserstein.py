"""Barycentres of distributions on a line."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pluribus.core.dtypes import Array
from pluribus.core.kernels import plain
from pluribus.core.law_groups import AVERAGE
from pluribus.core.parameters import one_of
from pluribus.core.rule import PointRule, register
from pluribus.rules.spaces.frechet import first_off

FORMS = ("quantiles", "samples")


@register
@dataclass(frozen=True)
class WassersteinMean(PointRule):
    """Weighted Wasserstein barycentre of distributions on the line, along the last axis: mean quantile by quantile.

    In one dimension the distance between distributions is that of their quantile functions, so the barycentre averages
    these (where a linear pool averages probabilities): barycentres of normal distributions are normal.

    Parameters
    ----------
    form
        ``"quantiles"``: the last axis holds quantiles at levels that all share, in increasing order; an error names who
        sent others. ``"samples"``: it holds as many samples of each, in any order; the result holds them in order.
    power
        2: squared distances, and the mean at each level. 1: plain distances, and the weighted median at each level.
    """

    form: str = "quantiles"
    power: int = 2

    name = "wasserstein_mean"
    laws = AVERAGE | {"scale", "betweenness", "monotone weight"}
    formula = "Q(u) = sum_i w_i Q_i(u); argmin_Q sum_i w_i integral |Q - Q_i|^2"
    source = "Agueh and Carlier, Barycenters in the Wasserstein Space, SIAM 2011"

    def __post_init__(self) -> None:
        one_of("WassersteinMean", "form", self.form, FORMS)
        one_of("WassersteinMean", "power", self.power, (1, 2))

    def combine(self, points: Array, weights: Array) -> Array:
        """Sort, and take the mean or the weighted median of each level."""
        points = self._sorted(points)
        if self.power == 2:
            return np.asarray(np.einsum("i,i...->...", weights, points))
        flat, out = points.reshape(len(points), -1), np.empty(points[0].size)
        plain.weighted_middle(list(flat), weights, 0.5, 0.5, out)
        return out.reshape(points.shape[1:])

    def complaint(self, points: Array, rounding: float) -> tuple[int, str] | None:
        """Quantiles must not fall; samples may be anything."""
        if self.form == "samples" or points.shape[-1] < 2:
            return None
        falls = np.diff(points, axis=-1).min(axis=-1)
        return first_off(falls, falls >= 0, "falls by {:g} along the last axis; sort quantiles, or say form='samples'")

    def squared_distances(self, points: Array, others: Array) -> Array:
        """Squared Wasserstein distances of order ``power``."""
        gaps = np.abs(self._sorted(points) - self._sorted(others))
        mean = (gaps**self.power).mean(axis=-1)
        return np.asarray(mean if self.power == 2 else mean**2)

    def _sorted(self, points: Array) -> Array:
        return np.sort(points, axis=-1) if self.form == "samples" else points

    def draw(self, x: Array) -> Array:
        """Sorted rows."""
        return np.sort(x, axis=1)
