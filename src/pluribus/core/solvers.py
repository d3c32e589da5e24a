"""Solvers for n numbers, one a contributor, that rules and rooms share: small, dense, float64, exact to rounding.

They take what a pass over the data leaves (a Gram matrix, a vector of inner products), so their cost has nothing to do
with the size of the contributions. Positive semi-definite matrices are welcome: duplicates, zero vectors and more
vectors than dimensions are ordinary input.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pluribus.core.dtypes import Array
from pluribus.core.errors import RuleError

EPSILON = float(np.finfo(np.float64).eps)
RIDGE = 1e-12  # of the mean of the diagonal: makes a semi-definite matrix definite, and shows in no digit that counts

_ROOM = 1 << 22  # entries of the matrices that are solved at once


def project_simplex(values: Any, total: float = 1.0) -> Array:
    """The nearest points with non-negative entries of sum ``total``, along the last axis.

    Parameters
    ----------
    values
        Finite numbers, shape (..., n).
    total
        Positive sum of the result.

    Returns
    -------
    Array
        Shape (..., n), each row ``max(v - t, 0)`` for the one t that gives the sum (Held, Wolfe and Crowder 1974).
    """
    points = np.asarray(values, dtype=np.float64)
    if points.ndim == 0 or not points.shape[-1] or not np.isfinite(points).all():
        raise RuleError(f"project_simplex takes finite numbers of shape (..., n), not {values!r}")
    if not (total > 0 and np.isfinite(total)):
        raise RuleError(f"project_simplex: total must be a positive number, not {total!r}")
    points = points - points.max(axis=-1, keepdims=True)  # the projection does not see a common shift; sums stay exact
    falling = -np.sort(-points, axis=-1)
    counts = np.arange(1, points.shape[-1] + 1)
    levels = (np.cumsum(falling, axis=-1) - total) / counts
    last = np.count_nonzero(falling > levels, axis=-1, keepdims=True) - 1
    raised = np.maximum(points - np.take_along_axis(levels, last, axis=-1), 0.0)
    return np.asarray(raised * (total / raised.sum(axis=-1, keepdims=True)))


def min_norm_point(gram: Any) -> Array:
    """Weights w >= 0 of sum one with the least ``w' G w``: the point nearest to zero in the hull of n vectors.

    Wolfe's active-set method on the Gram matrix: exact after finitely many steps, and blind to how much the vectors
    differ in length, since the systems that it solves are of cosines. With a zero vector, that one. With target y,
    give the Gram matrix of ``x_i - y`` (stacking on the simplex).

    Parameters
    ----------
    gram
        Positive semi-definite, shape (n, n).

    Returns
    -------
    Array
        Shape (n,). Where several weights give the same point, one of them.

    Notes
    -----
    Wolfe, Finding the Nearest Point in a Polytope, Mathematical Programming 1976. Compared with direct minimisation
    (scipy, SLSQP) and, for two vectors, with the closed form.
    """
    matrix = _square(gram, "min_norm_point")
    n = len(matrix)
    lengths = np.sqrt(np.maximum(np.diag(matrix), 0.0))
    first = int(np.argmin(lengths))
    weights = np.zeros(n)
    weights[first] = 1.0
    if lengths[first] == 0.0:
        return weights
    inverse = lengths[first] / lengths  # in (0, 1]
    cosines = matrix / lengths[:, None] / lengths[None, :]
    chosen = [first]
    for _ in range(20 * n + 20):
        products = matrix @ weights
        doubt = 64 * EPSILON * lengths * (weights @ lengths)  # what rounding may have done to the products
        gain = products - weights @ products + doubt
        gain[chosen] = np.inf
        entering = int(np.argmin(gain))
        if gain[entering] >= 0.0:
            break
        before = list(chosen)
        weights, chosen = _descend(cosines, inverse, weights, [*chosen, entering])
        if chosen == before:  # it was rounding that called for it
            break
    return np.asarray(weights / weights.sum())


def _descend(cosines: Array, inverse: Array, weights: Array, chosen: list[int]) -> tuple[Array, list[int]]:
    """From weights on the chosen vectors towards the least norm on their affine hull, dropping whoever is in the way.

    In the lengths' unit the affine hull is ``inverse' b = 1``, so its least norm solves ``C b`` proportional to
    ``inverse``; the added outer product keeps the system regular when the hull goes through zero.
    """
    while True:
        share = inverse[chosen]
        share = share / np.linalg.norm(share)
        system = cosines[np.ix_(chosen, chosen)] + np.outer(share, share)
        target = _solve(system, share) * inverse[chosen]
        target /= target.sum()
        if (target > 0).all():
            found = np.zeros(len(weights))
            found[chosen] = target
            return found, chosen
        current = weights[chosen]
        low = target <= 0
        with np.errstate(divide="ignore", invalid="ignore"):
            reach = np.where(low, current / (current - target), np.inf)
        step = float(np.nanmin(reach))
        moved = np.maximum(current + step * (target - current), 0.0)
        moved[low & (reach <= step)] = 0.0
        stay = moved > 0
        if stay.all():  # rounding alone: nobody was in the way
            stay[int(np.argmin(moved))] = False
        weights = np.zeros(len(weights))
        weights[np.asarray(chosen)[stay]] = moved[stay] / moved[stay].sum()
        chosen = [k for k, kept in zip(chosen, stay, strict=True) if kept]


def nonnegative_qp(quadratic: Any, linear: Any) -> Array:
    """``argmin_z  z' Q z / 2 + c' z`` with z >= 0, for one c or many of them at once.

    With Q the Gram matrix of the columns of A and ``c = -A' b`` it is non-negative least squares. The projection of
    ``X' u`` on the cone of all d with ``X d >= 0`` is ``X' (u + z)`` for ``Q = X X', c = X X' u``.

    Block principal pivoting: guess who is positive, solve for them, exchange all who are on the wrong side; one at a
    time when that stops to help. A ridge of `RIDGE` times the mean diagonal makes every system definite, so z is
    unique; a second round with the ridge around the first answer takes its bias away (a proximal step). Scale the
    variables (cosines instead of inner products) when their units differ much.

    Parameters
    ----------
    quadratic
        Positive semi-definite Q, shape (n, n).
    linear
        c, shape (n,) or (k, n).

    Returns
    -------
    Array
        z, of the shape of ``linear``.

    Notes
    -----
    Judice and Pires 1994; Kim and Park, Fast Nonnegative Matrix Factorization, SIAM J. Sci. Comput. 2011. Compared with
    scipy's ``nnls`` and with the optimality conditions.
    """
    matrix = _square(quadratic, "nonnegative_qp")
    n = len(matrix)
    pull = np.asarray(linear, dtype=np.float64)
    if pull.ndim not in (1, 2) or pull.shape[-1] != n or not np.isfinite(pull).all():
        raise RuleError(f"nonnegative_qp: linear must be finite, of shape ({n},) or (k, {n}), not {pull.shape}")
    scale = float(np.trace(matrix)) / n
    if not scale > 0:
        if (pull < 0).any():
            raise RuleError("nonnegative_qp: the quadratic is zero and the linear part falls, so there is no minimum")
        return np.zeros(pull.shape)
    regular = matrix / scale + RIDGE * np.eye(n)
    rows = np.atleast_2d(pull) / scale
    found = np.zeros(rows.shape)
    step = max(1, _ROOM // (n * n))
    for at in range(0, len(rows), step):
        part = slice(at, at + step)
        first = _pivot(regular, rows[part], rows[part] < 0)
        found[part] = _pivot(regular, rows[part] - RIDGE * first, first > 0) if first.any() else first
    return found.reshape(pull.shape)


def _pivot(matrix: Array, linear: Array, positive: Array) -> Array:
    """Block principal pivoting from a guess, on all rows at once; rows that do not settle are solved one by one."""
    k, n = linear.shape
    found = np.zeros((k, n))
    positive = positive.copy()
    fewest, chances = np.full(k, n + 1), np.full(k, 3)
    size = np.abs(linear).max(axis=1)
    pending = np.flatnonzero((linear < 0).any(axis=1))
    for _ in range(3 * n + 30):
        if not pending.size:
            return found
        inside = positive[pending]
        z = _solve_inside(matrix, -linear[pending], inside)
        slope = z @ matrix + linear[pending]
        slack = 32 * EPSILON * (np.abs(z) @ np.abs(matrix) + size[pending, None])
        wrong = np.where(inside, z < 0, slope < -slack)
        count = wrong.sum(axis=1)
        done = count == 0
        found[pending[done]] = np.where(inside, z, 0.0)[done]
        better = count < fewest[pending]
        fewest[pending] = np.minimum(fewest[pending], count)
        chances[pending] = np.where(better, 3, chances[pending] - 1)
        last = n - 1 - np.argmax(wrong[:, ::-1], axis=1)
        only = np.zeros_like(wrong)
        only[np.arange(len(pending)), last] = True
        exchanged = np.where((chances[pending] >= 0)[:, None], wrong, wrong & only)
        positive[pending] ^= exchanged
        pending = pending[~done]
    for row in pending:
        found[row] = _one_by_one(matrix, linear[row])
    return found


def _solve_inside(matrix: Array, right: Array, inside: Array) -> Array:
    """For each row of ``right`` the solution of the system of those inside, zero elsewhere; shape (k, n)."""
    width = max(int(inside.sum(axis=1).max()), 1)
    places = np.argsort(~inside, axis=1, kind="stable")[:, :width]  # those inside first, then others to fill up
    real = np.take_along_axis(inside, places, axis=1)
    systems = matrix[places[:, :, None], places[:, None, :]]
    systems = np.where(real[:, :, None] & real[:, None, :], systems, np.eye(width))
    solved = np.linalg.solve(systems, np.where(real, np.take_along_axis(right, places, axis=1), 0.0)[:, :, None])
    z = np.zeros(right.shape)
    np.put_along_axis(z, places, solved[:, :, 0], axis=1)
    return z


def _one_by_one(matrix: Array, linear: Array) -> Array:
    """Lawson and Hanson's active-set method: the objective falls at every step, so it ends whatever the rounding."""
    n = len(linear)
    z, positive = np.zeros(n), np.zeros(n, dtype=bool)
    for _ in range(10 * n + 10):
        slope = matrix @ z + linear
        slack = 32 * EPSILON * (np.abs(matrix) @ np.abs(z) + np.abs(linear).max())
        falling = np.where(positive, 0.0, slope + slack)
        entering = int(np.argmin(falling))
        if falling[entering] >= 0:
            break
        positive[entering] = True
        while True:
            inside = np.flatnonzero(positive)
            target = np.zeros(n)
            target[inside] = _solve(matrix[np.ix_(inside, inside)], -linear[inside])
            low = inside[target[inside] <= 0]
            if not low.size:
                z = target
                break
            reach = z[low] / (z[low] - target[low])
            z = z + reach.min() * (target - z)
            positive[low[reach <= reach.min()]] = False
            z[~positive] = 0.0
            if not positive.any():
                break
        if not positive[entering]:  # it was rounding that called for it
            break
    return z


