"""A weighted mean whose weights differ from element to element."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pluribus.core import dtypes, parts, passes
from pluribus.core.contributions import Block, Contributions
from pluribus.core.dtypes import Array
from pluribus.core.errors import ContributionError, UndefinedError
from pluribus.core.kernels import plain
from pluribus.core.passes import Active

_ITEMS = 1 << 14


@dataclass(frozen=True, eq=False)
class Elements:
    """What a pass over elements gives: the result, and each contributor's mean share of them, shape (n,)."""

    result: list[Array]
    counted: Array


def weighted_elements(active: Active, shares: Array, masks: Contributions | None) -> Elements:
    """``sum_i w_i m_ik x_ik / sum_i w_i m_ik`` at each element k; raises `Tainted`.

    Elements of weight zero throughout take the first extra row's value; without one they are an error (or zero, where
    all values are). Counters and masks among the contributions are averaged under the plain weights.

    Parameters
    ----------
    active
        The rows.
    shares
        w, weights of sum one, shape (n,).
    masks
        m: as many contributions of the same names and shapes, of numbers that are not negative. None: one where a
        value is not zero.
    """
    data = active.data
    result = data.allocate()
    floats = [k for k, spec in enumerate(data.specs) if not spec.dtype.discrete]
    places = {spec.name: k for k, spec in enumerate(masks.specs)} if masks else {}
    given = _Given(shares, masks, tuple(places.get(spec.name, -1) for spec in data.specs), result, {})
    blocks = data.blocks(_ITEMS, discrete=False)
    passes.run(active, blocks, _block_elements, given)
    parts.average(active, shares, [k for k in range(len(data.specs)) if k not in floats], result)
    counted = sum((given.counted[block] for block in blocks), np.zeros(len(shares)))
    return Elements(result, counted / max(data.coordinates, 1))


@dataclass(frozen=True, eq=False)
class _Given:
    shares: Array
    masks: Contributions | None
    places: tuple[int, ...]
    result: list[Array]
    counted: dict[Block, Array]  # of each block, so that threads do not decide in which order they are added


def _block_elements(active: Active, given: _Given, block: Block) -> bool:
    data, spec = active.data, active.data.specs[block.tensor]
    present = data.present(block.tensor, active.rows)
    views = data.views(block, [active.rows[k] for k in present], active.cleaned)
    total, mass = np.zeros(len(views[0])), np.zeros(len(views[0]))
    parts_of = []
    for k, view in zip(present, views, strict=True):
        if not plain.finite(view):
            return False
        part = given.shares[k] * _mask(active, given, block, active.rows[k], view)
        mass += part
        total += part * view
        parts_of.append(part)
    empty = mass == 0
    np.divide(total, mass, out=total, where=~empty)
    if empty.any() and (data.extras or given.masks):
        if not data.extras:
            first = block.start + int(np.argmax(empty)) // spec.dtype.per_item
            raise UndefinedError(
                f"{spec.label}: nobody takes part in element {first} "
                f"and {np.count_nonzero(empty) - 1} near it; give reference=, whose values such elements keep"
            )
        (kept,) = data.views(block, [data.n])
        if not plain.finite(kept):
            return False
        np.copyto(total, kept, where=empty)
    dtypes.store(total, passes.stored(given.result, block), spec.dtype)
    mass[empty] = 1.0
    counted = np.zeros(len(given.shares))
    counted[present] = [float((part / mass).sum()) for part in parts_of]
    given.counted[block] = counted
    return True


def _mask(active: Active, given: _Given, block: Block, row: int, view: Array) -> Any:
    if given.masks is None:
        return view != 0
    place = Block(given.places[block.tensor], block.start, block.stop)
    (mask,) = given.masks.views(place, [row])
    if not plain.finite(mask) or (mask < 0).any():
        raise ContributionError(
            f"masks of {active.data.labels[row]}: {active.data.specs[block.tensor].label} holds "
            f"{mask[~(mask >= 0) | ~np.isfinite(mask)][0]:g}; masks are finite numbers that are not negative"
        )
    per_item = active.data.specs[block.tensor].dtype.per_item
    return np.repeat(mask, per_item) if per_item > 1 else mask
