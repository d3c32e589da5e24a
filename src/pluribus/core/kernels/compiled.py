"""The kernels as compiled loops (numba): the bits of `plain`, faster.

One loop nest serves every number of contributors: it takes the addresses of the views and interprets the network's
steps over rows that fit the first- or second-level cache.  So each kernel is compiled once for each dtype, not for each
n, and kept in numba's cache.  No step may be contracted to a fused multiply-add or reordered (no fastmath): the bits
must be those of `plain`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numba
import numpy as np
from numpy.typing import ArrayLike, NDArray

from pluribus.core.errors import ContributionError
from pluribus.core.kernels import compensated, many, plain
from pluribus.core.kernels.jit import jit, pointer
from pluribus.core.kernels.networks import BOTH, LOW, Network, middle_network, rank_network
from pluribus.core.kernels.plain import cross, finite, gram, norms
from pluribus.core.kernels.sums import all_finite, wide_sum
from pluribus.core.kernels.tiles import FLOAT64, SHRINK, Floats, check, scratch, store, weigh
from pluribus.core.kernels.weighted import weighted_middle_by

__all__ = ["NAME", "cross", "finite", "gram", "middle", "norms", "ranks", "weighted_middle", "weighted_sum"]

NAME = "compiled"

_ROW = 1 << 12  # bytes of one row of a piece
_SUM_PIECE = 1 << 11  # coordinates

_Bits = tuple[type[np.unsignedinteger[Any]], int, int]
_BITS: dict[int, _Bits] = {
    4: (np.uint32, 0x7FFF_FFFF, 0x7F80_0000),
    8: (np.uint64, 0x7FFF_FFFF_FFFF_FFFF, 0x7FF0_0000_0000_0000),
}
"""By item size: the integer of that size, the mask of all but the sign, and the bits of infinity."""


def middle(views: Sequence[Floats], low: int, high: int, out: Floats) -> bool:
    """Write the mean of the ranks ``low..high-1`` at every coordinate; see `plain.middle`."""
    n, size, dtype = check(views, (out,))
    if n > many.MOST_WIRES:
        return plain.middle(views, low, high, out)
    steps, wires = _tables(middle_network(n, low, high))
    addresses, _alive = _addresses(views)
    target = out if out.flags.carray else np.empty(size, out.dtype)
    rows, sums = scratch((n, _ROW // dtype.itemsize, dtype), (3, _ROW // dtype.itemsize, FLOAT64))
    integer, mask, infinity = _BITS[dtype.itemsize]
    largest = _middle(addresses, (steps, wires, SHRINK), target, (rows, rows.view(integer), integer(mask)), sums)
    if target is not out:
        np.copyto(out, target)
    return bool(largest < infinity)


def ranks(views: Sequence[Floats], wanted_ranks: Sequence[int], outs: Sequence[Floats]) -> bool:
    """Write one order statistic (0 = smallest) into each of ``outs``; see `plain.ranks`."""
    if len(wanted_ranks) != len(outs):
        raise ContributionError(f"{len(wanted_ranks)} ranks need as many outputs, not {len(outs)}")
    n, size, dtype = check(views, outs)
    if n > many.MOST_WIRES:
        return plain.ranks(views, wanted_ranks, outs)
    steps, _ = _tables(rank_network(n, tuple(sorted(set(wanted_ranks)))))
    addresses, _alive = _addresses(views)
    wires = np.array(wanted_ranks, np.int64)  # in a network of full rank order, rank r ends on wire r
    targets = np.empty((len(outs), size), dtype)
    (rows,) = scratch((n, _ROW // dtype.itemsize, dtype))
    integer, mask, infinity = _BITS[dtype.itemsize]
    largest = _ranks(addresses, (steps, wires), targets, (rows, rows.view(integer), integer(mask)))
    with np.errstate(all="ignore"):
        for target, out in zip(targets, outs, strict=True):
            store(target, out)
    return bool(largest < infinity)


weighted_middle = weighted_middle_by(ranks)


def weighted_sum(views: Sequence[Floats], weights: ArrayLike, out: Floats) -> bool:
    """Write ``sum_i weights[i] * views[i]`` in float64; see `plain.weighted_sum`."""
    used, scales, common = weigh(views, weights, out)
    if not used:
        out[:] = 0.0
        return True
    addresses, _alive = _addresses(used)
    target = out if out.flags.carray else np.empty(out.size, out.dtype)
    integer, mask, infinity = _BITS[8]
    if used[0].dtype == FLOAT64:
        given = compensated.plan(scales)
        halves = np.array([(scale, *compensated.split(scale)) for scale in scales])
        (rows,) = scratch((6, compensated.PIECE, FLOAT64))
        scaling = (halves, given.equal, given.count)
        largest = wide_sum(addresses, scaling, target, (rows, rows.view(np.int64), np.int64(mask)))
    else:
        (sums,) = scratch((1, _SUM_PIECE, FLOAT64))
        work = (sums[0], sums[0].view(integer), integer(mask))
        largest = _weighted_sum(addresses, (np.array(scales), common), target, work, np.empty(0, np.float32))
    if target is not out:
        np.copyto(out, target)
    return bool(largest < infinity) or all(map(finite, used))


def _addresses(views: Sequence[Floats]) -> tuple[NDArray[np.uint64], list[Floats]]:
    """Return where each view's values begin, and the arrays that must outlive the addresses.

    A view that is not contiguous (or not aligned) is copied: a tile's worth of one contributor.
    """
    alive = [view if view.flags.c_contiguous and view.flags.aligned else np.array(view, order="C") for view in views]
    return np.array([_address(view) for view in alive], np.uint64), alive


@lru_cache(maxsize=64)
def _tables(network: Network) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return a network's steps (m, 3) and output wires as arrays."""
    return np.array(network.steps, np.int64).reshape(-1, 3), np.array(network.outputs, np.int64)


