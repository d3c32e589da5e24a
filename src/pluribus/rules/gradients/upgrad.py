"""UPGrad: every gradient made harmless to all the others, then the mean."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pluribus.core.dtypes import Array
from pluribus.core.law_groups import ABOUT_ORIGIN, AVERAGE
from pluribus.core.relations import Reads, Relation
from pluribus.core.rule import WeightRule, expect_gram, register
from pluribus.rules.gradients.cone import into_cone


@register
@dataclass(frozen=True)
class UPGrad(WeightRule):
    """The weighted mean of the projections of each contribution on the cone of all d with ``<x_i, d> >= 0``.

    No objective gets worse along it. Without conflict it is the weighted mean, and it is linear in the length of each
    contribution. Given weights weigh the projections (a preference), so a weight of two equals two copies.

    Solved on cosines: a gradient that is shorter by any factor is still respected, and the rule scales with its
    input, which torchjd 0.18 does not (its two absolute epsilons of 1e-4). Compared with that on inputs where these do
    not matter, and with a projection in R^d (scipy's nnls).
    """

    name = "upgrad"
    reads = Reads.GRAM
    numbers = (349,)
    laws = AVERAGE | ABOUT_ORIGIN | {"monotone weight"}
    formula = "sum_i w_i P(x_i), P = projection on {d : <x_j, d> >= 0 for all j}"
    source = "Quinton and Rey, Jacobian Descent for Multi-Objective Optimization, arXiv 2406.16232"

    def weigh(self, relation: Relation | None, weights: Array) -> Array:
        """Non-negative coefficients, none below the given weight."""
        return np.asarray(into_cone(expect_gram(relation), np.diag(weights)).sum(axis=0))
