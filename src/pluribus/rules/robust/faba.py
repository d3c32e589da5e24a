"""FABA: again and again, leave out whoever is farthest from the mean of those who are left."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pluribus.core.dtypes import Array
from pluribus.core.law_groups import SELECTING
from pluribus.core.relations import Gram, Reads, Relation
from pluribus.core.rule import WeightRule, expect_gram, register, whole_number
from pluribus.rules.robust.chosen import mean_of


def nearest_to_mean(relation: Gram, weights: Array, f: int) -> Array:
    """Mask of the n - f left when the farthest from the weighted mean of the rest goes, f times; shape (n,).

    Ties go to the earlier contributor: the later one leaves.
    """
    left = np.ones(relation.n, dtype=bool)
    for _ in range(f):
        mean = mean_of(left, weights, len(relation.gram))
        distances = np.where(left, relation.squared_distances_to(mean)[: relation.n], -1.0)
        left[relation.n - 1 - np.argmax(distances[::-1])] = False
    return left


@register
@dataclass(frozen=True)
class FABA(WeightRule):
    """Weighted mean of what is left after f times leaving out the contribution farthest from the mean of the rest.

    The mean is taken anew after each one leaves (some implementations measure all against the first mean, or sum
    pairwise distances). Given weights weigh every mean. Compared with a direct computation in R^d.

    Parameters
    ----------
    f
        How many leave; n >= 2f + 1.
    """

    f: int

    name = "faba"
    reads = Reads.GRAM
    laws = SELECTING | {"breakdown"}
    formula = "f times: leave out argmax_i |x_i - mean of those left|; then the mean"
    source = (
        "Xia et al., FABA: An Algorithm for Fast Aggregation against Byzantine Attacks in Distributed Neural Networks, "
        "IJCAI 2019"
    )
    example = (("f", 2),)

    def __post_init__(self) -> None:
        whole_number("FABA", "f", self.f, 0)

    @property
    def least(self) -> int:
        """An honest majority."""
        return 2 * self.f + 1

    def weigh(self, relation: Relation | None, weights: Array) -> Array:
        """The given weights among those left, zero for the others."""
        gram = expect_gram(relation)
        return mean_of(nearest_to_mean(gram, weights, self.f), weights, len(gram.gram))

    def tolerates(self, n: int) -> int:
        """As many as leave."""
        return self.f

    def breakdown_factor(self, n: int, d: int) -> float:
        """When an honest one leaves, no attacker who stays is farther off than it, and the mean is near the honest."""
        return 1 + 2 * self.f / (n - 2 * self.f)
