"""Passes over the data, block by block: the only code that reads contributions.

Each pass maps a function over blocks of coordinates and takes the results in the order of the blocks. Weighted sums
and order statistics are per coordinate, so their bits cannot depend on the blocks. A Gram matrix is a sum over
blocks, so its blocks are fixed (`GRAM_ITEMS`), each is computed by one BLAS thread, and they are added in fixed groups
(`GRAM_GROUP`) and in order. So neither threads, nor tiles, nor the engine change a bit.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from pluribus.core import dtypes, kernels, relations, stores, weights
from pluribus.core.contributions import Block, Contributions
from pluribus.core.dtypes import Array
from pluribus.core.errors import ContributionError, RuleError, listing
from pluribus.core.kernels import plain
from pluribus.core.stores import Result, Store
from pluribus.engines import local
from pluribus.engines.base import Engine

GRAM_ITEMS = 1 << 15
GRAM_GROUP = 16
CANCELLED = 1e-8  # D below this share of G_ii + G_jj has lost half its digits

TileRule = Callable[[Any, Sequence[Array], Array], bool]  # (kernel, views, out) -> finite


@dataclass(frozen=True)
class Placed:
    """A tile rule that must know where its tile lies, since it draws random numbers for each coordinate.

    ``at(first)`` is the rule of the tile whose first coordinate has that number, counted over all tensors; so what is
    drawn does not depend on the tiles. Called as a tile rule that knows nothing of its place it raises `RuleError`.
    """

    at: Callable[[int], TileRule]

    def __call__(self, kernel: Any, views: Sequence[Array], out: Array) -> bool:
        """Refuse: without a place there is nothing to draw."""
        raise RuleError("a rule that draws random numbers must know where its tile lies: call at(first) first")


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

    ``cleaned`` rows have NaN and Inf read as zero; ``integers`` says how counters and masks are combined; ``engine`` is
    where passes run (None: threads, by size) and ``out`` the file that the result goes to (None: memory).
    """

    data: Contributions
    rows: tuple[int, ...]
    cleaned: frozenset[int] = frozenset()
    integers: str = "round"
    engine: Engine | None = None
    out: Path | None = None

    @property
    def all_rows(self) -> tuple[int, ...]:
        """Contributors and extra rows."""
        return self.rows + tuple(range(self.data.n, len(self.data.rows)))

    @property
    def values(self) -> int:
        """How many coordinates a pass over all of it reads."""
        return self.data.coordinates * len(self.all_rows)

    def without(self, position: int) -> Active:
        """All but the contributor at a position in ``rows``; in memory."""
        return replace(self, rows=self.rows[:position] + self.rows[position + 1 :], out=None)


# --- running --------------------------------------------------------------------------------------------------------

Task = Callable[[Active, Any, Block], Any]  # (active, payload, block) -> what a block gives; a function of a module


@dataclass(frozen=True, eq=False)
class _Job:
    """What all spans of a pass share. Small where it travels: contributions are paths then."""

    active: Active
    task: Task
    payload: Any
    blocks: Sequence[Block]


def _total(job: _Job, span: tuple[int, int]) -> Any:
    """The sum over a span, in order."""
    total: Any = 0.0
    for number in range(*span):
        total = total + job.task(job.active, job.payload, job.blocks[number])
    return total


def _total_elsewhere(job: _Job, span: tuple[int, int]) -> Any:
    with single_blas():
        return _total(job, span)


def _all(job: _Job, span: tuple[int, int]) -> bool:
    """Whether a span was finite throughout."""
    return all(job.task(job.active, job.payload, job.blocks[number]) for number in range(*span))


def _summed(active: Active, task: Task, payload: Any, zero: Any, size: int = GRAM_ITEMS) -> Any:
    """The sum of a task over all blocks of coordinates: the same bits wherever it runs."""
    engine = _engine(active)
    job = _Job(active, task, payload, active.data.blocks(size, discrete=False))
    spans = _spans(len(job.blocks), GRAM_GROUP)
    if engine.remote:
        parts = engine.run(_total_elsewhere, _portable(job), spans)
        return sum(parts, zero)
    with single_blas():
        return sum(engine.run(_total, job, spans), zero)


