"""Order statistics of very many contributors: each coordinate's values are sorted, as no network of that size fits.

A comparator network of n wires has some n (log2 n)^2 / 4 steps, which are kept; beyond `MOST_WIRES` sorting is faster
too (measured with numpy 2.4, AVX-512: as fast as compiled networks from n = 1000 on, twice as fast at 4000). A single
rank and the mean of two have the bits of the network. The mean of more is added up in ascending order, so it is the
same for every backend on a CPU, and within rounding of the network's, which adds in its own order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from pluribus.core.kernels.tiles import SHRINK

MOST_WIRES = 1024
"""Contributors up to which a network finds order statistics."""

_ROOM = 1 << 23  # bytes of the values that are sorted at once; the scratch beside them is five times that at most


def width(n: int, itemsize: int) -> int:
    """How many coordinates of n contributors are sorted at once."""
    return max(1, _ROOM // (n * itemsize))


def tables(xp: Any, views: Sequence[Any]) -> Iterator[tuple[slice, Any]]:
    """Give the place of a piece and its values, shape (w, n) in rows that lie together, one piece after the other."""
    n, size = len(views), len(views[0])
    step = width(n, views[0].dtype.itemsize)
    for start in range(0, size, step):
        place = slice(start, min(start + step, size))
        rows = xp.concatenate([view[place] for view in views]).reshape(n, -1)
        yield place, np.ascontiguousarray(rows.T) if xp is np else rows.T.contiguous()


def middle(xp: Any, ordered: Any, low: int, high: int) -> Any:
    """Mean of the ranks low..high-1 of sorted finite values, shape (w, n): the steps of `plain._mean`."""
    count, held = high - low, ordered[:, low:high]
    if count == 1:
        return held[:, 0]
    wide = ordered.dtype == xp.float64
    divisor = xp.full_like(xp.empty_like(held[:1, 0], dtype=xp.float64), float(count))  # no inverse, on any device
    total = xp.cumsum(held, 1, dtype=xp.float64)[:, -1]
    mean = total * 0.5 if count == 2 else total / divisor
    if wide and not bool(xp.isfinite(total).all()):  # the sum overflowed somewhere, its mean cannot
        small = xp.cumsum(held * SHRINK, 1)[:, -1] / divisor / SHRINK
        mean = xp.where(xp.isfinite(total), mean, small)
    if wide and count > 2:
        mean = xp.minimum(xp.maximum(mean, held[:, 0]), held[:, -1])
    return mean
