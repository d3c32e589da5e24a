"""`compensated` as compiled loops: the same steps at each coordinate, so the same bits."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from pluribus.core.kernels.compensated import HIGH, PIECE
from pluribus.core.kernels.jit import jit, pointer

_MASK = np.int64(HIGH)


@jit
def wide_sum(addresses: Any, scaling: Any, out: Any, work: Any) -> Any:
    """Write the weighted sum of float64 values; return the largest magnitude of a sum, as bits.

    ``scaling`` holds weights of shape (n, 3), each with its two halves (`compensated.split`), whether all are equal,
    and the divisor of a mean or zero; ``work`` scratch of 6 rows as float64 and as int64, and the mask of all but the
    sign.
    """
    (weights, equal, count), (rows, bits, mask) = scaling, work
    largest, n = np.bitwise_xor(mask, mask), addresses.size
    for start in range(0, out.size, PIECE):
        width = min(PIECE, out.size - start)
        skip = np.uint64(8 * start)
        total, error = rows[0, :width], rows[1, :width]
        if equal and n > 1:
            _added(addresses, skip, total, error)
            if count > 0:
                _divided(total, error, float(count), rows, bits)
            else:
                _multiplied(total, error, weights[0], rows, bits)
            if not all_finite(total):
                kept = rows[5, :width]
                kept[:] = total
                _products(addresses, skip, weights, (rows, bits), width)
                for k in range(width):
                    total[k] = kept[k] if abs(kept[k]) < np.inf else total[k]
        else:
            _products(addresses, skip, weights, (rows, bits), width)
        for k in range(width):
            total[k] += 0.0
        for k in range(width):
            largest = max(largest, bits[0, k] & mask)
        for k in range(width):
            out[start + k] = total[k]
    return largest


@jit
def all_finite(total: Any) -> Any:
    """Whether all of a row is finite."""
    finite = True
    for k in range(total.size):
        finite &= abs(total[k]) < np.inf
    return finite


@jit
def _row(address: Any, width: Any) -> Any:
    return numba.carray(pointer(address), (width,), np.float64)


@jit
def _added(addresses: Any, skip: Any, total: Any, error: Any) -> None:
    """Add bare values, two views in one pass over the sums."""
    width, n = total.size, addresses.size
    first = _row(addresses[0] + skip, width)
    for k in range(width):
        total[k] = first[k] + 0.0
        error[k] = 0.0
    i = 1
    while i + 2 <= n:
        a, b = _row(addresses[i] + skip, width), _row(addresses[i + 1] + skip, width)
        for k in range(width):
            s, e, x, y = total[k], error[k], a[k], b[k]
            t = s + x
            z = t - s
            e = (e + (s - (t - z))) + (x - z)
            s = t + y
            z = s - t
            total[k] = s
            error[k] = (e + (t - (s - z))) + (y - z)
        i += 2
    while i < n:
        a = _row(addresses[i] + skip, width)
        for k in range(width):
            s, x = total[k], a[k]
            t = s + x
            z = t - s
            total[k] = t
            error[k] = (error[k] + (s - (t - z))) + (x - z)
        i += 1


@jit
def _products(addresses: Any, skip: Any, weights: Any, work: Any, width: Any) -> None:
    """Write the sum of products, what it lost included, into the first row."""
    rows, bits = work
    total, error, high, cut = rows[0, :width], rows[1, :width], rows[2, :width], bits[2, :width]
    for i in range(addresses.size):
        w, first, second = weights[i, 0], weights[i, 1], weights[i, 2]
        a = _row(addresses[i] + skip, width)
        whole = numba.carray(pointer(addresses[i] + skip), (width,), np.int64)
        for k in range(width):
            cut[k] = whole[k] & _MASK
        if i == 0:
            for k in range(width):
                x, h = a[k], high[k]
                low, p = x - h, w * x
                total[k] = p
                error[k] = ((h * first - p) + h * second + low * first) + low * second
        else:
            for k in range(width):
                x, h, s = a[k], high[k], total[k]
                low, p = x - h, w * x
                e = error[k] + (((h * first - p) + h * second + low * first) + low * second)
                t = s + p
                z = t - s
                total[k] = t
                error[k] = (e + (s - (t - z))) + (p - z)
    for k in range(width):
        joined = total[k] + error[k]
        total[k] = joined if abs(joined) < np.inf else total[k]


@jit
def _divided(total: Any, error: Any, count: Any, rows: Any, bits: Any) -> None:
    width = total.size
    quotient, high, cut = rows[2, :width], rows[3, :width], bits[3, :width]
    for k in range(width):
        quotient[k] = total[k] / count
    for k in range(width):
        cut[k] = bits[2, k] & _MASK
    for k in range(width):
        q, h = quotient[k], high[k]
        p = q * count
        left = (total[k] - p) + error[k]
        left = left - ((h * count - p) + (q - h) * count)
        total[k] = q + left / count


@jit
def _multiplied(total: Any, error: Any, weight: Any, rows: Any, bits: Any) -> None:
    width = total.size
    high, cut = rows[3, :width], bits[3, :width]
    w, first, second = weight[0], weight[1], weight[2]
    for k in range(width):
        cut[k] = bits[0, k] & _MASK
    for k in range(width):
        x, h = total[k], high[k]
        low, p = x - h, w * x
        lost = ((h * first - p) + h * second + low * first) + low * second
        total[k] = p + (lost + error[k] * w)
