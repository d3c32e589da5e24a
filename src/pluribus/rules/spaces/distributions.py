"""Weighted means of probability distributions and compositions along the last axis."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pluribus.core.dtypes import Array
from pluribus.core.errors import UndefinedError
from pluribus.core.law_groups import AVERAGE
from pluribus.core.rule import PointRule, register
from pluribus.rules.spaces.frechet import first_off


class _Pool(PointRule):
    """Rules on probability vectors: not negative, of sum one."""

    def complaint(self, points: Array, rounding: float) -> tuple[int, str] | None:
        """Vectors must lie in the simplex."""
        least = points.min(axis=-1, initial=np.inf)
        told = first_off(least, least >= 0, "holds {:g}; probabilities are not negative")
        if told:
            return told
        total = points.sum(axis=-1)
        slack = max(1e-6, points.shape[-1] * rounding)
        return first_off(total, np.abs(total - 1) <= slack, "has sum {:g}; probabilities have sum 1: divide by the sum")

    def draw(self, x: Array) -> Array:
        """The softmax of a row."""
        return _softmax(x / 4)


@register
@dataclass(frozen=True)
class LinearPool(_Pool):
    """Weighted arithmetic mean of distributions along the last axis: the mixture.

    The distribution q with the least ``sum_i w_i KL(p_i | q)``, and the arithmetic mean on the simplex. As wide as
    its members and their disagreement. An error names who sent a vector that is no distribution.
    """

    name = "linear_pool"
    laws = AVERAGE | {"betweenness", "monotone weight"}
    formula = "q_k = sum_i w_i p_ik"
    source = "Stone, The Opinion Pool, Annals of Mathematical Statistics 1961"

    def combine(self, points: Array, weights: Array) -> Array:
        """A weighted sum."""
        return np.asarray(np.einsum("i,i...->...", weights, points))

    def squared_distances(self, points: Array, others: Array) -> Array:
        """Squared Euclidean distances."""
        return np.asarray(((points - others) ** 2).sum(axis=-1))


@register
@dataclass(frozen=True)
class LogPool(_Pool):
    """Weighted geometric mean of distributions along the last axis, rescaled to sum one: the logarithmic pool.

    The distribution q with the least ``sum_i w_i KL(q | p_i)``. It commutes with Bayesian updating, and a probability
    of zero from anybody is a veto: the pool is zero there. Where everything is vetoed there is no pool, and
    `UndefinedError` is raised. An error names who sent a vector that is no distribution. Distances are Hellinger's.
    """

    name = "log_pool"
    laws = AVERAGE
    formula = "q_k = prod_i p_ik^w_i / sum_l prod_i p_il^w_i"
    source = "Genest and Zidek, Combining Probability Distributions, Statistical Science 1986"

    def combine(self, points: Array, weights: Array) -> Array:
        """The softmax of the weighted mean of logarithms."""
        with np.errstate(divide="ignore"):
            logs = np.einsum("i,i...->...", weights, np.log(points))
        if np.isneginf(logs.max(axis=-1, initial=-np.inf)).any():
            raise UndefinedError(
                "every outcome has probability zero for somebody; smooth the distributions, or mix them"
            )
        return _softmax(logs)

    def squared_distances(self, points: Array, others: Array) -> Array:
        """Squared Hellinger distances, between 0 and 1."""
        return np.asarray(0.5 * ((np.sqrt(points) - np.sqrt(others)) ** 2).sum(axis=-1))


@register
@dataclass(frozen=True)
class AitchisonMean(PointRule):
    """Weighted Fréchet mean of compositions along the last axis: closed geometric means of the parts.

    Compositions are vectors of positive parts of which only ratios matter; each is divided by its sum first, and so is
    the result. A part of zero has no logarithm: an error names who sent it; replace zeros by a small part, or use
    `LogPool`, where a zero is a veto.
    """

    name = "aitchison_mean"
    laws = AVERAGE
    formula = "closure(prod_i x_ik^w_i); argmin_z sum_i w_i |clr(x_i) - clr(z)|^2"
    source = "Aitchison, The Statistical Analysis of Compositional Data, JRSS B 1982"

    def combine(self, points: Array, weights: Array) -> Array:
        """The softmax of the weighted mean of logarithms."""
        return _softmax(np.einsum("i,i...->...", weights, np.log(points)))

    def complaint(self, points: Array, rounding: float) -> tuple[int, str] | None:
        """Parts must be positive."""
        least = points.min(axis=-1, initial=np.inf)
        return first_off(least, least > 0, "holds the part {:g}; parts of a composition are positive: replace zeros")

    def squared_distances(self, points: Array, others: Array) -> Array:
        """Squared Aitchison distances: Euclidean ones of centred logarithms."""
        gaps = np.log(points) - np.log(others)
        gaps -= gaps.mean(axis=-1, keepdims=True)
        return np.asarray((gaps**2).sum(axis=-1))

    def draw(self, x: Array) -> Array:
        """The softmax of a row."""
        return _softmax(x / 4)


def _softmax(logs: Array) -> Array:
    shifted = np.exp(logs - logs.max(axis=-1, keepdims=True))
    return np.asarray(shifted / shifted.sum(axis=-1, keepdims=True))
