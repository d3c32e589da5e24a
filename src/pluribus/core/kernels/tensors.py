"""The kernels on torch tensors, on the device where they lie: what `plain` computes, in torch's operations.

On the CPU the bits are those of `plain`: minima, maxima, products and sums are rounded alike, and inner products are
numpy's own, on the tensors' memory, by one thread.  On another device the bits are that device's: its compiler may fuse
a product and a sum, and inner products are added in its order (in batches of fixed pieces).

Whether all was finite is found on the device and told once a tile; nothing else waits for it.  On the CPU a tile is
walked through in pieces that fit the cache and stay below the size at which torch wakes its threads (32768 values);
on another device the tile is one piece, as long as `tile_size` makes it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from pluribus.core.errors import ContributionError
from pluribus.core.kernels import compensated, many, plain
from pluribus.core.kernels.networks import LOW, Step, middle_network, rank_network, schedule
from pluribus.core.kernels.tiles import LONGEST_PIECE, SHRINK, check, piece_size, weighted
from pluribus.core.kernels.weighted import covered_mean

__all__ = ["NAME", "cross", "finite", "gram", "middle", "norms", "ranks", "weighted_middle", "weighted_sum"]

NAME = "torch"

Tensor = Any

_FLOATS = (torch.float32, torch.float64)
_CELL = 1 << 10  # coordinates of one matrix of a batch
_ROOM = 1 << 27  # bytes of the float64 rows that are multiplied at once


def finite(view: Tensor) -> bool:
    """Whether all values of a one-dimensional tensor are finite."""
    return plain.finite(view.numpy()) if _on_cpu(view) else _told(_all_finite([view]))[0]


def middle(views: Sequence[Tensor], low: int, high: int, out: Tensor) -> bool:
    """Write the mean of the ranks ``low..high-1`` at every coordinate; see `plain.middle`."""
    n, size, dtype = check(views, (out,), _FLOATS)
    if n > many.MOST_WIRES:
        return _of_many(views, (out,), lambda ordered: (many.middle(torch, ordered, low, high),))
    steps, n_rows, outputs = schedule(middle_network(n, low, high))
    length = _length(out, n, dtype.itemsize)
    rows = torch.empty((n_rows, length), dtype=dtype, device=out.device)
    for start in range(0, size, length or 1):
        held = _pieces(views, start, length, rows)
        read = _all_finite(held[:n])
        _compare(steps, held)
        if not _mean([held[row] for row in outputs], read, out[start : start + length]):
            return False
    return True


def ranks(views: Sequence[Tensor], wanted_ranks: Sequence[int], outs: Sequence[Tensor]) -> bool:
    """Write one order statistic (0 = smallest) into each of ``outs``; see `plain.ranks`."""
    if len(wanted_ranks) != len(outs):
        raise ContributionError(f"{len(wanted_ranks)} ranks need as many outputs, not {len(outs)}")
    n, size, dtype = check(views, outs, _FLOATS)
    if n > many.MOST_WIRES:
        return _of_many(views, outs, lambda ordered: [ordered[:, rank] for rank in wanted_ranks])
    network = rank_network(n, tuple(sorted(set(wanted_ranks))))
    steps, n_rows, outputs = schedule(network)
    holder = dict(zip(network.outputs, outputs, strict=True))
    length = _length(views[0], n, dtype.itemsize)
    rows = torch.empty((n_rows, length), dtype=dtype, device=views[0].device)
    for start in range(0, size, length or 1):
        held = _pieces(views, start, length, rows)
        read = _all_finite(held[:n])
        _compare(steps, held)
        for rank, out in zip(wanted_ranks, outs, strict=True):
            _store(held[holder[rank]], out[start : start + length])
        if not _told(read)[0]:
            return False
    return True


def _of_many(views: Sequence[Tensor], outs: Sequence[Tensor], found: Callable[[Tensor], Sequence[Tensor]]) -> bool:
    """Write what is found in each coordinate's sorted values; on the CPU numpy sorts, which is faster."""
    read = _all_finite(views)
    if not _told(read)[0]:
        return False
    for place, table in many.tables(torch, views):
        if _on_cpu(table):
            table.numpy().sort(axis=1)
            ordered = table
        else:
            ordered = table.sort(dim=1).values
        for values, out in zip(found(ordered), outs, strict=True):
            _store(values, out[place])
    return True