@jit
def _address(view: Any) -> Any:
    return view.ctypes.data


@jit
def _load(source: Any, row: Any, mask: Any, largest: Any) -> Any:
    """Copy ``source`` to ``row``; return the largest magnitude so far (as bits, NaN and infinity above all others)."""
    for k in range(source.size):
        bits = source[k]
        row[k] = bits
        magnitude = np.bitwise_and(bits, mask)
        largest = magnitude if magnitude > largest else largest
    return largest


@jit
def _load_all(addresses: Any, start: Any, width: Any, work: Any, largest: Any) -> Any:
    """Copy the piece ``start .. start + width`` of every view into its row."""
    _, bits, mask = work
    for i in range(addresses.size):
        source = numba.carray(pointer(addresses[i] + np.uint64(start * bits.itemsize)), (width,), bits.dtype)
        largest = _load(source, bits[i], mask, largest)
    return largest


@jit
def _compare(steps: Any, rows: Any, width: Any) -> None:
    """Apply a network to rows; ties may go either way, so a zero's sign is settled when it is stored."""
    for s in range(steps.shape[0]):
        a, b, op = rows[steps[s, 0], :width], rows[steps[s, 1], :width], steps[s, 2]
        if op == BOTH:
            for k in range(width):
                x, y = a[k], b[k]
                a[k] = x if x < y else y
                b[k] = y if x < y else x
        elif op == LOW:
            for k in range(width):
                x, y = a[k], b[k]
                a[k] = x if x < y else y
        else:
            for k in range(width):
                x, y = a[k], b[k]
                b[k] = y if x < y else x


@jit
def _store(row: Any, out: Any) -> None:
    """Round ``row`` into ``out``, with every zero positive."""
    zero = out.dtype.type(0)
    for k in range(out.size):
        out[k] = row[k]
    for k in range(out.size):
        out[k] += zero


@jit
def _divide(total: Any, rows: Any, wires: Any, shrink: Any) -> None:
    """Turn sums into means; a sum that overflowed is taken again from shrunken values."""
    count = wires.size
    for k in range(total.size):
        if abs(total[k]) < np.inf:
            total[k] /= count
        else:
            small = 0.0
            for wire in wires:
                small += rows[wire, k] * shrink
            total[k] = small / count / shrink


