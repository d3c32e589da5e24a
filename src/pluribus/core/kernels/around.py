"""The mean of the values nearest to a centre under unequal weights, for one tile.

At each coordinate the values are sorted, and each occupies a stretch of cumulative weight. What is averaged is a window
of a given length of it. With X(p) the value at level p, the window starts at the least p at which
``(X(p) + X(p + share)) / 2`` reaches the centre: further down its upper end is nearer than its lower one. Where both
ends are as far off over a range of p, the means at both ends of that range are averaged. As far off are values whose
distances differ by some units in their last place (`NEAR`): a centre is computed, and rounding must not choose.

Here is the plain version, and `pluribus.core.kernels.pairs` has it compiled, with the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pluribus.core.kernels.tiles import Floats

SLACK = 1e-12
"""Weight below which a value is not in the window: cumulative sums that are equal differ by rounding."""

NEAR = 2.0**-50
"""Difference of distances, relative to values and centre, that is rounding."""

_CACHE = 1 << 20  # bytes of the sorted rows of one piece

Rows = NDArray[np.float64]


def weighted_around(
    views: Sequence[Floats], weights: NDArray[np.float64], centre: Rows, share: float, out: Floats, *, kernel: Any
) -> bool:
    """Write the mean of the share of the weight that lies nearest to ``centre``, at every coordinate.

    Parameters
    ----------
    views : sequence of n arrays (T,)
        The tile, float32 or float64; never written.
    weights : (n,) positive numbers of sum one
    centre : array (T,), float64
    share : float
        Weight that is averaged, in (0, 1].
    out : array (T,), float32 or float64
        Result, between the smallest and the largest value that it averages; zero is +0.0.
    kernel
        `plain` or `compiled`.

    Returns
    -------
    bool
        Whether all values were finite; if False, what ``out`` holds is unspecified.

    """
    if not all(map(kernel.finite, views)):
        return False
    if kernel.NAME == "compiled":
        from pluribus.core.kernels import pairs

        pairs.around(views, weights, centre, (share, SLACK, NEAR), out)
        return True
    length = max(_CACHE // (8 * len(views)), 1 << 10)
    for start in range(0, len(out), length):
        piece = slice(start, start + length)
        tile = np.stack([view[piece] for view in views]).astype(np.float64)
        order = np.argsort(tile, axis=0, kind="stable")
        _around(np.take_along_axis(tile, order, axis=0), weights[order], centre[piece], share, out[piece])
    return True


def _around(values: Rows, weights: Rows, centre: Rows, share: float, out: Floats) -> None:
    """The steps that `pairs` compiles, on values sorted along the first axis."""
    ends = np.cumsum(weights, axis=0)
    low, high = _starts(values, ends, centre, share)
    mean = _window_mean(values, ends, low, share)
    if (high != low).any():
        mean = np.where(high != low, 0.5 * mean + 0.5 * _window_mean(values, ends, high, share), mean)
    with np.errstate(over="ignore"):
        out[...] = mean
    out += 0.0  # after rounding, which makes zeros too


def window_shares(values: Rows, weights: Rows, centre: Rows, share: float) -> Rows:
    """What each of the sorted values, shape (n, T), counts for in that mean; each column has sum one."""
    ends = np.cumsum(weights, axis=0)
    both = [_covers(ends, low, share) for low in _starts(values, ends, centre, share)]
    return np.asarray(sum(0.5 * cover / cover.sum(axis=0) for cover in both))


def _starts(values: Rows, ends: Rows, centre: Rows, share: float) -> tuple[Rows, Rows]:
    """The least and the greatest level at which the window may start.

    The i-th value is left out while the other end of the window is a value j with ``(x_i + x_j) / 2`` below the centre;
    or, for the greatest level, as far from it. So far the window goes, or to the end of its own stretch.
    """
    halves = 0.5 * values
    slack = NEAR * np.abs(values) + NEAR * np.abs(centre)
    with np.errstate(over="ignore"):  # both bounds fall with i, whatever rounding does
        lower, upper = (np.minimum.accumulate(bound - halves, axis=0) for bound in (centre - slack, centre + slack))
    return _start(halves, ends, lower, share, np.less), _start(halves, ends, upper, share, np.less_equal)


def _start(
    halves: Rows, ends: Rows, bounds: Rows, share: float, below: Callable[[Rows, Rows], NDArray[np.bool_]]
) -> Rows:
    columns, level = np.arange(halves.shape[1]), np.zeros(halves.shape[1])
    for bound, end in zip(bounds, ends, strict=True):
        count = np.count_nonzero(below(halves, bound), axis=0)
        reach = np.where(count > 0, ends[count - 1, columns], 0.0) - share
        np.maximum(level, np.minimum(end, reach), out=level)
        if (reach <= end).all():
            break
    return level


def _covers(ends: Rows, low: Rows, share: float) -> Rows:
    """How much of each stretch of weight lies in a window."""
    cover = np.minimum(ends, low + share)
    cover -= np.maximum(np.vstack([np.zeros((1, ends.shape[1])), ends[:-1]]), low)
    return np.where(cover > SLACK, cover, 0.0)


def _window_mean(values: Rows, ends: Rows, low: Rows, share: float) -> Rows:
    total, covered, least, most = np.zeros((4, len(low)))
    for value, cover in zip(values, _covers(ends, low, share), strict=True):
        inside = cover > 0
        np.copyto(least, value, where=inside & (covered == 0))
        np.copyto(most, value, where=inside)
        covered += cover
        total += cover * value
    # Rounding must not push a mean outside what it averages.
    return np.clip(total / covered, least, most)
