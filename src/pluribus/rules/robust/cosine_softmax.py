"""Weights by a softmax of cosines."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pluribus.core.dtypes import Array
from pluribus.core.law_groups import ABOUT_ORIGIN, AVERAGE
from pluribus.core.relations import Reads, Relation
from pluribus.core.rule import WeightRule, expect_gram, positive, register
from pluribus.rules.robust.cosines import cosines_to


@register
@dataclass(frozen=True)
class CosineSoftmax(WeightRule):
    """Weights in proportion to ``w_i exp(tau cos(x_i, centre))``; the centre is the reference, or the weighted mean.

    Give it updates (differences from the model): cosines of whole models are all near one. The weights of two
    contributors differ at most by the factor ``exp(2 tau)``; lengths count in full, so it withstands no attacker.
    A zero vector has cosine zero. Compared with a direct computation in R^d.

    Parameters
    ----------
    tau
        Inverse temperature; 0 is the mean, large takes the best aligned alone.
    """

    tau: float = 1.0

    name = "cosine_softmax"
    reads = Reads.GRAM
    laws = AVERAGE | ABOUT_ORIGIN | {"betweenness"}
    formula = "sum_i a_i x_i, a = softmax(log w_i + tau cos(x_i, centre))"
    source = "softmax attention (Bahdanau, Cho and Bengio, ICLR 2015) with cosines for scores"
    uses_reference = True

    def __post_init__(self) -> None:
        positive("CosineSoftmax", "tau", self.tau, zero=True)

    def weigh(self, relation: Relation | None, weights: Array) -> Array:
        """Softmax weights over the contributors."""
        gram = expect_gram(relation)
        centre = np.zeros(len(gram.gram))
        if gram.extras:
            centre[gram.n] = 1.0
        else:
            centre[: gram.n] = weights
        scores = self.tau * cosines_to(gram, centre)[: gram.n]
        result = np.zeros(len(gram.gram))
        result[: gram.n] = weights * np.exp(scores - scores.max())
        return np.asarray(result / result.sum())
