"""Passes that combine: weighted sums, and rules of each coordinate alone."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from pluribus.core import stores, weights
from pluribus.core.contributions import Block, TensorSpec
from pluribus.core.dtypes import Array, of
from pluribus.core.errors import ContributionError, RuleError
from pluribus.core.medium import NUMPY
from pluribus.core.passes.active import Active, OutsideDomain, Placed, TileRule, outside
from pluribus.core.passes.overflow import fits, overflows, sum_into
from pluribus.core.passes.running import run
from pluribus.core.stores import Result, Store


def weighted_sums(active: Active, coefficients: Array) -> list[Result]:
    """Results ``coefficients @ X``: k of them for coefficients of shape (k, m); raises `Tainted`.

    Counters and masks take the coefficients rescaled to sum one, and are rounded.
    """
    with stores.opened(active.data, active.out, len(coefficients)) as made:
        for discrete in (False, True):
            blocks = active.data.blocks(active.data.medium.tile_size(len(active.all_rows)), discrete=discrete)
            run(active, blocks, _block_sums, _Sums(coefficients, tuple(made)))
        return stores.finished(made, active.out)


@dataclass(frozen=True, eq=False)
class _Sums:
    coefficients: Array
    made: tuple[Store, ...]


def _block_sums(active: Active, sums: _Sums, block: Block) -> bool:
    spec = active.data.specs[block.tensor]
    finite = True
    for row, store in zip(sums.coefficients, sums.made, strict=True):
        places, shares = _shares(active, block.tensor, row, spec.dtype.discrete)
        rows = [active.all_rows[k] for k in places]
        views = active.data.views(block, rows, active.cleaned)
        with _Out(active, store, block, rows) as out:
            finite &= sum_into(active, views, shares, out, spec) if views else _zero(out)
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
            raise nobody_has(active.data.specs[tensor])
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
            blocks = active.data.blocks(active.data.medium.tile_size(len(shares)), discrete=discrete)
            run(active, blocks, _block_coordinates, _Coordinates(rule, shares, mixing, made[0]))
        return stores.finished(made, active.out)[0]


def nobody_has(spec: TensorSpec) -> ContributionError:
    """The error for a tensor that is absent in all who take part."""
    return ContributionError(
        f"{spec.label} is held only by contributors that do not count (of weight zero, or dropped)"
    )


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

    @property
    def between(self) -> bool:
        """Whether results lie between the values that they are made of."""
        return "betweenness" in getattr(self.rule, "laws", ()) and (
            self.mixing is None or bool((self.mixing >= 0).all())
        )

    def among(self, present: Sequence[int], spec: TensorSpec) -> TileRule:
        """The tile rule of those who have a tensor; an error for too few names it."""
        if len(present) == len(self.shares):
            return self.whole
        try:
            return self.rule.tile_rule(weights.normalise(self.shares[list(present)]))
        except RuleError as error:
            raise type(error)(
                f"{spec.label}, which {len(present)} of {len(self.shares)} contributors have: {error}; "
                "give it to more of them, or another rule to it by per_group"
            ) from None

    def __getstate__(self) -> dict[str, Any]:  # a tile rule is a closure, and is made anew where it is needed
        return {name: value for name, value in self.__dict__.items() if name != "whole"}


def _block_coordinates(active: Active, given: _Coordinates, block: Block) -> bool:
    spec = active.data.specs[block.tensor]
    finite, rows = True, list[int]()
    if given.mixing is None:
        present = active.data.present(block.tensor, active.rows) if active.data.incomplete else range(len(active.rows))
        if not present:
            raise nobody_has(spec)
        rule, rows = given.among(present, spec), [active.rows[k] for k in present]
        views = active.data.views(block, rows, active.cleaned)
    else:
        rule = given.whole
        raw = active.data.views(block, active.all_rows, active.cleaned)
        mixing = _unit_rows(given.mixing) if spec.dtype.discrete else given.mixing
        views, finite = _mixed(active, raw, mixing, spec)
    among = (rows or active.all_rows) if given.between else ()
    with _Out(active, given.store, block, among) as out:
        try:
            finite &= _applied(active, rule, views, out, block)
        except OutsideDomain as error:
            raise outside(active, rows, block.tensor, error) from None
        if finite and not given.between and not fits(active, out, spec.dtype):
            raise overflows(spec)
    return finite


def _applied(active: Active, rule: TileRule, views: list[Any], out: Any, block: Block) -> bool:
    """Apply a tile rule where the values lie, or on the host: tile by tile there, as small as numpy's tiles are."""
    medium = active.data.medium
    if medium.device is None or hasattr(rule, "by_kernel"):
        return _placed(active, rule, block, 0)(active.kernel, views, out)
    kernel, size = NUMPY.kernel(active.values), NUMPY.tile_size(len(views))
    read, written = medium.host(views), np.empty(len(out), np.float32 if out.itemsize == 4 else np.float64)
    for start in range(0, len(written), size):
        piece = slice(start, start + size)
        if not _placed(active, rule, block, start)(kernel, [view[piece] for view in read], written[piece]):
            return False
    medium.bring(written, out)
    return True


