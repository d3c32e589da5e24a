"""The kernels in numpy alone.

Each walks over a tile in pieces that fit the second-level cache, and applies one ufunc to a whole row at a time.  What
they compute is written here once; `compiled` gives the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pluribus.core.errors import ContributionError
from pluribus.core.kernels import compensated, many
from pluribus.core.kernels.networks import HIGH, LOW, Network, middle_network, rank_network, schedule
from pluribus.core.kernels.tiles import FLOAT64, LONGEST_PIECE, SHRINK, Floats, check, piece_size, scratch, store, weigh
from pluribus.core.kernels.weighted import weighted_middle_by

__all__ = ["NAME", "cross", "finite", "gram", "middle", "norms", "ranks", "weighted_middle", "weighted_sum"]

NAME = "plain"

_GRAM_PIECE = 1 << 13
_NORM_PIECE = 1 << 15  # one row at a time: a long piece costs no cache, and threads meet at each call
_DOT_PIECE = 1 << 13  # OpenBLAS wakes its threads for more than 10000 values, which costs more than it gains

_Step = tuple[np.ufunc, int, int, int]
_UFUNCS: dict[int, np.ufunc] = {LOW: np.minimum, HIGH: np.maximum}


def finite(view: Floats) -> bool:
    """Whether all values of a one-dimensional array are finite (one read, no temporary)."""
    with np.errstate(all="ignore"):
        return _clean(view)


def middle(views: Sequence[Floats], low: int, high: int, out: Floats) -> bool:
    """Write the mean of the ranks ``low..high-1`` at every coordinate.

    Median: ``low = (n - 1) // 2, high = n // 2 + 1``.  Trimmed mean: ``low = f, high = n - f``.

    Parameters
    ----------
    views : sequence of n arrays (T,)
        The tile; never written.
    low, high : int
        Ranks, 0 = smallest.
    out : array (T,), float32 or float64
        Result.  The ranks are summed in float64 in the network's order, divided, rounded once into ``out``'s dtype; the
        result lies between the smallest and the largest of them, a single rank is exact, and zero is +0.0.

    Returns
    -------
    bool
        True if all values were finite; if False, what ``out`` holds is unspecified.

    """
    n, size, dtype = check(views, (out,))
    if n > many.MOST_WIRES:
        return _of_many(views, lambda ordered, place: store(many.middle(np, ordered, low, high), out[place]))
    steps, n_rows, outputs = _program(middle_network(n, low, high))
    length = min(size, piece_size(n, dtype.itemsize))
    rows, sums = scratch((n_rows, length, dtype), (4, length, FLOAT64))
    with np.errstate(all="ignore"):
        for start in range(0, size, length or 1):
            piece = out[start : start + length]
            held = _pieces(views, start, length, rows)
            if not all(map(_clean, held[:n])):
                return False
            for ufunc, a, b, c in steps:
                ufunc(held[a], held[b], out=held[c])
            _mean([held[row] for row in outputs], sums[:, : piece.size], piece)
    return True


def ranks(views: Sequence[Floats], wanted_ranks: Sequence[int], outs: Sequence[Floats]) -> bool:
    """Write one order statistic (0 = smallest) into each of ``outs``; finite and zeros as in `middle`."""
    if len(wanted_ranks) != len(outs):
        raise ContributionError(f"{len(wanted_ranks)} ranks need as many outputs, not {len(outs)}")
    n, size, dtype = check(views, outs)
    if n > many.MOST_WIRES:

        def put(ordered: Floats, place: slice) -> None:
            for rank, out in zip(wanted_ranks, outs, strict=True):
                store(ordered[:, rank], out[place])

        return _of_many(views, put)
    network = rank_network(n, tuple(sorted(set(wanted_ranks))))
    steps, n_rows, outputs = _program(network)
    holder = dict(zip(network.outputs, outputs, strict=True))
    length = min(size, piece_size(n, dtype.itemsize))
    (rows,) = scratch((n_rows, length, dtype))
    with np.errstate(all="ignore"):
        for start in range(0, size, length or 1):
            held = _pieces(views, start, length, rows)
            if not all(map(_clean, held[:n])):
                return False
            for ufunc, a, b, c in steps:
                ufunc(held[a], held[b], out=held[c])
            for rank, out in zip(wanted_ranks, outs, strict=True):
                store(held[holder[rank]], out[start : start + length])
    return True


def _of_many(views: Sequence[Floats], put: Callable[[Floats, slice], None]) -> bool:
    """Sort each coordinate's values and have each piece of them put in its place; whether all are finite."""
    with np.errstate(all="ignore"):
        for place, table in many.tables(np, views):
            if not _clean(table.reshape(-1)):
                return False
            table.sort(axis=1)
            put(table, place)
    return True


