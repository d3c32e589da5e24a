"""Linear heads by least squares, from sums that merge exactly: analytic federated learning as algebra.

With features X, (n, d), and one-hot labels Y, (n, C), a client's whole part in a ridge regression are ``X'X`` and
``X'Y``. Parts add: so the head of the union of any clients is found in one round, and how samples are split among
them changes rounding alone. `Sums` are what is sent; `Solved` is the same in the published form, a head and its Gram
matrix, which merges pairwise. He et al., AFL, CVPR 2025. Memory: d (d + C) numbers.
"""

from __future__ import annotations

from functools import reduce
from typing import NamedTuple

import numpy as np

from pluribus.core.errors import RuleError
from pluribus.federated.models import Array


class Sums(NamedTuple):
    """``gram`` = X'X, (d, d), and ``cross`` = X'Y, (d, C), in float64."""

    gram: Array
    cross: Array


class Solved(NamedTuple):
    """A head ``weight``, (d, C), and the matrix ``gram`` of the normal equations that it solves, (d, d)."""

    weight: Array
    gram: Array


def sums(x: Array, y: Array, classes: int, *, intercept: bool = False) -> Sums:
    """The sums of some samples; with an intercept a feature that is always 1 is put last, and d is one more."""
    x = np.asarray(x, dtype=np.float64)
    if intercept:
        x = np.concatenate([x, np.ones((len(x), 1))], axis=1)
    cross = np.zeros((classes, x.shape[1]))
    np.add.at(cross, np.asarray(y, dtype=np.int64), x)
    return Sums(x.T @ x, cross.T)


def merge(*parts: Sums) -> Sums:
    """The sums of the union of disjoint samples. Commutative and associative, up to rounding.

    Raises ``RuleError`` for no parts, or for parts of different shapes.
    """
    if not parts or len({(part.gram.shape, part.cross.shape) for part in parts}) > 1:
        shapes = ", ".join(str(part.cross.shape) for part in parts) or "none"
        raise RuleError(f"sums to merge must be of one shape (features, classes), and at least one; got {shapes}")
    return reduce(lambda a, b: Sums(a.gram + b.gram, a.cross + b.cross), parts)


def solve(found: Sums, ridge: float = 0.0) -> Array:
    """``argmin_W |X W - Y|^2 + ridge |W|^2``, (d, C): of several, without ridge, the one with the least norm.

    By the eigenvalues of X'X, of which those below d eps times the largest count as zero.
    """
    values, vectors = np.linalg.eigh(found.gram)
    floor = len(values) * np.finfo(np.float64).eps * max(float(values[-1]), 0.0)
    values = np.where(values > floor, values, 0.0) + ridge
    scale = np.divide(1.0, values, out=np.zeros_like(values), where=values > 0)
    weight: Array = vectors @ (scale[:, None] * (vectors.T @ found.cross))
    return weight


def solved(found: Sums, ridge: float) -> Solved:
    """A client's part in the published form: ``C = X'X + ridge I``, ``W = C^-1 X'Y``; ridge > 0."""
    gram = found.gram + ridge * np.eye(len(found.gram))
    return Solved(np.linalg.solve(gram, found.cross), gram)


def merge_solved(a: Solved, b: Solved) -> Solved:
    """``C = C_a + C_b``, ``W = C^-1 (C_a W_a + C_b W_b)``: the published absolute aggregation of two parts."""
    gram = a.gram + b.gram
    return Solved(np.linalg.solve(gram, a.gram @ a.weight + b.gram @ b.weight), gram)


def without_ridge(merged: Solved, ridge: float, parts: int) -> Array:
    """The head after the regularisers of all ``parts`` are taken out: ``(C - parts ridge I)^-1 C W``."""
    cross = merged.gram @ merged.weight
    return solve(Sums(merged.gram - parts * ridge * np.eye(len(merged.gram)), cross))
