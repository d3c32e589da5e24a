"""ConFIG: one direction with the same cosine to all gradients."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pluribus.core.dtypes import Array
from pluribus.core.law_groups import ABOUT_ORIGIN, SYMMETRIC
from pluribus.core.parameters import flag
from pluribus.core.relations import Reads, Relation
from pluribus.core.rule import WeightRule, expect_gram, register
from pluribus.rules.gradients.cone import lengths_and_cosines
from pluribus.rules.gradients.spectra import pseudo_solve


@register
@dataclass(frozen=True)
class ConFIG(WeightRule):
    """The direction whose cosines with the contributions are in the ratio of the weights; of the length of their SUM.

    The direction is ``U^+ w`` for the unit vectors U; its length is the sum of the contributions' projections on it, as
    published, so n equal contributions give n times that; ``mean=True`` takes their mean instead. Given weights set the
    cosines (the published direction weights), not the length. Zero contributions count for nothing. torchjd does not
    take it for a rule on the Gram matrix; it is one. Compared with torchjd 0.18, with and without preferences.

    Parameters
    ----------
    mean
        Length from the mean of the projections.
    """

    mean: bool = False

    name = "config"
    reads = Reads.GRAM
    laws = SYMMETRIC | ABOUT_ORIGIN
    formula = "(sum_i <x_i, u>) u, u = normalised pinv(rows x_i / |x_i|) w"
    precision = 1e-3  # near dependence the rounding of float32 input is amplified
    source = "Liu, Chu and Thuerey, ConFIG: Towards Conflict-free Training of PINNs, ICLR 2025"

    def __post_init__(self) -> None:
        flag("ConFIG", "mean", self.mean)

    def weigh(self, relation: Relation | None, weights: Array) -> Array:
        """Coefficients of any sign."""
        gram = expect_gram(relation)
        lengths, cosines = lengths_and_cosines(gram)
        if not lengths.any():
            return weights
        unit = pseudo_solve(cosines, weights)
        square = float(unit @ cosines @ unit)
        if not square > 0:
            return np.zeros(gram.n)
        along = float(lengths @ cosines @ unit) / square
        safe = np.where(lengths > 0, lengths, 1.0)
        return np.asarray(np.where(lengths > 0, unit / safe, 0.0) * (along / gram.n if self.mean else along))
