"""The exponential mean (log-sum-exp) at each coordinate."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pluribus.core.dtypes import Array
from pluribus.core.errors import RuleError
from pluribus.core.law_groups import AVERAGE
from pluribus.core.parameters import is_real
from pluribus.core.passes import TileRule
from pluribus.core.rule import CoordinateRule, register
from pluribus.rules.coordinates import generalised

_STEEPEST = float(np.finfo(np.float64).max)  # one over the least temperatures is no number


@register
@dataclass(frozen=True)
class LogSumExp(CoordinateRule):
    """Coordinate-wise ``t log(sum_i w_i exp(x_i / t))``: a soft maximum, or a soft minimum for t < 0.

    Weights sum to one, so it is a mean: equal values give that value. The plain log-sum-exp of n values is this plus
    ``t log(n)``. t -> 0 gives the greatest value, t -> inf the arithmetic mean. Nothing overflows, whatever the values.
    Compared with scipy.special.logsumexp.

    Parameters
    ----------
    temperature
        t, in the unit of the values; not zero.
    """

    temperature: float = 1.0

    name = "log_sum_exp"
    laws = AVERAGE | {"translation", "betweenness", "monotone weight", "differentiable"}
    formula = "z_k = t log(sum_i w_i exp(x_ik / t))"
    source = "folklore (exponential mean); Blanchard, Higham and Higham, Accurately computing log-sum-exp, 2021"

    def __post_init__(self) -> None:
        t = self.temperature
        if not is_real(t) or not np.isfinite(float(t)) or t == 0:
            raise RuleError(f"LogSumExp: temperature must be a finite number other than zero, not {t!r}")

    def tile_rule(self, weights: Array) -> TileRule:
        """A shifted sum of exponentials."""
        return generalised.exponential(weights, float(np.clip(1 / float(self.temperature), -_STEEPEST, _STEEPEST)))

    def tile_shares(self, tile: Array, weights: Array) -> Array:
        """The weighted softmax of the values: how fast the result moves with each."""
        wide = tile.astype(np.float64)
        greatest = wide.max(axis=0) if self.temperature > 0 else wide.min(axis=0)
        with np.errstate(over="ignore"):
            shares = weights[:, None] * np.exp((wide - greatest) / self.temperature)
        return np.asarray(shares / shares.sum(axis=0))
