"""Passes that decide: norms, Gram matrix and distances of the rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pluribus.core import kernels, relations
from pluribus.core.contributions import Block
from pluribus.core.dtypes import Array
from pluribus.core.medium import NUMPY
from pluribus.core.passes.active import Active, all_there, check_finite, row_labels, views_of
from pluribus.core.passes.running import here, summed
from pluribus.core.passes.scaling import SHORT, divided, ordinary, refuse_short, unit_of

GRAM_ITEMS = NUMPY.gram_items
LARGEST = np.finfo(np.float64).max / 1e8  # squares up to this may be added and multiplied by weights
FEW = 96  # rows: BLAS is slower on as few, see `kernels.products`
CANCELLED = 1e-8  # D below this share of G_ii + G_jj has lost half its digits


def norms(active: Active, *, scaled: bool = True) -> relations.Norms:
    """Squared norms of the active rows; raises `Tainted`. ``scaled``: as in `gram`."""
    all_there(active, "norms")
    total = summed(active, _block_norms, 1.0, np.zeros(len(active.all_rows)))
    check_finite(active, total)
    scale = _unit(active, total, scaled)
    if scale != 1.0:
        total = summed(active, _block_norms, scale, np.zeros(len(active.all_rows)))
    if scaled:
        scale, (total,) = ordinary(scale, total)
    return relations.Norms(total, len(active.rows), active.data.extras, row_labels(active), scale)


def gram(active: Active, *, scaled: bool = True) -> relations.Gram:
    """Gram matrix and distances of the active rows; raises `Tainted`.

    ``scaled``: rows whose squares, or products of these, would leave the range of float64 are measured in a unit of
    their own (`relations.Gram.scale`), by powers of two, which changes no digit of ordinary rows. Otherwise they are
    refused where nothing would be left of them.
    """
    all_there(active, "the Gram matrix")
    size = len(active.all_rows)
    matrix = summed(active, _block_gram, 1.0, np.zeros((size, size)))
    check_finite(active, np.where(np.diag(matrix) > LARGEST, np.inf, np.diag(matrix)))
    scale = _unit(active, np.diag(matrix), scaled)
    if scale != 1.0:
        matrix = summed(active, _block_gram, scale, np.zeros((size, size)))
    distances = _measured(active, matrix, scale)
    if scaled:
        scale, (matrix, distances) = ordinary(scale, matrix, distances)
    return relations.Gram(matrix, distances, len(active.rows), active.data.extras, row_labels(active), scale)


def _unit(active: Active, squares: Array, scaled: bool) -> float:
    """The unit in which rows must be squared, from their squares: one, unless all are very short."""
    if squares.max(initial=0.0) >= SHORT:
        return 1.0
    magnitude = largest(active)
    if scaled:
        return unit_of(magnitude)
    refuse_short(squares, magnitude)
    return 1.0


def largest(active: Active) -> float:
    """The greatest magnitude in all rows, which are finite."""
    data, medium = active.data, active.data.medium

    def of(block: Block) -> float:
        rows = [row for row in active.all_rows if data.rows[row][block.tensor] is not None]
        views = data.views(block, rows, active.cleaned)
        return max((float(medium.xp.abs(view).max()) for view in views if len(view)), default=0.0)

    return max(here(active, medium.gram_items, of), default=0.0)


def _block_norms(active: Active, unit: float, block: Block) -> Array:
    return squares(active, divided(views_of(active, block), active.data.medium.wide, unit))


def _block_gram(active: Active, unit: float, block: Block) -> Array:
    return _products(active, divided(views_of(active, block), active.data.medium.wide, unit))


def squares(active: Active, views: Sequence[Any]) -> Array:
    """Squared norms of views, likewise: numpy's calls a row and piece are what threads wait for."""
    if _compiled(active):
        from pluribus.core.kernels.products import squared_norms

        return squared_norms(active.data.medium.host(views))
    return active.kernel.norms(views)


def _compiled(active: Active) -> bool:
    """Whether a large problem lies in this process's memory, and there are compiled loops for it."""
    device = active.data.device
    return (device is None or device.type == "cpu") and kernels.select(active.values).NAME == "compiled"


def _products(active: Active, views: Sequence[Any]) -> Array:
    """Inner products of views: of few rows of a large problem in this process's memory by a loop of our own."""
    if len(views) <= FEW and _compiled(active):
        from pluribus.core.kernels.products import inner_products

        return inner_products(active.data.medium.host(views))
    return active.kernel.gram(views)


@dataclass(frozen=True)
class _Cluster:
    rows: Sequence[int]
    unit: float


def _block_centred_gram(active: Active, cluster: _Cluster, block: Block) -> Array:
    """Gram matrix of some rows less the first of them."""
    wide = active.data.medium.wide
    views = divided(active.data.views(block, cluster.rows, active.cleaned), wide, cluster.unit)
    if cluster.unit == 1.0:
        views = [wide(view) for view in views]
    return _products(active, [view - views[0] for view in views])


def _measured(active: Active, matrix: Array, unit: float) -> Array:
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
            near = _Cluster([active.all_rows[k] for k in cluster], unit)
            centred = summed(active, _block_centred_gram, near, np.zeros((len(group), len(group))))
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


def over_blocks(active: Active, part: Callable[[list[Array]], Any], items: int | None = None) -> Any:
    """Yield ``part(views)`` for the blocks of coordinates in order; the views are all rows', float64, finite or not.

    Blocks have ``items`` items, or as many as those of a Gram matrix.
    """
    all_there(active, "whole contributions")

    def of(block: Block) -> Any:
        views = active.data.medium.host(views_of(active, block))
        return part([view.astype(np.float64) for view in views])

    return here(active, items or GRAM_ITEMS, of)
