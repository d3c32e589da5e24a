"""Passes of rules on points: whole points of every contributor at a time, many points at once."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from pluribus.core import dtypes, parts, passes, stores, weights
from pluribus.core.contributions import Block, TensorSpec
from pluribus.core.dtypes import Array
from pluribus.core.errors import ContributionError, UndefinedError
from pluribus.core.passes import Active, OutsideDomain
from pluribus.core.rule import PointRule
from pluribus.core.stores import Result

_VALUES = 1 << 18  # of all contributors in one block; it depends on nothing but n and the shape of a point


def pointwise(active: Active, rule: PointRule, shares: Array) -> list[Array]:
    """Result of a rule on points, under weights of sum one, shape (n,); raises `Tainted`."""
    data = active.data
    mine = _tensors(rule, data.specs)
    result = data.allocate()

    def combine(block: Block) -> bool:
        places = data.present(block.tensor, active.rows)
        rows = [active.rows[k] for k in places]
        spec = data.specs[block.tensor]
        points = np.stack([_points(active, rule, block, row) for row in rows])
        if not rule.whole and not np.isfinite(points).all():
            return False
        for position, row in enumerate(rows):
            with np.errstate(over="ignore"):  # a sum of infinity is complained of like any other
                told = rule.complaint(points[position], _rounding(active, row, block.tensor))
            if told:
                where = _place(rule, spec, block, told[0])
                raise passes.outside(active, rows, block.tensor, OutsideDomain(position, f"{where}{told[1]}"))
        among = shares if len(places) == len(shares) else weights.normalise(shares[places])
        try:
            values = rule.combine(points, among)
        except UndefinedError as error:
            raise UndefinedError(f"{spec.label}: {error}") from None
        if rule.whole:
            if spec.dtype.kind == "boolean" and (values >> 1).any():
                odd = values[(values >> 1) != 0].flat[0]
                raise UndefinedError(f"{spec.label} holds bool, and the result {odd} is none; convert it to int8")
            passes.stored(result, block)[...] = values.reshape(-1)
        else:
            dtypes.store(values.reshape(-1), passes.stored(result, block), spec.dtype)
        return True

    passes.run(active, list(_blocks(active, rule, mine)), lambda _, __, block: combine(block))
    parts.average(active, shares, [k for k in range(len(data.specs)) if k not in mine], result)
    return result


def squared_distances(active: Active, rule: PointRule, result: Result) -> Array:
    """Squared distances of the contributors to a result, shape (n,), summed over all points."""
    total = np.zeros(len(active.rows))
    for block in _blocks(active, rule, _tensors(rule, active.data.specs)):
        spec = active.data.specs[block.tensor]
        items = stores.items(result[block.tensor], block)
        other = _shaped(
            items if rule.whole else dtypes.coordinates(items, spec.dtype, np.dtype(np.float64)), rule, spec
        )
        for k in active.data.present(block.tensor, active.rows):
            with np.errstate(over="ignore"):
                total[k] += rule.squared_distances(_points(active, rule, block, active.rows[k]), other).sum()
    return total


def _tensors(rule: PointRule, specs: Sequence[TensorSpec]) -> list[int]:
    """Numbers of the tensors that hold points."""
    for spec in specs:
        if rule.whole and not spec.dtype.discrete:
            raise ContributionError(
                f"{spec.label} holds {spec.dtype.name}, and {rule} combines whole numbers; convert it to integers"
            )
        if rule.whole and spec.dtype.kind == "boolean" and not rule.masks:
            raise ContributionError(f"{spec.label} holds bool, and {rule} combines numbers; convert it to integers")
        if spec.dtype.kind == "complex":
            raise ContributionError(f"{spec.label} is complex, and {rule} combines points made of real numbers")
        if spec.dtype.discrete == rule.whole and len(spec.shape) < rule.axes:
            raise ContributionError(
                f"{spec.label} has shape {spec.shape}, but the last {rule.axes} axes of a tensor are a point of {rule}"
            )
    mine = [k for k, spec in enumerate(specs) if spec.dtype.discrete == rule.whole]
    if not mine:
        told = ", ".join(sorted({spec.dtype.name for spec in specs}))
        raise ContributionError(f"all tensors hold {told}, and points of {rule} are floats; convert them")
    return mine


def _blocks(active: Active, rule: PointRule, tensors: Sequence[int]) -> Iterator[Block]:
    """Ranges of whole points, in order."""
    for k in tensors:
        spec = active.data.specs[k]
        point = math.prod(_point_shape(rule, spec))
        step = max(1, _VALUES // max(point * len(active.rows), 1)) * point
        for start in range(0, spec.size, step or 1):
            yield Block(k, start, min(start + step, spec.size))


def _point_shape(rule: PointRule, spec: TensorSpec) -> tuple[int, ...]:
    return spec.shape[len(spec.shape) - rule.axes :]


def _points(active: Active, rule: PointRule, block: Block, row: int) -> Array:
    """One contributor's points, shape (m, ...): float64, or the whole numbers that the result holds."""
    spec = active.data.specs[block.tensor]
    if rule.whole:
        leaf = active.data.rows[row][block.tensor]
        assert leaf is not None, "rows without the tensor are left out by the caller"
        kind = np.dtype(np.int64) if spec.dtype.kind == "boolean" else spec.dtype.storage
        return _shaped(leaf.items(block.start, block.stop).astype(kind), rule, spec)
    (view,) = active.data.views(block, [row], active.cleaned)
    return _shaped(view.astype(np.float64), rule, spec)


def _place(rule: PointRule, spec: TensorSpec, block: Block, number: int) -> str:
    """Where in a tensor a point of a block lies: ``"at [3, 1] "``, or nothing where the tensor is one point."""
    first = block.start // max(math.prod(_point_shape(rule, spec)), 1)
    leading = spec.shape[: len(spec.shape) - rule.axes]
    if not leading:
        return ""
    return f"at [{', '.join(str(int(k)) for k in np.unravel_index(first + number, leading))}] "


def _shaped(items: Array, rule: PointRule, spec: TensorSpec) -> Array:
    return items.reshape(-1, *_point_shape(rule, spec))


def _rounding(active: Active, row: int, tensor: int) -> float:
    leaf = active.data.rows[row][tensor]
    assert leaf is not None, "rows without the tensor are left out by the caller"
    return dtypes.rounding(leaf.dtype)
