"""Aligned-MTL: gradients made orthogonal and equally long."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from pluribus.core.dtypes import Array
from pluribus.core.law_groups import ABOUT_ORIGIN, SYMMETRIC
from pluribus.core.parameters import one_of
from pluribus.core.relations import Reads, Relation
from pluribus.core.rule import WeightRule, expect_gram, register
from pluribus.rules.gradients.spectra import spectrum


def _lower_median(values: Array) -> float:
    return float(np.sort(values)[(len(values) - 1) // 2])  # of an even number the lower one, as published


SCALES: dict[str, Callable[[Array], Any]] = {"min": np.min, "median": _lower_median, "rmse": np.mean}


@register
@dataclass(frozen=True)
class AlignedMTL(WeightRule):
    """The weighted mean of contributions whose principal components are all made equally long.

    ``X = U S V'`` becomes ``s U V'``: orthogonal when independent, so none stands in the way of another. Given weights
    are the published preference vector, and matter (LibMTL's version has none). Components below 1e-13 of the largest
    eigenvalue are rounding and are left out. Compared with torchjd 0.18, with preferences, in all three scales.

    Parameters
    ----------
    scale
        The common s^2: the ``"min"`` (default), ``"median"`` or mean (``"rmse"``) of the eigenvalues of X X'.
    """

    scale: str = "min"

    name = "aligned_mtl"
    reads = Reads.GRAM
    laws = SYMMETRIC | ABOUT_ORIGIN | {"unanimity"}
    formula = "w' s (X X')^(-1/2) X, s^2 = least eigenvalue of X X' that is not zero"
    source = "Senushkin et al., Independent Component Alignment for Multi-Task Learning, CVPR 2023"

    def __post_init__(self) -> None:
        one_of("AlignedMTL", "scale", self.scale, tuple(SCALES))

    def weigh(self, relation: Relation | None, weights: Array) -> Array:
        """Coefficients of any sign."""
        gram = expect_gram(relation)
        values, vectors = spectrum(gram.gram[: gram.n, : gram.n])
        if not values.size:
            return weights
        return np.asarray(vectors @ ((vectors.T @ weights) * np.sqrt(SCALES[self.scale](values) / values)))