def run(active: Active, blocks: Sequence[Block], task: Task, payload: Any = None) -> None:
    """Run a task over blocks; at the first that is not finite, find every bad row, and tell (`Tainted`)."""
    engine = _engine(active)
    job = _Job(active, task, payload, blocks)
    # A remote span is a good second of work or a small share of all; a local one is a block.
    group = max(1, min(256, len(blocks) // (4 * engine.slots))) if engine.remote else 1
    for finite in engine.run(_all, _portable(job) if engine.remote else job, _spans(len(blocks), group)):
        if not finite:
            blame(active)


def _spans(count: int, group: int) -> list[tuple[int, int]]:
    return [(start, min(start + group, count)) for start in range(0, count, group)]


def _engine(active: Active) -> Engine:
    return active.engine or local.Threads(local.threads_for(active.values))


def _portable(job: _Job) -> _Job:
    return replace(job, active=replace(job.active, data=job.active.data.portable(), engine=None))


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
    total = _summed(active, _block_norms, None, np.zeros(len(active.all_rows)))
    _check_finite(active, total)
    return relations.Norms(total, len(active.rows), active.data.extras, _labels(active))


def gram(active: Active) -> relations.Gram:
    """Gram matrix and distances of the active rows; raises `Tainted`."""
    _all_there(active, "the Gram matrix")
    size = len(active.all_rows)
    matrix = _summed(active, _block_gram, None, np.zeros((size, size)))
    _check_finite(active, np.diag(matrix))
    distances = _measured(active, matrix)
    return relations.Gram(matrix, distances, len(active.rows), active.data.extras, _labels(active))


def _block_norms(active: Active, _: None, block: Block) -> Array:
    return plain.norms(_views(active, block))


def _block_gram(active: Active, _: None, block: Block) -> Array:
    return plain.gram(_views(active, block))


def _block_centred_gram(active: Active, rows: Sequence[int], block: Block) -> Array:
    """Gram matrix of some rows less the first of them."""
    views = [v.astype(np.float64) for v in active.data.views(block, rows, active.cleaned)]
    return plain.gram([v - views[0] for v in views])


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
            rows = [active.all_rows[k] for k in cluster]
            centred = _summed(active, _block_centred_gram, rows, np.zeros((len(rows), len(rows))))
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


def over_blocks(active: Active, part: Callable[[list[Array]], Any]) -> Any:
    """Yield ``part(views)`` for the blocks of coordinates in order; the views are all rows', float64, finite or not."""
    _all_there(active, "whole contributions")
    return _here(active, GRAM_ITEMS, lambda block: part([v.astype(np.float64) for v in _views(active, block)]))


def _here(active: Active, size: int, function: Callable[[Block], Any]) -> Any:
    """Yield a function of each block of coordinates, in order, in this process."""
    blocks = active.data.blocks(size, discrete=False)
    return local.ordered_map(function, blocks, local.threads_for(active.values))


def blame(active: Active) -> None:
    """Raise `Tainted` with the rows that hold NaN or Inf, if any do."""
    found = scan(active)
    if found:
        raise Tainted(found)


# --- combining ------------------------------------------------------------------------------------------------------


def weighted_sums(active: Active, coefficients: Array) -> list[Result]:
    """Results ``coefficients @ X``: k of them for coefficients of shape (k, m); raises `Tainted`.

    Counters and masks take the coefficients rescaled to sum one, and are rounded.
    """
    with stores.opened(active.data, active.out, len(coefficients)) as made:
        for discrete in (False, True):
            size = kernels.tile_size(len(active.all_rows), 8)
            blocks = active.data.blocks(size, discrete=discrete)
            run(active, blocks, _block_sums, _Sums(coefficients, tuple(made)))
        return stores.finished(made, active.out)


@dataclass(frozen=True, eq=False)
class _Sums:
    coefficients: Array
    made: tuple[Store, ...]


def _block_sums(active: Active, sums: _Sums, block: Block) -> bool:
    spec = active.data.specs[block.tensor]
    kernel = kernels.select(active.values)
    finite = True
    for row, store in zip(sums.coefficients, sums.made, strict=True):
        places, shares = _shares(active, block.tensor, row, spec.dtype.discrete)
        views = active.data.views(block, [active.all_rows[k] for k in places], active.cleaned)
        with _Out(active, store, block) as out:
            finite &= kernel.weighted_sum(views, shares, out) if views else _zero(out)
    return finite


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


def coordinatewise(active: Active, rule: Tiled, shares: Array, mixing: Array | None = None) -> Result:
    """Result of a rule that works on each coordinate alone; raises `Tainted`.

    Parameters
    ----------
    active
        The rows.
    rule
        Has ``tile_rule(weights)``.
    shares
        Weights of sum one of what the rule sees, shape (n,) or (k,). Where some lack a tensor, the others' are
        rescaled.
    mixing
        Shape (k, m): the rule sees M X instead of X, made tile by tile. Rows are rescaled to sum one for counters.
    """
    with stores.opened(active.data, active.out, 1) as made:
        for discrete in (False, True):
            blocks = active.data.blocks(kernels.tile_size(len(shares), 8), discrete=discrete)
            run(active, blocks, _block_coordinates, _Coordinates(rule, shares, mixing, made[0]))
        return stores.finished(made, active.out)[0]


class Tiled(Protocol):
    """A rule of coordinates."""

    def tile_rule(self, weights: Array) -> TileRule:
        """A function for one tile."""


@dataclass(frozen=True, eq=False)
class _Coordinates:
    rule: Tiled
    shares: Array
    mixing: Array | None
    store: Store

    @functools.cached_property
    def whole(self) -> TileRule:
        """The tile rule where nobody is absent."""
        return self.rule.tile_rule(self.shares)

    def among(self, present: Sequence[int]) -> TileRule:
        """The tile rule of those who have a tensor."""
        if len(present) == len(self.shares):
            return self.whole
        return self.rule.tile_rule(weights.normalise(self.shares[list(present)]))

    def __getstate__(self) -> dict[str, Any]:  # a tile rule is a closure, and is made anew where it is needed
        return {name: value for name, value in self.__dict__.items() if name != "whole"}


def _block_coordinates(active: Active, given: _Coordinates, block: Block) -> bool:
    kernel = kernels.select(active.values)
    spec = active.data.specs[block.tensor]
    finite, rows = True, list[int]()
    if given.mixing is None:
        present = active.data.present(block.tensor, active.rows) if active.data.incomplete else range(len(active.rows))
        rule, rows = given.among(present), [active.rows[k] for k in present]
        views = active.data.views(block, rows, active.cleaned)
    else:
        rule = given.whole
        raw = active.data.views(block, active.all_rows, active.cleaned)
        views, finite = _mixed(kernel, raw, _unit_rows(given.mixing) if spec.dtype.discrete else given.mixing)
    placed = rule.at(active.data.first_coordinate(block)) if isinstance(rule, Placed) else rule
    with _Out(active, given.store, block) as out:
        try:
            finite &= placed(kernel, views, out)
        except OutsideDomain as error:
            raise outside(active, rows, block.tensor, error) from None
    return finite


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


def squared_distances_to(active: Active, result: Result) -> Array:
    """|x_i - z|^2 of the contributors to a result z, shape (n,)."""
    found: Array = _summed(active, _block_distances, result, np.zeros(len(active.rows)))
    return found


def _block_distances(active: Active, result: Result, block: Block) -> Array:
    dtype = active.data.specs[block.tensor].dtype
    z = dtypes.coordinates(stores.items(result[block.tensor], block), dtype, np.dtype(np.float64))
    present = active.data.present(block.tensor, active.rows)
    views = active.data.views(block, [active.rows[k] for k in present], active.cleaned)
    squares = np.zeros(len(active.rows))
    squares[present] = [float(np.dot(gap, gap)) for gap in (v - z for v in views)]
    return squares


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
    for shares, coordinates in _here(active, 4096, part):
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
    """The stored items of a block of a result in memory, one-dimensional, to be written to."""
    return result[block.tensor].reshape(-1)[block.start : block.stop]


class _Out:
    """Where a kernel writes a block: in place if it can, or into a room that is rounded and stored at the end."""

    def __init__(self, active: Active, store: Store, block: Block) -> None:
        self.active, self.store, self.block = active, store, block
        self.spec = active.data.specs[block.tensor]
        self.size = (block.stop - block.start) * self.spec.dtype.per_item
        self.place = store.place(block)

    def __enter__(self) -> Array:
        if self.spec.dtype.name not in stores.STRAIGHT:
            self.out = _room(self.size)
        else:
            self.out = np.empty(self.size, self.spec.dtype.storage) if self.place is None else self.place
        return self.out

    def __exit__(self, failed: Any, *_: object) -> None:
        if failed or self.out is self.place:
            return
        if self.spec.dtype.name in stores.STRAIGHT:
            items = self.out
        else:
            items = np.empty(self.block.stop - self.block.start, self.spec.dtype.storage)
            dtypes.store(self.out, items, self.spec.dtype)
            if self.spec.dtype.discrete:
                _settle(self.active, self.block, items)
        self.store.write(self.block, items)


def _settle(active: Active, block: Block, rounded: Array) -> None:
    """Counters by the policy; those on which all agree stay as they are, whatever rounding did."""
    places = [active.rows[k] for k in active.data.present(block.tensor, active.rows)]
    items = [
        leaf.items(block.start, block.stop) for leaf in (active.data.rows[r][block.tensor] for r in places) if leaf
    ]
    if active.integers == "first":
        rounded[...] = items[0]
    elif active.integers == "max":
        rounded[...] = functools.reduce(np.maximum, items)
    else:
        agreed = np.logical_and.reduce([item == items[0] for item in items])
        np.copyto(rounded, items[0], where=agreed)
