"""The coordinate-wise median."""

from __future__ import annotations

from dataclasses import dataclass

from pluribus.core.dtypes import Array
from pluribus.core.law_groups import COORDINATEWISE
from pluribus.core.passes import TileRule, by_kernel
from pluribus.core.rule import RankRule, register
from pluribus.core.weights import uniform


@register
@dataclass(frozen=True)
class Median(RankRule):
    """Coordinate-wise median; the mean of the two middle values of an even number.

    With unequal weights the weighted median: the value at which half the weight lies on either side, and the mean of
    two values when the halves part exactly between them, so a weight of two equals two copies. Fewer than half of the
    contributors (by weight), whatever they send, cannot push a coordinate outside the range of the others.
    """

    name = "median"
    laws = COORDINATEWISE | {"replication", "monotone weight", "breakdown"}
    formula = "z_k = median_i x_ik"
    source = "Yin et al., Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates, ICML 2018"

    def tile_rule(self, weights: Array) -> TileRule:
        """The middle rank or two; by weight where weights differ."""
        n = len(weights)
        if uniform(weights):
            return by_kernel(lambda kernel, views, out: kernel.middle(views, (n - 1) // 2, n // 2 + 1, out))
        return by_kernel(lambda kernel, views, out: kernel.weighted_middle(views, weights, 0.5, 0.5, out))

    def levels(self, n: int) -> tuple[float, float]:
        """The half of the weight."""
        return 0.5, 0.5

    def tolerates(self, n: int) -> int:
        """Fewer than half."""
        return (n - 1) // 2