def _placed(active: Active, rule: TileRule, block: Block, start: int) -> TileRule:
    """The rule of the coordinates of a block from number ``start`` on."""
    return rule.at(active.data.first_coordinate(block) + start) if isinstance(rule, Placed) else rule


def _mixed(active: Active, views: list[Any], mixing: Array, spec: TensorSpec) -> tuple[list[Any], bool]:
    if ((mixing == 0) | (mixing == 1)).all() and (mixing.sum(axis=1) == 1).all():  # a selection: nothing to compute
        return [views[place] for place in mixing.argmax(axis=1)], True
    rows = [active.data.medium.empty(len(views[0]), np.dtype(np.float64)) for _ in mixing]
    wide = replace(spec, dtype=of("float64"))  # what it is made of is rounded to the tensor's dtype at the end alone
    finite = [sum_into(active, views, coefficients, row, wide) for coefficients, row in zip(mixing, rows, strict=True)]
    return rows, all(finite)


def _unit_rows(mixing: Array) -> Array:
    totals = mixing.sum(axis=1, keepdims=True)
    return np.asarray(mixing / np.where(totals > 0, totals, 1.0))


def _zero(out: Array) -> bool:
    out[...] = 0.0
    return True


def stored(result: Sequence[Array], block: Block) -> Array:
    """The stored items of a block of a result in memory, one-dimensional, to be written to."""
    return result[block.tensor].reshape(-1)[block.start : block.stop]


class _Out:
    """Where a kernel writes a block: in place if it can, or into a room that is rounded and stored at the end.

    Whole numbers stay between those of the rows ``among``, if any are named.
    """

    def __init__(self, active: Active, store: Store, block: Block, among: Sequence[int]) -> None:
        self.active, self.store, self.block, self.among = active, store, block, among
        self.dtype, self.medium = active.data.specs[block.tensor].dtype, active.data.medium
        self.straight = self.dtype.name in stores.STRAIGHT
        self.place = store.place(block)

    def __enter__(self) -> Any:
        size = (self.block.stop - self.block.start) * self.dtype.per_item
        if not self.straight:
            self.out = self.medium.room(size)
        elif self.place is None:
            self.out = self.medium.empty(size, self.dtype.storage)
        else:
            self.out = self.place
        return self.out

    def __exit__(self, failed: Any, *_: object) -> None:
        if failed or self.out is self.place:
            return
        items = self.out if self.straight else self.medium.rounded(self.out, self.dtype)
        if self.dtype.discrete:
            _settle(self.active, self.block, items, self.among)
        self.store.write(self.block, self.medium.stored(items) if self.place is None else items)


def _settle(active: Active, block: Block, rounded: Any, among: Sequence[int]) -> None:
    """Counters by the policy.

    Those on which all agree stay as they are, and means stay between what they are made of, whatever the rounding of
    numbers beyond 2^53 did.
    """
    medium = active.data.medium

    def held(rows: Sequence[int]) -> list[Any]:
        leaves = [active.data.rows[row][block.tensor] for row in rows]
        return [medium.items(leaf, block.start, block.stop) for leaf in leaves if leaf is not None]

    items = held(active.rows)
    if active.integers == "first":
        rounded[...] = items[0]
    elif active.integers == "max":
        rounded[...] = functools.reduce(medium.xp.maximum, items)
    else:
        least, most = medium.xp.minimum, medium.xp.maximum
        if values := held(among):
            rounded[...] = most(least(rounded, functools.reduce(most, values)), functools.reduce(least, values))
        agreed = functools.reduce(medium.xp.logical_and, [item == items[0] for item in items])
        rounded[...] = medium.xp.where(agreed, items[0], rounded)
