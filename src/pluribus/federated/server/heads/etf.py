"""Fixed classifiers: directions of classes that are as far apart as they can be, and equally far."""

from __future__ import annotations

import numpy as np

from pluribus.core.errors import RuleError
from pluribus.federated.models import Array
from pluribus.federated.seeding import generator


def simplex_etf(classes: int, d: int, seed: int = 0) -> Array:
    """A simplex equiangular tight frame ``sqrt(C / (C - 1)) (I - 11'/C) P'``, (C, d): unit rows, cosines -1/(C - 1).

    P, (d, C), has orthonormal columns that the seed draws; one dimension less than C is enough. In fewer dimensions
    there is no simplex, and the rows are unit vectors whose cosines are as near to it as `spread_apart` gets them.
    """
    rng = generator(seed, "heads.etf")
    centred = np.eye(classes) - 1 / classes
    if d >= classes - 1:
        # An orthonormal basis of what is orthogonal to 11', turned into d dimensions.
        basis = np.linalg.eigh(centred)[1][:, 1:]
        turn = np.linalg.qr(rng.standard_normal((d, classes - 1)))[0]
        frame: Array = np.sqrt(classes / (classes - 1)) * basis @ turn.T
        return frame
    return spread_apart(rng.standard_normal((classes, d)))


def sparse_etf(classes: int, d: int, zeros: float, seed: int = 0) -> Array:
    """A simplex of which a share ``zeros`` of the coordinates is 0, with norms and angles made equal again, (C, d).

    The zeros are drawn, at most d - 1 in a row; where too few coordinates are left for equal angles, these are as equal
    as `spread_apart` gets them.
    """
    start = simplex_etf(classes, d, seed)
    rng = generator(seed, "heads.etf.zeros")
    mask = np.ones((classes, d), dtype=bool)
    mask.ravel()[rng.permutation(classes * d)[: int(zeros * classes * d)]] = False
    empty = ~mask.any(axis=1)
    mask[empty, rng.integers(d, size=classes)[empty]] = True
    return spread_apart(start, mask)


def spread_apart(rows: Array, mask: Array | None = None, steps: int = 3000, tolerance: float = 1e-9) -> Array:
    """Unit rows, zero where ``mask`` is False, that descend ``|U U' - T|^2`` from the given ones, T the simplex' Gram.

    T has 1 on its diagonal and -1/(C - 1) elsewhere. Stops when no entry is off by more than ``tolerance``.
    """
    classes = len(rows)
    if classes < 2:
        raise RuleError(f"directions of classes need at least 2 classes, not {classes}")
    target = (np.eye(classes) * classes - 1) / (classes - 1)
    keep = np.ones(rows.shape, dtype=bool) if mask is None else mask
    unit = _unit(np.where(keep, rows, 0.0), keep)
    for _ in range(steps):
        gap = unit @ unit.T - target
        if np.abs(gap).max() <= tolerance:
            break
        unit = _unit(np.where(keep, unit - 0.25 * gap @ unit, 0.0), keep)
    return unit


def _unit(rows: Array, keep: Array) -> Array:
    sizes = np.sqrt((rows * rows).sum(axis=1, keepdims=True))
    # A row that lost all it had points along its kept coordinates.
    rows = np.where(sizes > 0, rows, keep.astype(np.float64))
    unit: Array = rows / np.sqrt((rows * rows).sum(axis=1, keepdims=True))
    return unit
