"""CAGrad: the best for the worst-off objective, near the mean."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pluribus.core.dtypes import Array
from pluribus.core.errors import RuleError
from pluribus.core.law_groups import ABOUT_ORIGIN, SYMMETRIC
from pluribus.core.parameters import one_of
from pluribus.core.relations import Reads, Relation
from pluribus.core.rule import WeightRule, expect_gram, positive, register
from pluribus.core.solvers import RIDGE, min_norm_point, nonnegative_qp
from pluribus.rules.gradients.cone import lengths_and_cosines

_SAME = 1e-12  # relative
_WIDEST = 1e6  # beyond it the mean is lost beside what is added
_ROUNDING = 1e-14  # squared norms below this share of their terms are zero


@register
@dataclass(frozen=True)
class CAGrad(WeightRule):
    """``argmax_d min_i <x_i, d>`` over the ball ``|d - g| <= c |g|`` around the weighted mean g.

    Solved exactly: for a level t the point nearest to g with all ``<x_i, d> >= t`` is a small quadratic program, and t
    is raised until that point reaches the ball's edge. Where several d are best (some combination of the gradients is
    zero, one gradient is zero), the one nearest to g; torchjd 0.18 stops at zero there, although others could move on.
    With c = 0 the mean; from c = 1 on no objective gets worse. All equal gives ``(1 + c) x``: it is longer than
    a mean, see ``rescale``. The given weights make g, so a weight of two equals two copies. Compared with torchjd 0.18
    (an interior-point solver) and with direct maximisation in R^d.

    Parameters
    ----------
    c
        Radius of the ball over ``|g|``, at least 0; published with 0 <= c < 1.
    rescale
        0: as published. 1: divided by ``1 + c^2``; 2: by ``1 + c`` (then all equal gives x). The authors' code has
        all three.
    """

    c: float = 0.5
    rescale: int = 0

    name = "cagrad"
    reads = Reads.GRAM
    laws = SYMMETRIC | ABOUT_ORIGIN | {"replication"}
    formula = "argmax_d min_i <x_i, d>, |d - g| <= c |g|, g = sum_i w_i x_i"
    source = "Liu et al., Conflict-Averse Gradient Descent for Multi-task Learning, NeurIPS 2021"
    precision = 1e-8

    def __post_init__(self) -> None:
        positive("CAGrad", "c", self.c, zero=True)
        if self.c > _WIDEST:
            raise RuleError(f"CAGrad: c must be at most {_WIDEST:g}, not {self.c!r}; it is published with c < 1")
        one_of("CAGrad", "rescale", self.rescale, (0, 1, 2))

    def weigh(self, relation: Relation | None, weights: Array) -> Array:
        """The given weights and what is added to them."""
        gram = expect_gram(relation)
        lengths, cosines = lengths_and_cosines(gram)
        longest = float(lengths.max())
        inner = gram.gram[: gram.n, : gram.n]
        length = _norm(weights, inner, lengths)
        shrink = float((1.0, 1 + self.c**2, 1 + self.c)[int(self.rescale)])
        if self.c == 0 or length == 0:
            return weights / shrink
        there = lengths > 0
        added = np.zeros(gram.n)
        window = np.ix_(there, there)
        level = _Level(
            cosines[window], longest / lengths[there], (cosines @ (weights * lengths / longest))[there],
            self.c * length / longest, not there.all() or _norm(min_norm_point(inner), inner, lengths) == 0,
        )  # fmt: skip
        added[there] = level.highest() * longest / lengths[there]
        return np.asarray((weights + added) / shrink)


def _norm(coefficients: Array, inner: Array, lengths: Array) -> float:
    """Norm of a convex combination; zero where rounding leaves nothing of it."""
    square = float(coefficients @ inner @ coefficients)
    return float(np.sqrt(square)) if square > _ROUNDING * float(coefficients @ lengths) ** 2 else 0.0


@dataclass(frozen=True, eq=False)
class _Level:
    """Points nearest to g with ``<x_i, d> >= t``, in the unit of the longest contribution.

    ``cosines`` of the contributions, ``slope`` of the level in the constraint of each (one over its length), ``start``
    of g in it (<u_i, g>), the ball's ``radius``, and whether the hull is ``stuck`` at zero, so that t <= 0.
    """

    cosines: Array
    slope: Array
    start: Array
    radius: float
    stuck: bool

    def point(self, t: float) -> tuple[Array, float]:
        """Multipliers of the unit vectors, and the distance from g."""
        z = nonnegative_qp(self.cosines, self.start - t * self.slope)
        return z, float(np.sqrt(np.maximum(z @ self.cosines @ z, 0.0)))

    def highest(self) -> Array:
        """Multipliers at the highest level inside of the ball."""
        z, distance = self.point(0.0)
        if distance <= self.radius:
            if self.stuck:
                return z
            low, high = 0.0, float(((self.start + self.radius) / self.slope).min())
        else:
            low, high = float((self.start / self.slope).min()), 0.0
        t = high
        for _ in range(60):
            z, distance = self.point(t)
            guess = self._solve(z > 0)
            if abs(distance - self.radius) <= _SAME * self.radius or abs(guess - t) <= _SAME * abs(t):
                break  # at the edge, or those who bind here say that it is here
            low, high = (t, high) if distance < self.radius else (low, t)
            t = guess if low < guess < high else 0.5 * (low + high)
        return z

    def _solve(self, inside: Array) -> float:
        """The level at which the ball's edge is reached if those inside stay the ones that bind."""
        if not inside.any():
            return np.nan
        system = self.cosines[np.ix_(inside, inside)]
        regular = system + RIDGE * np.eye(len(system))
        # Both are divided by what is largest, so that no square leaves the range of float64.
        unit, steepest = max(self.radius, 1.0), float(self.slope[inside].max())
        slope, start = self.slope[inside] / steepest, self.start[inside] / unit
        both = np.stack([slope, start], axis=1)
        solved = np.linalg.solve(regular, both)
        solved += np.linalg.solve(regular, both - system @ solved)  # takes the ridge's bias away
        by_slope, by_start = solved.T
        a, b, c = slope @ by_slope, slope @ by_start, start @ by_start - (self.radius / unit) ** 2
        inner = b * b - a * c
        return float((b + np.sqrt(inner)) / a * (unit / steepest)) if inner >= 0 and a > 0 else np.nan
