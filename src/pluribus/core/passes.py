"""Passes over the data, block by block: the only code that reads contributions.

Each pass maps a function over blocks of coordinates and takes the results in the order of the blocks. Weighted sums
and order statistics are per coordinate, so their bits cannot depend on the blocks. A Gram matrix is a sum over
blocks, so its blocks are fixed (`GRAM_ITEMS`), each is computed by one BLAS thread, and they are added in order.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pluribus.core import dtypes, kernels, relations
from pluribus.core.contributions import Block, Contributions
from pluribus.core.dtypes import Array
from pluribus.core.errors import ContributionError, listing
from pluribus.core.kernels import plain
from pluribus.engines import local

GRAM_ITEMS = 1 << 15
STRAIGHT = ("float32", "float64")  # results that kernels write in place
CANCELLED = 1e-8  # D below this share of G_ii + G_jj has lost half its digits

TileRule = Callable[[Any, Sequence[Array], Array], bool]  # (kernel, views, out) -> finite


class Tainted(Exception):
    """Rows with NaN or Inf were met; ``found`` maps each to the names of its bad tensors."""

    def __init__(self, found: dict[int, list[str]]) -> None:
        super().__init__(found)
        self.found = found


class OutsideDomain(Exception):
    """A tile holds a value that a rule has no meaning for; ``position`` is that of the view that holds it."""

    def __init__(self, position: int, complaint: str) -> None:
        super().__init__(position, complaint)
        self.position, self.complaint = position, complaint


@dataclass(frozen=True, eq=False)
class Active:
    """The rows that take part: contributors ``rows``, then all extra rows.

    ``cleaned`` rows have NaN and Inf read as zero; ``integers`` says how counters and masks are combined.
    """

    data: Contributions
    rows: tuple[int, ...]
    cleaned: frozenset[int] = frozenset()
    integers: str = "round"

    @property
    def all_rows(self) -> tuple[int, ...]:
        """Contributors and extra rows."""
        return self.rows + tuple(range(self.data.n, len(self.data.rows)))

    @property
    def values(self) -> int:
        """How many coordinates a pass over all of it reads."""
        return self.data.coordinates * len(self.all_rows)

    def without(self, position: int) -> Active:
        """All but the contributor at a position in ``rows``."""
        return replace(self, rows=self.rows[:position] + self.rows[position + 1 :])


def _map(active: Active, size: int, discrete: bool, function: Callable[[Block], Any]) -> Any:
    threads = local.threads_for(active.values)
    return local.ordered_map(function, active.data.blocks(size, discrete=discrete), threads)


@functools.cache
def _blas() -> Any:
    import threadpoolctl

    return threadpoolctl.ThreadpoolController()


def single_blas() -> AbstractContextManager[Any]:
    """A context in which BLAS runs on one thread, so that a block's bits do not depend on the machine."""
    return _blas().limit(limits=1, user_api="blas")


# --- deciding -------------------------------------------------------------------------------------------------------


def norms(active: Active) -> relations.Norms:
    """Squared norms of the active rows; raises `Tainted`."""
    _all_there(active, "norms")
    rows = active.all_rows
    total = np.zeros(len(rows))
    for part in _map(active, GRAM_ITEMS, False, lambda b: plain.norms(_views(active, b))):
        total += part
    _check_finite(active, total)
    return relations.Norms(total, len(active.rows), active.data.extras, _labels(active))


def gram(active: Active) -> relations.Gram:
    """Gram matrix and distances of the active rows; raises `Tainted`."""
    _all_there(active, "the Gram matrix")
    rows = active.all_rows
    matrix = np.zeros((len(rows), len(rows)))
    with single_blas():
        for part in _map(active, GRAM_ITEMS, False, lambda b: plain.gram(_views(active, b))):
            matrix += part
        _check_finite(active, np.diag(matrix))
        distances = _measured(active, matrix)
    return relations.Gram(matrix, distances, len(active.rows), active.data.extras, _labels(active))


def _measured(active: Active, matrix: Array) -> Array:
    """Squared distances, with those that cancelled in the Gram matrix measured again nearer by.

    Rows whose distances are small beside their norms lie together. Each such cluster is centred on one of its
    members, which is near all the others, whoever sent it; what still cancels is a finer cluster, treated alike.
    """
    distances = relations.gram_distances(matrix)
    pending = [(np.arange(len(matrix)), matrix)]
    while pending:
        members, local_gram = pending.pop()
        scale = np.diag(local_gram)
        window = np.ix_(members, members)
        close = distances[window] < CANCELLED * (scale[:, None] + scale[None, :])
        np.fill_diagonal(close, False)
        for group in _components(close):
            cluster = members[group]
            centred = _centred_gram(active, cluster)
            inner = np.ix_(cluster, cluster)
            distances[inner] = np.where(
                close[np.ix_(group, group)], relations.gram_distances(centred), distances[inner]
            )
            pending.append((cluster[1:], centred[1:, 1:]))
    return distances


