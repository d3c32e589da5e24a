"""MGDA: the shortest vector in the convex hull of the gradients."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pluribus.core.dtypes import Array
from pluribus.core.law_groups import ABOUT_ORIGIN, AVERAGE
from pluribus.core.parameters import flag
from pluribus.core.relations import Reads, Relation
from pluribus.core.rule import WeightRule, expect_gram, register
from pluribus.core.solvers import min_norm_point
from pluribus.rules.gradients.cone import lengths_and_cosines


@register
@dataclass(frozen=True)
class MGDA(WeightRule):
    """The point of the convex hull nearest to zero: no objective gets worse along it, ``<x_i, z> >= |z|^2``.

    It is exact (Wolfe's active set on the Gram matrix, not Frank-Wolfe steps), so it is zero, up to rounding, where no
    direction helps all: with a zero or two opposite gradients among the contributions. Small gradients pull it to their
    length; ``normalise`` takes that away. Given weights mean nothing beyond zero or not, as copies mean nothing to a
    convex hull. Compared with torchjd 0.18 (a Frank-Wolfe of 100 steps: ours is never longer) and with SLSQP in R^d.

    Parameters
    ----------
    normalise
        Take the nearest point of the hull of the unit vectors ``x_i / |x_i|`` instead; its coefficients over the x_i
        are then scaled to sum one, so that the result keeps the gradients' unit.
    """

    normalise: bool = False

    name = "mgda"
    reads = Reads.GRAM
    laws = AVERAGE | ABOUT_ORIGIN | {"betweenness", "monotone weight"}
    formula = "argmin |z|^2, z in the convex hull of the x_i"
    source = "Desideri, Multiple-gradient descent algorithm (MGDA), C. R. Math. 2012; Sener and Koltun, NeurIPS 2018"

    def __post_init__(self) -> None:
        flag("MGDA", "normalise", self.normalise)

    def weigh(self, relation: Relation | None, weights: Array) -> Array:
        """Convex weights."""
        gram = expect_gram(relation)
        if not self.normalise:
            return min_norm_point(gram.gram[: gram.n, : gram.n])
        lengths, cosines = lengths_and_cosines(gram)
        if not lengths.all():
            return np.asarray((lengths == 0) / np.count_nonzero(lengths == 0))
        shares = min_norm_point(cosines) * (lengths.min() / lengths)
        return np.asarray(shares / shares.sum())
