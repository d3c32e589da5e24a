"""Weights: checked, normalised, and measured. They work on n numbers, never on the data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pluribus.core.dtypes import Array
from pluribus.core.errors import WeightError, listing

_LEAST = 2.0**-1000  # of shares whose inverse is a number, and the inverse of sums of which, too


def check(weights: Any, n: int, labels: Sequence[str] | None = None) -> Array:
    """Weights as float64 of shape (n,) or (k, n): finite and non-negative, each row with something above zero.

    None is uniform. A mapping or any other order-free thing is refused: weights go with contributors by position.

    Raises
    ------
    WeightError
        Wrong length, not numbers, NaN or Inf, negative, or all zero; the message names the contributor.
    """
    if weights is None:
        return np.ones(n)
    if isinstance(weights, np.ma.MaskedArray):
        raise WeightError("weights are a masked array, and masks would be lost; give zeros where they are masked")
    try:
        array = np.asarray(weights.detach() if hasattr(weights, "detach") else weights)
        if array.dtype.kind not in "biuf":
            raise TypeError
        with np.errstate(over="ignore"):  # of a longdouble
            array = array.astype(np.float64)
    except (TypeError, ValueError):
        raise WeightError(f"weights must be {n} real numbers, not {type(weights).__name__}") from None
    if array.ndim not in (1, 2) or array.shape[-1] != n:
        raise WeightError(f"weights have shape {array.shape}; expected ({n},) or (k, {n}), one for each contributor")
    if array.ndim == 2 and not len(array):
        raise WeightError("weights have no rows: each of k rows gives one result")
    for bad, what in ((~np.isfinite(array), "not finite"), (array < 0, "negative")):
        if bad.any():
            told = [
                f"{labels[i] if labels else f'contributor {i}'}: {array[..., i].flat[0]:g}"
                for i in np.flatnonzero(bad.reshape(-1, n).any(axis=0)).tolist()
            ]
            raise WeightError(f"weights must be finite and not negative; {what} for {listing(told)}")
    if not (array > 0).any(axis=-1).all():
        raise WeightError("all weights are zero: nobody is left to combine; give some contributor a positive weight")
    return array


def normalise(weights: Array) -> Array:
    """Weights with sum one along the last axis, safe for huge and for denormal ones. Shape is kept."""
    scaled = weights / weights.max(axis=-1, keepdims=True)
    return np.asarray(scaled / scaled.sum(axis=-1, keepdims=True))


def lost_are_zero(weights: Array) -> Array:
    """Weights of which those are zero whose share is, up to what float64 can divide by: they are as good as absent."""
    return np.where(normalise(weights) < _LEAST, 0.0, weights)


def uniform(weights: Array) -> bool:
    """Whether all weights are equal, up to rounding."""
    return bool(np.ptp(weights) <= 1e-12 * weights.max())


def effective_size(weights: Any) -> float:
    """Effective number of contributors, ``(sum |w|)^2 / sum w^2`` (Kish): n for equal weights, 1 for one alone."""
    magnitudes = np.abs(np.asarray(weights, dtype=np.float64))
    largest = magnitudes.max(initial=0.0)
    if not largest > 0:
        return 0.0
    magnitudes = magnitudes / largest
    return float(magnitudes.sum() ** 2 / (magnitudes**2).sum())


def entropy(weights: Any) -> float:
    """Shannon entropy of normalised weights, in nats: log(n) for equal weights, 0 for one alone."""
    shares = normalise(check(weights, len(weights)))
    shares = shares[shares > 0]
    return float(-(shares * np.log(shares)).sum())


def floored(weights: Any, floor: float) -> Array:
    """Normalised weights of which none is below ``floor``: what is missing is taken from the others in proportion.

    Parameters
    ----------
    weights
        n non-negative numbers.
    floor
        Least share of a contributor, in [0, 1/n].
    """
    shares = normalise(check(weights, len(weights)))
    if not 0 <= floor <= 1 / len(shares):
        raise WeightError(f"floor must lie in [0, 1/n] = [0, {1 / len(shares):g}], not {floor:g}")
    raised = np.zeros(len(shares), dtype=bool)
    while True:
        low = (shares < floor) & ~raised
        if not low.any():
            return shares
        raised |= low
        left = 1 - floor * raised.sum()
        rest = shares[~raised]
        shares = np.where(raised, floor, shares)
        if rest.size:
            shares[~raised] = rest / rest.sum() * left
