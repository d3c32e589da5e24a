"""The weighted mean of points in the Poincaré ball (hyperbolic space)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pluribus.core.dtypes import Array
from pluribus.core.law_groups import AVERAGE
from pluribus.core.rule import PointRule, positive, register
from pluribus.rules.spaces.frechet import first_off, karcher

_TINY = float(np.finfo(np.float64).tiny)
_RIM = 1 - float(np.finfo(np.float64).epsneg)


@register
@dataclass(frozen=True)
class PoincareMean(PointRule):
    """Weighted Fréchet mean in the Poincaré ball of curvature -c, along the last axis.

    Points are vectors shorter than ``1 / sqrt(c)``; an error names who sent another. The mean is unique, and is found
    from the arithmetic mean by Newton's steps, each of which lowers ``sum_i w_i d(z, x_i)^2``. Curvature zero is the
    weighted arithmetic mean. Near the rim results are as exact as points can be stored there: at a distance r from the
    centre rounding moves a point by about ``1e-16 e^r``.

    Parameters
    ----------
    curvature
        c, not negative; the space has curvature -c.
    """

    curvature: float = 1.0

    name = "poincare_mean"
    numbers = (419,)
    laws = AVERAGE
    formula = "argmin_z sum_i w_i d(z, x_i)^2, d(z, x) = (2 / sqrt c) artanh(sqrt c |(-z) + x|), + Möbius addition"
    source = "Lou et al., Differentiating through the Fréchet Mean, ICML 2020; Geo-Sign, 2025"

    def __post_init__(self) -> None:
        positive("PoincareMean", "curvature", self.curvature, zero=True)

    def combine(self, points: Array, weights: Array) -> Array:
        """The search in the ball of radius one."""
        scale = np.sqrt(self.curvature)
        mean = np.einsum("i,i...->...", weights, points)
        if not scale:
            return mean
        return np.asarray(karcher(scale * points, weights, scale * mean, _Ball()) / scale)

    def complaint(self, points: Array, rounding: float) -> tuple[int, str] | None:
        """Vectors must lie inside the ball."""
        with np.errstate(over="ignore"):  # infinite is what it is beside one
            norms = np.linalg.norm(points, axis=-1)
        rim = 1 / np.sqrt(self.curvature) if self.curvature else np.inf
        return first_off(norms, norms < rim, f"has norm {{:g}}; points of this ball have norms below {rim:g}")

    def squared_distances(self, points: Array, others: Array) -> Array:
        """Squared hyperbolic distances."""
        if not self.curvature:
            return np.asarray(((points - others) ** 2).sum(axis=-1))
        scale = np.sqrt(self.curvature)
        return np.asarray((_Ball().log(scale * points, scale * others[None])[0] ** 2).sum(axis=-1) / self.curvature)

    def draw(self, x: Array) -> Array:
        """Points inside the ball, at hyperbolic distances up to about the row's length from its centre."""
        scale = np.sqrt(self.curvature)
        return x if not scale else np.asarray(_Ball().exp(np.zeros_like(x), x / 4) / scale)


def _square(vectors: Array) -> Array:
    return np.asarray((vectors**2).sum(axis=-1, keepdims=True))


def moebius(a: Array, b: Array) -> Array:
    """Möbius addition in the ball of radius one: a translation of the space that takes 0 to a, applied to b."""
    inner, aa, bb = (a * b).sum(axis=-1, keepdims=True), _square(a), _square(b)
    return np.asarray(((1 + 2 * inner + bb) * a + (1 - aa) * b) / (1 + 2 * inner + aa * bb))


class _Ball:
    """The ball of radius one, curvature -1. Tangent vectors are in a frame of unit length."""

    def log(self, bases: Array, points: Array) -> Array:
        """2 artanh(|u|) u / |u| for u = (-z) + x."""
        inner = (bases * points).sum(axis=-1, keepdims=True)
        aa, bb = _square(bases), _square(points)
        moved = moebius(-bases, points)
        length = np.linalg.norm(moved, axis=-1, keepdims=True)
        # artanh(r) = log((1 + r) / sqrt(1 - r^2)), where 1 - r^2 is a quotient without cancellation.
        rest = (1 - aa) * (1 - bb) / np.maximum(1 - 2 * inner + aa * bb, _TINY)
        far = 2 * np.log((1 + length) / np.sqrt(np.maximum(rest, _TINY)))
        distance = np.where(length < 0.5, 2 * np.arctanh(np.minimum(length, 0.5)), far)
        return moved * np.divide(distance, length, out=np.zeros_like(length), where=length > 0)

    def exp(self, bases: Array, tangents: Array) -> Array:
        length = np.linalg.norm(tangents, axis=-1, keepdims=True)
        step = tangents * np.divide(np.tanh(length / 2), length, out=np.zeros_like(length), where=length > 0)
        made = moebius(bases, step)
        norms = np.linalg.norm(made, axis=-1, keepdims=True)
        return np.asarray(np.where(norms > _RIM, made * (_RIM / np.maximum(norms, _RIM)), made))

    def bend(self, distances: Array) -> Array:
        """d coth d."""
        safe = np.maximum(distances, 1e-6)
        return np.asarray(safe / np.tanh(safe))
