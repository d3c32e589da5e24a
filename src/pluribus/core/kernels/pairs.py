"""Compiled loops over sorted values that know whose they are: the bits of their plain versions, faster.

A comparator swaps values together with the numbers of their contributors, and orders equal values by these, as a stable
sort does. Nothing may be contracted or reordered (no fastmath), as in `compiled`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from pluribus.core.kernels.compiled import _addresses, _compare, _tables
from pluribus.core.kernels.jit import jit, pointer
from pluribus.core.kernels.networks import middle_network, odd_even_merge_sort
from pluribus.core.kernels.tiles import FLOAT64, Floats, check

__all__ = ["around", "lines"]

_ROOM = 1 << 16  # bytes of the values and numbers of one piece


def _width(n: int, room: int) -> int:
    """Coordinates of a piece of n rows of values and numbers: whole vectors, few enough for the cache."""
    return min(max(room // (16 * n) // 16 * 16, 32), 512)


def around(
    views: Sequence[Floats],
    weights: NDArray[np.float64],
    centre: Floats,
    levels: tuple[float, float, float],
    out: Floats,
) -> None:
    """Write the mean around a centre of finite values; see `around.weighted_around`. ``levels``: share, slack, near."""
    n, _, dtype = check(views, (out,))
    steps, _ = _tables(odd_even_merge_sort(n))
    addresses, _alive = _addresses(views)
    target = out if out.flags.carray else np.empty(out.size, out.dtype)
    rows = np.empty((n, _width(n, _ROOM)), dtype)
    numbers = np.empty(rows.shape, np.int32 if dtype.itemsize == 4 else np.int64)
    _around(addresses, steps, (rows, numbers, (np.empty(n), np.empty(n))), (weights, centre, levels), target)
    if target is not out:
        np.copyto(out, target)


def lines(tile: Floats, scales: tuple[float, NDArray[np.float64], float]) -> tuple[Floats, Floats]:
    """Confidence in each value of a tile, and the line at its rank, both (n, T).

    The values are float64, three rows at least, small enough that their differences are numbers; see
    `pluribus.rules.robust.residual_reweighting.line_weights`. ``scales``: what the median residual is multiplied by;
    the width of full confidence of each rank in units of that, shape (n,); and the share of the largest value below
    which a residual is rounding.
    """
    n, size = tile.shape
    width = _width(n, _ROOM)
    sort, _ = _tables(odd_even_merge_sort(n))
    inner = _tables(middle_network(n - 1, (n - 2) // 2, (n - 1) // 2 + 1))
    outer = _tables(middle_network(n, (n - 1) // 2, n // 2 + 1))
    scale = _tables(middle_network(n, 1 + (n - 2) // 2, 2 + (n - 1) // 2))
    confidence, line = np.empty((2, n, size))
    # Arrays of their own: rows of an array of three axes would be strided to the compiler, which then uses no vectors.
    tables = tuple(np.empty((n, width)) for _ in range(4))
    work = tables, np.empty((n, width), np.int64), tuple(np.empty(width) for _ in range(4))
    _lines(np.ascontiguousarray(tile, FLOAT64), (sort, inner, outer, scale), scales, work, (confidence, line))
    return confidence, line


@jit
def _sort(steps: Any, rows: Any, numbers: Any, width: Any) -> None:
    for s in range(steps.shape[0]):
        a, b = rows[steps[s, 0], :width], rows[steps[s, 1], :width]
        p, q = numbers[steps[s, 0], :width], numbers[steps[s, 1], :width]
        for k in range(width):
            x, y, i, j = a[k], b[k], p[k], q[k]
            swap = (y < x) | ((y == x) & (j < i))
            a[k] = y if swap else x
            b[k] = x if swap else y
            p[k] = j if swap else i
            q[k] = i if swap else j


@jit
def _start(values: Any, ends: Any, centre: Any, levels: Any, equal: Any) -> Any:
    """Level at which the window starts, and whether two values met were as far from the centre."""
    share, _, near = levels
    n = values.size
    level, tied, count = 0.0, False, n
    lower, upper = np.inf, np.inf
    for i in range(n):
        half, slack = 0.5 * values[i], near * abs(values[i]) + near * abs(centre)
        lower, upper = min(lower, centre - slack - half), min(upper, centre + slack - half)
        while count > 0:
            other = 0.5 * values[count - 1]
            alike = lower <= other <= upper
            tied |= alike
            if other < lower or (equal and alike):
                break
            count -= 1
        reach = (ends[count - 1] if count > 0 else 0.0) - share
        level = max(level, min(ends[i], reach))
        if reach <= ends[i]:
            break
    return level, tied


@jit
def _window_mean(values: Any, ends: Any, low: Any, levels: Any) -> Any:
    share, slack, _ = levels
    high, reached = low + share, 0.0
    total, covered, least, most = 0.0, 0.0, 0.0, 0.0
    for i in range(values.size):
        cover = min(ends[i], high) - max(reached, low)
        reached = ends[i]
        if cover > slack:
            least = values[i] if covered == 0.0 else least
            most = values[i]
            covered += cover
            total += cover * values[i]
        elif reached >= high:
            break
    return min(max(total / covered, least), most)


@jit
def _around(addresses: Any, steps: Any, work: Any, given: Any, out: Any) -> None:
    (rows, numbers, (values, ends)), (weights, centre, levels) = work, given
    n, block = rows.shape
    for start in range(0, out.size, block):
        width = min(block, out.size - start)
        for i in range(n):
            source = numba.carray(pointer(addresses[i] + np.uint64(start * rows.itemsize)), (width,), rows.dtype)
            for k in range(width):
                rows[i, k] = source[k]
                numbers[i, k] = i
        _sort(steps, rows, numbers, width)
        for k in range(width):
            reached = 0.0
            for i in range(n):
                values[i] = rows[i, k]
                reached += weights[numbers[i, k]]
                ends[i] = reached
            middle = centre[start + k]
            low, tied = _start(values, ends, middle, levels, False)
            mean = _window_mean(values, ends, low, levels)
            if tied:
                high, _ = _start(values, ends, middle, levels, True)
                if high != low:
                    mean = 0.5 * mean + 0.5 * _window_mean(values, ends, high, levels)
            out[start + k] = mean
        piece = out[start : start + width]
        zero = piece.dtype.type(0)
        for k in range(width):
            piece[k] += zero


@jit
def _median(network: Any, rows: Any, out: Any) -> None:
    """The mean of one or two middle rows, at each coordinate; the rows end in any order."""
    steps, wires = network
    width = out.size
    _compare(steps, rows, width)
    low, high = rows[wires[0], :width], rows[wires[wires.size - 1], :width]
    if wires.size == 1:
        for k in range(width):
            out[k] = low[k] + 0.0
    else:
        for k in range(width):
            out[k] = (low[k] + high[k]) * 0.5 + 0.0


@jit
def _slopes(inner: Any, rows: Any, slopes: Any, medians: Any, width: Any) -> None:
    """The median slope from each rank to the others; ``slopes`` is room for them."""
    n = rows.shape[0]
    for i in range(n):
        for j in range(n - 1):
            other = j if j < i else j + 1
            gap = float(other - i)
            here, there, into = rows[i, :width], rows[other, :width], slopes[j, :width]
            for k in range(width):
                into[k] = (there[k] - here[k]) / gap
        _median(inner, slopes, medians[i, :width])


@jit
def _lines(tile: Any, networks: Any, scales: Any, work: Any, outs: Any) -> None:
    confidence, line = outs
    sort, inner, outer, middle = networks
    factor, most, rounding = scales
    (rows, slopes, medians, away), numbers, (slope, start, tau, largest) = work
    n, size = tile.shape
    block = rows.shape[1]
    for first in range(0, size, block):
        width = min(block, size - first)
        for i in range(n):
            for k in range(width):
                rows[i, k] = tile[i, first + k]
                numbers[i, k] = i
        _sort(sort, rows, numbers, width)
        _slopes(inner, rows, slopes, medians, width)
        _median(outer, medians, slope[:width])
        for i in range(n):
            for k in range(width):
                medians[i, k] = rows[i, k]
        _median(outer, medians, start[:width])
        for k in range(width):
            start[k] -= slope[k] * (n - 1) / 2
            largest[k] = max(abs(rows[0, k]), abs(rows[n - 1, k]))
        for i in range(n):
            for k in range(width):
                gap = abs(rows[i, k] - (start[k] + slope[k] * i))
                gap = 0.0 if gap <= rounding * largest[k] else gap
                away[i, k] = slopes[i, k] = gap
        _median(middle, slopes, tau[:width])
        for k in range(width):
            tau[k] *= factor
        for i in range(n):
            for k in range(width):
                full, gap = most[i] * tau[k], away[i, k]
                owner = numbers[i, k]
                confidence[owner, first + k] = 1.0 if gap <= full else full / gap
                line[owner, first + k] = start[k] + slope[k] * i
