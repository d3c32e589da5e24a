"""Principal directions: rebuild every update from the directions that the updates share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from pluribus.core.dtypes import Array
from pluribus.core.errors import RuleError
from pluribus.core.law_groups import ABOUT_ORIGIN, ANONYMOUS
from pluribus.core.parameters import is_real, one_of
from pluribus.core.relations import Reads, Relation
from pluribus.core.rule import WeightRule, expect_gram, register

_ORTHOGONAL = 1e-9  # a cosine with a direction below this is rounding, and has no sign


@register
@dataclass(frozen=True)
class PrincipalDirections(WeightRule):
    """Mean of the updates, each rebuilt along the top principal directions of all (FedLD's server rule).

    The directions v_j are the top eigenvectors of the weighted sum of x_i x_i', with eigenvalues s_j. An update is
    replaced by ``sum_j (s_j / sum s) |x_i| sign_ij v_j``: it keeps its length on what all share, and has little say
    along what few have. The signs are those of the update's own projections, or those of the weighted majority of
    projections (of the sum of projections, where neither side has more), so that nobody pulls against the others.

    The authors' code flips each v_j towards the majority and then projects onto it, which no flip can change: it is
    ``signs="own"``. It also divides by zero for an update at a right angle to a direction, which here has no part in
    it. This is for whole contributions (theirs is layer by layer). Compared with the authors' formula in R^d.

    Parameters
    ----------
    keep
        The share of the n directions that is kept, in (0, 1]; at least one is.
    signs
        ``"majority"`` or ``"own"``.
    """

    keep: float = 0.8
    signs: Literal["majority", "own"] = "majority"

    name = "principal_directions"
    reads = Reads.GRAM
    numbers = (2,)
    laws = ANONYMOUS | ABOUT_ORIGIN | {"unanimity"}
    formula = "sum_i w_i |x_i| sum_j (s_j / sum s) sign_j v_j, (s_j, v_j) top eigenpairs of sum_i w_i x_i x_i'"
    source = (
        "Zeng et al., Tackling Data Heterogeneity in Federated Learning via Loss Decomposition (FedLD), MICCAI 2024"
    )

    def __post_init__(self) -> None:
        if not is_real(self.keep) or not 0 < self.keep <= 1:
            raise RuleError(f"PrincipalDirections: keep is a share of the directions, in (0, 1], not {self.keep!r}")
        one_of("PrincipalDirections", "signs", self.signs, ("majority", "own"))

    def weigh(self, relation: Relation | None, weights: Array) -> Array:
        """Coefficients over the updates; the result lies in the span of the directions that are kept."""
        gram = expect_gram(relation)
        n, roots = gram.n, np.sqrt(weights)
        spectrum, vectors = np.linalg.eigh(roots[:, None] * gram.gram[:n, :n] * roots)
        spectrum, vectors = np.maximum(spectrum[::-1], 0.0), vectors[:, ::-1]
        result = np.zeros(len(gram.gram))
        if spectrum[0] == 0:
            return result
        norms = np.sqrt(gram.squared_norms[:n])
        kept = max(1, int(self.keep * n + 1e-9))
        projections = vectors[:, :kept] * np.sqrt(spectrum[:kept]) / roots[:, None]  # <x_i, v_j>
        signs = np.sign(np.where(np.abs(projections) <= _ORTHOGONAL * norms[:, None], 0.0, projections))
        if self.signs == "majority":
            surplus, pull = weights @ signs, weights @ projections
            even = np.abs(surplus) <= 1e-12
            signs = np.abs(signs) * np.where(even, np.sign(pull), np.sign(surplus))
        along = (weights * norms) @ signs
        # v_j = sum_i roots_i vectors_ij x_i / sqrt(s_j)
        result[:n] = roots * (vectors[:, :kept] @ (along * np.sqrt(spectrum[:kept]))) / spectrum.sum()
        return result
