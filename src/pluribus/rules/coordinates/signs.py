"""Rules that vote on signs: the majority's sign, and the mean of those who agree with the elected sign."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pluribus.core.dtypes import Array
from pluribus.core.law_groups import AVERAGE, SYMMETRIC
from pluribus.core.parameters import one_of
from pluribus.core.passes import TileRule
from pluribus.core.rule import CoordinateRule, register

_TIE = 1e-12  # sums of weights that differ by less, relative to their sum, are equal but for rounding
_GREATEST = float(np.finfo(np.float64).max)


@register
@dataclass(frozen=True)
class SignMajority(CoordinateRule):
    """Coordinate-wise sign of the weighted majority: -1, 0 or 1. It is a direction, to be scaled by a step size.

    A contributor votes with its weight for the sign of its value; a value of zero abstains. A tie gives zero, in
    whatever order the votes are counted. Nobody's magnitude matters, so one contributor turns only what is contested.
    """

    name = "sign_majority"
    laws = SYMMETRIC | {"replication"}
    formula = "z_k = sign(sum_i w_i sign(x_ik))"
    source = "Bernstein et al., signSGD with Majority Vote is Communication Efficient and Fault Tolerant, ICLR 2019"

    def tile_rule(self, weights: Array) -> TileRule:
        """Add up the weights of either sign."""

        def combine(kernel: Any, views: Sequence[Array], out: Array) -> bool:
            votes = np.zeros(len(out))
            for view, weight in zip(views, weights, strict=True):
                if not kernel.finite(view):
                    return False
                votes += weight * np.sign(view)
            out[...] = (votes > _TIE).astype(out.dtype) - (votes < -_TIE)
            return True

        return combine

    def tile_shares(self, tile: Array, weights: Array) -> Array:
        """By weight to those who voted with the majority; to all in a tie."""
        signs = np.sign(tile)
        votes = weights @ signs
        elected = np.where(np.abs(votes) > _TIE, np.sign(votes), np.nan)
        return _by_weight((signs == elected) & (signs != 0), weights)


@register
@dataclass(frozen=True)
class SignElection(CoordinateRule):
    """Coordinate-wise weighted mean of the values whose sign is the elected one: the second half of TIES merging.

    The sign with the greater mass is elected, and zeros and values of the other sign do not count in the mean, neither
    above nor below the line. A tie gives zero. (The authors' code gives a tied coordinate the sign that most other
    coordinates have, which makes a coordinate depend on all others; every other coordinate was found equal.)

    Parameters
    ----------
    by
        ``"mass"``: a vote weighs ``w_i |x_ik|``, as published. ``"count"``: it weighs ``w_i``.
    """

    by: str = "mass"

    name = "sign_election"
    laws = AVERAGE | {"scale", "betweenness"}
    formula = "z_k = sum w_i x_ik / sum w_i over i with sign(x_ik) = sign(sum_j w_j x_jk)"
    source = "Yadav et al., TIES-Merging: Resolving Interference When Merging Models, NeurIPS 2023"

    def __post_init__(self) -> None:
        one_of("SignElection", "by", self.by, ("mass", "count"))

    def tile_rule(self, weights: Array) -> TileRule:
        """Add up mass and weight of either sign, then divide one mass by its weight."""

        def combine(kernel: Any, views: Sequence[Array], out: Array) -> bool:
            above, below = (np.zeros((2, len(out))) for _ in range(2))  # mass and weight of either sign
            for view, weight in zip(views, weights, strict=True):
                if not kernel.finite(view):
                    return False
                with np.errstate(over="ignore"):  # rounding may lead beyond the greatest number
                    above[0] += weight * np.maximum(view, 0, dtype=np.float64)
                    below[0] -= weight * np.minimum(view, 0, dtype=np.float64)
                above[1] += weight * (view > 0)
                below[1] += weight * (view < 0)
            np.minimum(above[0], _GREATEST, out=above[0])
            np.minimum(below[0], _GREATEST, out=below[0])
            voted = 0 if self.by == "mass" else 1
            mean = np.zeros(len(out))
            with np.errstate(over="ignore"):
                up = above[voted] > below[voted] * (1 + _TIE)
                down = below[voted] > above[voted] * (1 + _TIE)
                np.divide(above[0], above[1], out=mean, where=up)
                np.divide(-below[0], below[1], out=mean, where=down)
            out[...] = np.clip(mean, -_GREATEST, _GREATEST)
            return True

        return combine

    def tile_shares(self, tile: Array, weights: Array) -> Array:
        """By weight to those whose values are averaged; to all in a tie."""
        if self.by == "mass":  # over the greatest, so that sums stay in range
            greatest = np.abs(tile).max(axis=0)
            votes = np.divide(tile, np.where(greatest > 0, greatest, 1), dtype=np.float64)
        else:
            votes = np.sign(tile)
        above, below = weights @ np.maximum(votes, 0), weights @ np.maximum(-votes, 0)
        elected = np.where(above > below * (1 + _TIE), 1, np.where(below > above * (1 + _TIE), -1, np.nan))
        return _by_weight((np.sign(tile) == elected) & (tile != 0), weights)


def _by_weight(chosen: Array, weights: Array) -> Array:
    """Shares in proportion to weights among the chosen of each column, shape (n, T); among all where none is."""
    shares = (chosen | ~chosen.any(axis=0)) * weights[:, None]
    return np.asarray(shares / shares.sum(axis=0))
