"""Order statistics under unequal weights, for one tile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

_SLACK = 1e-12  # weights of sum one reach a half up to rounding


def weighted_middle(views: Sequence[Array], weights: Array, low: float, high: float, out: Array) -> bool:
    """Mean of the values between two levels of cumulative weight, at each coordinate.

    Sort the values with their weights; each occupies a stretch of cumulative weight. The result averages the values
    by how much of ``[low, high]`` their stretches cover. With ``low == high`` it is the weighted quantile, and the
    mean of two neighbours when the level lies exactly between their stretches.

    Parameters
    ----------
    views
        n one-dimensional arrays of T values.
    weights
        n positive weights of sum one.
    low, high
        Levels in [0, 1].
    out
        T values, written.

    Returns
    -------
    bool
        Whether all values were finite.
    """
    tile = np.stack(views)
    if not np.isfinite(tile).all():
        return False
    order = np.argsort(tile, axis=0, kind="stable")
    covered_mean(np.take_along_axis(tile, order, axis=0), weights[order], low, high, out)
    return True


def covered_mean(values: Array, weights: Array, low: float, high: float, out: Array) -> None:
    """Mean of finite values in a given order between two levels of cumulative weight; see `weighted_middle`.

    ``values`` and ``weights`` have shape (n, T), in the order in which the weight accumulates; ``out`` has T values.
    """
    values = values.astype(np.float64)
    ends = np.cumsum(weights, axis=0)
    ends[-1] = 1.0
    starts = np.vstack([np.zeros(ends.shape[1]), ends[:-1]])
    if high - low <= _SLACK:
        cover = ((starts <= low + _SLACK) & (ends >= low - _SLACK)).astype(np.float64)
        # A level inside a stretch touches that stretch alone; one at a border touches the two beside it.
        inside = (starts < low - _SLACK) & (ends > low + _SLACK)
        cover = np.where(inside.any(axis=0), inside, cover)
    else:
        cover = np.clip(np.minimum(ends, high) - np.maximum(starts, low), 0.0, None)
    cover /= cover.sum(axis=0)
    mean = np.einsum("ij,ij->j", cover, values)
    # Rounding must not push a mean outside what it averages.
    touched = cover > 0
    least = np.where(touched, values, np.inf).min(axis=0)
    most = np.where(touched, values, -np.inf).max(axis=0)
    out[...] = np.clip(mean, least, most) + 0.0
