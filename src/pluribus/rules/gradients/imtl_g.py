"""IMTL-G: equal projections on all gradients."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pluribus.core.dtypes import Array
from pluribus.core.law_groups import ABOUT_ORIGIN, AVERAGE
from pluribus.core.relations import Reads, Relation
from pluribus.core.rule import WeightRule, expect_gram, register
from pluribus.rules.gradients.cone import lengths_and_cosines
from pluribus.rules.gradients.spectra import pseudo_solve

_NOTHING = 1e-12  # a sum this small beside its terms is zero


@register
@dataclass(frozen=True)
class IMTLG(WeightRule):
    """The combination with coefficients of sum one whose projections on all contributions are equally long.

    ``<d, x_i> / |x_i|`` is the same for every i when the contributions are independent; then given weights mean nothing
    beyond zero or not. Otherwise the projections are fitted by least squares, with given weights, so a weight of two
    equals two copies. Coefficients may be negative and, near dependence, huge; where they cancel (opposite
    contributions) no such combination exists, and the result is zero. Zero contributions count for nothing. Compared
    with torchjd 0.18 and with the published closed form.
    """

    name = "imtl_g"
    reads = Reads.GRAM
    laws = AVERAGE | ABOUT_ORIGIN
    formula = "sum_i a_i x_i, <d, x_i> / |x_i| equal for all i, sum_i a_i = 1"
    precision = 1e-3  # coefficients grow without bound near dependence, and the rounding of float32 input with them
    source = "Liu et al., Towards Impartial Multi-task Learning, ICLR 2021; Quinton and Rey 2024 (dependence)"

    def weigh(self, relation: Relation | None, weights: Array) -> Array:
        """Coefficients of sum one, or all zero."""
        gram = expect_gram(relation)
        lengths, _ = lengths_and_cosines(gram)
        if not lengths.any():
            return weights
        half = np.sqrt(weights)
        system = half[:, None] * gram.gram[: gram.n, : gram.n] * half
        found = half * pseudo_solve(system, half * lengths)
        if abs(found.sum()) <= _NOTHING * np.abs(found).sum():
            return np.zeros(gram.n)
        return np.asarray(found / found.sum())
