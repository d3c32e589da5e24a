"""RFA: a few steps of the smoothed Weiszfeld iteration."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pluribus.core.dtypes import Array
from pluribus.core.law_groups import AVERAGE
from pluribus.core.relations import Reads, Relation
from pluribus.core.rule import WeightRule, expect_gram, positive, register, whole_number
from pluribus.rules.robust.geometric_median import pulled


@register
@dataclass(frozen=True)
class RFA(WeightRule):
    """Robust federated averaging: from the weighted mean, a few smoothed Weiszfeld steps to the geometric median.

    ``z <- sum_i b_i x_i / sum_i b_i`` with ``b_i = w_i / max(nu, |x_i - z|)``, as published, where each step is a
    round of secure sums. Here all steps cost two passes together, so this preset is for results that must equal RFA's;
    `GeometricMedian` goes on until it has converged.

    It starts at the mean and stops early, so it has no breakdown point: attackers with a share ``a`` of the weight,
    far away in one place, still have the share ``b / (1 + b)``, ``b = (a / (1 - a))^(steps + 1)``, after the steps.
    Compared with a direct computation in R^d.

    Parameters
    ----------
    nu
        Distances below it count as that much; in the contributions' own unit, as published.
    iterations
        Number of steps.
    """

    nu: float = 1e-6
    iterations: int = 3

    name = "rfa"
    reads = Reads.GRAM
    laws = AVERAGE | {"translation", "rotation", "betweenness"}
    formula = "z <- sum_i b_i x_i / sum_i b_i, b_i = w_i / max(nu, |x_i - z|), a few times from the mean"
    source = "Pillutla, Kakade and Harchaoui, Robust Aggregation for Federated Learning, IEEE TSP 2022"
    example = (("nu", 0.1),)

    def __post_init__(self) -> None:
        positive("RFA", "nu", self.nu)
        whole_number("RFA", "iterations", self.iterations, 1)

    def weigh(self, relation: Relation | None, weights: Array) -> Array:
        """Weights in inverse proportion to the distance from the last step but one."""
        gram = expect_gram(relation)
        current = np.concatenate([weights, np.zeros(len(gram.extras))])
        for _ in range(self.iterations):
            distances = np.sqrt(gram.squared_distances_to(current)[: gram.n])
            before, current = current, pulled(gram, weights, distances, self.nu)
            if np.array_equal(current, before):
                break  # as it will be after any number of iterations
        return current