def _components(linked: Array) -> list[Array]:
    """Connected components of at least two members, each in increasing order."""
    from scipy.sparse.csgraph import connected_components

    if not linked.any():
        return []
    _, component = connected_components(linked, directed=False)
    groups = [np.flatnonzero(component == c) for c in np.unique(component)]
    return [g for g in groups if len(g) > 1]


def _centred_gram(active: Active, cluster: Array) -> Array:
    """Gram matrix of the cluster's rows less its first row."""
    rows = [active.all_rows[k] for k in cluster]

    def part(block: Block) -> Array:
        views = [v.astype(np.float64) for v in active.data.views(block, rows, active.cleaned)]
        return plain.gram([v - views[0] for v in views])

    total = np.zeros((len(rows), len(rows)))
    for matrix in _map(active, GRAM_ITEMS, False, part):
        total += matrix
    return total


def over_blocks(active: Active, part: Callable[[list[Array]], Any]) -> Any:
    """Yield ``part(views)`` for the blocks of coordinates in order; the views are all rows', float64, finite or not."""
    _all_there(active, "whole contributions")
    return _map(active, GRAM_ITEMS, False, lambda block: part([v.astype(np.float64) for v in _views(active, block)]))


def blame(active: Active) -> None:
    """Raise `Tainted` with the rows that hold NaN or Inf, if any do."""
    found = scan(active)
    if found:
        raise Tainted(found)


# --- combining ------------------------------------------------------------------------------------------------------


def weighted_sums(active: Active, coefficients: Array) -> list[list[Array]]:
    """Results ``coefficients @ X``: k lists of stored arrays for coefficients of shape (k, m); raises `Tainted`.

    Counters and masks take the coefficients rescaled to sum one, and are rounded.
    """
    results = [active.data.allocate() for _ in coefficients]
    kernel = kernels.select(active.values)
    for discrete in (False, True):

        def combine(block: Block, discrete: bool = discrete) -> bool:
            spec = active.data.specs[block.tensor]
            finite = True
            for row, result in zip(coefficients, results, strict=True):
                places, shares = _shares(active, block.tensor, row, discrete)
                views = active.data.views(block, [active.all_rows[k] for k in places], active.cleaned)
                straight = spec.dtype.name in STRAIGHT
                size = (block.stop - block.start) * spec.dtype.per_item
                out = stored(result, block) if straight else _room(size)
                finite &= kernel.weighted_sum(views, shares, out) if views else _zero(out)
                if not straight:
                    write(result, active, block, out)
            return finite

        _run(active, kernels.tile_size(len(active.all_rows), 8), discrete, combine)
    return results


def _shares(active: Active, tensor: int, coefficients: Array, discrete: bool) -> tuple[list[int], Array]:
    """Positions of the rows that count for a tensor, and what each counts for."""
    if not active.data.incomplete and not discrete:
        places = np.flatnonzero(coefficients)
        return list(places), coefficients[places]
    there = np.zeros(len(coefficients))
    there[active.data.present(tensor, active.all_rows)] = 1.0
    if not (there * coefficients).any():
        if not there.any():
            raise ContributionError(f"{active.data.specs[tensor].label} is held only by contributors of weight zero")
        coefficients = there
    shares = there * (np.maximum(coefficients, 0.0) if discrete else coefficients)
    shares = shares if shares.any() else there
    target = 1.0 if discrete else coefficients.sum()
    if discrete or not there.all():
        shares = shares * (target / shares.sum())
    places = np.flatnonzero(shares)
    return list(places), shares[places]


