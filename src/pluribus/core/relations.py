"""Relations: what rules see of the contributions when they decide on weights.

A rule declares the one statistic that it reads (`Reads`) and pays for no more. Most geometric rules see
d-dimensional contributions only through n x n numbers: the Gram matrix G and the squared distances D. Both follow
every linear pre-rule X' = M X at n^3 cost, so a chain of rules needs one pass over the data to decide and one to
combine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np

from pluribus.core.dtypes import Array


class Reads(StrEnum):
    """The statistic that a rule reads, from the cheapest to the dearest."""

    NOTHING = "nothing"
    NORMS = "norms"
    GRAM = "gram"
    COORDINATES = "coordinates"
    POINTS = "points"


@dataclass(frozen=True, eq=False)
class Norms:
    """Squared norms of the rows divided by ``scale``: n contributions, then the extra rows; see `Gram`."""

    squared_norms: Array
    n: int
    extras: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    scale: float = 1.0

    def without(self, position: int) -> Norms:
        """The same without one contribution."""
        keep = _all_but(len(self.squared_norms), position)
        return Norms(self.squared_norms[keep], self.n - 1, self.extras, _picked(self.labels, keep), self.scale)

    def mixed(self, mixing: Array) -> Norms:
        """Norms of M X for an M with one entry a row (clipping, selection): all that norms can follow."""
        if (np.count_nonzero(mixing, axis=1) > 1).any():
            raise ValueError("norms follow mixings with one entry a row only; read the Gram matrix")
        squares = (mixing**2) @ self.squared_norms
        return Norms(squares, len(mixing) - len(self.extras), self.extras, _made(self.labels, mixing), self.scale)


@dataclass(frozen=True, eq=False)
class Gram:
    """Gram matrix and squared distances of the rows divided by ``scale``, float64: n contributions, then extra rows.

    Attributes
    ----------
    gram
        G = X X', shape (m, m), m = n + number of extra rows.
    squared_distances
        D_ij = |x_i - x_j|^2, shape (m, m), never negative, zero on the diagonal. Measured directly where
        G_ii + G_jj - 2 G_ij would cancel.
    n, extras, labels
        Number of contributions; names of the extra rows; name of every row.
    scale
        A power of two, 1 unless the rows are so long or so short (beyond 1e60) that squares, and what is made of them,
        would leave the range of float64. Rules that declare the law of scale see a relation with a scale, and must
        multiply lengths by it where they compare them with a parameter that has a unit; other rules see none.
    """

    gram: Array
    squared_distances: Array
    n: int
    extras: tuple[str, ...] = ()
    labels: tuple[str, ...] = field(default=(), repr=False)
    scale: float = 1.0

    @property
    def squared_norms(self) -> Array:
        """|x_i / scale|^2, shape (m,)."""
        return np.diag(self.gram)

    @property
    def distances(self) -> Array:
        """Plain distances |x_i - x_j|, shape (m, m)."""
        return np.asarray(np.sqrt(self.squared_distances) * self.scale)

    @property
    def cosines(self) -> Array:
        """Cosine similarities, shape (m, m); a zero vector has cosine zero with everything, itself included."""
        norms = np.sqrt(self.squared_norms)
        safe = np.where(norms > 0, norms, 1.0)
        return np.asarray(np.clip(self.gram / safe[:, None] / safe[None, :], -1.0, 1.0))

    def squared_gap(self, difference: Array) -> float:
        """|v'X|^2 for coefficients v over the rows X (divided by ``scale``).

        Through D when v sums to zero (a difference of two averages), where G would cancel; else through G.
        """
        if abs(difference.sum()) <= 1e-12 * max(np.abs(difference).sum(), 1e-300):
            value = -0.5 * difference @ self.squared_distances @ difference
        else:
            value = difference @ self.gram @ difference
        return max(float(value), 0.0)

    def squared_distances_to(self, coefficients: Array) -> Array:
        """|x_i - w'X|^2 for every row i, shape (m,), for coefficients w over the rows."""
        if abs(coefficients.sum() - 1) <= 1e-9:
            towards = self.squared_distances @ coefficients
            values = towards - 0.5 * (coefficients @ towards)
        else:
            product = self.gram @ coefficients
            values = self.squared_norms - 2 * product + coefficients @ product
        return np.maximum(values, 0.0)

    def distances_to(self, coefficients: Array) -> Array:
        """Plain distances |x_i - w'X| of every row i, shape (m,), for coefficients w over the rows."""
        return np.asarray(np.sqrt(self.squared_distances_to(coefficients)) * self.scale)

    def centred(self, coefficients: Array) -> Array:
        """Inner products of the rows less w'X, shape (m, m), for coefficients w over the rows of sum one; through D."""
        towards = self.squared_distances @ coefficients
        inner = float(coefficients @ towards)
        return np.asarray(0.5 * (towards[:, None] + towards[None, :] - self.squared_distances - inner))

    def mixed(self, mixing: Array) -> Gram:
        """The relation of M X, for M of shape (m', m) that keeps the extra rows: G' = M G M', and D' likewise."""
        gram = mixing @ self.gram @ mixing.T
        if np.allclose(mixing.sum(axis=1), 1.0, rtol=0, atol=1e-12):
            product = mixing @ self.squared_distances @ mixing.T
            inner = np.diag(product)
            distances = product - 0.5 * (inner[:, None] + inner[None, :])
        else:
            distances = gram_distances(gram)
        n = len(mixing) - len(self.extras)
        return Gram(_symmetric(gram), _clean(distances), n, self.extras, _made(self.labels, mixing), self.scale)

    def without(self, position: int) -> Gram:
        """The relation of all rows but one contribution."""
        keep = _all_but(len(self.gram), position)
        window = np.ix_(keep, keep)
        return Gram(
            self.gram[window],
            self.squared_distances[window],
            self.n - 1,
            self.extras,
            _picked(self.labels, keep),
            self.scale,
        )

    def spread_out(self, rows: Sequence[int], n: int, labels: tuple[str, ...]) -> Gram:
        """The relation over all ``n`` contributions when only ``rows`` took part; the others' entries are NaN."""
        places = [*rows, *range(n, n + len(self.extras))]
        size = n + len(self.extras)
        window = np.ix_(places, places)
        gram, distances = np.full((size, size), np.nan), np.full((size, size), np.nan)
        gram[window], distances[window] = self.gram, self.squared_distances
        return Gram(gram, distances, n, self.extras, labels, self.scale)


Relation = Norms | Gram


def gram_distances(gram: Array) -> Array:
    """G_ii + G_jj - 2 G_ij, clamped at zero, with a zero diagonal."""
    norms = np.diag(gram)
    return _clean(norms[:, None] + norms[None, :] - 2 * gram)


def _clean(distances: Array) -> Array:
    distances = np.maximum(_symmetric(distances), 0.0)
    np.fill_diagonal(distances, 0.0)
    return distances


def _symmetric(matrix: Array) -> Array:
    return np.asarray(0.5 * (matrix + matrix.T))


def _all_but(size: int, position: int) -> Array:
    return np.delete(np.arange(size), position)


def _made(labels: tuple[str, ...], mixing: Array) -> tuple[str, ...]:
    """Labels stay while the number of rows does."""
    return labels if len(mixing) == len(labels) else ()


def _picked(labels: tuple[str, ...], keep: Array) -> tuple[Any, ...]:
    return tuple(labels[k] for k in keep) if labels else ()
