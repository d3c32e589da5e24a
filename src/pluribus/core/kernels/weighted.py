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


def covered_mean(values: Any, weights: Any, low: float, high: float, out: Any, *, xp: Any = np) -> None:
    """Mean of finite values in a given order between two levels of cumulative weight; see `weighted_middle`.

    ``values`` and ``weights`` have shape (n, T), in the order in which the weight accumulates; ``out`` has T values.
    ``xp`` is the module of all three, numpy or torch.
    """
    values = xp.asarray(values, dtype=xp.float64)
    ends = xp.cumsum(weights, axis=0)
    ends[-1] = 1.0
    starts = xp.vstack([xp.zeros_like(ends[:1]), ends[:-1]])
    if high - low <= _SLACK:
        cover = xp.asarray((starts <= low + _SLACK) & (ends >= low - _SLACK), dtype=xp.float64)
        # A level inside a stretch touches that stretch alone; one at a border touches the two beside it.
        inside = (starts < low - _SLACK) & (ends > low + _SLACK)
        cover = xp.where(inside.any(axis=0), xp.asarray(inside, dtype=xp.float64), cover)
    else:
        cover = xp.clip(xp.clip(ends, None, high) - xp.clip(starts, low, None), 0.0, None)
    cover /= cover.sum(axis=0)
    mean = xp.einsum("ij,ij->j", cover, values)
    # Rounding must not push a mean outside what it averages.
    touched = cover > 0
    least = xp.amin(xp.where(touched, values, xp.inf), axis=0)
    most = xp.amax(xp.where(touched, values, -xp.inf), axis=0)
    with np.errstate(over="ignore"):
        out[...] = xp.clip(mean, least, most)
    out += 0.0  # after rounding, which makes zeros too
