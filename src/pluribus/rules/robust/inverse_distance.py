"""Inverse distance aggregation: the nearer to the mean, the more weight."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pluribus.core.dtypes import Array
from pluribus.core.law_groups import AVERAGE, EQUIVARIANT
from pluribus.core.relations import Reads, Relation
from pluribus.core.rule import WeightRule, expect_gram, positive, register
from pluribus.rules.robust.geometric_median import pulled


@register
@dataclass(frozen=True)
class InverseDistance(WeightRule):
    """Weights in inverse proportion to the distance from the mean (IDA), times the given ones.

    One Weiszfeld step from the mean. The paper's distance is a sum of absolute differences; this one is Euclidean,
    which the Gram matrix gives. Distances below a share of the mean distance count as that much, so that a
    contributor who equals the mean gets a large weight and no division by zero. Of n contributors of which all but
    one agree, the one gets 1 / ((n - 1)^2 + 1), wherever it is: less than 1/n, but not nothing. Weights may be sample
    counts, or divided by training accuracies, as in the paper's variants. Compared with a direct computation in R^d.

    Parameters
    ----------
    least_share
        The share of the weighted mean distance below which distances count alike.
    """

    least_share: float = 1e-6

    name = "inverse_distance"
    reads = Reads.GRAM
    numbers = (64,)
    laws = AVERAGE | EQUIVARIANT | {"betweenness"}
    formula = "sum_i a_i x_i, a_i in proportion to w_i / |x_i - mean|"
    source = "Yeganeh et al., Inverse Distance Aggregation for Federated Learning with Non-IID Data, DCL 2020"

    def __post_init__(self) -> None:
        positive("InverseDistance", "least_share", self.least_share)

    def weigh(self, relation: Relation | None, weights: Array) -> Array:
        """In inverse proportion to the distance from the weighted mean."""
        gram = expect_gram(relation)
        mean = np.concatenate([weights, np.zeros(len(gram.extras))])
        distances = np.sqrt(gram.squared_distances_to(mean)[: gram.n])
        typical = float(weights @ distances)
        return pulled(gram, weights, distances, self.least_share * typical) if typical > 0 else mean
