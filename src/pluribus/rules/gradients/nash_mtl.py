"""Nash-MTL: the bargaining solution of the objectives."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pluribus.core.dtypes import Array
from pluribus.core.law_groups import ABOUT_ORIGIN, AVERAGE
from pluribus.core.parameters import one_of
from pluribus.core.relations import Reads, Relation
from pluribus.core.rule import WeightRule, expect_gram, positive, register
from pluribus.core.solvers import reciprocal

SCALES = ("sum", "mean", "published")
_NOTHING = 1e-5  # a combination this short beside its terms is no direction: nothing is scaled up to a length


@register
@dataclass(frozen=True)
class NashMTL(WeightRule):
    """The direction that maximises ``prod_i <x_i, d>^w_i``: coefficients a with ``(G a)_i = w_i / a_i``.

    It does not see how long a contribution is (a longer one gets a smaller coefficient). The bargain fixes a
    direction, not a length. As published the length is the root of n whatever the gradients', so coefficients were seen
    from 1e-4 to 732; the default takes them of sum one. ``result.weights`` shows them. Given weights are bargaining
    powers, so a weight of two equals two copies. A zero contribution bargains for nothing and is left out; where some
    combination of the contributions is zero no direction helps all, and the result is about zero (1e-6 of their
    length, coefficients of sum one). Compared with the residual of the equation (below 1e-10) and with torchjd 0.18
    (cvxpy and ECOS): equal to 2e-7, its tolerance, where its 20 steps reach the bargain. With a fifth of 10 or of 50
    gradients opposed they do not: it left ``a_i (G a)_i`` off by 5 and by 38, and its direction at a cosine of 0.9 and
    0.67.

    Parameters
    ----------
    scale
        ``"sum"``: coefficients of sum one. ``"mean"``: as long as the weighted mean. ``"published"``: ``|d|^2 = n``.
    max_norm
        Shorten the result to this norm when it is longer (the published code's 1.0); None does not.
    """

    scale: str = "sum"
    max_norm: float | None = None

    name = "nash_mtl"
    reads = Reads.GRAM
    laws = AVERAGE | ABOUT_ORIGIN | {"betweenness", "monotone weight"}
    formula = "sum_i a_i x_i, (G a)_i = w_i / a_i, scaled to sum_i a_i = 1"
    source = "Navon et al., Multi-Task Learning as a Bargaining Game, ICML 2022"
    precision = 1e-6

    def __post_init__(self) -> None:
        one_of("NashMTL", "scale", self.scale, SCALES)
        if self.max_norm is not None:
            positive("NashMTL", "max_norm", self.max_norm)

    def weigh(self, relation: Relation | None, weights: Array) -> Array:
        """Non-negative coefficients."""
        gram = expect_gram(relation)
        inner = gram.gram[: gram.n, : gram.n]
        there = np.diag(inner) > 0
        found = np.zeros(gram.n)
        if not there.any():
            return weights
        found[there] = reciprocal(inner[np.ix_(there, there)], gram.n * weights[there])

        def norm(coefficients: Array) -> float:
            return float(np.sqrt(np.maximum(coefficients @ inner @ coefficients, 0.0)))

        shares = found / found.sum()
        if self.scale == "sum" or norm(shares) <= _NOTHING * (shares @ np.sqrt(np.diag(inner))):
            found = shares
        elif self.scale == "mean":
            found *= norm(weights) / norm(found)
        if self.max_norm is not None and norm(found) * gram.scale > self.max_norm:
            found *= self.max_norm / (norm(found) * gram.scale)
        return found
