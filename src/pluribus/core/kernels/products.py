"""Inner products of few rows as a compiled loop: what BLAS is slow at.

BLAS multiplies a matrix of 10 rows at a third of what the machine can do, and takes rows that were widened to float64
before. Here rows are widened and multiplied by fours, piece by piece in the cache: twice as fast with 10 rows, alike
with 100 (BLAS keeps pieces of many rows in the cache, and this does not). The order of the sums is the compiler's, and
fixed: the bits depend on the processor, as BLAS's do, and on nothing else. They are not those of `plain.gram`, which
is why `compiled` does not offer it as its ``gram``: passes choose it (`pluribus.core.passes.deciding`). Imports numba.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numba
import numpy as np

from pluribus.core.dtypes import Array
from pluribus.core.kernels.compiled import _addresses
from pluribus.core.kernels.jit import pointer, reordered

_PIECE = 1 << 10  # coordinates
_TILE = 4


def inner_products(views: Sequence[Array]) -> Array:
    """The (n, n) inner products of one-dimensional views of one dtype and length, in float64, exactly symmetric.

    What is not finite stays in its own row and column.
    """
    n = len(views)
    padded = -(-n // _TILE) * _TILE
    addresses, alive = _addresses(views)
    total, rows = np.zeros((padded, padded)), np.zeros((padded, _PIECE))
    _gram(addresses, np.empty(0, alive[0].dtype), len(alive[0]), rows, total)
    lower = np.tril(total[:n, :n], -1)
    return np.tril(total[:n, :n]) + lower.T


def squared_norms(views: Sequence[Array]) -> Array:
    """The (n,) squared norms of one-dimensional views of one dtype and length, in float64.

    What is not finite stays in its own entry.
    """
    addresses, alive = _addresses(views)
    total = np.empty(len(views))
    _norms(addresses, np.empty(0, alive[0].dtype), len(alive[0]), total)
    return total


@reordered
def _norms(addresses: Any, sample: Any, size: Any, total: Any) -> None:
    for i in range(addresses.size):
        row = numba.carray(pointer(addresses[i]), (size,), sample.dtype)
        square = 0.0
        for k in range(size):
            wide = np.float64(row[k])
            square += wide * wide
        total[i] = square


@reordered
def _gram(addresses: Any, sample: Any, size: Any, rows: Any, total: Any) -> None:
    """Add products to the lower triangle, by tiles; ``rows`` beyond the views are zero."""
    for start in range(0, size, rows.shape[1]):
        width = min(rows.shape[1], size - start)
        for i in range(addresses.size):
            source = numba.carray(pointer(addresses[i] + np.uint64(start * sample.itemsize)), (width,), sample.dtype)
            row = rows[i, :width]
            for k in range(width):
                row[k] = source[k]
        for i in range(0, rows.shape[0], _TILE):
            for j in range(0, i + _TILE, _TILE):
                _tile(rows, i, j, width, total)


@reordered
def _tile(rows: Any, i: Any, j: Any, width: Any, total: Any) -> None:
    """Add the 16 products of four rows with four: as many sums as fit the processor's registers."""
    a0, a1, a2, a3 = rows[i, :width], rows[i + 1, :width], rows[i + 2, :width], rows[i + 3, :width]
    b0, b1, b2, b3 = rows[j, :width], rows[j + 1, :width], rows[j + 2, :width], rows[j + 3, :width]
    s00 = s01 = s02 = s03 = s10 = s11 = s12 = s13 = s20 = s21 = s22 = s23 = s30 = s31 = s32 = s33 = 0.0
    for k in range(width):
        p0, p1, p2, p3 = a0[k], a1[k], a2[k], a3[k]
        q0, q1, q2, q3 = b0[k], b1[k], b2[k], b3[k]
        s00, s01, s02, s03 = s00 + p0 * q0, s01 + p0 * q1, s02 + p0 * q2, s03 + p0 * q3
        s10, s11, s12, s13 = s10 + p1 * q0, s11 + p1 * q1, s12 + p1 * q2, s13 + p1 * q3
        s20, s21, s22, s23 = s20 + p2 * q0, s21 + p2 * q1, s22 + p2 * q2, s23 + p2 * q3
        s30, s31, s32, s33 = s30 + p3 * q0, s31 + p3 * q1, s32 + p3 * q2, s33 + p3 * q3
    sums = ((s00, s01, s02, s03), (s10, s11, s12, s13), (s20, s21, s22, s23), (s30, s31, s32, s33))
    for p in range(4):
        for q in range(4):
            total[i + p, j + q] += sums[p][q]
