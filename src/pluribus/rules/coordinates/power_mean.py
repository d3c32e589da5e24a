"""The power mean at each coordinate: minimum, harmonic, geometric, arithmetic, quadratic mean and maximum in one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pluribus.core.dtypes import Array
from pluribus.core.errors import RuleError
from pluribus.core.law_groups import AVERAGE
from pluribus.core.parameters import is_real
from pluribus.core.passes import TileRule, by_kernel
from pluribus.core.rule import CoordinateRule, register
from pluribus.rules.coordinates import generalised


@register
@dataclass(frozen=True)
class PowerMean(CoordinateRule):
    """Coordinate-wise ``(sum_i w_i x_i^p)^(1/p)``, and its limits: p = -inf minimum, 0 geometric, inf maximum.

    p = 1 (the mean), p = -inf and p = inf take any numbers, and so do odd whole p = 3, 5, ..., whose power keeps the
    sign; where the sum of odd powers nearly cancels, the root loses digits (`precision`). Every other p takes
    non-negative numbers, and an error names who sent a negative one. A zero among the values makes the mean zero for
    p <= 0. Compared with scipy.stats.pmean.

    Parameters
    ----------
    p
        Any real number, or -inf or inf. The greater, the more the greatest value counts.
    """

    p: float

    name = "power_mean"
    laws = AVERAGE | {"scale", "betweenness", "monotone weight"}
    formula = "z_k = (sum_i w_i x_ik^p)^(1/p)"
    source = "Hardy, Littlewood and Polya, Inequalities, 1934; Li et al., DeeperGCN, 2020"
    example = (("p", 2.0),)

    def __post_init__(self) -> None:
        if not is_real(self.p) or np.isnan(float(self.p)):
            raise RuleError(f"PowerMean: p must be a real number, -inf or inf, not {self.p!r}")

    @property
    def _odd(self) -> bool:
        return self.p > 1 and self.p % 2 == 1

    @property
    def any_vectors(self) -> bool:  # type: ignore[override]
        """Whether negative numbers are welcome."""
        return self.p == 1 or self._odd or bool(np.isinf(self.p))

    @property
    def precision(self) -> float:  # type: ignore[override]
        """The p-th root of rounding, for an odd p: all that is left where powers cancel."""
        return float(4 * np.finfo(np.float64).eps ** (1 / self.p)) if self._odd else 0.0

    def draw(self, x: Array) -> Array:
        """Non-negative numbers, where only these are welcome."""
        return x if self.any_vectors else np.abs(x)

    def tile_rule(self, weights: Array) -> TileRule:
        """A rank, a weighted sum, or sums of powers."""
        n, p = len(weights), self.p
        if np.isinf(p):
            rank = n - 1 if p > 0 else 0
            return by_kernel(lambda kernel, views, out: kernel.ranks(views, [rank], [out]))
        if p == 1:
            return by_kernel(lambda kernel, views, out: kernel.weighted_sum(views, weights, out))
        if self._odd:
            return generalised.odd_power(weights, int(p))
        return generalised.power(weights, float(p), f"{self} takes non-negative numbers")
