"""Divide and conquer: leave out whoever stands out along the direction of greatest spread."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from pluribus.core.dtypes import Array
from pluribus.core.law_groups import SELECTING
from pluribus.core.relations import Gram, Reads, Relation
from pluribus.core.rule import WeightRule, expect_gram, positive, register, whole_number
from pluribus.rules.robust.chosen import mean_of
from pluribus.rules.robust.krum import select_lowest

_MANY = 1 << 53  # more than there are contributors; products with it are numbers


def spectral_scores(relation: Gram, weights: Array) -> Array:
    """<x_i - mean, v>^2 for the direction v of greatest weighted variance, shape (n,).

    v is a combination of the contributions, so its inner products with them come from the centred Gram matrix: with
    K the inner products about the weighted mean and (lambda, u) the top eigenpair of ``W^.5 K W^.5``, the projections
    are ``K W^.5 u / sqrt(lambda)``.
    """
    n = relation.n
    about_mean = relation.centred(np.concatenate([weights, np.zeros(len(relation.extras))]))[:n, :n]
    roots = np.sqrt(weights)
    values, vectors = np.linalg.eigh(roots[:, None] * about_mean * roots)
    if values[-1] <= 0:
        return np.zeros(n)
    return np.asarray((about_mean @ (roots * vectors[:, -1])) ** 2 / values[-1])


@register
@dataclass(frozen=True)
class DnC(WeightRule):
    """Weighted mean of all but those with the largest projections on the top principal direction.

    Published with random subsets of coordinates, whose survivors are intersected; here the direction is that of all
    coordinates at once, which the Gram matrix gives exactly, so that one filtering is enough and nothing is random.
    Centre and direction are weighted by the given weights. Attackers who do not stand along one direction hide from
    each other, so the declared breakdown point is a single one. Compared with a singular value decomposition in R^d.

    Parameters
    ----------
    f
        How many contributors may be arbitrary; n >= 2f + 1.
    filter
        The share of f that leaves: ``ceil(filter * f)`` contributors (1 in the paper). At most n - 1 may leave.
    """

    f: int
    filter: float = 1.0

    name = "dnc"
    reads = Reads.GRAM
    laws = SELECTING | {"breakdown"}
    formula = "mean of the n-f contributions with the smallest <x_i - mean, v>^2, v the top principal direction"
    source = (
        "Shejwalkar and Houmansadr, Manipulating the Byzantine: Optimizing Model Poisoning Attacks and Defenses for "
        "Federated Learning, NDSS 2021"
    )
    example = (("f", 1),)

    def __post_init__(self) -> None:
        whole_number("DnC", "f", self.f, 0)
        positive("DnC", "filter", self.filter)

    @property
    def leaving(self) -> int:
        """How many leave."""
        return math.ceil(min(self.filter * min(self.f, _MANY), _MANY) - 1e-9)

    @property
    def least(self) -> int:
        """An honest majority, and somebody left."""
        return max(2 * self.f, self.leaving) + 1

    def weigh(self, relation: Relation | None, weights: Array) -> Array:
        """The given weights among those left, zero for the others."""
        gram = expect_gram(relation)
        left = select_lowest(spectral_scores(gram, weights), gram.n - self.leaving)
        return mean_of(left, weights, len(gram.gram))

    def tolerates(self, n: int) -> int:
        """One, if any leaves."""
        return min(self.leaving, 1)

    def breakdown_factor(self, n: int, d: int) -> float:
        """An attacker who stays projects no farther than an honest one, and nobody sticks out more than along v."""
        return 1 + n * math.sqrt(n) / ((n - 2) * (n - self.leaving))