@jit
def _clamp(total: Any, rows: Any, wires: Any, least: Any, most: Any) -> None:
    """Keep a rounded mean between the smallest and the largest of its rows."""
    width = total.size
    for k in range(width):
        least[k] = most[k] = rows[wires[0], k]
    for wire in wires[1:]:
        row = rows[wire, :width]
        for k in range(width):
            least[k] = row[k] if row[k] < least[k] else least[k]
            most[k] = row[k] if row[k] > most[k] else most[k]
    for k in range(width):
        total[k] = total[k] if total[k] > least[k] else least[k]
        total[k] = total[k] if total[k] < most[k] else most[k]


@jit
def _mean(rows: Any, wires: Any, sums: Any, shrink: Any, out: Any) -> None:
    """Write the mean of the rows at ``wires`` into ``out``: the steps of `plain._mean`."""
    width, count = out.size, wires.size
    first = rows[wires[0], :width]
    if count == 1:
        _store(first, out)
        return
    total, second, wide = sums[0, :width], rows[wires[1], :width], rows.itemsize == 8
    for k in range(width):
        total[k] = np.float64(first[k]) + np.float64(second[k])
    for wire in wires[2:]:
        row = rows[wire, :width]
        for k in range(width):
            total[k] += row[k]
    if wide and not all_finite(total):
        _divide(total, rows, wires, shrink)
    elif count == 2:
        for k in range(width):
            total[k] *= 0.5
    else:
        for k in range(width):
            total[k] /= count
    if wide and count > 2:
        _clamp(total, rows, wires, sums[1, :width], sums[2, :width])
    _store(total, out)


@jit
def _middle(addresses: Any, network: Any, out: Any, work: Any, sums: Any) -> Any:
    """Return the largest magnitude read, as bits."""
    (steps, wires, shrink), (rows, _, mask) = network, work
    largest, block = np.bitwise_xor(mask, mask), rows.shape[1]
    for start in range(0, out.size, block):
        width = min(block, out.size - start)
        largest = _load_all(addresses, start, width, work, largest)
        _compare(steps, rows, width)
        _mean(rows, wires, sums, shrink, out[start : start + width])
    return largest


@jit
def _ranks(addresses: Any, network: Any, outs: Any, work: Any) -> Any:
    (steps, wires), (rows, _, mask) = network, work
    largest, block = np.bitwise_xor(mask, mask), rows.shape[1]
    for start in range(0, outs.shape[1], block):
        width = min(block, outs.shape[1] - start)
        largest = _load_all(addresses, start, width, work, largest)
        _compare(steps, rows, width)
        for i in range(wires.size):
            outs[i, start : start + width] = rows[wires[i], :width]
    return largest


@jit
def _weighted_sum(addresses: Any, scaling: Any, out: Any, work: Any, sample: Any) -> Any:
    """Add four views in one pass over the sums; return the largest magnitude of a sum, as bits."""
    (weights, common), (sums, bits, mask) = scaling, work
    largest, n = np.bitwise_xor(mask, mask), addresses.size
    for start in range(0, out.size, _SUM_PIECE):
        width = min(_SUM_PIECE, out.size - start)
        skip = np.uint64(start * sample.itemsize)
        total = sums[:width]
        total[:] = 0.0
        i = 0
        while i + 4 <= n:
            a = numba.carray(pointer(addresses[i] + skip), (width,), sample.dtype)
            b = numba.carray(pointer(addresses[i + 1] + skip), (width,), sample.dtype)
            c = numba.carray(pointer(addresses[i + 2] + skip), (width,), sample.dtype)
            d = numba.carray(pointer(addresses[i + 3] + skip), (width,), sample.dtype)
            v, w, x, y = weights[i], weights[i + 1], weights[i + 2], weights[i + 3]
            if common:
                v = w = x = y = 1.0
            for k in range(width):
                total[k] = total[k] + v * a[k] + w * b[k] + x * c[k] + y * d[k]
            i += 4
        while i < n:
            a = numba.carray(pointer(addresses[i] + skip), (width,), sample.dtype)
            v = 1.0 if common else weights[i]
            for k in range(width):
                total[k] += v * a[k]
            i += 1
        v = weights[0] if common else 1.0
        for k in range(width):
            total[k] = v * total[k] + 0.0
        for k in range(width):
            largest = max(largest, bits[k] & mask)
        for k in range(width):
            out[start + k] = total[k]
    return largest
