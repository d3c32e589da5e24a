"""The soft median: a weighted mean that trusts who is near the median."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pluribus.core import passes
from pluribus.core.dtypes import Array
from pluribus.core.errors import UndefinedError
from pluribus.core.law_groups import AVERAGE
from pluribus.core.passes import Active
from pluribus.core.relations import Reads
from pluribus.core.rule import CompositeRule, Execute, positive, register
from pluribus.rules.coordinates.median import Median

if TYPE_CHECKING:
    from pluribus.core.execution import Outcome


@register
@dataclass(frozen=True)
class SoftMedian(CompositeRule):
    """Weighted mean with weights ``w_i exp(-|x_i - m| / (t sqrt(d)))``, m the coordinate-wise (weighted) median.

    The distance is the root mean square over all d coordinates, so the temperature t has the unit of one coordinate.
    t -> 0 gives the contribution nearest to the median (the mean of those that tie), t -> inf the weighted mean.
    Three passes: the median, the distances to it, the mean. Compared with the authors' formula in R^d.

    Parameters
    ----------
    temperature
        t, in the unit of the values.
    """

    temperature: float = 1.0

    name = "soft_median"
    reads = Reads.COORDINATES
    takes_tensors = True
    laws = AVERAGE | {"translation", "betweenness"}
    formula = "sum_i a_i x_i / sum_i a_i, a_i = w_i exp(-|x_i - median| / (t sqrt(d)))"
    source = "Geisler et al., Robustness of Graph Neural Networks at Scale, NeurIPS 2021"

    def __post_init__(self) -> None:
        positive("SoftMedian", "temperature", self.temperature)

    def compose(self, active: Active, shares: Array, execute: Execute) -> Outcome:
        """The median, then a mean with what the distances to it leave of the weights."""
        from pluribus.core.execution import Outcome

        data = active.data
        median = execute(Median(), active, shares).results[0]
        held = [
            sum(spec.coordinates for spec, leaf in zip(data.specs, data.rows[row], strict=True) if leaf is not None)
            for row in active.rows
        ]
        root_mean_squares = passes.distances_to(active, median) / np.sqrt(np.maximum(held, 1))
        trusted = _soft_shares(root_mean_squares, shares, self.temperature)
        coefficients = np.concatenate([trusted, np.zeros(len(data.extras))])
        return Outcome(active, passes.weighted_sums(active, coefficients[None]), coefficients=coefficients)


def _soft_shares(distances: Array, shares: Array, temperature: float) -> Array:
    """Positive shares of sum one in proportion to ``shares_i exp(-distances_i / temperature)``, shape (n,)."""
    if not np.isfinite(distances.min()):
        raise UndefinedError(
            "SoftMedian: all contributions are farther from their median than float64 goes; scale them down"
        )
    with np.errstate(over="ignore"):
        kept = shares * np.exp(-(distances - distances.min()) / temperature)
    return np.asarray(kept / kept.sum())