def reciprocal(gram: Any, weights: Any = None) -> Array:
    """The positive a with ``(G a)_i = w_i / a_i``: the minimum of ``a' G a / 2 - sum_i w_i log a_i``.

    Newton's method with steps cut so that a stays positive and the objective falls. Vectors may differ in length by
    any factor (it works on cosines), and G may be singular: a ridge of `RIDGE` bounds a when some combination of the
    vectors is zero, and then a follows that combination.

    Parameters
    ----------
    gram
        Positive semi-definite with a positive diagonal, shape (n, n).
    weights
        n positive numbers; None is all ones.

    Returns
    -------
    Array
        a, shape (n,). ``a' G a`` is the sum of the weights.

    Notes
    -----
    Boyd and Vandenberghe, Convex Optimization, section 9.5. Compared with the residual ``G a - w / a``.
    """
    matrix = _square(gram, "reciprocal")
    n = len(matrix)
    pull = np.ones(n) if weights is None else np.asarray(weights, dtype=np.float64)
    if pull.shape != (n,) or not (np.isfinite(pull).all() and (pull > 0).all()):
        raise RuleError(f"reciprocal: weights must be {n} positive numbers, not {weights!r}")
    squares = np.diag(matrix)
    if not (squares > 0).all():
        raise RuleError("reciprocal: a zero vector has no share; leave it out")
    lengths = np.sqrt(squares)
    cosines = matrix / lengths[:, None] / lengths[None, :] + RIDGE * np.eye(n)

    def cost(b: Array) -> float:
        return float(0.5 * b @ cosines @ b - pull @ np.log(b))

    b = np.sqrt(pull)
    b *= np.sqrt(pull.sum() / max(float(b @ cosines @ b), RIDGE * float(b @ b)))
    now = cost(b)
    for _ in range(200):
        slope = cosines @ b - pull / b
        move = -_solve(cosines + np.diag(pull / b**2), slope)
        falls = float(slope @ move)
        if -falls <= 1e-28 * pull.sum():
            break
        shrinking = float((move / b).min())
        step = min(1.0, 0.95 / -shrinking) if shrinking < 0 else 1.0
        while (tried := cost(b + step * move)) > now + 0.25 * step * falls and step > 1e-6:
            step *= 0.5
        if tried >= now:  # nothing is left to gain but rounding
            return np.asarray((b + move if np.all(b + move > 0) else b) / lengths)
        b, now = b + step * move, tried
    return np.asarray(b / lengths)


def _solve(matrix: Array, right: Array) -> Array:
    try:
        return np.linalg.solve(matrix, right)
    except np.linalg.LinAlgError:
        return np.asarray(np.linalg.lstsq(matrix, right, rcond=None)[0])


def _square(matrix: Any, who: str) -> Array:
    array = np.asarray(matrix, dtype=np.float64)
    if array.ndim != 2 or array.shape[0] != array.shape[1] or not len(array) or not np.isfinite(array).all():
        raise RuleError(f"{who} takes a finite matrix of shape (n, n), n at least 1, not one of shape {array.shape}")
    return 0.5 * (array + array.T)