def coordinatewise(
    active: Active, rule_for: Callable[[tuple[int, ...]], TileRule], mixing: Array | None = None
) -> list[Array]:
    """Result of a rule that works on each coordinate alone; raises `Tainted`.

    Parameters
    ----------
    active
        The rows.
    rule_for
        Gives the tile rule for the contributors (positions in ``active.rows``) that hold a tensor.
    mixing
        Shape (k, m): the rule sees M X instead of X, made tile by tile. Rows are rescaled to sum one for counters.
    """
    result = active.data.allocate()
    n = len(active.rows)
    everyone = tuple(range(n))
    whole = rule_for(everyone if mixing is None else tuple(range(len(mixing))))
    kernel = kernels.select(active.values)
    for discrete in (False, True):

        def combine(block: Block, discrete: bool = discrete) -> bool:
            finite = True
            if mixing is None:
                present = tuple(active.data.present(block.tensor, active.rows)) if active.data.incomplete else everyone
                rule = whole if len(present) == n else rule_for(present)
                rows = [active.rows[k] for k in present]
                views = active.data.views(block, rows, active.cleaned)
            else:
                rule, rows = whole, []
                raw = active.data.views(block, active.all_rows, active.cleaned)
                views, finite = _mixed(kernel, raw, _unit_rows(mixing) if discrete else mixing)
            straight = active.data.specs[block.tensor].dtype.name in STRAIGHT
            out = stored(result, block) if straight else _room(len(views[0]))
            try:
                finite &= rule(kernel, views, out)
            except OutsideDomain as error:
                raise outside(active, rows, block.tensor, error) from None
            if not straight:
                write(result, active, block, out)
            return finite

        _run(active, kernels.tile_size(n, 8), discrete, combine)
    return result


def outside(active: Active, rows: Sequence[int], tensor: int, error: OutsideDomain) -> ContributionError:
    """The error that names who left a rule's domain, and with which tensor; no ``rows``: what pre-rules made."""
    who = active.data.labels[rows[error.position]] if rows else "a contribution made by a pre-rule"
    return ContributionError(f"{who}: {active.data.specs[tensor].label} {error.complaint}")


def _mixed(kernel: Any, views: Sequence[Array], mixing: Array) -> tuple[list[Array], bool]:
    if ((mixing == 0) | (mixing == 1)).all() and (mixing.sum(axis=1) == 1).all():  # a selection: nothing to compute
        return [views[place] for place in mixing.argmax(axis=1)], True
    rows = [np.empty(len(views[0])) for _ in mixing]
    finite = [kernel.weighted_sum(views, coefficients, row) for coefficients, row in zip(mixing, rows, strict=True)]
    return rows, all(finite)


def _unit_rows(mixing: Array) -> Array:
    totals = mixing.sum(axis=1, keepdims=True)
    return np.asarray(mixing / np.where(totals > 0, totals, 1.0))


# --- measuring a result ---------------------------------------------------------------------------------------------


def squared_distances_to(active: Active, arrays: Sequence[Array]) -> Array:
    """|x_i - z|^2 of the contributors to stored arrays z, shape (n,)."""
    specs = active.data.specs

    def part(block: Block) -> Array:
        dtype = specs[block.tensor].dtype
        z = dtypes.coordinates(arrays[block.tensor].reshape(-1)[block.start : block.stop], dtype, np.dtype(np.float64))
        present = active.data.present(block.tensor, active.rows)
        views = active.data.views(block, [active.rows[k] for k in present], active.cleaned)
        squares = np.zeros(len(active.rows))
        squares[present] = [float(np.dot(gap, gap)) for gap in (v - z for v in views)]
        return squares

    total = np.zeros(len(active.rows))
    with single_blas():
        for squares in _map(active, GRAM_ITEMS, False, part):
            total += squares
    return total


def coordinate_shares(
    active: Active, tile_shares: Callable[[Array], Array | None], mixing: Array | None = None
) -> Array:
    """Mean over coordinates of what each contributor's value counts for, shape (n,); NaN where that means nothing.

    Parameters
    ----------
    active
        The rows.
    tile_shares
        Gives the shares of the values of a tile, shape (n, T).
    mixing
        Shape (k, m) if the rule saw M X; what a mixture counts for goes to what it was made of.
    """
    n = len(active.rows)

    def part(block: Block) -> tuple[Array, int]:
        present = active.data.present(block.tensor, active.rows)
        rows = [active.rows[k] for k in present] if mixing is None else active.all_rows
        tile = np.stack(active.data.views(block, rows, active.cleaned))
        found = tile_shares(tile if mixing is None else mixing @ tile)
        shares = np.zeros(n)
        if found is None:
            shares[:] = np.nan
        elif mixing is None:
            shares[present] = found.sum(axis=1)
        else:
            shares += found.sum(axis=1) @ mixing[:, :n]
        return shares, tile.shape[1]

    total, count = np.zeros(n), 0
    for shares, coordinates in _map(active, 4096, False, part):
        total += shares
        count += coordinates
    return total / count if count else np.full(n, 1.0 / n)


