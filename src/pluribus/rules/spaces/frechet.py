"""What rules on curved spaces share: the search for many weighted means at a time, and checks of points."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from pluribus.core.dtypes import Array

TOLERANCE = 1e-14
ITERATIONS = 300
_ROUNDING = 1e-10  # relative, of a sum of squared distances between badly conditioned points


class Space(Protocol):
    """A space as the search sees it. Tangent vectors are in a frame in which their length is that of their entries."""

    def log(self, bases: Array, points: Array) -> Array:
        """Tangent vectors (n, m, ...) that lead from bases (m, ...) to points (n, m, ...)."""

    def exp(self, bases: Array, tangents: Array) -> Array:
        """Points (m, ...) that tangent vectors (m, ...) lead to."""

    def bend(self, distances: Array) -> Array | None:
        """Second derivatives of d^2 / 2 across the way to a point, by distance, where all of them are known."""


def karcher(points: Array, weights: Array, start: Array, space: Space) -> Array:
    """The points z with the least ``sum_i w_i d(z, x_i)^2``, shape (m, ...), each found by itself.

    Newton's steps where the space knows how distances bend, and Karcher's ``z <- exp_z(sum_i w_i log_z(x_i))`` where
    not. A step that does not lower the sum is halved, so that the sum falls all the way; where rounding hides that, the
    gradient must shrink. Whichever of the m is at rest stays, so no result depends on the others.

    Parameters
    ----------
    points
        Shape (n, m, ...).
    weights
        n numbers of sum one.
    start
        Shape (m, ...).
    space
        Where they lie.
    """
    current, moving = start.copy(), np.arange(len(start))
    tangents = space.log(current, points)
    cost, gradient = _measured(weights, tangents)
    size = np.ones(len(current))
    for _ in range(ITERATIONS):
        if not moving.size:
            break
        towards = _direction(space, weights, tangents, gradient)
        tried = space.exp(current[moving], towards * _like(size, towards))
        further = space.log(tried, points[:, moving])
        reached, slope = _measured(weights, further)
        slack = _ROUNDING * (1 + cost)
        better = (reached < cost - slack) | ((reached <= cost + slack) & (_length(slope) < _length(gradient)))
        current[moving[better]] = tried[better]
        tangents = np.where(_like(better, tangents[0]), further, tangents)
        gradient = np.where(_like(better, gradient), slope, gradient)
        cost = np.where(better, reached, cost)
        size = np.where(better, np.minimum(1.2 * size, 1.0), 0.5 * size)
        left = (_length(gradient) > TOLERANCE * np.maximum(1.0, np.sqrt(cost))) & (size > 1e-6)
        moving, tangents, gradient, cost, size = moving[left], tangents[:, left], gradient[left], cost[left], size[left]
    return current


def _measured(weights: Array, tangents: Array) -> tuple[Array, Array]:
    """The weighted sum of squared lengths, and the weighted sum of tangent vectors."""
    return np.einsum("i,im->m", weights, _length(tangents, 2) ** 2), np.einsum("i,i...->...", weights, tangents)


def _direction(space: Space, weights: Array, tangents: Array, gradient: Array) -> Array:
    """Newton's step, as a combination of the ways to the points; the gradient where that is none."""
    distances = _length(tangents, 2)
    bends = space.bend(distances)
    if bends is None:
        return gradient
    ways = np.divide(
        tangents, _like(distances, tangents), out=np.zeros_like(tangents), where=_like(distances, tangents) > 0
    )
    flat = ways.reshape(*ways.shape[:2], -1).swapaxes(0, 1)  # (m, n, values)
    mean = np.einsum("i,im->m", weights, bends)
    system = np.eye(len(weights)) * mean[:, None, None]
    system -= (weights[:, None] * (bends - 1)).T[:, :, None] * (flat @ flat.swapaxes(1, 2))
    wanted = (weights[:, None] * distances).T[:, :, None]
    try:
        parts = np.linalg.solve(system, wanted)
    except np.linalg.LinAlgError:
        return gradient
    newton = (parts.swapaxes(1, 2) @ flat)[:, 0].reshape(gradient.shape)
    climbs = (newton * gradient).reshape(len(gradient), -1).sum(axis=1)
    good = np.isfinite(climbs) & (climbs > 0) & (mean > 0)
    return np.where(_like(good, gradient), newton, gradient)


def _length(vectors: Array, leading: int = 1) -> Array:
    """Lengths of tangent vectors that follow one or two leading axes."""
    return np.linalg.norm(vectors.reshape(*vectors.shape[:leading], -1), axis=-1)


def _like(flags: Array, shaped: Array) -> Array:
    """Leading axes made to go with all of an array's."""
    return flags.reshape(*flags.shape, *[1] * (shaped.ndim - flags.ndim))


def first_off(measured: Array, good: Array, what: str) -> tuple[int, str] | None:
    """The first of m points that is not good, and what is wrong with it; None where all are good.

    ``what`` is filled with what was measured of that point, of shape (m,): ``"has norm {:g}; ..."``.
    """
    if good.all():
        return None
    first = int(np.argmin(good))
    return first, what.format(measured[first])