weighted_middle = weighted_middle_by(ranks)


def weighted_sum(views: Sequence[Floats], weights: ArrayLike, out: Floats) -> bool:
    """Write ``sum_i weights[i] * views[i]``, products and sums in float64 in the order of the contributors.

    A view of weight zero is not read.  Equal weights scale the sum once, which is both faster and more exact.  Sums of
    float64 values carry their rounding errors along (`compensated`): within one unit in the last place of the exact sum
    unless more than some 14 digits cancel, and of the exact mean for equal weights of sum one.

    Parameters
    ----------
    views : sequence of n arrays (T,)
        The tile; never written.
    weights : (n,) finite numbers
        Of any sign.
    out : array (T,), float32 or float64
        Result, rounded once; zero is +0.0.

    Returns
    -------
    bool
        True if all values read were finite (``out`` may still overflow to infinity); if False, ``out`` is unspecified.

    """
    used, scales, common = weigh(views, weights, out)
    size = out.size
    if not used:
        out[:] = 0.0
        return True
    if used[0].dtype == FLOAT64:
        return _wide_sum(used, scales, out)
    length = min(size, LONGEST_PIECE)
    ((product, sums),) = scratch((2, length, FLOAT64))
    with np.errstate(all="ignore"):
        for start in range(0, size, length or 1):
            place = out[start : start + length]
            total = place if out.dtype == FLOAT64 else sums[: place.size]
            pieces = [view[start : start + length] for view in used]
            if common:
                np.copyto(total, pieces[0])
                for piece in pieces[1:]:
                    np.add(total, piece, out=total)
                np.multiply(total, scales[0], out=total)
            else:
                np.multiply(pieces[0], scales[0], out=total, dtype=FLOAT64)
                for piece, scale in zip(pieces[1:], scales[1:], strict=True):
                    np.multiply(piece, scale, out=product[: total.size], dtype=FLOAT64)
                    np.add(total, product[: total.size], out=total)
            np.add(total, 0.0, out=total)
            if not _clean(total) and not all(map(_clean, pieces)):
                return False
            if total is not place:
                np.copyto(place, total, casting="same_kind")
    return True


def _wide_sum(views: list[Floats], weights: list[float], out: Floats) -> bool:
    """`weighted_sum` of float64 values."""
    given, length = compensated.plan(weights), min(out.size, compensated.PIECE)
    (rows,) = scratch((compensated.ROWS, length, FLOAT64))
    with np.errstate(all="ignore"):
        for start in range(0, out.size, length or 1):
            place = out[start : start + length]
            pieces = [view[start : start + length] for view in views]
            total = compensated.add_up(np, pieces, given, rows[:, : place.size], _clean)
            np.add(total, 0.0, out=total)
            if not _clean(total) and not all(map(_clean, pieces)):
                return False
            np.copyto(place, total, casting="same_kind")
    return True


def gram(views: Sequence[Floats]) -> NDArray[np.float64]:
    """Return the (n, n) inner products of the views, in float64, exactly symmetric.

    Not finite where a row is not finite (or too large to be squared): in that row and column only.  The bits depend on
    T and on the BLAS, not on where the tile lies in memory; the caller fixes T and lets BLAS use one thread.
    """
    n, size, _ = check(views)
    total = np.zeros((n, n))
    length = _gram_piece(n, size)
    (buffer,) = scratch((n, length, FLOAT64))
    with np.errstate(all="ignore"):
        for start in range(0, size, length):
            rows = _widen(views, start, buffer)
            total += rows @ rows.T
    lower = np.tril(total, -1)
    return np.tril(total) + lower.T


