"""Convex programmes over tables of probabilities, with mutual informations to minimise or to keep below a cap.

They are small (hundreds of cells) and are solved by Newton's method with a logarithmic barrier, which needs numpy alone
and ends within a stated distance of the optimum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from pluribus.core.errors import RuleError
from pluribus.federated.models import Array

LOG2 = float(np.log(2.0))


@dataclass(frozen=True, eq=False)
class Information:
    """``sum_k sign_k sum_c phi(m_kc)`` with ``phi(x) = x log2 x``, where m_kc sums the cells that term k puts in c.

    Mutual informations are of this form. ``terms`` holds a sign and, for each of the n cells, the number of its sum;
    ``constant`` is added.
    """

    terms: tuple[tuple[float, Array], ...]
    constant: float = 0.0

    def value(self, cells: Array) -> float:
        """In bits; 0 log 0 is 0."""
        total = self.constant
        for sign, places in self.terms:
            sums = np.bincount(places, weights=cells)
            sums = sums[sums > 0]
            total += sign * float((sums * np.log2(sums)).sum())
        return total

    def slopes(self, cells: Array) -> tuple[Array, Array]:
        """Gradient, (n,), and Hessian, (n, n), where all sums are positive."""
        gradient, hessian = np.zeros(len(cells)), np.zeros((len(cells), len(cells)))
        for sign, places in self.terms:
            sums = np.bincount(places, weights=cells)[places]
            gradient += sign * (np.log2(sums) + 1 / LOG2)
            hessian += sign * (places[:, None] == places[None, :]) / (sums * LOG2)
        return gradient, hessian


def information(table: Array, one: Sequence[int], other: Sequence[int], given: Sequence[int] = ()) -> float:
    """``I(one; other | given)`` in bits between the axes of a table of probabilities or counts."""
    total = float(np.sum(table))
    cells = np.ravel(table) / total
    return max(of_axes(np.shape(table), one, other, given).value(cells), 0.0)


def of_axes(
    shape: Sequence[int], one: Sequence[int], other: Sequence[int], given: Sequence[int] = (), keep: Array | None = None
) -> Information:
    """The same as a function of the cells of a table of this shape (of those at ``keep`` alone)."""
    index = np.indices(shape).reshape(len(shape), -1)
    if keep is not None:
        index = index[:, keep]

    def places(axes: Sequence[int]) -> Array:
        labels = np.zeros(index.shape[1], dtype=np.int64)
        for axis in axes:
            labels = labels * shape[axis] + index[axis]
        return np.unique(labels, return_inverse=True)[1].reshape(-1)

    one, other, given = list(one), list(other), list(given)
    return Information(
        (
            (1.0, places([*one, *other, *given])),
            (-1.0, places([*one, *given])),
            (-1.0, places([*other, *given])),
            (1.0, places(given)),
        )
    )


def minimise(
    objective: Information | Array,
    start: Array,
    fixed: Sequence[Array],
    caps: Sequence[tuple[Information, float]] = (),
    *,
    within: float = 1e-9,
) -> Array:
    """The cells, (n,), that minimise an information or a linear function, with fixed sums and capped informations.

    Parameters
    ----------
    objective
        Convex where the sums are fixed; or the coefficients of a linear function, (n,).
    start
        Positive cells that have the right sums and are strictly below the caps.
    fixed
        Each an array (n,) of numbers of sums that the cells keep: what ``start`` has.
    caps
        Convex informations and their largest values.
    within
        Bound on how far the value found is above the optimum.

    Raises
    ------
    RuleError
        The start is not strictly inside.
    """
    cells = np.asarray(start, dtype=np.float64)
    if not (cells > 0).all() or any(info.value(cells) >= cap for info, cap in caps):
        raise RuleError("a programme's start must have positive cells and be strictly below every cap")
    free = _free_directions(fixed, len(cells))
    if not free.shape[1]:
        return cells
    count, weight = len(cells) + len(caps), 1.0
    while True:
        cells = _centre(_barrier(objective, caps, weight), cells, free)
        if count / weight <= within:
            return cells
        weight = min(weight * 10, count / within)


Barrier = Callable[[Array, bool], tuple[float, Array, Array]]


def _barrier(objective: Information | Array, caps: Sequence[tuple[Information, float]], weight: float) -> Barrier:
    """Value, gradient and Hessian of ``weight objective - sum log cells - sum log(cap - information)``."""

    def at(cells: Array, with_slopes: bool) -> tuple[float, Array, Array]:
        none = np.zeros(0)
        room = [cap - info.value(cells) for info, cap in caps]
        if not (cells > 0).all() or any(r <= 0 for r in room):
            return np.inf, none, none
        value = objective.value(cells) if isinstance(objective, Information) else float(objective @ cells)
        total = weight * value - float(np.log(cells).sum()) - float(np.log(room).sum() if room else 0.0)
        if not with_slopes:
            return total, none, none
        if isinstance(objective, Information):
            gradient, hessian = objective.slopes(cells)
            gradient, hessian = weight * gradient, weight * hessian
        else:
            gradient, hessian = weight * objective, np.zeros((len(cells), len(cells)))
        gradient = gradient - 1 / cells
        hessian = hessian + np.diag(1 / cells**2)
        for (info, _), left in zip(caps, room, strict=True):
            slope, bend = info.slopes(cells)
            gradient = gradient + slope / left
            hessian = hessian + bend / left + np.outer(slope, slope) / left**2
        return total, gradient, hessian

    return at


def _centre(barrier: Barrier, cells: Array, free: Array) -> Array:
    """Damped Newton steps along the free directions until they gain nothing."""
    for _ in range(100):
        value, gradient, hessian = barrier(cells, True)
        # Scaled by the cells, so that a Hessian over twenty powers of ten stays soluble.
        scaled = free / np.maximum(np.abs(free * (1 / cells)[:, None]).max(axis=0), 1e-300)
        slope = scaled.T @ gradient
        step = scaled @ -np.linalg.lstsq(scaled.T @ hessian @ scaled, slope, rcond=1e-15)[0]
        gain = -float(gradient @ step)
        if not gain > 1e-10:
            break
        length = 1.0
        while length > 1e-12:
            tried, _, _ = barrier(cells + length * step, False)
            if tried <= value - 0.1 * length * gain:
                break
            length /= 2
        else:
            break
        cells = cells + length * step
    return cells


def _free_directions(fixed: Sequence[Array], n: int) -> Array:
    """A basis of the changes of n cells that keep all sums, (n, m)."""
    rows = np.vstack([(places[None, :] == np.unique(places)[:, None]).astype(np.float64) for places in fixed])
    _, values, right = np.linalg.svd(rows, full_matrices=True)
    rank = int((values > 1e-9 * values.max()).sum())
    return np.asarray(right[rank:].T.reshape(n, -1))
