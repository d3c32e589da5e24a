"""SMEA: the mean of the n - f contributions whose covariance has the smallest top eigenvalue."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np

from pluribus.core.dtypes import Array
from pluribus.core.errors import RuleError
from pluribus.core.law_groups import SELECTING
from pluribus.core.relations import Gram, Reads, Relation
from pluribus.core.rule import WeightRule, expect_gram, register, whole_number
from pluribus.rules.robust.chosen import mean_of
from pluribus.rules.robust.faba import nearest_to_mean

MOST_SUBSETS = 100_000
_ALIKE = 1e-12  # a bound this near to the best is no better


def least_covariance_subset(relation: Gram, f: int) -> Array:
    """Positions of the n - f contributions with the smallest top eigenvalue of their covariance.

    Exact, and few eigenvalues are computed. Along any one direction a subset's scatter is at most its top eigenvalue,
    and costs f additions for each subset. So the top direction of every subset that was looked at bounds all others
    from below; next is looked at the one with the lowest bound, until no bound is below the best eigenvalue. It starts
    with what FABA leaves.
    """
    n = relation.n
    squared = relation.squared_distances[:n, :n]
    subset = np.flatnonzero(nearest_to_mean(relation, np.full(n, 1.0 / n), f))
    left_out = np.array(list(itertools.combinations(range(n), f)), dtype=np.intp).reshape(math.comb(n, f), f)
    bounds = np.zeros(len(left_out))
    best, least = subset, np.inf
    while True:
        top, along = top_direction(squared, subset)
        if top < least:
            best, least = subset, top
        np.maximum(bounds, _scatters(along, left_out), out=bounds)
        hopeful = bounds < least * (1 - _ALIKE)
        if not hopeful.any():
            return best
        if 2 * np.count_nonzero(hopeful) < len(bounds):
            left_out, bounds = left_out[hopeful], bounds[hopeful]
        place = int(np.argmin(bounds))
        subset = np.setdiff1d(np.arange(n), left_out[place])
        bounds[place] = np.inf  # it is being looked at


def top_direction(squared_distances: Array, subset: Array) -> tuple[float, Array]:
    """Top eigenvalue of a subset's scatter about its mean, and where all rows lie along its direction, shape (n,)."""
    towards = squared_distances[:, subset]
    distance = towards.mean(axis=1)
    inner = 0.5 * (distance[:, None] + distance[subset] - towards - distance[subset].mean())
    values, vectors = np.linalg.eigh(inner[subset])
    top = max(float(values[-1]), 0.0)
    return top, inner @ vectors[:, -1] / np.sqrt(top) if top > 0 else np.zeros(len(inner))


def _scatters(along: Array, left_out: Array) -> Array:
    """Sums of squares about their mean of all numbers but those left out, shape (k,), for positions (k, f)."""
    size = len(along) - left_out.shape[1]
    gone = along[left_out]
    totals = along.sum() - gone.sum(axis=1)
    return np.asarray(along @ along - np.einsum("kf,kf->k", gone, gone) - totals**2 / size)


@register
@dataclass(frozen=True)
class SMEA(WeightRule):
    """Weighted mean of the n - f contributions whose covariance matrix has the smallest top eigenvalue.

    Exact: all C(n, f) subsets are bounded from below and the hopeful ones compared through their distances, and more
    than 100 000 of them are refused (n = 50 with f = 3 takes a tenth of a second); an implementation in the field takes
    one random power step instead of the eigenvalue. Given weights weigh the chosen; they do not help to be chosen.
    Compared with covariance matrices in R^d.

    The paper's SAFE-DSHB applies it to momenta that the workers clipped and noised; that is theirs to do.

    Parameters
    ----------
    f
        How many contributors may be arbitrary; n >= 2f + 1.
    """

    f: int

    name = "smea"
    reads = Reads.GRAM
    numbers = (365,)
    laws = SELECTING | {"monotone weight", "breakdown"}
    formula = "mean of S, S = argmin over subsets of n-f of the top eigenvalue of Cov(S)"
    source = "Allouah et al., On the Privacy-Robustness-Utility Trilemma in Distributed Learning, ICML 2023"
    example = (("f", 1),)

    def __post_init__(self) -> None:
        whole_number("SMEA", "f", self.f, 0)

    @property
    def least(self) -> int:
        """An honest majority."""
        return 2 * self.f + 1

    def check(self, n: int) -> None:
        """Raise `RuleError` when n is too small, or gives more subsets than can be compared."""
        super().check(n)
        count = math.comb(n, self.f)
        if count > MOST_SUBSETS:
            raise RuleError(
                f"{self} would compare C({n}, {self.f}) = {count:.3g} subsets, more than {MOST_SUBSETS}; lower f, put "
                "Bucketing ahead of it, or use MDA or NNM"
            )

    def weigh(self, relation: Relation | None, weights: Array) -> Array:
        """The given weights among the chosen, zero for the others."""
        gram = expect_gram(relation)
        return mean_of(least_covariance_subset(gram, self.f), weights, len(gram.gram))

    def tolerates(self, n: int) -> int:
        """Up to f."""
        return self.f

    def breakdown_factor(self, n: int, d: int) -> float:
        """A part of a set is near the set's mean when its covariance is small; honest and chosen share a part."""
        return 2 * math.sqrt(self.f / (n - 2 * self.f))
