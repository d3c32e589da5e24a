"""The weighted arithmetic mean."""

from __future__ import annotations

from dataclasses import dataclass

from pluribus.core.dtypes import Array
from pluribus.core.fold import Fold
from pluribus.core.law_groups import AVERAGE, EQUIVARIANT
from pluribus.core.relations import Reads, Relation
from pluribus.core.rule import WeightRule, register


@register
@dataclass(frozen=True)
class Mean(WeightRule):
    """Weighted arithmetic mean, ``sum_i w_i x_i / sum_i w_i``, in float64 accumulators.

    The baseline of every other rule, and FedAvg when the weights are sample counts. One arbitrary contributor moves
    it anywhere. Weights of shape (k, n) give k results.

    It is a fold: ``fold = Mean().fold()``, ``fold.add(x, weight)``, ``fold.merge(other)``, ``fold.result()``.
    """

    name = "mean"
    reads = Reads.NOTHING
    laws = AVERAGE | EQUIVARIANT | {"betweenness", "monotone weight", "mergeable", "differentiable"}
    formula = "sum_i w_i x_i / sum_i w_i"
    source = "McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017"

    def weigh(self, relation: Relation | None, weights: Array) -> Array:
        """The given weights; an extra row counts for nothing."""
        return weights

    def fold(self, integers: str = "round") -> Fold:
        """An empty fold; see `pluribus.core.fold.Fold`."""
        return Fold(self, integers)
