"""PCGrad: gradient surgery."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pluribus.core.dtypes import Array
from pluribus.core.law_groups import ABOUT_ORIGIN
from pluribus.core.parameters import flag
from pluribus.core.relations import Reads, Relation
from pluribus.core.rule import WeightRule, expect_gram, register, whole_number
from pluribus.rules.gradients.surgery import bend, orders


@register
@dataclass(frozen=True)
class PCGrad(WeightRule):
    """The SUM of the contributions, each first projected off every other with which it conflicts, in random order.

    A sum, as published: n equal contributions give n times that; ``mean=True`` divides by n. Two contributions end
    without conflict, more may not. Given weights weigh the projected contributions (relative to their mean, so equal
    weights change nothing). Compared with torchjd 0.18 under the same orders.

    Parameters
    ----------
    seed
        Of the orders. The same seed gives the same orders; change it every step.
    mean
        Divide the sum by n.
    """

    seed: int = 0
    mean: bool = False

    name = "pcgrad"
    reads = Reads.GRAM
    laws = ABOUT_ORIGIN | {"null", "deterministic"}
    formula = "sum_i y_i; y_i = x_i, then for all j in random order y_i -= min(<y_i, x_j>, 0) / |x_j|^2 x_j"
    source = "Yu et al., Gradient Surgery for Multi-Task Learning, NeurIPS 2020"

    def __post_init__(self) -> None:
        whole_number("PCGrad", "seed", self.seed, 0)
        flag("PCGrad", "mean", self.mean)

    def weigh(self, relation: Relation | None, weights: Array) -> Array:
        """Non-negative coefficients, of sum n or more (one or more with ``mean``)."""
        gram = expect_gram(relation)
        n = gram.n
        bent, _ = bend(gram.gram[:n, :n], np.zeros((n, n)), orders(n, self.seed))
        return np.asarray((weights if self.mean else n * weights) @ bent)
