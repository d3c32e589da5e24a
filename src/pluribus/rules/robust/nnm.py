"""Nearest-neighbour mixing, a pre-rule."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pluribus.core.dtypes import Array
from pluribus.core.law_groups import SELECTING
from pluribus.core.relations import Reads, Relation
from pluribus.core.rule import PreRule, expect_gram, register, whole_number


@register
@dataclass(frozen=True)
class NNM(PreRule):
    """Replace each contribution by the weighted mean of its n - f nearest, itself among them.

    Put it ahead of a robust rule: honest contributions come closer together and attackers find no gap to hide in.
    Ties go to the earlier contributor. Alone it is followed by the mean. Compared with byzfl's formula in R^d.

    Parameters
    ----------
    f
        How many contributors may be arbitrary; n >= 2f + 1.
    """

    f: int

    name = "nnm"
    reads = Reads.GRAM
    laws = SELECTING
    formula = "y_i = weighted mean of the n-f contributions nearest to x_i"
    source = "Allouah et al., Fixing by Mixing: A Recipe for Optimal Byzantine ML under Heterogeneity, AISTATS 2023"
    example = (("f", 1),)

    def __post_init__(self) -> None:
        whole_number("NNM", "f", self.f, 0)

    @property
    def least(self) -> int:
        """An honest majority."""
        return 2 * self.f + 1

    def mix(self, relation: Relation | None, weights: Array) -> Array:
        """Rows of weights over the nearest, each of sum one."""
        gram = expect_gram(relation)
        n = gram.n
        distances = gram.squared_distances[:n, :n].copy()
        np.fill_diagonal(distances, -1.0)  # oneself is nearest, whoever else ties
        nearest = np.argsort(distances, axis=1, kind="stable")[:, : n - self.f]
        mixing = np.zeros((n, len(gram.gram)))
        np.put_along_axis(mixing, nearest, weights[nearest], axis=1)
        return np.asarray(mixing / mixing.sum(axis=1, keepdims=True))
