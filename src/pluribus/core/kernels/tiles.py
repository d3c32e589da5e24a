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

LONGEST_PIECE = 1 << 15
"""Coordinates of the longest piece of a tile that is worked on at once."""

_CACHE = 7 << 18  # bytes of the rows of one piece: most of a 2 MiB second-level cache
_KEEP = 1 << 26  # a thread keeps at most this many bytes between calls
_LINE = 64  # bytes of a cache line


class _Memory(threading.local):
    buffer = np.empty(0, np.uint8)


_memory = _Memory()


def check(
    views: Sequence[Any], outs: Sequence[Any] = (), allowed: tuple[Any, Any] = (FLOAT32, FLOAT64)
) -> tuple[int, int, Any]:
    """Return (n, T, dtype) of a tile, after checking that ``outs`` fit it too; ``allowed`` are float32 and float64.

    Raises
    ------
    ContributionError
        No view, or a view or output that is not one-dimensional float32/float64 in native byte order, or differs from
        the first view in length (or, for a view, in dtype).

    """
    if not len(views):
        raise ContributionError("a tile needs at least one contributor, got none")
    shape, dtype = views[0].shape, views[0].dtype
    if len(shape) != 1 or dtype not in allowed:
        raise ContributionError(f"a tile holds one-dimensional float32 or float64 views, not {dtype} of shape {shape}")
    for i, view in enumerate(views):
        if view.shape != shape or view.dtype != dtype:
            raise ContributionError(
                f"contributor {i} gives {view.dtype} of shape {view.shape}, "
                f"contributor 0 gives {dtype} of shape {shape}"
            )
    for out in outs:
        if out.shape != shape or out.dtype not in allowed:
            raise ContributionError(
                f"an output of this tile is float32 or float64 of shape {shape}, not {out.dtype} of shape {out.shape}"
            )
    return len(views), shape[0], dtype


def weigh(views: Sequence[Floats], weights: ArrayLike, out: Floats) -> tuple[list[Floats], list[float], bool]:
    """Return the views that have a weight, their weights, and whether their sum is scaled once by a common weight.

    Raises
    ------
    ContributionError
        As `check`.
    WeightError
        Not one weight a view.

    """
    _, _, dtype = check(views, (out,))
    return weighted(views, weights, dtype == FLOAT32)


def weighted(views: Sequence[Any], weights: ArrayLike, narrow: bool) -> tuple[list[Any], list[float], bool]:
    """Return what `weigh` does, of views that were checked; ``narrow`` says that they are float32."""
    scales = np.asarray(weights, np.float64)
    if scales.shape != (len(views),):
        raise WeightError(f"{len(views)} contributors need {len(views)} weights, not an array of shape {scales.shape}")
    used = [view for view, scale in zip(views, scales, strict=True) if scale != 0.0]
    nonzero: list[float] = scales[scales != 0.0].tolist()
    return used, nonzero, narrow and len(set(nonzero)) == 1


def piece_size(n: int, itemsize: int) -> int:
    """Return the number of coordinates whose n rows fit the cache, a power of two between 2048 and 32768."""
    fitting = max(_CACHE // (n * itemsize), 1)
    return min(max(1 << fitting.bit_length() - 1, 1 << 11), LONGEST_PIECE)


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
