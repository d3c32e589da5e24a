"""What every kernel asks of its arguments, and the scratch memory of a thread.

A *tile* is a range of T coordinates seen as n one-dimensional views: n numpy arrays of one dtype (float32 or float64)
and one length T, maybe read-only, maybe strided, never stacked by the caller.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pluribus.core.errors import ContributionError, WeightError

Floats = NDArray[np.floating[Any]]
"""A float32 or float64 array."""

FLOAT32, FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)

SHRINK = 2.0**-64
"""Keeps a sum of huge float64 values finite."""

_KEEP = 1 << 26  # a thread keeps at most this many bytes between calls
_LINE = 64  # bytes of a cache line


class _Memory(threading.local):
    buffer = np.empty(0, np.uint8)


_memory = _Memory()


def check(views: Sequence[Floats], outs: Sequence[Floats] = ()) -> tuple[int, int, np.dtype[Any]]:
    """Return (n, T, dtype) of a tile, after checking that ``outs`` fit it too.

    Raises
    ------
    ContributionError
        No view, or a view or output that is not one-dimensional float32/float64 in native byte order, or differs from
        the first view in length (or, for a view, in dtype).

    """
    if not len(views):
        raise ContributionError("a tile needs at least one contributor, got none")
    shape, dtype = views[0].shape, views[0].dtype
    if len(shape) != 1 or dtype not in (FLOAT32, FLOAT64):
        raise ContributionError(f"a tile holds one-dimensional float32 or float64 views, not {dtype} of shape {shape}")
    for i, view in enumerate(views):
        if view.shape != shape or view.dtype != dtype:
            raise ContributionError(
                f"contributor {i} gives {view.dtype} of shape {view.shape}, "
                f"contributor 0 gives {dtype} of shape {shape}"
            )
    for out in outs:
        if out.shape != shape or out.dtype not in (FLOAT32, FLOAT64):
            raise ContributionError(
                f"an output of this tile is float32 or float64 of shape {shape}, not {out.dtype} of shape {out.shape}"
            )
    return len(views), shape[0], dtype


def weigh(
    views: Sequence[Floats], weights: ArrayLike, out: Floats
) -> tuple[list[Floats], list[float], bool]:
    """Return the views that have a weight, their weights, and whether their sum is scaled once by a common weight.

    Raises
    ------
    ContributionError
        As `check`.
    WeightError
        Not one weight a view.

    """
    n, _, dtype = check(views, (out,))
    scales = np.asarray(weights, np.float64)
    if scales.shape != (n,):
        raise WeightError(f"{n} contributors need {n} weights, not an array of shape {scales.shape}")
    used = [view for view, scale in zip(views, scales, strict=True) if scale != 0.0]
    nonzero: list[float] = scales[scales != 0.0].tolist()
    return used, nonzero, dtype == FLOAT32 and len(set(nonzero)) == 1


def store(row: Floats, out: Floats) -> None:
    """Round ``row`` into ``out``, with every zero positive."""
    np.copyto(out, row, casting="same_kind")
    np.add(out, 0.0, out=out)


def scratch(*wanted: tuple[int, int, np.dtype[Any]]) -> list[Floats]:
    """Return uninitialised arrays of the given (rows, columns, dtype), out of one buffer of the calling thread.

    The next call in the same thread hands out the same memory again, so a kernel asks once and returns before another
    asks.  The buffer only grows, up to 64 MiB; what is larger is allocated for this call alone.
    """
    sizes = [-(-rows * columns * dtype.itemsize // _LINE) * _LINE for rows, columns, dtype in wanted]
    need = sum(sizes) + _LINE
    buffer = _memory.buffer
    if buffer.size < need:
        buffer = np.empty(need, np.uint8)
        if need <= _KEEP:
            _memory.buffer = buffer
    at = -buffer.ctypes.data % _LINE
    arrays = []
    for size, (rows, columns, dtype) in zip(sizes, wanted, strict=True):
        arrays.append(buffer[at : at + rows * columns * dtype.itemsize].view(dtype).reshape(rows, columns))
        at += size
    return arrays
