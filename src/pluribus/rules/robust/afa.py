"""Adaptive federated averaging: leave out whose cosine to the mean is unusual, until none is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pluribus.core.dtypes import Array
from pluribus.core.law_groups import ABOUT_ORIGIN, SYMMETRIC
from pluribus.core.relations import Reads, Relation
from pluribus.core.rule import WeightRule, expect_gram, positive, register
from pluribus.rules.robust.chosen import mean_of
from pluribus.rules.robust.cosines import cosines_to

_ROUNDING = 1e-12  # cosines nearer than this are equal


@register
@dataclass(frozen=True)
class AFA(WeightRule):
    """Weighted mean of those whose cosine to the mean is not unusual, filtered until nobody more leaves.

    With s the cosines to the weighted mean of those left: if mean(s) < median(s), whoever has ``s < median - xi std``
    leaves, else whoever has ``s > median + xi std``; then xi grows by a step. Mean, median and (population) standard
    deviation are those of the contributors left; a widespread implementation counts those that left as zeros. It
    reacts to whoever is unusual, and withstands no fixed number of attackers.

    Weights are the published ``n_k p_k``: sample counts times the reputation that the server keeps about a client;
    multiply them before the call. They do not enter median and deviation. Compared with a direct computation in R^d.

    Parameters
    ----------
    xi
        Standard deviations from the median that are still usual, at first.
    step
        What is added to xi after each filtering.
    """

    xi: float = 2.0
    step: float = 0.5

    name = "afa"
    reads = Reads.GRAM
    laws = SYMMETRIC | ABOUT_ORIGIN | {"unanimity", "betweenness"}
    formula = "mean of those whose cosine to it is within xi standard deviations of the median, on the skewed side"
    source = "Muñoz-González et al., Byzantine-Robust Federated Machine Learning through Adaptive Model Averaging, 2019"

    def __post_init__(self) -> None:
        positive("AFA", "xi", self.xi)
        positive("AFA", "step", self.step, zero=True)

    def weigh(self, relation: Relation | None, weights: Array) -> Array:
        """The given weights among those left, zero for the others."""
        gram = expect_gram(relation)
        left, xi = np.ones(gram.n, dtype=bool), self.xi
        while True:
            mean = mean_of(left, weights, len(gram.gram))
            cosines = cosines_to(gram, mean)[: gram.n]
            among = cosines[left]
            middle, margin = np.median(among), xi * among.std() + _ROUNDING
            low_side = among.mean() < middle
            unusual = left & ((cosines < middle - margin) if low_side else (cosines > middle + margin))
            if not unusual.any():
                return mean
            left &= ~unusual
            xi += self.step
