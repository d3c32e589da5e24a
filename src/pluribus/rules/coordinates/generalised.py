"""Means of transformed values, at each coordinate: what the power mean, log-sum-exp and quasi-arithmetic means share.

Each has the form ``g(sum_i w_i f(x_i))`` with g the inverse of a monotone f. Sums are in float64, of numbers relative
to the greatest or the least value, so that nothing overflows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pluribus.core.dtypes import Array
from pluribus.core.errors import RuleError
from pluribus.core.passes import OutsideDomain, TileRule

Function = Callable[[Array], Array]

# Powers that have a function of their own, and its inverse; of float32 values neither leaves the range of float64.
_PLAIN: dict[float, tuple[Any, Any]] = {
    2.0: (np.square, np.sqrt),
    0.5: (np.sqrt, np.square),
    -1.0: (np.reciprocal, np.reciprocal),
}


def refuse_negative(views: Sequence[Array], what: str) -> None:
    """Raise `OutsideDomain` at the first view with a negative value."""
    for position, view in enumerate(views):
        smallest = view.min(initial=0.0)
        if smallest < 0:
            raise OutsideDomain(position, f"holds {smallest:g}; {what}")


def power(weights: Array, p: float, what: str) -> TileRule:
    """``(sum_i w_i x_i^p)^(1/p)`` of non-negative values for a finite p, with its limit at p = 0.

    Through ``m exp(log1p(sum_i w_i expm1(p log(x_i / m))) / p)``, m the greatest value (the least, for negative p),
    which keeps full precision for every p, however small or large. A zero makes the mean zero where p <= 0.
    """

    def combine(kernel: Any, views: Sequence[Array], out: Array) -> bool:
        if p in _PLAIN and views[0].dtype == np.float32:
            if not all(map(kernel.finite, views)):
                return False
            refuse_negative(views, what)
            _narrow(views, weights, p, out)
            return True
        scale, total = np.empty(len(out)), np.zeros(len(out))
        if not kernel.ranks(views, [0 if p < 0 else len(views) - 1], [scale]):
            return False
        refuse_negative(views, what)
        with np.errstate(all="ignore"):
            for view, weight in zip(views, weights, strict=True):
                part = np.divide(view, scale, dtype=np.float64)
                np.log(part, out=part)
                if p:
                    part *= p
                    np.expm1(part, out=part)
                part *= weight
                total += part
            mean = np.exp(np.log1p(total) / p if p else total) * scale
        out[...] = np.where(scale == 0, 0.0, mean)
        return True

    return combine


def _narrow(views: Sequence[Array], weights: Array, p: float, out: Array) -> None:
    """The power mean of float32 values, whose powers need no scale."""
    f, inverse = _PLAIN[p]
    total, part = np.zeros(len(out)), np.empty(len(out))
    with np.errstate(divide="ignore"):
        for view, weight in zip(views, weights, strict=True):
            f(view, out=part, dtype=np.float64)
            part *= weight
            total += part
        inverse(total, out=total)
    out[...] = total


def odd_power(weights: Array, p: int) -> TileRule:
    """``(sum_i w_i x_i^p)^(1/p)`` for an odd whole p, of values of any sign: the result has the sum's sign."""

    def combine(kernel: Any, views: Sequence[Array], out: Array) -> bool:
        low, high = np.empty(len(out)), np.empty(len(out))
        if not kernel.ranks(views, [0, len(views) - 1], [low, high]):
            return False
        scale = np.maximum(-low, high)
        total = np.zeros(len(out))
        with np.errstate(all="ignore"):
            for view, weight in zip(views, weights, strict=True):
                total += weight * np.divide(view, scale, dtype=np.float64) ** p
            mean = np.copysign(np.abs(total) ** (1 / p), total) * scale
        out[...] = np.where(scale == 0, 0.0, mean) + 0.0
        return True

    return combine


def exponential(weights: Array, rate: float) -> TileRule:
    """``log(sum_i w_i exp(rate x_i)) / rate`` for a finite rate other than zero, shifted so that nothing overflows."""

    def combine(kernel: Any, views: Sequence[Array], out: Array) -> bool:
        shift, total = np.empty(len(out)), np.zeros(len(out))
        if not kernel.ranks(views, [len(views) - 1 if rate > 0 else 0], [shift]):
            return False
        with np.errstate(all="ignore"):
            for view, weight in zip(views, weights, strict=True):
                part = np.subtract(view, shift, dtype=np.float64)
                part *= rate
                np.expm1(part, out=part)
                part *= weight
                total += part
            out[...] = shift + np.log1p(total) / rate
        return True

    return combine


def transformed(weights: Array, f: Function, inverse: Function, what: str) -> TileRule:
    """``inverse(sum_i w_i f(x_i))`` for a monotone f that is finite wherever it has a meaning; ``what`` says where."""

    def combine(kernel: Any, views: Sequence[Array], out: Array) -> bool:
        low, high = np.empty(len(out)), np.empty(len(out))
        if not kernel.ranks(views, [0, len(views) - 1], [low, high]):
            return False
        total = np.zeros(len(out))
        with np.errstate(all="ignore"):
            for position, (view, weight) in enumerate(zip(views, weights, strict=True)):
                values = np.asarray(f(view.astype(np.float64)), dtype=np.float64)
                good = np.isfinite(values)
                if not good.all():
                    raise OutsideDomain(position, f"holds {view[~good][0]:g}; {what}")
                total += weight * values
            mean = np.asarray(inverse(total), dtype=np.float64)
        _check_between(mean, low, high)
        out[...] = np.clip(mean, low, high) + 0.0
        return True

    return combine


def _check_between(mean: Array, low: Array, high: Array) -> None:
    """Raise `RuleError` where a mean lies outside of its values by more than rounding."""
    slack = 1e-6 * np.maximum(np.abs(low), np.abs(high))
    with np.errstate(over="ignore"):
        good = (mean >= low - slack) & (mean <= high + slack)
    if not good.all():
        k = int(np.flatnonzero(~good)[0])
        raise RuleError(
            f"the mean of values from {low[k]:g} to {high[k]:g} came out as {mean[k]:g}: f must be monotone where the "
            "values lie, and inverse its inverse; both take and give arrays"
        )