def tied_shares(tile: Array, shares: Array) -> Array:
    """For each column of a tile, each row's share by its rank; rows of equal value get the mean of theirs."""
    order = np.argsort(tile, axis=0, kind="stable")
    values = np.take_along_axis(tile, order, axis=0)
    starts = np.ones(tile.shape, dtype=bool)
    starts[1:] = values[1:] != values[:-1]
    group = np.cumsum(starts, axis=0) - 1 + np.arange(tile.shape[1]) * len(tile)
    sizes = np.bincount(group.ravel(), minlength=tile.size)
    sums = np.bincount(group.ravel(), np.broadcast_to(shares[:, None], tile.shape).ravel(), minlength=tile.size)
    ranked = (sums / np.maximum(sizes, 1))[group]
    result = np.empty(tile.shape)
    np.put_along_axis(result, order, ranked, axis=0)
    return result


# --- shared pieces --------------------------------------------------------------------------------------------------


def _views(active: Active, block: Block) -> list[Array]:
    return active.data.views(block, active.all_rows, active.cleaned)


def _labels(active: Active) -> tuple[str, ...]:
    return tuple(active.data.labels[row] for row in active.all_rows)


def _run(active: Active, size: int, discrete: bool, combine: Callable[[Block], bool]) -> None:
    """Run a pass over blocks of coordinates; see `run`."""
    run(active, active.data.blocks(size, discrete=discrete), combine)


def run(active: Active, blocks: Iterable[Block], combine: Callable[[Block], bool]) -> None:
    """Run a pass; at the first block that is not finite, find every bad row, and tell (`Tainted`)."""
    for finite in local.ordered_map(combine, blocks, local.threads_for(active.values)):
        if not finite:
            blame(active)


def scan(active: Active) -> dict[int, list[str]]:
    """Rows that hold NaN or Inf, with the names of the tensors that do."""
    found: dict[int, list[str]] = {}
    for block in active.data.blocks(1 << 16, discrete=False):
        for row in active.all_rows:
            if active.data.rows[row][block.tensor] is None or row in active.cleaned:
                continue
            (view,) = active.data.views(block, [row])
            if not np.isfinite(view).all():
                names = found.setdefault(row, [])
                label = active.data.specs[block.tensor].label
                if label not in names:
                    names.append(label)
    return dict(sorted(found.items()))


def _check_finite(active: Active, squares: Array) -> None:
    bad = np.flatnonzero(~np.isfinite(squares))
    if bad.size:
        named = scan(active)
        raise Tainted({active.all_rows[k]: named.get(active.all_rows[k], []) for k in bad})


def _all_there(active: Active, what: str) -> None:
    if active.data.incomplete:
        lacking = listing([active.data.labels[r] for r in active.rows if None in active.data.rows[r]])
        raise ContributionError(
            f"a rule that reads {what} needs every tensor of every contributor; some are absent in {lacking}"
        )


class _Memory(threading.local):
    buffer = np.empty(0)


_memory = _Memory()


def _room(size: int) -> Array:
    """Uninitialised float64 memory of this thread's own, good until it is asked for again.

    Fresh memory for each tile would come from the system and be touched for the first time, every time.
    """
    if len(_memory.buffer) < size:
        _memory.buffer = np.empty(size)
    return _memory.buffer[:size]


def _zero(out: Array) -> bool:
    out[...] = 0.0
    return True


def stored(result: Sequence[Array], block: Block) -> Array:
    """The stored items of a block of a result, one-dimensional, to be written to."""
    return result[block.tensor].reshape(-1)[block.start : block.stop]


def write(result: Sequence[Array], active: Active, block: Block, values: Array) -> None:
    """Round values into their place; counters by the policy, and those on which all agree stay as they are."""
    target, dtype = stored(result, block), active.data.specs[block.tensor].dtype
    dtypes.store(values, target, dtype)
    if not dtype.discrete:
        return
    places = [active.rows[k] for k in active.data.present(block.tensor, active.rows)]
    items = [
        leaf.items(block.start, block.stop) for leaf in (active.data.rows[r][block.tensor] for r in places) if leaf
    ]
    if active.integers == "first":
        target[...] = items[0]
    elif active.integers == "max":
        target[...] = functools.reduce(np.maximum, items)
    else:
        agreed = np.logical_and.reduce([item == items[0] for item in items])
        np.copyto(target, items[0], where=agreed)