def weighted_sum(views: Sequence[Tensor], weights: ArrayLike, out: Tensor) -> bool:
    """Write ``sum_i weights[i] * views[i]``, products and sums in float64; see `plain.weighted_sum`."""
    _, size, dtype = check(views, (out,), _FLOATS)
    used, scales, common = weighted(views, weights, dtype == torch.float32)
    if not used:
        out.zero_()
        return True
    if dtype == torch.float64:
        return _wide_sum(used, scales, out)
    length = min(size, LONGEST_PIECE) if _on_cpu(out) else size
    given = torch.tensor(scales, dtype=torch.float64).to(out.device)
    # As tensors of one axis, weights make the product float64; a number would leave it float32.
    factors = [given[i : i + 1] for i in range(len(scales))]
    product, spare = torch.empty((2, length), dtype=torch.float64, device=out.device)
    for start in range(0, size, length or 1):
        place = out[start : start + length]
        total = place if out.dtype == torch.float64 else spare[: len(place)]
        pieces = [view[start : start + length] for view in used]
        if common:
            total.copy_(pieces[0])
            for values in pieces[1:]:
                total.add_(values)
            total.mul_(scales[0])
        else:
            torch.mul(pieces[0], factors[0], out=total)
            for values, factor in zip(pieces[1:], factors[1:], strict=True):
                total.add_(torch.mul(values, factor, out=product[: len(place)]))
        total.add_(0.0)
        if not finite(total) and not _told(_all_finite(pieces))[0]:
            return False
        if total is not place:
            place.copy_(total)
    return True


def _wide_sum(views: list[Tensor], weights: list[float], out: Tensor) -> bool:
    """`weighted_sum` of float64 values; on the CPU they share memory with numpy's arrays."""
    if _on_cpu(out):
        return plain.weighted_sum([view.numpy() for view in views], weights, out.numpy())
    rows = torch.empty((compensated.ROWS, len(out)), dtype=torch.float64, device=out.device)
    total = compensated.add_up(torch, views, compensated.plan(weights), list(rows), finite)
    total.add_(0.0)
    out.copy_(total)
    return finite(total) or _told(_all_finite(views))[0]