def cross(views_a: Sequence[Floats], views_b: Sequence[Floats]) -> NDArray[np.float64]:
    """Return the (n, m) inner products of two sets of views over the same coordinates, as `gram` does."""
    n, size, _ = check(views_a)
    m, other, _ = check(views_b)
    if size != other:
        raise ContributionError(f"a cross Gram needs tiles of one length, not {size} and {other}")
    total = np.zeros((n, m))
    length = _gram_piece(n + m, size)
    buffer_a, buffer_b = scratch((n, length, FLOAT64), (m, length, FLOAT64))
    with np.errstate(all="ignore"):
        for start in range(0, size, length):
            total += _widen(views_a, start, buffer_a) @ _widen(views_b, start, buffer_b).T
    return total


def norms(views: Sequence[Floats]) -> NDArray[np.float64]:
    """Return the (n,) squared Euclidean norms of the views in float64; a bad row shows in its own entry only."""
    n, size, _ = check(views)
    total = np.zeros(n)
    length = min(size, _NORM_PIECE)
    (buffer,) = scratch((1, length, FLOAT64))
    with np.errstate(all="ignore"):
        for start in range(0, size, length or 1):
            for i, view in enumerate(views):
                (row,) = _widen((view,), start, buffer)
                total[i] += np.dot(row, row)
    return total


def _mean(held: list[Floats], sums: Floats, out: Floats) -> None:
    """Write the mean of the rows ``held`` into ``out``; ``sums`` is scratch of four rows."""
    count, (total, spare, least, most) = len(held), sums
    if count == 1:
        store(held[0], out)
        return
    np.add(held[0], held[1], out=total, dtype=FLOAT64)
    for row in held[2:]:
        np.add(total, row, out=total)
    wide = held[0].dtype == FLOAT64
    if wide and not _clean(total):  # the sum overflowed somewhere, its mean cannot
        bad = ~np.isfinite(total)
        np.multiply(held[0], SHRINK, out=spare)
        for row in held[1:]:
            np.add(spare, row * SHRINK, out=spare)
    else:
        bad = None
    if count == 2:
        np.multiply(total, 0.5, out=total)
    else:
        np.divide(total, count, out=total)
    if bad is not None:
        np.copyto(total, spare / count / SHRINK, where=bad)
    if wide and count > 2:  # rounding may leave the range; float32 values have 29 bits to spare
        np.minimum(held[0], held[1], out=least)
        np.maximum(held[0], held[1], out=most)
        for row in held[2:]:
            np.minimum(least, row, out=least)
            np.maximum(most, row, out=most)
        np.maximum(total, least, out=total)
        np.minimum(total, most, out=total)
    store(total, out)


def _pieces(views: Sequence[Floats], start: int, length: int, rows: Floats) -> list[Floats]:
    """Return the views' and the scratch rows' pieces, in one list that a program indexes."""
    held = [view[start : start + length] for view in views]
    width = held[0].size
    held.extend(row[:width] for row in rows)
    return held


@lru_cache(maxsize=64)
def _program(network: Network) -> tuple[tuple[_Step, ...], int, tuple[int, ...]]:
    """Return a network's schedule with ufuncs in it: calls (ufunc, input, input, output), scratch rows, outputs."""
    steps, n_rows, outputs = schedule(network)
    return tuple((_UFUNCS[op], a, b, c) for op, a, b, c in steps), n_rows, outputs


def _widen(views: Sequence[Floats], start: int, buffer: Floats) -> Floats:
    """Copy the pieces of the views that begin at ``start`` into float64 rows."""
    rows = buffer[:, : min(buffer.shape[1], views[0].size - start)]
    for row, view in zip(rows, views, strict=True):
        np.copyto(row, view[start : start + row.size])
    return rows


def _gram_piece(n: int, size: int) -> int:
    """Return the number of coordinates that are widened at once for n rows; depends on nothing else."""
    fitting = (1 << 19) // n + 1
    return max(1, min(size, _GRAM_PIECE, max(1 << fitting.bit_length() - 1, 1 << 9)))


def _clean(view: Floats) -> bool:
    """Whether all values are finite: 0 * inf and 0 * nan are nan, every other product is zero."""
    zeros = _zeros(view.dtype)
    for start in range(0, view.size, _DOT_PIECE):
        piece = view[start : start + _DOT_PIECE]
        if np.dot(piece, zeros[: piece.size]) != 0.0:
            return False
    return True


@lru_cache(maxsize=2)
def _zeros(dtype: np.dtype[Any]) -> Floats:
    zeros: Floats = np.zeros(_DOT_PIECE, dtype)
    zeros.flags.writeable = False
    return zeros
