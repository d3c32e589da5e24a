"""Order statistics under unequal weights, for one tile."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pluribus.core.kernels import many

Array = NDArray[Any]

_SLACK = 1e-12  # weights of sum one reach a half up to rounding
_CACHE = 1 << 20  # bytes of the rows of one piece
_NUMBER = np.int64((1 << 29) - 1)


class Ranks(Protocol):
    """The sorting of a kernel; see `plain.ranks`."""

    def __call__(self, views: Sequence[Array], wanted_ranks: Sequence[int], outs: Sequence[Array]) -> bool:
        """Write order statistics; whether all values were finite."""


WeightedMiddle = Callable[[Sequence[Array], ArrayLike, float, float, Array], bool]


def weighted_middle_by(ranks: Ranks) -> WeightedMiddle:
    """The function `weighted_middle` of a kernel, which sorts float32 values by the kernel's own network."""

    def weighted_middle(views: Sequence[Array], weights: ArrayLike, low: float, high: float, out: Array) -> bool:
        """Write the mean of the values between two levels of cumulative weight, at each coordinate.

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
        given = np.asarray(weights, np.float64)
        if views[0].dtype == np.float32:
            return _narrow(ranks, views, given, (low, high), out)
        step = len(out) if len(views) <= many.MOST_WIRES else many.width(len(views), 8)
        for start in range(0, len(out), step or 1):
            tile = np.stack([view[start : start + step] for view in views])
            if not np.isfinite(tile).all():
                return False
            order = np.argsort(tile, axis=0, kind="stable")
            place = out[start : start + step]
            covered_mean(np.take_along_axis(tile, order, axis=0), given[order], low, high, place)
        return True

    return weighted_middle


def _narrow(ranks: Ranks, views: Sequence[Array], weights: Array, levels: tuple[float, float], out: Array) -> bool:
    """`weighted_middle` of float32 values.

    As float64 they end in 29 bits of zeros. There each carries the number of its contributor through the sorting
    network, which orders equal values by it, and no values beyond. Infinity with a number is no number, and is found.
    """
    n, size = len(views), len(out)
    if n > many.MOST_WIRES:
        return _of_many(views, weights, levels, out)
    length = min(size, max(_CACHE // (n * 8), 1 << 11))
    keys, ordered = np.empty((n, length)), np.empty((n, length))
    walk = _to_level if levels[1] - levels[0] <= _SLACK else _between_levels
    for start in range(0, size, length):
        width = min(length, size - start)
        for number, view in enumerate(views):
            keys[number, :width] = view[start : start + width]
            keys.view(np.int64)[number, :width] |= number
        if not ranks(list(keys[:, :width]), range(n), list(ordered[:, :width])):
            return False
        walk(_unpacked(ordered[:, :width], weights), levels, out[start : start + width])
    return True


def _of_many(views: Sequence[Array], weights: Array, levels: tuple[float, float], out: Array) -> bool:
    """`_narrow` for more contributors than a network has wires: the same steps, for all ranks at once."""
    for place, narrow in many.tables(np, views):
        if not np.isfinite(narrow).all():
            return False
        table = narrow.astype(np.float64)
        bits = table.view(np.int64)
        bits |= np.arange(len(views))
        table.sort(axis=1)
        held = weights[bits & _NUMBER]
        bits &= ~_NUMBER
        out[place] = (_at_level if levels[1] - levels[0] <= _SLACK else _in_between)(table, held, levels)
    out += 0.0
    return True


def _at_level(values: Array, weights: Array, levels: tuple[float, float]) -> Array:
    """`_to_level` of values and weights of shape (w, n)."""
    reached, rows = np.cumsum(weights, axis=1), np.arange(len(values))
    at = np.argmax(reached >= levels[0] - _SLACK, axis=1)
    found, following = values[rows, at], values[rows, np.minimum(at + 1, values.shape[1] - 1)]
    exact = (reached[rows, at] <= levels[0] + _SLACK) & (at + 1 < values.shape[1])
    return np.where(exact, 0.5 * found + 0.5 * following, found)


def _in_between(values: Array, weights: Array, levels: tuple[float, float]) -> Array:
    """`_between_levels` of values and weights of shape (w, n)."""
    low, high = levels
    reached, rows = np.cumsum(weights, axis=1), np.arange(len(values))
    cover = np.minimum(reached, high)
    cover[:, 1:] -= np.maximum(reached[:, :-1], low)
    cover[:, 0] -= max(0.0, low)
    np.maximum(cover, 0.0, out=cover)
    touched = cover > 0
    least = values[rows, np.argmax(touched, axis=1)]
    most = values[rows, values.shape[1] - 1 - np.argmax(touched[:, ::-1], axis=1)]
    covered = np.cumsum(cover, axis=1)[:, -1]
    cover *= values
    return np.asarray(np.clip(np.cumsum(cover, axis=1)[:, -1] / covered, least, most))


def _unpacked(ordered: Array, weights: Array) -> Iterator[tuple[Array, Array]]:
    """Values and weights of one rank after the other."""
    bits = ordered.view(np.int64)
    for row in range(len(ordered)):
        weight = weights[bits[row] & _NUMBER]
        bits[row] &= ~_NUMBER
        yield ordered[row], weight


def _to_level(ranked: Iterable[tuple[Array, Array]], levels: tuple[float, float], out: Array) -> None:
    """The value at which the weight reaches a level, or the mean of it and the next where it reaches it exactly."""
    level = levels[0]
    reached, found = np.zeros(len(out)), np.empty(len(out))
    done, exact = np.zeros(len(out), dtype=bool), np.zeros(len(out), dtype=bool)
    for value, weight in ranked:
        if exact.any():
            np.copyto(found, 0.5 * found + 0.5 * value, where=exact)
        if done.all():
            break
        reached += weight
        now = (reached >= level - _SLACK) & ~done
        np.copyto(found, value, where=now)
        exact = now & (reached <= level + _SLACK)
        done |= now
    out[...] = found
    out += 0.0  # after rounding, which makes zeros too


def _between_levels(ranked: Iterable[tuple[Array, Array]], levels: tuple[float, float], out: Array) -> None:
    """The mean of values by how much of the weight between two levels is theirs."""
    low, high = levels
    reached, total, covered = np.zeros(len(out)), np.zeros(len(out)), np.zeros(len(out))
    least, most = np.empty(len(out)), np.empty(len(out))
    for value, weight in ranked:
        start = np.maximum(reached, low)
        reached += weight
        cover = np.minimum(reached, high)
        cover -= start
        np.maximum(cover, 0.0, out=cover)
        touched = cover > 0
        np.copyto(least, value, where=touched & (covered == 0))
        np.copyto(most, value, where=touched)
        covered += cover
        cover *= value
        total += cover
    total /= covered
    # Rounding must not push a mean outside what it averages.
    out[...] = np.clip(total, least, most)
    out += 0.0


def covered_mean(values: Any, weights: Any, low: float, high: float, out: Any, *, xp: Any = np) -> None:
    """Mean of finite values in a given order between two levels of cumulative weight; see `weighted_middle_by`.

    ``values`` and ``weights`` have shape (n, T), in the order in which the weight accumulates; ``out`` has T values.
    ``xp`` is the module of all three, numpy or torch.
    """
    values = xp.asarray(values, dtype=xp.float64)
    cover = covered_shares(weights, low, high, xp=xp)
    mean = xp.einsum("ij,ij->j", cover, values)
    # Rounding must not push a mean outside what it averages.
    touched = cover > 0
    least = xp.amin(xp.where(touched, values, xp.inf), axis=0)
    most = xp.amax(xp.where(touched, values, -xp.inf), axis=0)
    with np.errstate(over="ignore"):
        out[...] = xp.clip(mean, least, most)
    out += 0.0  # after rounding, which makes zeros too


def covered_shares(weights: Any, low: float, high: float, *, xp: Any = np) -> Any:
    """How much of what lies between two levels of cumulative weight is whose, shape (n, T), each column of sum one.

    ``weights``, shape (n, T), are in the order in which they accumulate.
    """
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
    return cover