def weighted_middle(views: Sequence[Tensor], weights: ArrayLike, low: float, high: float, out: Tensor) -> bool:
    """Write the mean of the values between two levels of cumulative weight; see `weighted.weighted_middle`."""
    n, size, _ = check(views, (out,), _FLOATS)
    if _on_cpu(out):
        arrays = [view.numpy() for view in views]
        return plain.weighted_middle(arrays, np.asarray(weights), low, high, out.numpy())
    given = torch.tensor(np.asarray(weights), dtype=torch.float64).to(out.device)
    length, read = max(1, _room(n) // 8), _all_finite(views)
    for start in range(0, size, length):
        place = out[start : start + length]
        values, order = torch.stack([view[start : start + length] for view in views]).sort(dim=0, stable=True)
        covered_mean(values, given[order], low, high, place, xp=torch)
    return _told(read)[0]


def gram(views: Sequence[Tensor]) -> NDArray[np.float64]:
    """Return the (n, n) inner products of the views, in float64, exactly symmetric; see `plain.gram`."""
    n, size, _ = check(views, (), _FLOATS)
    if _on_cpu(views[0]):
        return plain.gram([view.numpy() for view in views])
    total = torch.zeros((n, n), dtype=torch.float64, device=views[0].device)
    length = _room(n)
    for start in range(0, size, length):
        cells = _cells(views, start, length)
        total.add_(torch.bmm(cells, cells.transpose(1, 2)).sum(0))
    found = _fetched(total)
    lower = np.tril(found, -1)
    return np.tril(found) + lower.T


def cross(views_a: Sequence[Tensor], views_b: Sequence[Tensor]) -> NDArray[np.float64]:
    """Return the (n, m) inner products of two sets of views over the same coordinates, as `gram` does."""
    n, size, _ = check(views_a, (), _FLOATS)
    m, other, _ = check(views_b, (), _FLOATS)
    if size != other:
        raise ContributionError(f"a cross Gram needs tiles of one length, not {size} and {other}")
    if _on_cpu(views_a[0]):
        return plain.cross([view.numpy() for view in views_a], [view.numpy() for view in views_b])
    total = torch.zeros((n, m), dtype=torch.float64, device=views_a[0].device)
    length = _room(n + m)
    for start in range(0, size, length):
        cells = _cells(views_b, start, length).transpose(1, 2)
        total.add_(torch.bmm(_cells(views_a, start, length), cells).sum(0))
    return _fetched(total)


def norms(views: Sequence[Tensor]) -> NDArray[np.float64]:
    """Return the (n,) squared Euclidean norms of the views in float64; a bad row shows in its own entry only."""
    n, size, _ = check(views, (), _FLOATS)
    if _on_cpu(views[0]):
        return plain.norms([view.numpy() for view in views])
    total = torch.zeros(n, dtype=torch.float64, device=views[0].device)
    length = _room(n)
    for start in range(0, size, length):
        cells = _cells(views, start, length)
        total.add_((cells * cells).sum(2).sum(0))
    return _fetched(total)


def tile_size(n: int) -> int:
    """Return how many coordinates of ``n`` contributors make a good tile on a device that is not the CPU.

    Long enough that an operation takes longer than its launch (some microseconds), short enough that n rows of scratch
    in float64 take at most 256 MiB.  Chosen by arithmetic, for memory that moves terabytes a second.
    """
    return max(1 << 15, min(1 << 21, 1 << ((1 << 28) // (8 * max(n, 1))).bit_length() - 1))


def _on_cpu(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu"


def _length(like: Tensor, n: int, itemsize: int) -> int:
    size = len(like)
    return min(size, piece_size(n, itemsize)) if _on_cpu(like) else size


def _room(n: int) -> int:
    """Return how many coordinates of n rows are widened at once: whole cells; depends on n alone."""
    return _CELL << max(_ROOM // (8 * _CELL * n), 1).bit_length() - 1


def _pieces(views: Sequence[Tensor], start: int, length: int, rows: Tensor) -> list[Tensor]:
    """Return the views' and the scratch rows' pieces, in one list that a schedule indexes."""
    held = [view[start : start + length] for view in views]
    width = len(held[0])
    held.extend(row[:width] for row in rows)
    return held


def _compare(steps: Sequence[Step], held: list[Tensor]) -> None:
    """Apply a network to rows."""
    for op, a, b, c in steps:
        (torch.minimum if op == LOW else torch.maximum)(held[a], held[b], out=held[c])


def _store(row: Tensor, out: Tensor) -> None:
    """Round ``row`` into ``out``, with every zero positive."""
    out.copy_(row)
    out.add_(0.0)


def _mean(held: list[Tensor], read: Tensor, out: Tensor) -> bool:
    """Write the mean of the rows ``held`` into ``out``, in the steps of `plain`; return whether all was finite.

    ``read`` says so of what was read, on the device.
    """
    count = len(held)
    if count == 1:
        _store(held[0], out)
        return _told(read)[0]
    total = held[0].to(torch.float64, copy=True)
    for row in held[1:]:
        total.add_(row)
    if held[0].dtype == torch.float32:
        _divide(total, count)
        _store(total, out)
        return _told(read)[0]
    finite_rows, finite_sum = _told(read, _all_finite([total]))
    if not finite_rows:
        return False
    if finite_sum:
        _divide(total, count)
    else:  # the sum overflowed somewhere, its mean cannot
        over = ~torch.isfinite(total)
        small = functools.reduce(torch.add, [row * SHRINK for row in held])
        _divide(total, count)
        _divide(small, count)
        total = torch.where(over, small / SHRINK, total)
    if count > 2:  # rounding may leave the range; float32 values have 29 bits to spare
        total = torch.maximum(total, functools.reduce(torch.minimum, held))
        total = torch.minimum(total, functools.reduce(torch.maximum, held))
    _store(total, out)
    return True


def _divide(total: Tensor, count: int) -> None:
    """Divide by a number of rows.

    By a tensor on the device: by a number, CUDA multiplies with its rounded inverse.
    """
    total.div_(torch.full((), float(count), dtype=total.dtype, device=total.device))


def _cells(views: Sequence[Tensor], start: int, length: int) -> Tensor:
    """Return the pieces of n views in float64 as a batch of matrices (p, n, `_CELL`), zeros at the end."""
    values = torch.stack([view[start : start + length] for view in views])
    n, width = values.shape
    padded = -(-width // _CELL) * _CELL
    if padded == width:
        rows = values.to(torch.float64)
    else:
        rows = torch.zeros((n, padded), dtype=torch.float64, device=values.device)
        rows[:, :width] = values
    return rows.view(n, -1, _CELL).transpose(0, 1)


def _all_finite(views: Sequence[Tensor]) -> Tensor:
    """Whether all values are finite, on the device: one read each, since extremes take up NaN and infinities."""
    extremes = [extreme for view in views if len(view) for extreme in torch.aminmax(view)]
    if not extremes:
        return torch.ones((), dtype=torch.bool, device=views[0].device)
    return torch.isfinite(torch.stack(extremes)).all()


def _told(*flags: Tensor) -> list[bool]:
    """Bring flags from the device, which must finish what it was given."""
    found: list[bool] = torch.stack(flags).tolist()
    return found


def _fetched(total: Tensor) -> NDArray[np.float64]:
    found: NDArray[np.float64] = total.cpu().numpy()
    return found
