"""Memory for what is read from files: lent while anybody holds it, then lent again.

Fresh memory of some size comes from the system page by page, and goes back when it is freed: reading 40 GB by pieces of
1 MiB took 13 s of its time into fresh memory, and 2 s into the same again.
"""

from __future__ import annotations

import weakref
from collections import deque

import numpy as np

from pluribus.core.dtypes import Array

LEAST, MOST = 1 << 17, 1 << 22
"""Bytes of the shortest and the longest pieces that are kept; shorter ones the allocator keeps by itself."""

_KEPT = 1 << 26  # bytes of pieces of one size that nobody holds

_spare: dict[int, deque[Array]] = {
    1 << power: deque(maxlen=_KEPT >> power) for power in range(LEAST.bit_length() - 1, MOST.bit_length())
}


def room(size: int) -> Array:
    """Uninitialised bytes, shape (size,), that nobody else holds.

    Those of a whole tile, a power of two, are lent again once they and all views of them are gone.
    """
    spare = _spare.get(size)
    if spare is None:
        return np.empty(size, np.uint8)
    try:  # deques are safe to share: threads, and collections of garbage in between, need no lock
        held = spare.pop()
    except IndexError:
        held = np.empty(size, np.uint8)
    # Not a view of `held` to numpy, so that its own views refer to it, and not to `held`.
    lent = np.frombuffer(held.data, np.uint8)
    weakref.finalize(lent, spare.append, held).atexit = False
    return lent
