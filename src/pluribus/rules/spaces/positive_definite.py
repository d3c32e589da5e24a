"""Weighted means of symmetric positive definite matrices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pluribus.core.dtypes import Array
from pluribus.core.law_groups import AVERAGE
from pluribus.core.parameters import one_of
from pluribus.core.rule import PointRule, register
from pluribus.rules.spaces.frechet import first_off, karcher

METRICS = ("log_euclidean", "affine_invariant")


@register
@dataclass(frozen=True)
class PositiveDefiniteMean(PointRule):
    """Weighted Fréchet mean of symmetric positive definite matrices over the last two axes.

    Unlike the arithmetic mean it does not swell: the determinant of the mean is the geometric mean of the determinants.
    Cost: n eigendecompositions a matrix, and as many again for each of some ten steps where the metric is affine
    invariant. An error names who sent a matrix that is not square, symmetric or positive definite.

    Parameters
    ----------
    metric
        ``"log_euclidean"``: ``exp(sum_i w_i log X_i)``, in closed form. ``"affine_invariant"``: the mean that moves
        with every change of coordinates ``A X A'``; the solution of ``sum_i w_i log(Z^-1/2 X_i Z^-1/2) = 0``, by
        Karcher's iteration.
    """

    metric: str = "log_euclidean"

    name = "positive_definite_mean"
    axes = 2
    laws = AVERAGE | {"scale"}
    formula = "exp(sum_i w_i log X_i), or argmin_Z sum_i w_i |log(Z^-1/2 X_i Z^-1/2)|^2"
    source = (
        "Arsigny et al., Geometric Means in a Novel Vector Space Structure on Symmetric Positive-Definite Matrices, "
        "SIAM 2007; Pennec, Fillard and Ayache, A Riemannian Framework for Tensor Computing, IJCV 2006"
    )

    def __post_init__(self) -> None:
        one_of("PositiveDefiniteMean", "metric", self.metric, METRICS)

    def combine(self, points: Array, weights: Array) -> Array:
        """The log-Euclidean mean, and from there the affine invariant one."""
        logs = _of_eigenvalues(points, np.log)
        mean = _of_eigenvalues(np.einsum("i,i...->...", weights, logs), np.exp)
        if self.metric == "log_euclidean":
            return mean
        return karcher(points, weights, mean, _Affine())

    def complaint(self, points: Array, rounding: float) -> tuple[int, str] | None:
        """Matrices must be square, symmetric and positive definite."""
        size = points.shape[-1]
        if points.shape[-2] != size:
            return 0, f"is {points.shape[-2]} x {size}; positive definite matrices are square"
        largest = np.abs(points).max(axis=(-1, -2), initial=0.0)
        skew = np.abs(points - points.swapaxes(-1, -2)).max(axis=(-1, -2), initial=0.0)
        told = first_off(
            skew, skew <= max(1e-6, 4 * rounding) * largest, "is off symmetry by {:g}; average it with its transpose"
        )
        if told:
            return told
        least = np.linalg.eigvalsh(points)[..., 0] if size else np.ones(len(points))
        return first_off(least, least > 0, "has the eigenvalue {:g}; all eigenvalues must be positive")

    def squared_distances(self, points: Array, others: Array) -> Array:
        """In the chosen metric."""
        if self.metric == "log_euclidean":
            gaps = _of_eigenvalues(points, np.log) - _of_eigenvalues(others, np.log)
            return np.asarray((gaps**2).sum(axis=(-1, -2)))
        return np.asarray((_Affine().log(points, others[None])[0] ** 2).sum(axis=(-1, -2)))

    def draw(self, x: Array) -> Array:
        """A matrix of a row: positive on the diagonal, and the row's square."""
        size = x.shape[1]
        return np.asarray(np.exp(x / 8)[:, :, None] * np.eye(size) + x[:, :, None] * x[:, None, :] / 64)


def _of_eigenvalues(matrices: Array, function: Callable[[Array], Array]) -> Array:
    """A function of symmetric matrices (of their symmetric part), through their eigenvalues."""
    values, vectors = np.linalg.eigh(0.5 * (matrices + matrices.swapaxes(-1, -2)))
    return np.asarray((vectors * function(values)[..., None, :]) @ vectors.swapaxes(-1, -2))


def _roots(bases: Array) -> tuple[Array, Array]:
    """Z^1/2 and Z^-1/2."""
    return _of_eigenvalues(bases, np.sqrt), _of_eigenvalues(bases, lambda v: 1 / np.sqrt(v))


class _Affine:
    """Tangent vectors are seen from the identity: log(Z^-1/2 X Z^-1/2)."""

    def log(self, bases: Array, points: Array) -> Array:
        inverse = _roots(bases)[1]
        return _of_eigenvalues(inverse @ points @ inverse, np.log)

    def exp(self, bases: Array, tangents: Array) -> Array:
        root = _roots(bases)[0]
        made = root @ _of_eigenvalues(tangents, np.exp) @ root
        return np.asarray(0.5 * (made + made.swapaxes(-1, -2)))

    def bend(self, distances: Array) -> None:
        """Different in different directions."""
        return None
