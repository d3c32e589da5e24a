"""The coordinate-wise trimmed mean."""

from __future__ import annotations

from dataclasses import dataclass

from pluribus.core.dtypes import Array
from pluribus.core.errors import RuleError
from pluribus.core.law_groups import COORDINATEWISE
from pluribus.core.passes import TileRule, by_kernel
from pluribus.core.rule import RankRule, register, whole_number
from pluribus.core.weights import uniform


@register
@dataclass(frozen=True)
class TrimmedMean(RankRule):
    """Coordinate-wise mean without the f largest and the f smallest values.

    With unequal weights the share f/n of the weight is trimmed at either end (a contributor may be trimmed in part),
    so f counts contributors of mean weight.

    Parameters
    ----------
    f
        How many to trim at either end, at least 1 (a trimmed mean that trims nothing is a mean: say `Mean`), and so
        few that some are left: n >= 2f + 1.
    """

    f: int

    name = "trimmed_mean"
    laws = COORDINATEWISE | {"breakdown"}
    formula = "z_k = mean of x_(f+1)k ... x_(n-f)k"
    source = "Yin et al., Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates, ICML 2018"
    example = (("f", 1),)

    def __post_init__(self) -> None:
        if isinstance(self.f, int) and self.f == 0:
            raise RuleError("TrimmedMean(f=0) would trim nothing; use Mean, or trim at least one at either end")
        whole_number("TrimmedMean", "f", self.f, 1)

    @property
    def least(self) -> int:
        """Room for one that is not trimmed."""
        return 2 * self.f + 1

    def tile_rule(self, weights: Array) -> TileRule:
        """The middle ranks; by weight where weights differ."""
        n, f = len(weights), self.f
        self.check(n)
        if uniform(weights):
            return by_kernel(lambda kernel, views, out: kernel.middle(views, f, n - f, out))
        return by_kernel(lambda kernel, views, out: kernel.weighted_middle(views, weights, *self.levels(n), out))

    def levels(self, n: int) -> tuple[float, float]:
        """All that is not trimmed."""
        return self.f / n, 1 - self.f / n

    def tolerates(self, n: int) -> int:
        """As many as it trims."""
        return self.f
