"""Sums of float64 values with the rounding errors carried along, for numpy arrays and torch tensors alike.

Every sum and product leaves an error that is a float64 number itself (two-sum of Knuth, two-product of Dekker and
Veltkamp). The errors are added up beside the sum and join it at the end, so the result is that of twice the working
precision, rounded once. With u = 2^-53, K values and r the exact sum of ``weights[i] * views[i]``, the error is at most

    u |r| + (3 K u)^2 sum_i |weights[i] * views[i]|

that is within one unit in the last place of the exact sum while ``sum |w x| / |r|`` stays below 1e14 / K^2. Not so
where products are below 1e-290 (their errors leave the range of float64; some 5e-324 each is lost) and where an
intermediate result overflows (that coordinate has plain sums).

Source: Ogita, Rump, Oishi, Accurate sum and dot product, SIAM Journal on Scientific Computing 26, 2005 (Sum2, Dot2).
Compared with exact sums of fractions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

HIGH = -(1 << 27)
"""Keeps the first 26 digits of a float64, as a mask of its bits."""

_SPLIT = float((1 << 27) + 1)
_LARGEST_SPLIT = 2.0**990
_MOST = 1 << 26  # contributors by whose number a sum is divided exactly
_ONE = 2.0**-46  # how far weights of sum one are off, by their own rounding

PIECE = 1 << 12
"""Coordinates whose scratch fits the first caches."""

ROWS = 8
"""Rows of scratch that `add_up` needs."""


@dataclass(frozen=True)
class Plan:
    """How weights are applied: to each value, or once to the sum where all are equal.

    Equal weights of sum one, up to rounding, mean that the sum is divided by their number (``count``, else zero).
    """

    weights: tuple[float, ...]
    equal: bool
    count: int


def plan(weights: Sequence[float]) -> Plan:
    """The plan for weights other than zero."""
    equal, n = len(set(weights)) == 1, len(weights)
    mean = equal and n < _MOST and abs(weights[0] * n - 1) <= _ONE
    return Plan(tuple(weights), equal, n if mean else 0)


def split(weight: float) -> tuple[float, float]:
    """A number as a sum of two of 26 digits each (Veltkamp)."""
    if abs(weight) > _LARGEST_SPLIT:
        scaled = weight * 2.0**-64
        high = _SPLIT * scaled - (_SPLIT * scaled - scaled)
        return high * 2.0**64, (scaled - high) * 2.0**64
    high = _SPLIT * weight - (_SPLIT * weight - weight)
    return high, weight - high


def add_up(xp: Any, pieces: Sequence[Any], given: Plan, work: Any, clean: Callable[[Any], bool]) -> Any:
    """Return a row of ``work`` with the weighted sum of float64 pieces.

    Parameters
    ----------
    xp
        numpy or torch.
    pieces
        n arrays (T,), never written.
    given
        The `plan` of n weights.
    work
        `ROWS` float64 arrays (T,).
    clean
        Whether all values of an array are finite. Where weights are equal and the sum of the bare values overflows,
        that of the weighted ones is taken.
    """
    if not given.equal or len(pieces) == 1:
        return _joined(xp, *_products(xp, pieces, given.weights, work), clean)
    total, error, *spare = work
    xp.add(pieces[0], 0.0, out=total)
    error[:] = 0.0
    for piece in pieces[1:]:
        total, spare[0] = _two_sum(xp, total, piece, error, spare)
    if given.count:
        scaled = _quotient(xp, total, error, given.count, spare)
    else:
        scaled = _scaled(xp, total, error, given.weights[0], spare)
    if clean(scaled):
        return scaled
    kept, rows = scaled, [row for row in (total, error, *spare) if row is not scaled]
    other = _joined(xp, *_products(xp, pieces, given.weights, rows), clean)
    return xp.where(xp.isfinite(kept), kept, other)


def _two_sum(xp: Any, total: Any, value: Any, error: Any, spare: Sequence[Any]) -> tuple[Any, Any]:
    """Return the row of ``total + value``, and the one that is free now; add what is lost to ``error``."""
    fresh, back, lost = spare[:3]
    xp.add(total, value, out=fresh)
    xp.subtract(fresh, total, out=back)
    xp.subtract(fresh, back, out=lost)
    xp.subtract(total, lost, out=lost)
    xp.add(error, lost, out=error)
    xp.subtract(value, back, out=back)
    xp.add(error, back, out=error)
    return fresh, total


def _two_product(xp: Any, value: Any, weight: float, rows: Sequence[Any]) -> None:
    """Write ``weight * value`` and what it lost into two rows; two more are scratch."""
    product, lost, high, low = rows
    first, second = split(weight)
    xp.bitwise_and(value.view(xp.int64), HIGH, out=high.view(xp.int64))
    xp.subtract(value, high, out=low)
    xp.multiply(value, weight, out=product)
    xp.multiply(high, first, out=lost)
    xp.subtract(lost, product, out=lost)
    xp.multiply(high, second, out=high)
    xp.add(lost, high, out=lost)
    xp.multiply(low, first, out=high)
    xp.add(lost, high, out=lost)
    xp.multiply(low, second, out=low)
    xp.add(lost, low, out=lost)


def _products(xp: Any, pieces: Sequence[Any], weights: Sequence[float], work: Any) -> tuple[Any, Any]:
    """Return the rows of the sum of products and of what it lost."""
    total, error, product, lost, *spare = work
    _two_product(xp, pieces[0], weights[0], (total, error, *spare[:2]))
    for piece, weight in zip(pieces[1:], weights[1:], strict=True):
        _two_product(xp, piece, weight, (product, lost, *spare[:2]))
        xp.add(error, lost, out=error)
        total, spare[0] = _two_sum(xp, total, product, error, (spare[0], spare[1], lost))
    return total, error


def _joined(xp: Any, total: Any, error: Any, clean: Callable[[Any], bool]) -> Any:
    """The sum and what it lost; the bare sum where there was an overflow on the way."""
    xp.add(total, error, out=error)
    return error if clean(error) else xp.where(xp.isfinite(error), error, total)


def _quotient(xp: Any, total: Any, error: Any, count: int, spare: Sequence[Any]) -> Any:
    """``(total + error) / count``, rounded once: a quotient, and the quotient of what it left over."""
    quotient, high, product, left = spare[:4]
    divisor = xp.full_like(total[:1], float(count))  # CUDA multiplies with the rounded inverse of a plain number
    xp.divide(total, divisor, out=quotient)
    xp.bitwise_and(quotient.view(xp.int64), HIGH, out=high.view(xp.int64))
    xp.multiply(quotient, divisor, out=product)
    xp.subtract(total, product, out=left)
    xp.add(left, error, out=left)
    xp.multiply(high, divisor, out=error)
    xp.subtract(error, product, out=error)
    xp.subtract(quotient, high, out=high)
    xp.multiply(high, divisor, out=high)
    xp.add(error, high, out=error)
    xp.subtract(left, error, out=left)
    xp.divide(left, divisor, out=left)
    xp.add(quotient, left, out=quotient)
    return quotient


def _scaled(xp: Any, total: Any, error: Any, weight: float, spare: Sequence[Any]) -> Any:
    """``(total + error) * weight``, rounded once."""
    product, lost = spare[:2]
    _two_product(xp, total, weight, spare[:4])
    xp.multiply(error, weight, out=error)
    xp.add(lost, error, out=lost)
    xp.add(product, lost, out=product)
    return product
