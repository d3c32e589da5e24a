"""The Karcher mean on the sphere: directions are averaged along great circles, lengths apart from them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pluribus.core.dtypes import Array
from pluribus.core.errors import UndefinedError
from pluribus.core.law_groups import ABOUT_ORIGIN, AVERAGE
from pluribus.core.relations import Gram, Reads, Relation
from pluribus.core.rule import WeightRule, expect_gram, positive, register, whole_number
from pluribus.core.solvers import EPSILON

_ANTIPODAL = 1e-6  # radians


def squared_chords(relation: Gram) -> Array:
    """|x_i / |x_i| - x_j / |x_j||^2 between the contributions, shape (n, n).

    From distances and norms, so that directions that nearly agree keep their digits.
    """
    n = relation.n
    norms = np.sqrt(relation.squared_norms[:n])
    zero = np.flatnonzero(norms == 0)
    if zero.size:
        who = relation.labels[zero[0]] if relation.labels else f"contribution {zero[0]}"
        raise UndefinedError(f"Karcher: {who} is a zero vector, which has no direction; leave it out")
    gap = norms[:, None] - norms[None, :]
    return np.asarray(
        np.clip((relation.squared_distances[:n, :n] - gap**2) / (norms[:, None] * norms[None, :]), 0.0, 4.0)
    )


def karcher_mean(chords: Array, weights: Array, tolerance: float, iterations: int) -> Array:
    """Coefficients c over unit vectors u_i such that sum_i c_i u_i is their weighted Karcher mean, of length one.

    Steps along the tangent ``v = sum_i w_i Log_m(u_i)``: ``m <- cos|v| m + sin|v| v / |v|``. The point is kept as
    m = sum_i a_i u_i / length with a of sum one, so that everything follows from squared chords.

    Parameters
    ----------
    chords
        |u_i - u_j|^2, shape (n, n).
    weights
        Of sum one, shape (n,).
    tolerance
        Stop when |v| is below this share of the mean angle to m, or is rounding.
    iterations
        At most so many steps.

    Raises
    ------
    UndefinedError
        Directions that have no unique mean, or where the steps do not settle.
    """
    a = weights
    rounding = EPSILON * (8 + len(weights))  # radians: what float64 leaves of a tangent of length zero
    for _ in range(iterations):
        towards = chords @ a
        spread = 0.5 * float(a @ towards)  # 1 - |sum a_i u_i|^2
        if spread >= 1 - _ANTIPODAL:
            raise _too_wide("they cancel out")
        length = np.sqrt(1 - spread)
        to_mean = np.clip((towards - spread - (spread / (1 + length)) ** 2) / length, 0.0, 4.0)
        angles = 2 * np.arcsin(0.5 * np.sqrt(to_mean))
        if angles.max() >= np.pi - _ANTIPODAL:
            raise _too_wide("one is opposite to their mean")
        pull = weights / np.sinc(angles / np.pi)
        along = float(pull @ (1 - 0.5 * to_mean))
        tangent = pull - along * a / length
        total = tangent.sum()
        step = np.sqrt(max(float(total**2 - 0.5 * tangent @ chords @ tangent), 0.0))
        if step <= max(tolerance * float(weights @ angles), rounding):
            if along <= 0:  # the second derivative at right angles to all of them: no minimum, but a saddle
                raise _too_wide("on average they are at more than a right angle to their mean")
            return np.asarray(a / length)
        moved = np.cos(step) * a / length + np.sinc(step / np.pi) * tangent
        a = moved / moved.sum()
    raise _too_wide(f"{iterations} steps do not settle")


def _too_wide(what: str) -> UndefinedError:
    return UndefinedError(f"Karcher: the contributions point too far apart to have a mean direction: {what}")


@register
@dataclass(frozen=True)
class Karcher(WeightRule):
    """Weighted Karcher mean of the directions on the sphere, as long as the weighted mean of the lengths.

    The direction minimises the weighted sum of squared angles; between two it is SLERP. The length is
    ``sum_i w_i |x_i|``: a mean of nearly orthogonal models is shorter by the square root of their number, and this is
    not. All iterations run on angles from the Gram matrix. Directions that cancel out or lie opposite to the mean have
    no Karcher mean, and are an error. This is for whole contributions; merging tools apply it to each tensor.
    Compared with the iteration in R^d and with SLERP.

    Parameters
    ----------
    tolerance
        Stop when the tangent is below this share of the mean angle, or is rounding.
    iterations
        At most so many steps.
    """

    tolerance: float = 1e-10
    iterations: int = 1000

    name = "karcher"
    reads = Reads.GRAM
    numbers = (140,)
    laws = AVERAGE | ABOUT_ORIGIN | {"differentiable"}
    formula = "sum_i w_i |x_i| times argmin over unit m of sum_i w_i angle(m, x_i)^2"
    source = "Karcher 1977; Fisher-Rao Karcher-mean merging (arXiv 2603.04972)"
    precision = 1e-7

    def __post_init__(self) -> None:
        positive("Karcher", "tolerance", self.tolerance)
        whole_number("Karcher", "iterations", self.iterations, 1)

    def weigh(self, relation: Relation | None, weights: Array) -> Array:
        """Coefficients over the contributions; their sum is above one where directions differ."""
        gram = expect_gram(relation)
        norms = np.sqrt(gram.squared_norms[: gram.n])
        direction = karcher_mean(squared_chords(gram), weights, self.tolerance, self.iterations)
        result = np.zeros(len(gram.gram))
        result[: gram.n] = float(weights @ norms) * direction / norms
        return result
