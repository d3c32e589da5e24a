"""Passes that decide: norms, Gram matrix and distances of the rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pluribus.core import relations
from pluribus.core.contributions import Block
from pluribus.core.dtypes import Array
from pluribus.core.medium import NUMPY
from pluribus.core.passes.active import Active, all_there, check_finite, row_labels, views_of
from pluribus.core.passes.running import here, summed

GRAM_ITEMS = NUMPY.gram_items
LARGEST = np.finfo(np.float64).max / 1e8  # squares up to this may be added and multiplied by weights
CANCELLED = 1e-8  # D below this share of G_ii + G_jj has lost half its digits


def norms(active: Active) -> relations.Norms:
    """Squared norms of the active rows; raises `Tainted`."""
    all_there(active, "norms")
    total = summed(active, _block_norms, None, np.zeros(len(active.all_rows)))
    check_finite(active, total)
    return relations.Norms(total, len(active.rows), active.data.extras, row_labels(active))


def gram(active: Active) -> relations.Gram:
    """Gram matrix and distances of the active rows; raises `Tainted`."""
    all_there(active, "the Gram matrix")
    size = len(active.all_rows)
    matrix = summed(active, _block_gram, None, np.zeros((size, size)))
    check_finite(active, np.where(np.diag(matrix) > LARGEST, np.inf, np.diag(matrix)))
    distances = _measured(active, matrix)
    return relations.Gram(matrix, distances, len(active.rows), active.data.extras, row_labels(active))


def _block_norms(active: Active, _: None, block: Block) -> Array:
    return active.kernel.norms(views_of(active, block))


def _block_gram(active: Active, _: None, block: Block) -> Array:
    return active.kernel.gram(views_of(active, block))


def _block_centred_gram(active: Active, rows: Sequence[int], block: Block) -> Array:
    """Gram matrix of some rows less the first of them."""
    views = [active.data.medium.wide(view) for view in active.data.views(block, rows, active.cleaned)]
    return active.kernel.gram([view - views[0] for view in views])


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
            centred = summed(active, _block_centred_gram, rows, np.zeros((len(rows), len(rows))))
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
    all_there(active, "whole contributions")

    def of(block: Block) -> Any:
        views = active.data.medium.host(views_of(active, block))
        return part([view.astype(np.float64) for view in views])

    return here(active, GRAM_ITEMS, of)
