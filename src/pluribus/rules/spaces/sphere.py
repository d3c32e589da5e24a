"""The weighted mean of points on a sphere."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pluribus.core.dtypes import Array
from pluribus.core.errors import UndefinedError
from pluribus.core.law_groups import AVERAGE
from pluribus.core.rule import PointRule, register
from pluribus.rules.spaces.frechet import first_off, karcher


@register
@dataclass(frozen=True)
class SphereMean(PointRule):
    """Weighted Fréchet mean of unit vectors along the last axis: the one with the least ``sum_i w_i angle_i^2``.

    Each vector along the last axis is a point; the other axes index points. The mean is unique while all lie within
    less than a right angle of some direction. Wider clouds may have several; then the best that is reached from the
    projected arithmetic mean and from each of the points is given. Points that balance each other (antipodes) have
    none, and raise `UndefinedError`. Vectors of length one, up to the rounding of their dtype, are asked for: an error
    names who sent another.
    """

    name = "sphere_mean"
    laws = AVERAGE
    formula = "argmin over |z| = 1 of sum_i w_i arccos(<z, x_i>)^2"
    source = "Buss and Fillmore, Spherical Averages and Applications to Spherical Splines, ACM TOG 2001"

    def combine(self, points: Array, weights: Array) -> Array:
        """Karcher's iteration for all points at a time."""
        points = points / np.linalg.norm(points, axis=-1, keepdims=True)
        mean = np.einsum("i,i...->...", weights, points)
        length = np.linalg.norm(mean, axis=-1, keepdims=True)
        if (length < 1e-9).any():
            raise UndefinedError("points balance each other on the sphere, so that no direction is their mean")
        best = karcher(points, weights, mean / length, _Sphere())
        wide = np.flatnonzero((np.einsum("mk,imk->im", best, points) <= 0).any(axis=0))
        if wide.size:
            best[wide] = _best_of_all(points[:, wide], weights, best[wide])
        return best

    def complaint(self, points: Array, rounding: float) -> tuple[int, str] | None:
        """Vectors must have length one."""
        with np.errstate(over="ignore"):  # infinite is what it is beside one
            norms = np.linalg.norm(points, axis=-1)
        good = np.abs(norms - 1) <= max(1e-6, 2 * rounding)
        return first_off(norms, good, "has norm {:g}; points of a sphere have norm 1: divide each vector by its norm")

    def squared_distances(self, points: Array, others: Array) -> Array:
        """Squared angles, in radians."""
        return np.asarray(_angles(points, others) ** 2)

    def draw(self, x: Array) -> Array:
        """Directions with positive coordinates."""
        y = np.abs(x) + 1
        return np.asarray(y / np.linalg.norm(y, axis=1, keepdims=True))


def _best_of_all(points: Array, weights: Array, found: Array) -> Array:
    """The best of what is found and of what is reached from each point."""
    tried = [found, *(karcher(points, weights, start, _Sphere()) for start in points)]
    costs = [np.einsum("i,im->m", weights, _angles(points, mean[None]) ** 2) for mean in tried]
    least = np.argmin(np.stack(costs) * (1 - 1e-12 * (np.arange(len(tried)) == 0))[:, None], axis=0)
    return np.stack(tried)[least, np.arange(len(found))]


def _angles(a: Array, b: Array) -> Array:
    """Angles between unit vectors, accurate for small ones and for those near pi."""
    return 2 * np.arctan2(np.linalg.norm(a - b, axis=-1), np.linalg.norm(a + b, axis=-1))


class _Sphere:
    def log(self, bases: Array, points: Array) -> Array:
        straight = points - np.einsum("mk,imk->im", bases, points)[..., None] * bases
        length = np.linalg.norm(straight, axis=-1)
        angle = _angles(points, bases)
        return straight * np.divide(angle, length, out=np.zeros_like(angle), where=length > 0)[..., None]

    def exp(self, bases: Array, tangents: Array) -> Array:
        length = np.linalg.norm(tangents, axis=-1, keepdims=True)
        made = np.cos(length) * bases + np.sinc(length / np.pi) * tangents
        return np.asarray(made / np.linalg.norm(made, axis=-1, keepdims=True))

    def bend(self, distances: Array) -> Array:
        """d cot d."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(distances < 1e-6, 1.0, distances / np.tan(distances))
