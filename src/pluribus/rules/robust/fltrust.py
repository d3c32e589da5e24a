"""FLTrust: trust by the cosine to the server's own update."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pluribus.core.dtypes import Array
from pluribus.core.law_groups import ABOUT_ORIGIN, SYMMETRIC
from pluribus.core.relations import Reads, Relation
from pluribus.core.rule import WeightRule, expect_gram, register
from pluribus.rules.robust.cosines import cosines_to


@register
@dataclass(frozen=True)
class FLTrust(WeightRule):
    """Mean of the updates, each as long as the server's own and weighted by its positive cosine to it.

    ``reference=`` is the update that the server computed on its small trusted data; contributions are updates too.
    An update at more than a right angle to it counts for nothing, and the result is never longer than it, however
    many attackers there are. Where nobody is trusted (or the server's update is zero) the result is zero, that is, no
    step; published formula and implementations divide zero by zero. Given weights multiply the trust.
    Compared with a direct computation in R^d.
    """

    name = "fltrust"
    reads = Reads.GRAM
    laws = SYMMETRIC | ABOUT_ORIGIN | {"replication"}
    formula = "sum_i t_i (|g| / |x_i|) x_i / sum_i t_i, t_i = w_i max(0, cos(x_i, g)), g the reference"
    source = "Cao et al., FLTrust: Byzantine-robust Federated Learning via Trust Bootstrapping, NDSS 2021"
    uses_reference = True
    needs_reference = "the update that the server computed on data it trusts"

    def weigh(self, relation: Relation | None, weights: Array) -> Array:
        """Trust times the factor that gives each update the reference's length; the sum may be any number."""
        gram = expect_gram(relation)
        server = np.zeros(len(gram.gram))
        server[gram.n] = 1.0
        trust = weights * np.maximum(cosines_to(gram, server)[: gram.n], 0.0)
        result = np.zeros(len(gram.gram))
        if trust.any():
            norms = np.sqrt(gram.squared_norms)
            factors = np.divide(norms[gram.n], norms[: gram.n], out=np.zeros(gram.n), where=trust > 0)
            result[: gram.n] = trust / trust.sum() * factors
        return result
