"""Krum and Multi-Krum: trust whoever has the closest neighbours."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from pluribus.core.dtypes import Array
from pluribus.core.law_groups import SELECTING
from pluribus.core.relations import Gram, Reads, Relation
from pluribus.core.rule import WeightRule, expect_gram, register, whole_number
from pluribus.rules.robust.chosen import mean_of
from pluribus.rules.robust.krum_without import lowest_without

SOURCE = "Blanchard et al., Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent, NeurIPS 2017"


def krum_scores(relation: Gram, f: int) -> Array:
    """Sum of the squared distances of each contributor to its n - f - 2 nearest others, shape (n,).

    A contributor is no neighbour of itself, even when another ties with it. At least one neighbour counts.
    """
    return neighbour_scores(relation.squared_distances[: relation.n, : relation.n], f)


def neighbour_scores(squared_distances: Array, f: int) -> Array:
    """`krum_scores` from the distances between n contributors, shape (n, n)."""
    others = squared_distances.copy()
    np.fill_diagonal(others, np.inf)
    return np.asarray(np.sort(others, axis=1)[:, : max(len(others) - f - 2, 1)].sum(axis=1))


def select_lowest(scores: Array, m: int) -> Array:
    """The m lowest scores; ties go to the earlier contributor."""
    return np.argsort(scores, kind="stable")[:m]


@dataclass(frozen=True)
class _KrumFamily(WeightRule):
    f: int

    reads = Reads.GRAM

    @property
    def least(self) -> int:
        """The published condition, n >= 2f + 3."""
        return 2 * self.f + 3

    def tolerates(self, n: int) -> int:
        """Up to f, as declared."""
        return self.f

    def breakdown_factor(self, n: int, d: int) -> float:
        """A chosen one scores no worse than an honest one, so it has an honest neighbour within this factor."""
        return float(np.sqrt(n - self.f - 2) + 1)

    def averaged(self, n: int) -> int:
        """How many of n are chosen."""
        return 1

    def weigh_without(self, relation: Gram, weights: Array) -> Iterator[Array]:
        """`weigh` without each contributor, from one sorting of the distances; see `lowest_without`."""
        n = relation.n
        chosen = lowest_without(relation.squared_distances[:n, :n], self.f, self.averaged(n - 1))
        return (mean_of(places, weights, len(relation.gram)) for places in chosen)


@register
@dataclass(frozen=True)
class Krum(_KrumFamily):
    """The one contribution with the smallest sum of squared distances to its n - f - 2 nearest others.

    Weights of zero leave contributors out; beyond that Krum has no use for weights, since one alone is chosen.
    Distances are squared, as published. Compared with a direct float64 computation of the paper's score.

    Parameters
    ----------
    f
        How many contributors may be arbitrary; n >= 2f + 3.
    """

    name = "krum"
    laws = SELECTING | {"monotone weight", "breakdown"}
    formula = "x_j, j = argmin_i sum over the n-f-2 nearest l of |x_i - x_l|^2"
    source = SOURCE
    example = (("f", 1),)

    def __post_init__(self) -> None:
        whole_number("Krum", "f", self.f, 0)

    def weigh(self, relation: Relation | None, weights: Array) -> Array:
        """One for the chosen, zero for the others."""
        gram = expect_gram(relation)
        chosen = np.zeros(len(gram.gram))
        chosen[select_lowest(krum_scores(gram, self.f), 1)] = 1.0
        return chosen


@register
@dataclass(frozen=True)
class MultiKrum(_KrumFamily):
    """Weighted mean of the m contributions with the best Krum scores.

    Given weights (sample counts) weigh the chosen; they do not help to be chosen.

    Parameters
    ----------
    f
        How many contributors may be arbitrary; n >= 2f + 3.
    m
        How many are averaged, 1 <= m <= n - f; None is n - f, all that are taken to be honest.
    """

    m: int | None = None

    name = "multi_krum"
    laws = Krum.laws
    formula = "weighted mean of the m lowest sum over the n-f-2 nearest l of |x_i - x_l|^2"
    source = SOURCE
    example = (("f", 1),)

    def __post_init__(self) -> None:
        whole_number("MultiKrum", "f", self.f, 0)
        if self.m is not None:
            whole_number("MultiKrum", "m", self.m, 1)

    @property
    def least(self) -> int:
        """The published condition, and room for m to be chosen."""
        return max(2 * self.f + 3, (self.m or 0) + self.f)

    def weigh(self, relation: Relation | None, weights: Array) -> Array:
        """The given weights among the chosen, zero for the others."""
        gram = expect_gram(relation)
        chosen = select_lowest(krum_scores(gram, self.f), self.averaged(gram.n))
        return mean_of(chosen, weights, len(gram.gram))

    def averaged(self, n: int) -> int:
        """As many as asked for, or all that are taken to be honest."""
        return self.m if self.m is not None else n - self.f
