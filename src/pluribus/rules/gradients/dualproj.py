"""DualProj: the mean, made harmless to all."""

from __future__ import annotations

from dataclasses import dataclass

from pluribus.core.dtypes import Array
from pluribus.core.law_groups import ABOUT_ORIGIN, AVERAGE
from pluribus.core.relations import Reads, Relation
from pluribus.core.rule import WeightRule, expect_gram, register
from pluribus.rules.gradients.cone import into_cone


@register
@dataclass(frozen=True)
class DualProj(WeightRule):
    """The point nearest to the weighted mean among all d with ``<x_i, d> >= 0`` for every contribution.

    No objective gets worse along it; without conflict it is the weighted mean. A weight of two equals two copies.
    Solved on cosines with a relative ridge, so it scales with its input and accepts more gradients than dimensions
    (gradient episodic memory's quadprog does not). Compared with torchjd 0.18 and with scipy's nnls in R^d.
    """

    name = "dualproj"
    reads = Reads.GRAM
    laws = AVERAGE | ABOUT_ORIGIN | {"monotone weight"}
    formula = "argmin |d - sum_i w_i x_i|^2 with <x_j, d> >= 0 for all j"
    source = "Lopez-Paz and Ranzato, Gradient Episodic Memory for Continual Learning, NeurIPS 2017, equation 11"

    def weigh(self, relation: Relation | None, weights: Array) -> Array:
        """Non-negative coefficients, none below the given weight."""
        return into_cone(expect_gram(relation), weights)
