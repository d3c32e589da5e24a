"""Passes that measure a result: distances to it, and what each contributor counted for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pluribus.core import stores, weights
from pluribus.core.contributions import Block
from pluribus.core.dtypes import Array
from pluribus.core.passes.active import Active
from pluribus.core.passes.deciding import largest
from pluribus.core.passes.deciding import squares as squares_of
from pluribus.core.passes.running import here, summed
from pluribus.core.passes.scaling import SHORT, divided, unit_of
from pluribus.core.stores import Result


def distances_to(active: Active, result: Result) -> Array:
    """|x_i - z| of the contributors to a result z, shape (n,); right where squares leave the range of float64, too."""
    squares = summed(active, _block_distances, _Measured(result, 1.0), np.zeros(len(active.rows)))
    if (np.isfinite(squares).all() and squares.max(initial=0.0) >= SHORT) or not active.data.coordinates:
        return np.asarray(np.sqrt(squares))
    unit = unit_of(max(largest(active), _greatest(active, result)))
    if squares.max(initial=0.0) < SHORT < unit * unit:  # short distances between long rows are rounding
        return np.asarray(np.sqrt(squares))
    squares = summed(active, _block_distances, _Measured(result, unit), np.zeros(len(active.rows)))
    with np.errstate(over="ignore"):
        return np.asarray(np.sqrt(squares) * unit)


def _greatest(active: Active, result: Result) -> float:
    """The greatest magnitude in a result: it may lie farther out than the rows that are measured."""
    data, medium = active.data, active.data.medium

    def of(block: Block) -> float:
        items = stores.items(result[block.tensor], block)
        z = medium.coordinates(items, data.specs[block.tensor].dtype, np.dtype(np.float64))
        return float(medium.xp.abs(z).max())

    return max(here(active, medium.gram_items, of), default=0.0)


@dataclass(frozen=True, eq=False)
class _Measured:
    result: Result
    unit: float


def _block_distances(active: Active, measured: _Measured, block: Block) -> Array:
    dtype, medium = active.data.specs[block.tensor].dtype, active.data.medium
    items = stores.items(measured.result[block.tensor], block)
    z = medium.coordinates(items, dtype, np.dtype(np.float64))
    present = active.data.present(block.tensor, active.rows)
    views = active.data.views(block, [active.rows[k] for k in present], active.cleaned)
    squares = np.zeros(len(active.rows))
    if views:
        (z,), views = (divided(v, medium.wide, measured.unit) for v in ([z], views))
        with np.errstate(over="ignore"):
            squares[present] = squares_of(active, [view - z for view in views])
    return squares


TileShares = Callable[[Array, Array], Array | None]  # (tile, weights) -> what each value counts for, (n, T)


def coordinate_shares(active: Active, tile_shares: TileShares, given: Array, mixing: Array | None = None) -> Array:
    """Mean over coordinates of what each contributor's value counts for, shape (n,); NaN where that means nothing.

    Parameters
    ----------
    active
        The rows.
    tile_shares
        Gives the shares of the values of a tile, shape (n, T), under weights of sum one, shape (n,).
    given
        The weights of what the rule saw, shape (n,) or (k,).
    mixing
        Shape (k, m) if the rule saw M X; what a mixture counts for goes to what it was made of.
    """
    n = len(active.rows)

    def part(block: Block) -> tuple[Array, int]:
        present = active.data.present(block.tensor, active.rows)
        rows = [active.rows[k] for k in present] if mixing is None else active.all_rows
        tile = np.stack(active.data.medium.host(active.data.views(block, rows, active.cleaned)))
        if mixing is not None:
            found = tile_shares(mixing @ tile, given)
        else:
            found = tile_shares(tile, given if len(present) == n else weights.normalise(given[present]))
        shares = np.zeros(n)
        if found is None:
            shares[:] = np.nan
        elif mixing is None:
            shares[present] = found.sum(axis=1)
        else:
            shares += found.sum(axis=1) @ mixing[:, :n]
        return shares, tile.shape[1]

    total, count = np.zeros(n), 0
    for shares, coordinates in here(active, 4096, part):
        total += shares
        count += coordinates
    return total / count if count else np.full(n, 1.0 / n)


def shares_in_order(tile: Array, weights: Array, by_rank: Callable[[Array, Array], Array]) -> Array:
    """What each value of a tile counts for, shape (n, T), where that goes by its rank; equal values share by weight.

    ``by_rank`` gives the shares of the ranks, shape (n, T), from the sorted values and their weights, both (n, T).
    """
    order = np.argsort(tile, axis=0, kind="stable")
    values, held = np.take_along_axis(tile, order, axis=0), weights[order]
    starts = np.ones(tile.shape, dtype=bool)
    starts[1:] = values[1:] != values[:-1]
    group = (np.cumsum(starts, axis=0) - 1 + np.arange(tile.shape[1]) * len(tile)).ravel()
    sums = np.bincount(group, by_rank(values, held).ravel())[group]
    sizes = np.bincount(group, held.ravel())[group]
    result = np.empty(tile.shape)
    np.put_along_axis(result, order, held * (sums / sizes).reshape(tile.shape), axis=0)
    return result
